"""LoRA adapters at work: several in one batch, each row with its own, rows of the base model beside them.

`install` lets the linear modules of a decoder ask for what a step's adapters add to their outputs. All loaded adapters' thin matrices of a
module lie one behind the other ([R, in] and [R, width], R the sum of the ranks), so a step takes three operations for each module however
many adapters are in it: a product with all of them, zeros where a row has another adapter or none, the product back, added in place. That
is more arithmetic than rows sorted by adapter would take, and less time: decode reads every matrix in any case, and few rows in each group
make poor products. Only the columns between the first and the last adapter of a step are computed; one adapter alone gets just its own.

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
from glm5_runtime.ops import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from glm5_runtime.model.batch import RowAdapters
    from glm5_runtime.model.decoder import Decoder


@dataclass(frozen=True, eq=False)
class Layout:
    """Which columns of a stack are whose: owners [R] int64, (first, end) by adapter. Modules with the same columns share one."""

    owners: Tensor
    spans: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Stack:
    """All adapters' matrices of one module."""

    pair: Pair
    layout: Layout


Stacks = dict[str, Stack]


@dataclass(frozen=True, slots=True)
class Part:
    """What a step needs of a stack; `hidden` [N, R] tells where a row has none of it, None: every row has all of it."""

    down: Tensor
    up: Tensor
    hidden: Tensor | None

    def narrow(self, x: Tensor) -> Tensor:
        """[N, in] → [N, R], zero where hidden."""
        return self.hide(functional.linear(x, self.down))

    def hide(self, narrow: Tensor) -> Tensor:
        """Zeros where a row has no part; not by a product, which would keep another adapter's infinity."""
        return narrow if self.hidden is None else narrow.masked_fill_(self.hidden, 0)


class AdapterStep:
    """One step's view of the stacks."""

    def __init__(self, stacks: Stacks, rows: RowAdapters) -> None:
        self._stacks, self._rows = stacks, rows
        self._views: dict[Layout, tuple[int, int, Tensor | None] | None] = {}

    def part(self, module: str) -> Part | None:
        """What the step's adapters have for a module, None when none of them has anything."""
        stack = self._stacks.get(module)
        if stack is None:
            return None
        layout = stack.layout
        if layout not in self._views:
            self._views[layout] = self._view(layout)
        view = self._views[layout]
        if view is None:
            return None
        first, end, hidden = view
        return Part(stack.pair.down[..., first:end, :], stack.pair.up[..., first:end, :], hidden)

    def _view(self, layout: Layout) -> tuple[int, int, Tensor | None] | None:
        spans = [layout.spans[number] for number in self._rows.used if number in layout.spans]
        if not spans:
            return None
        first, end = min(start for start, _ in spans), max(end for _, end in spans)
        if len(self._rows.used) == 1:
            return first, end, None
        return first, end, layout.owners[first:end] != self._rows.numbers.unsqueeze(1)


class Adapters:
    """The stacks of a decoder, and the step under way. Steps are begun by the decoder."""

    def __init__(self) -> None:
        self.modules: set[str] = set()  # that can take an adapter
        self.stacks: Stacks = {}
        self.step: AdapterStep | None = None

    def begin(self, rows: RowAdapters | None) -> None:
        """A step with these adapters, None: with none."""
        self.step = None if rows is None else AdapterStep(self.stacks, rows)


def stack(old: Stacks, pairs: Mapping[int, Mapping[str, Pair]], kept: set[int]) -> Stacks:
    """New stacks: those of `kept` adapters as they are in the old ones, then `pairs` of new adapters by their numbers."""
    layouts: dict[tuple[tuple[int, tuple[int, int]], ...], Layout] = {}
    made: Stacks = {}
    for module in {**old, **{name: None for each in pairs.values() for name in each}}:
        own: dict[int, Pair] = {}
        if module in old:
            pair = old[module].pair
            for number, (first, end) in old[module].layout.spans.items():
                if number in kept:
                    own[number] = Pair(pair.down[..., first:end, :], pair.up[..., first:end, :])
        own |= {number: each[module] for number, each in pairs.items() if module in each}
        if not own:
            continue
        ends = torch.tensor([pair.down.shape[-2] for pair in own.values()]).cumsum(0).tolist()
        spans = dict(zip(own, zip([0, *ends], ends, strict=False), strict=True))
        if module in old and old[module].layout.spans == spans:
            made[module] = old[module]
            continue
        down, up = (torch.cat([getattr(pair, side) for pair in own.values()], dim=-2) for side in ("down", "up"))
        key = tuple(spans.items())
        if key not in layouts:
            owners = [number for number, (first, end) in spans.items() for _ in range(first, end)]
            layouts[key] = Layout(torch.tensor(owners, device=down.device), spans)
        made[module] = Stack(Pair(down, up), layouts[key])
    return made


