"""What `glm5-runtime quantize` says while it works and at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from glm5_runtime.config import ConfigError
from glm5_runtime.model.checkpoint_files import WeightsError
from glm5_runtime.model.quant import FLOAT
from glm5_runtime.tools import drift
from glm5_runtime.tools import quantize as maker
from glm5_runtime.tools.progress import counting

if TYPE_CHECKING:
    from pathlib import Path

_CHECKED_TOKENS = 2048


def quantize(model: Path, output: Path, scheme: maker.Scheme, keep: list[str], check: Path | None) -> int:
    """Run it; the exit code: 0 done, 2 nothing was written and the message says why."""
    console = Console(stderr=True, soft_wrap=True)
    try:
        tokens = [] if check is None else _tokens(model, check)
        job = maker.prepare(model, output, scheme, keep)  # before the bar: its faults need none above them
        with counting(console, "tensors") as told:
            maker.run(job, told)
    except (maker.QuantizeError, ConfigError, WeightsError, OSError) as error:
        console.print(f"glm5-runtime quantize can't go on:\n{error}", markup=False, highlight=False)
        return 2
    plan = job.plan
    count = sum(kind != FLOAT for kind in plan.kinds.values())
    console.print(f"{output}: {plan.size / 1e9:.3g} GB, {count} of {len(plan.kinds)} tensors quantised", markup=False, highlight=False)
    if tokens:
        found = drift.measure(model, output, tokens)
        text = f"drift from fp32 over {found.positions} tokens: KL {found.kl:.4f} nats, likeliest token the same in {found.top1:.1%}"
        console.print(text, highlight=False)
    return 0


def _tokens(model: Path, text: Path) -> list[int]:
    """The beginning of a text as the model reads it; raises QuantizeError."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - only a check needs it

    try:
        ids: list[int] = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text.read_text(), add_special_tokens=False).ids
    except Exception as error:  # the library raises plain Exception for a file that is no tokenizer
        raise maker.QuantizeError(f"--check: {text} can't be read with {model / 'tokenizer.json'}: {error}") from error
    if not ids:
        raise maker.QuantizeError(f"--check: {text} holds no text")
    return ids[:_CHECKED_TOKENS]
