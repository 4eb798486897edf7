"""`glm5-runtime check`: whether files can be trained on, before any card is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated, Literal

import typer


def check(  # noqa: PLR0917 - typer makes one option of each argument
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="JSON lines, or JSON arrays of objects.")],
    model: Annotated[Path, typer.Option(metavar="DIR", help="Checkpoint folder; its tokenizer and chat template are used.")],
    output: Annotated[Literal["table", "json"], typer.Option(help="For people, or one JSON object.")] = "table",
    lenient: Annotated[bool, typer.Option("--lenient", help="Leave out rows that can't be used instead of refusing the data.")] = False,
    max_length: Annotated[
        int | None, typer.Option(min=16, metavar="N", help="Longest example, tokens.", show_default="the model's context")
    ] = None,
    long_rows: Annotated[Literal["refuse", "cut"], typer.Option(help="What becomes of longer ones.")] = "refuse",
    format: Annotated[  # noqa: A002 - the flag's name
        Literal["auto", "alpaca", "sharegpt", "openai", "preference", "text"],
        typer.Option(help="auto: each row says its own by its keys; else rows of another format are refused."),
    ] = "auto",
    chat_template: Annotated[str, typer.Option(metavar="auto|5|5.1|5.2|5.3|PATH", help="As for serve.")] = "auto",
    model_version: Annotated[Literal["5", "5.1", "5.2", "5.3"] | None, typer.Option(help="As for serve.")] = None,
) -> None:
    """Read training data as training would: rows read, kept and skipped and why, the first bad lines, lengths in tokens.

    Exit code: 0 the data can be used, 1 it can't, 2 the command is wrong.
    """
    from glm5_runtime.config import ConfigError, ModelConfig  # keeps `--help` instant
    from glm5_runtime.text.template import TemplateError
    from glm5_runtime.train.data import reading
    from glm5_runtime.train.data.labels import Renderer

    missing = [f"{path} is not a file" for path in files if not path.is_file()]
    unreadable = [f"{path} can't be read" for path in files if path.is_file() and not os.access(path, os.R_OK)]
    try:
        if missing or unreadable:
            raise ConfigError("\n".join([*missing, *unreadable]))
        renderer = Renderer.from_dir(model, chat_template, model_version)
        longest = ModelConfig.from_dir(model).max_model_len
        if max_length is not None and max_length > longest:
            raise ConfigError(f"--max-length: {max_length} is more than the model's context of {longest}")
    except (ConfigError, TemplateError) as error:
        typer.echo(f"glm5-runtime check can't start:\n{error}", err=True)
        raise typer.Exit(2) from None
    config = reading.ReadingConfig(max_length or longest, format, long_rows, lenient, "--lenient")
    report = reading.check(files, renderer, config)
    typer.echo(json.dumps(report.as_json(), indent=2, ensure_ascii=False) if output == "json" else report.as_table())
    raise typer.Exit(1 if report.faults else 0)
