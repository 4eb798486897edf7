"""LoRA adapters at work: several in one batch, each row with its own, rows of the base model beside them.

`install` lets the modules of a decoder ask for what a step's adapters add to their outputs. All loaded adapters' thin matrices of a module
lie one behind the other, filled up to one rank, so that the rows of each adapter are one entry of a batched product. Routed experts, whose
rows are sorted by expert already, multiply with all adapters' matrices of the expert and drop what is another's.

A step sees one set of stacks from its begin to its end; `stack` makes the next one beside it and changes nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from glm5_runtime.model.adapter_files import Pair
from glm5_runtime.model.attention import Attention
from glm5_runtime.model.layers import Linear
from glm5_runtime.model.moe import Experts
from glm5_runtime.model.quant import QuantExperts, QuantLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from glm5_runtime.model.batch import RowAdapters
    from glm5_runtime.model.decoder import Decoder

PADDING = 2
"""Rows of adapters are filled up to the same number and multiplied at once while that makes at most so many times as many of them."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Which adapter is where in a stack, by number. Modules whose adapters are the same share one."""

    places: dict[int, int]


@dataclass(frozen=True, slots=True)
class Stack:
    """All adapters' matrices of one module, in front or, of experts, behind the expert, and each one's own rank."""

    pair: Pair
    ranks: tuple[int, ...]
    layout: Layout


Stacks = dict[str, Stack]


class Groups:
    """A step's rows by adapter, for stacks of one layout: those of places `first` to `end`, as one product or one by one."""

    def __init__(self, layout: Layout, rows: RowAdapters, device: torch.device) -> None:
        self._rows, self._layout, self._device = rows, layout, device
        of_place: dict[int, list[int]] = {}
        for row, number in enumerate(rows.numbers):
            if number in layout.places:
                of_place.setdefault(layout.places[number], []).append(row)
        self.first, self.end = min(of_place), max(of_place) + 1
        self._most = max(map(len, of_place.values()))
        total = sum(map(len, of_place.values()))
        self._apart: list[tuple[int, Tensor]] = []
        self._hidden: dict[int, Tensor | None] = {}
        if (self.end - self.first) * self._most > PADDING * total:
            self._apart = [(place, torch.tensor(own, device=device)) for place, own in of_place.items()]
            return
        filled: list[int] = []
        kept: list[int] = []
        order: list[int] = []
        for place in range(self.first, self.end):
            own = of_place.get(place, [])
            kept += range(len(filled), len(filled) + len(own))
            filled += own + [0] * (self._most - len(own))
            order += own
        in_order = order == list(range(len(rows.numbers)))
        is_full = len(filled) == total
        self._rows_of = None if in_order else torch.tensor(order, device=device)
        self._kept = None if is_full else torch.tensor(kept, device=device)
        self._filled = None if in_order and is_full else torch.tensor(filled, device=device)

    def add(self, x: Tensor, output: Tensor, product: Callable[[int, int, Tensor], Tensor]) -> None:
        """Add to the rows of `output` what `product` makes of rows of x: (first place, end, [S, m, …]) → [S, m, …]."""
        for place, rows in self._apart:
            output.index_add_(0, rows, product(place, place + 1, x.index_select(0, rows).unsqueeze(0)).squeeze(0))
        if self._apart:
            return
        grouped = x if self._filled is None else x.index_select(0, self._filled)
        added = product(self.first, self.end, grouped.view(self.end - self.first, self._most, *x.shape[1:])).flatten(0, 1)
        if self._kept is not None:
            added = added.index_select(0, self._kept)
        if self._rows_of is None:
            output += added
        else:
            output.index_add_(0, self._rows_of, added)

    def hidden(self, rank: int) -> Tensor | None:
        """Where a row has nothing of a column of the places' matrices side by side, [N, S · rank]; None: nowhere."""
        if rank not in self._hidden:
            places = torch.tensor([self._layout.places.get(number, -1) for number in self._rows.numbers], device=self._device)
            columns = torch.arange(self.first, self.end, device=self._device).repeat_interleave(rank)
            self._hidden[rank] = None if len(self._rows.used) == 1 else places.unsqueeze(1) != columns
        return self._hidden[rank]


