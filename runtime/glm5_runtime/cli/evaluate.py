"""`glm5-runtime evaluate`: what an adapter is worth, measured on a running server. Loads no model and no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated, Literal

import typer

from glm5_runtime.cli.arguments import ArgumentFaults
from glm5_runtime.cli.serve import read_key


def evaluate(  # noqa: PLR0917 - typer makes one option of each argument
    url: Annotated[str, typer.Option(metavar="URL", help="The server, such as http://chat:8000.")],
    model: Annotated[str, typer.Option(metavar="NAME", help="The adapter, by the name it is served under.")],
    base: Annotated[str, typer.Option(metavar="NAME", help="The model that it is compared with, by its name.")],
    checkpoint: Annotated[Path, typer.Option(metavar="DIR", help="The model's folder; its tokenizer and chat template are used.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Rows that were not trained on, as for train.")],
    result: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write the result too, as JSON.")] = None,
    most_rows: Annotated[int, typer.Option(min=1, metavar="N", help="Evaluate the first N rows.")] = 200,
    chat_template: Annotated[str, typer.Option(metavar="auto|5|5.1|5.2|5.3|PATH", help="As for serve.")] = "auto",
    model_version: Annotated[Literal["5", "5.1", "5.2", "5.3"] | None, typer.Option(help="As for serve.")] = None,
) -> None:
    """Compare an adapter with its model on held-out rows: loss over the answers' tokens, and answers that are exactly right.

    Asks a running server; the API key, if any, is read from GLM5_API_KEY. Exit code: 0 done, 2 the settings are wrong, 3 the data
    can't be used, 1 anything else.
    """
    from rich.console import Console

    from glm5_runtime.tools import evaluate as tool
    from glm5_runtime.tools.progress import counting

    console = Console(stderr=True, soft_wrap=True)
    faults = [f"--data: {data} is not a file"] if not data.is_file() else []
    faults += [f"--checkpoint: {checkpoint} is not a folder"] if not checkpoint.is_dir() else []
    faults += [f"--url: {url} must begin with http:// or https://"] if not url.startswith(("http://", "https://")) else []
    faults += ["--base: must be another name than --model"] if base == model else []
    key = None
    try:
        key = read_key(os.environ)
    except ArgumentFaults as found:
        faults += found.faults
    if faults:
        code, ending = 2, {"outcome": "ConfigError", "message": "\n".join(faults)}
    else:
        config = tool.EvaluationConfig(url, model, base, checkpoint, data, most_rows, key, chat_template, model_version)
        with counting(console, "answers") as told:
            code, ending = tool.evaluate(config, told)
    if result is not None:
        result.write_text(json.dumps(ending, ensure_ascii=False))
    if code:
        console.print(f"glm5-runtime evaluate can't go on:\n{ending['message']}", markup=False, highlight=False)
    else:
        typer.echo(json.dumps(ending, indent=2))
    raise typer.Exit(code)
