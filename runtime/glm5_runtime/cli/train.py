"""`glm5-runtime train`: one training run from its file. Looks at the file and the device before torch is imported."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from glm5_runtime import device as devices

if TYPE_CHECKING:
    from glm5_runtime.train.config import TrainingConfig
    from glm5_runtime.train.distributed.placement import Placement


def train(
    config: Annotated[Path, typer.Option(metavar="FILE", help="The training file, YAML.")],
    result: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write how the run ended, as JSON.")] = None,
    progress_port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Serve GET /progress here, as JSON; 0 takes a free port.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only look whether settings, model and data can be used: no card, no weights, nothing written.")
    ] = False,
    log_level: Annotated[str, typer.Option(metavar="debug|info|warning|error", help="Least important line in the log.")] = "info",
) -> None:
    """Fine-tune a model: LoRA or all parameters from rows, LoRA by rewards. Goes on from the run's newest checkpoint, where there is one.

    With NPROC_PER_NODE above 1 it starts that many ranks and waits for them; NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT are torchrun's.

    Exit code: 0 done, 2 the settings or the model can't be used, 3 the data can't, 4 numbers that aren't finite, 5 the disk,
    6 a rank elsewhere is gone or never came, 7 a later attempt has the folders, 8 nobody gave rewards, 9 driver, CANN, torch_npu
    and cards don't fit together, 143 asked to stop; a run that ended with 5, 6, 8 or 143 goes on when it is started again.
    """
    from glm5_runtime.config import ConfigError  # keeps `--help` instant
    from glm5_runtime.train.config import read_config
    from glm5_runtime.train.distributed import rank_process
    from glm5_runtime.train.distributed.placement import placement_of

    try:
        placement = placement_of(os.environ)
        if placement.rank is not None:
            rank_process.begin(os.environ)
        else:  # a container's first process doesn't notice the signal by itself
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        content = read_config(config, placement.size)
        settings = content.training
        if content.is_rl and placement.size > 1:
            raise ConfigError(
                f"method: {content.method} runs in one process, and this would be {placement.size} ranks; take one node, one card"
            )
        if check:
            _check(config, result, log_level)
        facts = devices.read_host(os.environ)
        choice = devices.choose(devices.wanted(settings.device, os.environ), facts)
        if log_level not in {"debug", "info", "warning", "error"}:
            raise ConfigError(f"--log-level: {log_level} is none of debug, info, warning, error")
    except (ConfigError, devices.DeviceUnusable) as error:
        typer.echo(f"glm5-runtime train can't start:\n{error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 2)) from None
    os.environ.update(devices.environment(choice, facts, os.environ))
    from glm5_runtime.server import logs

    logs.set_up(log_level if not placement.rank else max(log_level, "warning", key=logs.LEVELS.index))
    if placement.rank is None:
        logs.say(f"device={choice.device} reason={choice.reason!r}")
    if placement.size > 1 and placement.rank is None:
        first = [] if progress_port is None else ["--progress-port", str(progress_port)]
        sys.exit(_launch(placement, ["--config", str(config), "--log-level", log_level], first, result, settings))
    from glm5_runtime.train import command

    code = command.train(config, result, progress_port, placement)
    if placement.rank is not None:
        rank_process.end(code)
    sys.exit(code)


def _check(config: Path, result: Path | None, log_level: str) -> NoReturn:
    """End with the exit code that the run would have, as far as that can be known."""
    from glm5_runtime.server import logs
    from glm5_runtime.train.check import check

    logs.set_up(log_level if log_level in logs.LEVELS else "info")
    sys.exit(check(config, result))


def _launch(placement: Placement, options: list[str], first: list[str], result: Path | None, settings: TrainingConfig) -> int:
    """Start a rank for each card with these options, and rank 0 with `first` as well."""
    from glm5_runtime.config import ConfigError
    from glm5_runtime.train.distributed import affinity, launcher, rank_process

    os.environ.update(rank_process.hccl_environment(settings.rendezvous_timeout, settings.exchange_timeout, os.environ))
    cores = affinity.divide(os.sched_getaffinity(0), affinity.near(placement.per_node, os.environ))
    command = [sys.executable, "-m", "glm5_runtime.cli", "train", *options]
    try:
        return launcher.launch(placement, command, first, cores, result=result, seconds=settings.rendezvous_timeout)
    except ConfigError as error:
        typer.echo(f"glm5-runtime train can't start:\n{error}", err=True)
        return 2
