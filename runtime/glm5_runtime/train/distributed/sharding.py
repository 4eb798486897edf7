"""The model over several ranks, by torch's own means: DDP, where every rank holds all of it, or FSDP2, where each holds a part.

Called by build, by the loop and by export. Gradients are summed over ranks, not averaged: each rank's loss is a part of the batch's, and
to multiply it by their number first would cost fp16 a part of its range.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from glm5_runtime.train.packing import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor

    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.distributed.ranks import Ranks
    from glm5_runtime.train.forward import TrainingModel
    from glm5_runtime.train.packing import Pack

Part = tuple[list["Example"], float]
"""Rows of a micro-batch and what their loss counts: 1, or 0 for a rank that has none and only takes part."""


class Sharded:
    """The model as the loop calls it."""

    def __init__(self, model: TrainingModel, ranks: Ranks, way: str) -> None:
        """`way`: ddp or fsdp; the model of one rank stays as it is, and one for FSDP has been divided where it was loaded (`shard`)."""
        self._ddp: DistributedDataParallel | None = None
        self._forward: Callable[[Pack], Tensor] = model
        if ranks.is_alone:
            return
        if way == "ddp":
            self._ddp = DistributedDataParallel(model, find_unused_parameters=False, gradient_as_bucket_view=True, broadcast_buffers=False)
            self._ddp.register_comm_hook(None, lambda _, bucket: _sum(bucket.buffer()))  # torch reads annotations of a def, as types
            self._forward = self._ddp
        else:
            assert isinstance(model, FSDPModule), "built for one rank"

    def __call__(self, pack: Pack) -> Tensor:
        """The micro-batch's loss, as `TrainingModel` gives it; all ranks call it together."""
        return self._forward(pack)

    def gathering(self, is_last: bool) -> AbstractContextManager[None]:
        """Around a micro-batch: gradients of DDP are exchanged with the last one alone."""
        return nullcontext() if self._ddp is None or is_last else self._ddp.no_sync()


def shard(model: TrainingModel, size: int, device: torch.device, load: Callable[[str], None]) -> None:
    """Divide a model that is on the meta device among ranks: each layer as soon as it has its numbers, so that no rank ever holds two.

    `load` is given a path in the decoder and puts what is there into main memory; "" is what is left after all layers. Afterwards
    parameters are DTensors, a part of each on `device`.
    """
    mesh = init_device_mesh(device.type, (size,))
    for number, layer in enumerate(model.decoder.layers):
        load(f"layers.{number}")
        fully_shard(layer, mesh=mesh)
    load("")
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # the other way of it is known to NCCL alone


def _sum(gradients: Tensor) -> Any:  # noqa: ANN401 - a future, which torch's stubs don't say
    """How DDP exchanges some of its gradients."""
    work = dist.all_reduce(gradients, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def shares(rows: Sequence[Example], ranks: Ranks, pieces: int) -> list[Part]:
    """This rank's micro-batches of a batch, at most `pieces`, as many as every other rank has, with about as many tokens.

    A rank with nothing left computes the shortest row for nothing: every rank must take part in every exchange.
    """
    piles = cut(rows, ranks.size * pieces)
    idle: Part = ([min(rows, key=lambda row: len(row.tokens))], 0.0)
    rounds = range(0, len(piles), ranks.size)
    return [(piles[at + ranks.rank], 1.0) if at + ranks.rank < len(piles) else idle for at in rounds]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which this rank may hold a part; every rank asks together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own(tensor: Tensor) -> Tensor:
    """This rank's part of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
