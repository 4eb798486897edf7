"""NaN and infinity while training: who brought them in, how many in a row are too many.

Asked by the loop after a step whose loss or gradient isn't finite. A single one is left out with a warning; a run of them ends training,
because a destroyed adapter that "succeeded" is worse than none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from glm5_runtime.train.distributed.ranks import ALONE
from glm5_runtime.train.distributed.sharding import own
from glm5_runtime.train.optimizer import named_trainable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.distributed.ranks import Ranks
    from glm5_runtime.train.forward import TrainingModel
    from glm5_runtime.train.packing import Pack

MOST_IN_A_ROW = 5
"""Steps with numbers that aren't finite, one after the other, that end training."""
LEAST_SCALE = 1.0
"""fp16 whose loss must be scaled down to fit doesn't overflow for being scaled: something else is wrong."""
_SHOWN_LINES = 8


class NotFinite(Exception):  # noqa: N818 - what was found
    """Training can't go on; the message names step, place and rows."""


def first_place(model: TrainingModel, packs: Iterable[Pack], ranks: Ranks = ALONE) -> str:
    """Where the first number that isn't finite appears: forward in the layers' order, then in gradients from the last layer on.

    All ranks ask together, each with its own packs, and are told the same.
    """
    forward = [_in_forward(model, pack) for pack in packs]  # all of them: other ranks take part in each
    found = ranks.each(lambda: (_first(forward), _in_gradients(model)))
    outputs, gradients = zip(*found, strict=True)
    return _first(outputs) or _first(gradients) or "no single place: it doesn't happen again"


def _first(places: Iterable[str | None]) -> str | None:
    return next((place for place in places if place is not None), None)


def _in_gradients(model: TrainingModel) -> str | None:
    for name, parameter in reversed(list(named_trainable(model))):
        if parameter.grad is not None and not bool(own(parameter.grad).isfinite().all()):
            return f"the gradient of {name.removeprefix('decoder.')}"
    return None


def _in_forward(model: TrainingModel, pack: Pack) -> str | None:
    """The part of the model that gives it first, None when all is finite. Computes the micro-batch again."""
    found: list[str] = []

    def look(name: str) -> object:
        def hook(_module: nn.Module, _inputs: object, output: tuple[Tensor, object] | Tensor) -> None:
            x = output[0] if isinstance(output, tuple) else output
            if not bool(x.isfinite().all()):
                found.append(name)

        return hook

    decoder = model.decoder
    parts = {"the embedding": decoder.embed_tokens, **{f"layer {at}": layer for at, layer in enumerate(decoder.layers)}}
    hooks = [part.register_forward_hook(look(name)) for name, part in parts.items()]  # type: ignore[arg-type] # torch's type names Any
    try:
        with torch.no_grad():
            loss = model(pack)
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"the output of {found[0]}"
    return None if bool(loss.isfinite()) else "the loss"


def rows_of(rows: Iterable[Example]) -> str:
    """Which rows a batch has, for a message."""
    lines = sorted(row.line for row in rows)
    more = f" and {len(lines) - _SHOWN_LINES} more" if len(lines) > _SHOWN_LINES else ""
    return f"lines {', '.join(map(str, lines[:_SHOWN_LINES]))}{more}"
