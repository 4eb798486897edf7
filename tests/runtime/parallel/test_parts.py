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
from glm5_runtime.model.parallel import ALONE, Ranks
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops import reference
from glm5_runtime.ops.interface import operators
from tests.runtime.engine.client import TINY
from tests.runtime.engine.plans import PAGE, compute, new

if TYPE_CHECKING:
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
    faults = parallel_faults(ModelConfig.from_dir(TINY), tensor, data, spread_experts=spread, adapters=False)

    assert len(faults) == len(told)
    assert all(text in fault for text, fault in zip(told, faults, strict=True))


def test_an_engine_of_sizes_that_cant_be_divided_starts_no_process() -> None:
    def start(_spec: object) -> None:
        raise AssertionError("started")

    with pytest.raises(ConfigError, match="num_attention_heads 4 can't be divided by 3"):
        load_engine(TINY, EngineConfig(tensor_parallel_size=3), start)  # type: ignore[arg-type]  # never called
    with pytest.raises(ConfigError, match="--enable-lora"):
        load_engine(TINY, EngineConfig(tensor_parallel_size=2, max_loras=1), start)  # type: ignore[arg-type]  # never called


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
