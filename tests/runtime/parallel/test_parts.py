"""What each rank holds of the model, what can't be divided, and where requests go. No process is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ConfigError, EngineConfig, ModelConfig, parallel_faults
from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.replicas import Replicas
from glm5_runtime.engine.scheduler import Scheduler
from glm5_runtime.model.adapter_files import Part, read_adapter
from glm5_runtime.model.adapters import install
from glm5_runtime.model.parallel import ALONE, Ranks
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops import reference
from glm5_runtime.ops.interface import operators
from glm5_runtime.tools.quantize import quantize
from tests.runtime.engine.client import TINY
from tests.runtime.engine.plans import PAGE, compute, new
from tests.support.adapters import write_adapter

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.model.adapter_files import Pair
    from glm5_runtime.model.decoder import Decoder

CPU = torch.device("cpu")


def part(ranks: Ranks = ALONE) -> Decoder:
    config = ModelConfig.from_dir(TINY).with_draft_layer()
    return load_decoder(config, TINY, operators("cpu"), CPU, torch.float32, ranks=ranks)


@pytest.fixture(scope="module")
def whole() -> dict[str, torch.Tensor]:
    return dict(part().named_parameters())


@pytest.mark.parametrize("spread", [False, True], ids=["divided experts", "whole experts"])
def test_the_ranks_parts_put_together_are_the_model(spread: bool, whole: dict[str, torch.Tensor]) -> None:
    parts = [dict(part(Ranks(rank, 4, spread_experts=spread)).named_parameters()) for rank in range(4)]
    divided = set()
    for name, parameter in whole.items():
        pieces = [each[name] for each in parts]
        axes = [axis for axis, (full, own) in enumerate(zip(parameter.shape, pieces[0].shape, strict=True)) if full != own]
        if not axes:
            assert all(torch.equal(piece, parameter) for piece in pieces), name
            continue
        divided.add(".".join(name.split(".")[-2:]))
        (axis,) = axes
        if "gate_up_proj" in name and not (spread and ".experts." in name):  # each rank has its part of the gate, then of up
            halves = [piece.chunk(2, dim=axis) for piece in pieces]
            together = torch.cat([half[which] for which in (0, 1) for half in halves], dim=axis)
        else:
            together = torch.cat(pieces, dim=axis)
        assert torch.equal(together, parameter), name
    assert divided == {
        *("embed_tokens.weight", "lm_head.weight", "head.weight", "q_b_proj.weight", "kv_b_proj.weight", "o_proj.weight"),
        *("gate_up_proj.weight", "down_proj.weight", "experts.gate_up_proj", "experts.down_proj"),
    }
    share = sum(piece.numel() for piece in parts[0].values()) / sum(piece.numel() for piece in whole.values())
    assert share < 0.33  # the rest is what each rank has: norms, routers, indexers, down projections


@pytest.mark.parametrize("spread", [False, True], ids=["divided experts", "whole experts"])
def test_the_ranks_parts_of_an_adapter_put_together_are_the_adapter(spread: bool, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, ModelConfig.from_dir(TINY))
    full, *parts = (adapter(folder, part(ranks)) for ranks in (ALONE, *(Ranks(rank, 4, spread_experts=spread) for rank in range(4))))
    cut = {}
    for module, pair in full.items():
        for side in ("down", "up"):
            whole, pieces = getattr(pair, side), [getattr(each[module], side) for each in parts]
            axes = [axis for axis, (of_all, own) in enumerate(zip(whole.shape, pieces[0].shape, strict=True)) if of_all != own]
            name = f"{module.partition('.mlp.')[2] or module.rpartition('.')[2]} {side}"
            cut[name] = axes
            if axes and axes[0] == whole.dim() - 1 and "gate_up_proj" in module:  # each rank has its part of the gate, then of up
                halves = [piece.chunk(2, dim=-1) for piece in pieces]
                pieces = [half[which] for which in (0, 1) for half in halves]
            assert torch.equal(torch.cat(pieces, dim=axes[0]) if axes else pieces[0], whole), name
    experts = {"gate_up_proj down": [0], "gate_up_proj up": [0], "down_proj down": [0], "down_proj up": [0]}
    if not spread:
        experts = {"gate_up_proj down": [], "gate_up_proj up": [2], "down_proj down": [2], "down_proj up": []}
    assert cut == {
        **{f"experts.{name}": axes for name, axes in experts.items()},
        **{f"{where}gate_up_proj {side}": axes for where in ("", "shared_experts.") for side, axes in (("down", []), ("up", [1]))},
        **{f"{where}down_proj {side}": axes for where in ("", "shared_experts.") for side, axes in (("down", [1]), ("up", []))},
        **{f"{name} {side}": [] for name in ("qkv_a_proj", "wq_b", "wk", "weights_proj") for side in ("down", "up")},
        "q_b_proj down": [],
        "q_b_proj up": [1],
        "kv_b_proj down": [],
        "kv_b_proj up": [0],
        "o_proj down": [1],
        "o_proj up": [],
    }


def adapter(folder: Path, decoder: Decoder) -> dict[str, Pair]:
    """A rank's part of an adapter."""
    own = Part(decoder.ranks, install(decoder).shapes)
    return read_adapter(folder, decoder.config, ["tiny-glm5"], 8, device=CPU, dtype=torch.float32, part=own).pairs


