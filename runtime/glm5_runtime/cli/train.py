"""`glm5-runtime train`: one training run from its file. Looks at the file and the device before torch is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated

import typer

from glm5_runtime import device as devices


def train(
    config: Annotated[Path, typer.Option(metavar="FILE", help="The training file, YAML.")],
    result: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write how the run ended, as JSON.")] = None,
    progress_port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Serve GET /progress here, as JSON; 0 takes a free port.")
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="debug|info|warning|error", help="Least important line in the log.")] = "info",
) -> None:
    """Fine-tune a model: LoRA or all parameters. Goes on from the newest checkpoint of the run, where there is one.

    Exit code: 0 done, 2 the settings or the model can't be used, 3 the data can't, 4 numbers that aren't finite, 5 the disk,
    143 asked to stop; a run that ended with 5 or 143 goes on when it is started again.
    """
    from glm5_runtime.config import ConfigError  # keeps `--help` instant
    from glm5_runtime.train.config import read_config

    try:
        facts = devices.read_host(os.environ)
        choice = devices.choose(read_config(config).training.device, facts)
        if log_level not in {"debug", "info", "warning", "error"}:
            raise ConfigError(f"--log-level: {log_level} is none of debug, info, warning, error")
    except (ConfigError, devices.DeviceUnusable) as error:
        typer.echo(f"glm5-runtime train can't start:\n{error}", err=True)
        raise typer.Exit(2) from None
    os.environ.update(devices.environment(choice, facts, os.environ))
    from glm5_runtime.server import logs
    from glm5_runtime.train import command

    logs.set_up(log_level)
    logs.say(f"device={choice.device} reason={choice.reason!r}")
    sys.exit(command.train(config, result, progress_port))
