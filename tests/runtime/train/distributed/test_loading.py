"""How ranks load a model that may be larger than what each of them holds: layer by layer, each divided before the next one is read."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from glm5_runtime.model.weights import Loading
from glm5_runtime.train.build import build
from glm5_runtime.train.distributed.sharding import whole
from tests.runtime.model.oracle import CPU
from tests.runtime.train.distributed.together import together
from tests.runtime.train.runs import settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.train.distributed.ranks import Ranks

LAYERS = 4
RUNS: dict[str, dict[str, Any]] = {
    "lora": {"lora": {"targets": ["q_a_proj", "kv_b_proj", "experts"]}, "training": {"dtype": "bf16"}},
    "full": {"method": "full", "training": {"dtype": "bf16"}},
}
Seen = tuple[str, list[str]]


def test_a_rank_holds_one_whole_layer_at_a_time_while_it_loads_and_half_of_the_numbers_of_one_rank_then(tmp_path: Path) -> None:
    found = together(2, tmp_path, loaded, tmp_path)

    expected = [(f"layers.{number}", [*["half"] * number, "whole", *["meta"] * (LAYERS - number - 1), "meta"]) for number in range(LAYERS)]
    for seen, differing in (each[name] for each in found for name in RUNS):
        assert seen == [*expected, ("", ["half"] * LAYERS + ["whole"]), ("then", ["half"] * (LAYERS + 1))]
        assert differing == []


def loaded(ranks: Ranks, folder: Path) -> dict[str, tuple[list[Seen], list[str]]]:
    """Where the parameters of each layer, and those outside of layers, are whenever a part was read; which are other than one rank's."""
    with pytest.MonkeyPatch.context() as patch:
        return {name: watched(ranks, folder, changes, patch) for name, changes in RUNS.items()}


def watched(ranks: Ranks, folder: Path, changes: dict[str, Any], patch: pytest.MonkeyPatch) -> tuple[list[Seen], list[str]]:
    seen: list[Seen] = []
    config = settings(folder, **changes)
    alone = dict(build(config, CPU).model.named_parameters())
    fill, read = Loading.fill, list[weakref.ref[nn.Parameter]]()

    def watch(loading: Loading, device: torch.device, dtype: torch.dtype, path: str = "", **given: bool) -> list[str]:
        assert not [each for each in read if each() is not None], f"before {path}: whole parameters that were divided are still held"
        filled = fill(loading, device, dtype, path, **given)
        read.extend(weakref.ref(loading.decoder.get_parameter(name)) for name in filled)
        seen.append((path, places(loading.decoder)))
        return filled

    with patch.context() as inner:
        inner.setattr(Loading, "fill", watch)
        model = build(config, CPU, ranks).model
    seen.append(("then", places(model.decoder)))
    ours = dict(model.named_parameters())
    assert ours.keys() == alone.keys()
    return seen, [name for name, parameter in ours.items() if not same(parameter, alone[name])]


def places(decoder: Decoder) -> list[str]:
    inside = {id(parameter) for parameter in decoder.layers.parameters()}
    outside = [parameter for parameter in decoder.parameters() if id(parameter) not in inside]
    return [*(place(layer.parameters()) for layer in decoder.layers), place(outside)]


def place(parameters: Iterable[nn.Parameter]) -> str:
    """meta, whole or half, and what else there is."""
    held = list(parameters)
    parts = [each.to_local().numel() for each in held if isinstance(each, DTensor)]
    if len(parts) == len(held):
        return "half" if 2 * sum(parts) == sum(each.numel() for each in held) else f"{parts} numbers of them"
    devices = {each.device.type for each in held}
    if parts or len(devices) > 1:
        return f"{len(parts)} of {len(held)} divided, on {devices}"
    return "meta" if devices == {"meta"} else "whole"


def same(one: nn.Parameter, other: nn.Parameter) -> bool:
    return (one.dtype, one.requires_grad) == (other.dtype, other.requires_grad) and torch.equal(whole(one.detach()), other)