def test_adapters_are_cut_alike_whatever_the_weights_are_stored_in(tmp_path: Path) -> None:
    """4-bit experts have two rows in a byte."""
    quantize(TINY, tmp_path / "w4a8", "w4a8")
    ranks = Ranks(1, 2)
    packed = load_decoder(ModelConfig.from_dir(TINY), tmp_path / "w4a8", operators("cpu"), CPU, torch.float32, ranks=ranks)

    assert install(packed).shapes == install(part(ranks)).shapes


def test_experts_of_other_ranks_add_nothing_and_together_they_are_all() -> None:
    torch.manual_seed(0)
    x, chosen, weights = torch.randn(5, 32), torch.randint(0, 8, (5, 3)), torch.rand(5, 3)
    gate_up, down = torch.randn(8, 64, 32), torch.randn(8, 32, 32)
    chosen[4] = torch.tensor([0, 1, 2])  # a token that the second rank has no expert for
    halves = [reference.run_experts(x, gate_up[at : at + 4], down[at : at + 4], chosen, weights, first=at) for at in (0, 4)]

    assert torch.equal(halves[1][4], torch.zeros(32))
    assert torch.allclose(halves[0] + halves[1], reference.run_experts(x, gate_up, down, chosen, weights), rtol=1e-4, atol=1e-3)
    nobody = reference.run_experts(x[4:], gate_up[4:], down[4:], chosen[4:], weights[4:], first=4)
    assert torch.equal(nobody, torch.zeros(1, 32))


@pytest.mark.parametrize(
    ("tensor", "data", "spread", "told"),
    [
        (2, 1, False, []),
        (2, 2, True, []),
        (3, 1, False, ["num_attention_heads 4 can't be divided by 3", "vocab_size 2048 can't be divided by 3"]),
        (1, 2, False, ["--data-parallel-size: 2 without --enable-expert-parallel"]),
        (1, 3, True, ["--enable-expert-parallel: 8 experts can't be divided by 3 ranks"]),
    ],
)
def test_sizes_that_cant_be_divided_are_told_with_the_numbers(tensor: int, data: int, spread: bool, told: list[str]) -> None:
    faults = parallel_faults(ModelConfig.from_dir(TINY), tensor, data, spread_experts=spread)

    assert len(faults) == len(told)
    assert all(text in fault for text, fault in zip(told, faults, strict=True))


def test_an_engine_of_sizes_that_cant_be_divided_starts_no_process() -> None:
    def start(_spec: object) -> None:
        raise AssertionError("started")

    with pytest.raises(ConfigError, match="num_attention_heads 4 can't be divided by 3"):
        load_engine(TINY, EngineConfig(tensor_parallel_size=3), start)  # type: ignore[arg-type]  # never called


def replicas() -> Replicas:
    return Replicas([Scheduler(PagePool(10), PAGE, max_sequences=2, max_batched_tokens=16) for _ in range(2)])


def test_requests_go_where_the_fewest_are_and_then_where_their_beginning_is() -> None:
    both = replicas()
    for name in ("a", "b", "c", "d"):
        both.add(new(8, name))
    assert [both.find(name).replica for name in ("a", "b", "c", "d")] == [0, 1, 0, 1]  # type: ignore[union-attr]  # all are there

    for _ in range(3):
        compute(both.schedule())
    first = both.find("b")
    assert first is not None
    for sequence in both.alive:
        both.remove(sequence)
    again = new(8, "again", first=first.tokens[0])
    both.add(again)

    assert again.replica == 1
    assert both.usage == 0.0


def test_a_step_plans_all_replicas_and_their_pages_are_their_own() -> None:
    both = replicas()
    for name in ("a", "b"):
        both.add(new(8, name))
    plan = both.schedule()

    assert [(step.sequence.replica, step.count) for step in plan] == [(0, 8), (1, 8)]
    assert plan[0].sequence.pages == plan[1].sequence.pages == [1, 2]  # the same numbers, in two caches
    assert both.usage == pytest.approx(0.2)
    assert [sequence.request.id for sequence in both.running] == ["a", "b"]