def install(decoder: Decoder) -> Adapters:
    """Let the decoder's layers take adapters. Without one in a step, a module asks whether there is one, and nothing more."""
    adapters = decoder.adapters = Adapters()
    for name, module in decoder.layers.named_modules(prefix="layers"):
        base = module.forward
        if isinstance(module, Attention):
            latents = partial(_to_latent, adapters, name, module, module.to_latent)
            vars(module).update(to_latent=latents, from_latent=partial(_from_latent, adapters, name, module, module.from_latent))
        elif isinstance(module, Experts):
            vars(module).update(forward=partial(_experts, adapters, name, owner=module, base=base))
            adapters.modules |= {f"{name}.gate_up_proj", f"{name}.down_proj"}
        elif isinstance(module, Linear) or hasattr(module, "weight_scale"):  # plain or quantised
            vars(module).update(forward=partial(_linear, adapters, name, base))
            adapters.modules.add(name)
    return adapters


def _linear(adapters: Adapters, name: str, base: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A linear module: x [N, in] → [N, out]."""
    output = base(x)
    if adapters.step is not None and (part := adapters.step.part(name)) is not None:
        output.addmm_(part.narrow(x), part.up)
    return output


def _to_latent(adapters: Adapters, name: str, owner: Attention, base: Callable[[Tensor], Tensor], query: Tensor) -> Tensor:
    """Queries through W_UK, which is part of kv_b_proj: query [N, H, nope] → [N, H, L]."""
    output = base(query)
    if adapters.step is not None and (part := adapters.step.part(f"{name}.kv_b_proj")) is not None:
        up = part.up.view(-1, owner.heads, owner.nope + owner.value)[..., : owner.nope]
        narrow = part.hide(torch.bmm(query.transpose(0, 1), up.permute(1, 2, 0)))  # [H, N, R]
        output += torch.matmul(narrow, part.down).transpose(0, 1)
    return output


def _from_latent(adapters: Adapters, name: str, owner: Attention, base: Callable[[Tensor], Tensor], mixed: Tensor) -> Tensor:
    """Attended latents through W_UV, the other part: mixed [N, H, L] → [N, H, V]."""
    output = base(mixed)
    if adapters.step is not None and (part := adapters.step.part(f"{name}.kv_b_proj")) is not None:
        up = part.up.view(-1, owner.heads, owner.nope + owner.value)[..., owner.nope :]
        narrow = part.hide(torch.matmul(mixed.transpose(0, 1), part.down.mT))  # [H, N, R]
        output += torch.bmm(narrow, up.transpose(0, 1)).transpose(0, 1)
    return output


def _experts(
    adapters: Adapters, name: str, x: Tensor, chosen: Tensor, weights: Tensor, *, owner: Experts, base: Callable[..., Tensor]
) -> Tensor:
    """Routed experts: x [N, hidden], chosen and weights [N, k] → [N, hidden]."""
    parts = [None if adapters.step is None else adapters.step.part(f"{name}.{side}") for side in ("gate_up_proj", "down_proj")]
    if parts == [None, None]:
        return base(x, chosen, weights)

    def extra(place: int, x: Tensor, output: Tensor, rows: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Rows sorted by expert, each that of token `rows`; `product` multiplies each with its expert's matrix."""
        if (part := parts[place]) is None:
            return
        narrow = product(x, part.down)
        if part.hidden is not None:
            narrow.masked_fill_(part.hidden.index_select(0, rows), 0)
        output += product(narrow, part.up.mT)

    return reference.run_sorted_experts(x, owner.gate_up_proj, owner.down_proj, chosen, weights, extra=extra)
