"""`glm5-runtime doctor` and `glm5-runtime quantize`: what is done around serving."""

from __future__ import annotations

import json
import os
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated, Literal

import typer


def doctor(
    output: Annotated[Literal["table", "json"], typer.Option(help="For people, or one JSON object.")] = "table",
    compute: Annotated[
        bool, typer.Option("--compute", help="Only multiply known matrices on each device, and compare with the CPU; one line of JSON.")
    ] = False,
    result: Annotated[Path | None, typer.Option(metavar="FILE", help="With --compute: write that line there too.")] = None,
) -> None:
    """Say what this machine's stack supports: driver, CANN, torch, cards, and each NPU operator, run on the card if there is one.

    Exit code: 0 all operators run in their kernels and agree with the reference, 1 some don't, 3 no NPU is usable here. With --compute:
    0 every device computes as the CPU does, 1 one doesn't, fails or hangs, 3 nothing can be said of them.
    """
    from glm5_runtime import doctor as examination  # keeps `--help` instant

    if compute:
        found = examination.compute(os.environ)
        line = json.dumps({name: found[name] for name in ("outcome", "message")}, ensure_ascii=False)
        if result is not None:
            result.write_text(line)
        typer.echo(line)
        raise typer.Exit(found["exit_code"])
    report = examination.examine(os.environ)
    typer.echo(json.dumps(report, indent=2) if output == "json" else examination.as_table(report))
    raise typer.Exit(report["exit_code"])


def quantize(
    model: Annotated[Path, typer.Option(metavar="DIR", help="Checkpoint in bf16, fp16 or fp32.")],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make; it must not exist.")],
    scheme: Annotated[
        Literal["w8a8", "w4a8"], typer.Option(help="All linear layers in int8, or routed experts in 4 bits and the rest in int8.")
    ] = "w8a8",
    keep: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Tensors that stay as they are, such as 'model.layers.0.*'; several times.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text to measure on how far the result is from the model in fp32; both must fit in memory."),
    ] = None,
) -> None:
    """Make a W8A8 or W4A8 checkpoint in ModelSlim's layout by rounding, without calibration data.

    Works file by file, so any model fits in memory. A run that is interrupted leaves no output.
    """
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    from glm5_runtime.tools import command  # keeps `--help` instant

    raise typer.Exit(command.quantize(model, output, scheme, keep or [], check))