class AdapterStep:
    """One step's view of the stacks."""

    def __init__(self, stacks: Stacks, rows: RowAdapters) -> None:
        self._stacks, self._rows = stacks, rows
        self._groups: dict[Layout, Groups | None] = {}

    def of(self, module: str) -> tuple[Pair, Groups] | None:
        """What the step's adapters have for a module, None when none of them has anything."""
        stack = self._stacks.get(module)
        if stack is None:
            return None
        layout = stack.layout
        if layout not in self._groups:
            is_used = not self._rows.used.isdisjoint(layout.places)
            self._groups[layout] = Groups(layout, self._rows, stack.pair.down.device) if is_used else None
        groups = self._groups[layout]
        return None if groups is None else (stack.pair, groups)


class Adapters:
    """The stacks of a decoder, and the step under way. Steps are begun by the decoder."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}  # of the modules' matrices here, by what takes an adapter
        self.stacks: Stacks = {}
        self.step: AdapterStep | None = None
        self.everyone: AdapterStep | None = None  # the same of all data ranks' rows, which routed experts see

    def begin(self, rows: RowAdapters | None, everyone: RowAdapters | None) -> None:
        """A step with these adapters of its rows, None: with none; `everyone`: of all data ranks' rows, the same where there is one."""
        stacks = self.stacks
        self.step = None if rows is None else AdapterStep(stacks, rows)
        self.everyone = self.step if everyone is rows or everyone is None else AdapterStep(stacks, everyone)


def stack(old: Stacks, pairs: Mapping[int, Mapping[str, Pair]], kept: set[int]) -> Stacks:
    """New stacks: those of `kept` adapters as they are in the old ones, then `pairs` of new adapters by their numbers."""
    layouts: dict[tuple[int, ...], Layout] = {}
    made: Stacks = {}
    for module in {**old, **{name: None for each in pairs.values() for name in each}}:
        own = {number: pair for number, pair in _unstacked(old.get(module)).items() if number in kept}
        own |= {number: each[module] for number, each in pairs.items() if module in each}
        if not own:
            continue
        numbers = tuple(own)
        if module in old and tuple(old[module].layout.places) == numbers:
            made[module] = old[module]
            layouts.setdefault(numbers, old[module].layout)
            continue
        layout = layouts.setdefault(numbers, Layout({number: place for place, number in enumerate(numbers)}))
        ranks = tuple(pair.down.shape[-2] for pair in own.values())
        axis = _axis(own[numbers[0]].down)
        down = _as_products_read(_filled([pair.down for pair in own.values()], axis), axis)
        up = _filled([pair.up for pair in own.values()], axis)
        made[module] = Stack(Pair(down, up), ranks, layout)
    return made


def _axis(down: Tensor) -> int:
    """Where adapters are put in a stack: before the matrix, behind the expert."""
    return 1 if down.dim() == 3 else 0


def _filled(parts: list[Tensor], axis: int) -> Tensor:
    """Matrices in a stack, with rows of zeros up to the largest rank."""
    most = max(part.shape[-2] for part in parts)
    return torch.stack([functional.pad(part, (0, 0, 0, most - part.shape[-2])) for part in parts], dim=axis)


def _as_products_read(down: Tensor, axis: int) -> Tensor:
    """The same numbers, those of one input beside each other: few rows times such a matrix take half the time on CPUs."""
    order = (0, 3, 1, 2) if axis else (0, 2, 1)
    back = (0, 2, 3, 1) if axis else (0, 2, 1)
    return down.permute(order).contiguous().permute(back)


def _unstacked(old: Stack | None) -> dict[int, Pair]:
    """Each adapter's own matrices, as views."""
    if old is None:
        return {}
    axis, pair = old.pair.down.dim() - 3, old.pair
    return {
        number: Pair(pair.down.select(axis, place)[..., :rank, :], pair.up.select(axis, place)[..., :rank, :])
        for (number, place), rank in zip(old.layout.places.items(), old.ranks, strict=True)
    }


