"""One rank of two, as a fork of a process that has torch already: its part of a batch, and what comes out for all."""

from __future__ import annotations

import multiprocessing
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from glm5_runtime.train.build import build
from glm5_runtime.train.optimizer import named_trainable
from glm5_runtime.train.packing import cut, pack, trained_tokens
from tests.runtime.train.rows import make_rows
from tests.runtime.train.runs import settings

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.forward import TrainingModel

RANKS = 2
CPU = torch.device("cpu")
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.runtime.train.sharded"])


def run(folder: Path, way: str, changes: dict[str, Any]) -> float:
    """The largest difference between a gradient on two ranks and on one, as a part of the gradient's largest number."""
    results = _context.Queue()
    ranks = [_context.Process(target=rank, args=(number, folder, way, changes, results), daemon=True) for number in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    worst: float = results.get(timeout=10)
    return worst


def built(config: TrainConfig) -> TrainingModel:
    """The model, with adapters that already do something: from zeros no gradient reaches the lower matrices."""
    model = build(config, CPU).model.train()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in named_trainable(model):
        if name.endswith(".up"):
            parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def gradients_of_one(config: TrainConfig) -> dict[str, Tensor]:
    model = built(config)
    rows = make_rows([33, 70, 20, 100])
    (model(pack(rows, CPU)) / trained_tokens(rows)).backward()
    return {name: parameter.grad for name, parameter in named_trainable(model) if parameter.grad is not None}


def rank(number: int, folder: Path, way: str, changes: dict[str, Any], results: Any) -> None:  # noqa: ANN401 - a queue
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=number, world_size=RANKS)
    config = settings(folder, **changes)
    expected = gradients_of_one(config)
    model: Any = built(config)
    rows = make_rows([33, 70, 20, 100])
    if way == "fsdp":
        for layer in model.decoder.layers:
            fully_shard(layer)
        wrapped = fully_shard(model)
    else:
        wrapped = DistributedDataParallel(model, find_unused_parameters=False, gradient_as_bucket_view=True)
    part = pack(cut(rows, RANKS)[number], CPU)
    (wrapped(part) * RANKS / trained_tokens(rows)).backward()  # ranks' gradients are averaged
    worst = 0.0
    for name, parameter in named_trainable(model):
        own = parameter.grad.full_tensor() if way == "fsdp" else parameter.grad  # type: ignore[union-attr] # a DTensor
        scale = float(expected[name].abs().max())
        worst = max(worst, float((own - expected[name]).abs().max()) / scale if scale else 0.0)  # type: ignore[operator] # as above
    if number == 0:
        results.put(worst)
        results.close()
        results.join_thread()
    dist.destroy_process_group()
    sys.exit(0)