def install(decoder: Decoder) -> Adapters:
    """Let the decoder's layers take adapters. Without one in a step, a module asks whether there is one, and nothing more."""
    adapters = decoder.adapters = Adapters()
    for name, module in decoder.layers.named_modules(prefix="layers"):
        base = module.forward
        if isinstance(module, Attention):
            latents = partial(_to_latent, adapters, name, module.nope, module.to_latent)
            vars(module).update(to_latent=latents, from_latent=partial(_from_latent, adapters, name, module.nope, module.from_latent))
        elif isinstance(module, Experts | QuantExperts):
            vars(module).update(forward=partial(_experts, adapters, name, base))
            for side in ("gate_up_proj", "down_proj"):
                matrices: Tensor = getattr(module, side)
                outputs = getattr(module, f"{side}_scale", matrices).shape[1]  # 4-bit matrices have two rows in a byte
                adapters.shapes[f"{name}.{side}"] = (matrices.shape[0], outputs, matrices.shape[2])
        elif isinstance(module, Linear | QuantLinear):
            vars(module).update(forward=partial(_linear, adapters, name, base))
            adapters.shapes[name] = tuple(module.weight.shape)
    return adapters


def _linear(adapters: Adapters, name: str, base: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A linear module: x [N, in] → [N, out]."""
    output = base(x)
    if adapters.step is not None and (found := adapters.step.of(name)) is not None:
        pair, groups = found
        groups.add(x, output, lambda first, end, rows: torch.bmm(torch.bmm(rows, pair.down[first:end].mT), pair.up[first:end]))
    return output


def _to_latent(adapters: Adapters, name: str, nope: int, base: Callable[[Tensor], Tensor], query: Tensor) -> Tensor:
    """Queries through W_UK, which is part of kv_b_proj: query [N, H, nope] → [N, H, L]."""
    output = base(query)
    if adapters.step is not None and (found := adapters.step.of(f"{name}.kv_b_proj")) is not None:
        pair, groups = found

        def product(first: int, end: int, rows: Tensor) -> Tensor:
            """[S, m, H, nope] → [S, m, H, L]."""
            up = pair.up[first:end, ..., :nope].flatten(0, 1)
            narrow = torch.bmm(rows.transpose(1, 2).flatten(0, 1), up.mT)  # [S · H, m, r]
            wide = torch.bmm(narrow.view(rows.shape[0], -1, narrow.shape[-1]), pair.down[first:end])
            return wide.view(rows.shape[0], rows.shape[2], rows.shape[1], -1).transpose(1, 2)

        groups.add(query, output, product)
    return output


def _from_latent(adapters: Adapters, name: str, nope: int, base: Callable[[Tensor], Tensor], mixed: Tensor) -> Tensor:
    """Attended latents through W_UV, the other part: mixed [N, H, L] → [N, H, V]."""
    output = base(mixed)
    if adapters.step is not None and (found := adapters.step.of(f"{name}.kv_b_proj")) is not None:
        pair, groups = found

        def product(first: int, end: int, rows: Tensor) -> Tensor:
            """[S, m, H, L] → [S, m, H, V]."""
            narrow = torch.bmm(rows.transpose(1, 2).flatten(1, 2), pair.down[first:end].mT)  # [S, H · m, r]
            up = pair.up[first:end, ..., nope:].flatten(0, 1)
            wide = torch.bmm(narrow.view(up.shape[0], -1, narrow.shape[-1]), up)
            return wide.view(rows.shape[0], rows.shape[2], rows.shape[1], -1).transpose(1, 2)

        groups.add(mixed, output, product)
    return output


def _experts(adapters: Adapters, name: str, base: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """Routed experts: x [N, hidden], chosen and weights [N, k] → [N, hidden]."""
    parts = [None if adapters.everyone is None else adapters.everyone.of(f"{name}.{side}") for side in ("gate_up_proj", "down_proj")]
    if parts == [None, None]:
        return base(*given)

    def extra(place: int, x: Tensor, output: Tensor, rows: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Rows sorted by expert, each that of token `rows`; `product` multiplies each with its expert's matrix."""
        if (found := parts[place]) is None:
            return
        pair, groups = found
        down, up = (matrices[:, groups.first : groups.end].flatten(1, 2) for matrices in (pair.down, pair.up))
        narrow = product(x, down)
        if (hidden := groups.hidden(pair.down.shape[-2])) is not None:
            narrow.masked_fill_(hidden.index_select(0, rows), 0)  # not by a product, which would keep another adapter's infinity
        output += product(narrow, up.mT)

    return base(*given, extra)
