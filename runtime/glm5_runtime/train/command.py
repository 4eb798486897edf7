"""`glm5-runtime train`: from a file of settings to an adapter. Reads as the steps of a run; each exit code is one kind of ending.

The command line calls `train`. What a run ends with is also written as JSON where `result` says, for whoever started the process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from glm5_runtime.config import ConfigError
from glm5_runtime.device import wanted
from glm5_runtime.engine.load import torch_device
from glm5_runtime.engine.team import RankLost
from glm5_runtime.model.checkpoint_files import WeightsError
from glm5_runtime.text.template import TemplateError
from glm5_runtime.train.build import build
from glm5_runtime.train.checkpoint import CheckpointError, Checkpoints
from glm5_runtime.train.config import read_config
from glm5_runtime.train.data import reading
from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.distributed.ranks import ALONE
from glm5_runtime.train.distributed.rendezvous import Meeting
from glm5_runtime.train.export import ExportError, export_adapter, must_be_free
from glm5_runtime.train.faults import NotFinite
from glm5_runtime.train.fence import Fence, Superseded, attempt_of
from glm5_runtime.train.loop import Interrupted, Trainer
from glm5_runtime.train.merge import export_checkpoint
from glm5_runtime.train.progress import reporter
from glm5_runtime.train.progress_server import serving
from glm5_runtime.train.rl.policy import build_policy
from glm5_runtime.train.rl.rewards import RewardError
from glm5_runtime.train.rl.run import learning
from glm5_runtime.train.source import Selected, Source, by_length, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from glm5_runtime.train.build import Trainee
    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.data.dataset import Dataset
    from glm5_runtime.train.distributed.placement import Placement
    from glm5_runtime.train.distributed.ranks import Ranks
    from glm5_runtime.train.rl.step import RlStep

log = logging.getLogger(__name__)

ATTEMPT = "GLM5_ATTEMPT"
"""Environment variable: number of the attempt, in a cluster."""


class FileMissingError(Exception):
    """A file of data.files can't be read: misspelt, or a volume that doesn't show it yet. That can pass, as what a file says can't."""


EXIT_CODES: dict[type[Exception], int] = {
    ConfigError: 2,
    TemplateError: 2,
    WeightsError: 2,
    reading.DataError: 3,
    NotFinite: 4,
    CheckpointError: 5,
    ExportError: 5,
    FileMissingError: 5,
    RankLost: 6,
    Superseded: 7,
    RewardError: 8,
    Interrupted: 143,
}
"""2: the settings or the model can't be used. 3: the data can't. 4: NaN or infinity. 5: the disk. 6: another rank is gone or never came.
7: a later attempt has the folders. 8: nobody said what answers are worth. 143: asked to stop, to be gone on with. 1 is a fault of this
program."""
_TOGETHER = (NotFinite, Interrupted)
"""What all ranks find at the same time."""


MOST_MESSAGE = 2000
"""Characters of a message."""
_MOST_BYTES = 4000
"""Of the file of `result`: kubelet cuts a container's last words after 4096."""


@dataclass
class _Reached:
    """How far a run came, for whoever asks before it is over and for an ending that isn't a good one."""

    trainer: Trainer | None = None
    checkpoints: Checkpoints | None = None
    meeting: Meeting | None = None

    def to_json(self) -> dict[str, Any]:
        """What `GET /progress` answers: the record of progress, the attempt's number and the newest checkpoint."""
        progress = self.trainer.progress.to_json() if self.trainer else {}
        written = self.checkpoints.newest_written if self.checkpoints else None
        attempt = os.environ.get(ATTEMPT, "")
        return {
            **progress,
            "attempt": int(attempt) if attempt.isdigit() else None,
            "checkpoint": written.to_json() if written else None,
        }

    def at_failure(self) -> dict[str, Any]:
        """Step, total and loss, as far as they are known."""
        told = self.to_json()
        return {name: told[name] for name in ("step", "total", "loss") if told.get(name) is not None}


def train(config_path: Path, result: Path | None = None, progress_port: int | None = None, placement: Placement | None = None) -> int:
    """One run, to its end; returns the exit code. `result`: file for the ending, as JSON. `progress_port`: where `GET /progress` is served.

    `placement`: which rank of several this process is.
    """
    reached = _Reached()
    try:
        with _stoppable(placement):
            config = read_config(config_path, 1 if placement is None else placement.size)
            ending = {"outcome": "Succeeded", **_run(config, reached, progress_port, placement)}
        code = 0
    except Exception as raised:
        error = (reached.meeting.lost(raised) if reached.meeting else None) or raised
        code = next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
        message = str(error) if code != 1 else f"{type(error).__name__}: {error}"
        ending = {"outcome": type(error).__name__, "message": message[:MOST_MESSAGE], **reached.at_failure()}
        if code == 1:
            log.exception("the run failed")
        else:
            log.error("%s: %s", type(error).__name__, error)
        if reached.meeting is not None and isinstance(error, _TOGETHER):
            reached.meeting.leave()
    if result is not None:
        try:
            write_ending(result, ending)
        except OSError as error:  # the exit code still says how it ended
            log.error("%s can't be written: %s", result, error.strerror)
    return code


def write_ending(file: Path, ending: dict[str, Any]) -> None:
    """As JSON of so few bytes that kubelet keeps all of it: half of it would be none. A message is shortened where it must be."""
    while len(text := json.dumps(ending, ensure_ascii=False).encode(errors="replace")) > _MOST_BYTES and len(ending.get("message", "")) > 1:
        ending = {**ending, "message": ending["message"][: len(ending["message"]) * 3 // 4]}
    file.write_bytes(text)


def _run(config: TrainConfig, reached: _Reached, progress_port: int | None, placement: Placement | None) -> dict[str, Any]:
    ranks, device = _meet(config, reached, placement)
    for warning in config.warnings if ranks.is_first else ():
        log.warning("%s", warning)
    warnings.filterwarnings("ignore", "torch.distributed is disabled")  # said by torch at every checkpoint of a run in one process
    data = _read(config)
    digest = _same_everywhere(data, ranks)
    fence = Fence(config.checkpoint.directory, attempt_of(os.environ))
    checkpoints = reached.checkpoints = Checkpoints(config.checkpoint.directory, config.checkpoint.keep, ranks, fence)
    ranks.agree(lambda: must_be_free(config.output, "config.json" if config.method == "full" or config.merge else "adapter_config.json"))
    trainee = build_policy(config, device) if config.is_rl else build(config, device, ranks)
    rows, held = split(data.rows, config.evaluation.share, config.training.seed)
    lengths = data.lengths
    held_back = Selected(
        data, [[held[at] for at in batch] for batch in by_length([lengths[row] for row in held], config.training.batch_size)]
    )
    source = Source(data, rows, config)
    with _learning(config, trainee, data) as learn, reporter() as report:
        trainer = Trainer(trainee.model, config, source, held_back, checkpoints, report=report, ranks=ranks, learn=learn, data=digest)
        reached.trainer = trainer
        with _stopping(trainer), serving(progress_port, reached.to_json):
            progress = trainer.run()
    published = _publish(config, trainee, ranks, fence)
    if reached.meeting is not None:
        reached.meeting.leave()
    return {**progress.to_json(), "last_checkpoint": reached.to_json()["checkpoint"], **published}


def _meet(config: TrainConfig, reached: _Reached, placement: Placement | None) -> tuple[Ranks, torch.device]:
    """The ranks of the run and this one's device; raises RankLost."""
    device = torch_device(wanted(config.training.device, os.environ))
    if placement is None or placement.size == 1:
        return ALONE, device
    reached.meeting = Meeting(placement, config.training.rendezvous_timeout)
    device = device if device.type == "cpu" else torch.device(device.type, placement.local)
    return reached.meeting.ranks(device, config.training.exchange_timeout), device


def must_be_readable(files: Iterable[Path]) -> None:
    """Raises FileMissingError with all that can't be read."""
    if missing := [str(path) for path in files if not os.access(path, os.R_OK)]:
        raise FileMissingError(f"data.files: {', '.join(missing)} can't be read")


def _read(config: TrainConfig) -> Dataset:
    """The rows of all files; raises DataError, FileMissingError."""
    settings = config.data
    must_be_readable(settings.files)
    renderer = Renderer.from_dir(config.model, settings.chat_template, settings.model_version)
    how = reading.ReadingConfig(settings.max_length, settings.format, settings.long_rows, settings.lenient)
    data, report = reading.load(settings.files, renderer, how)
    log.info("data: %d rows of %d, %d tokens, %.1f %% padding", len(data), report.read, report.tokens, 100 * report.padding)
    return data


def _same_everywhere(data: Dataset, ranks: Ranks) -> str:
    """The data's digest; raises ConfigError where ranks have read different rows: their shares of a batch would not be one batch."""
    digests = ranks.each(data.digest)
    if other := next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None):
        raise ConfigError(f"data.files: rank {other} has read other rows than rank 0; give every node the same files")
    return digests[0]


def _learning(config: TrainConfig, trainee: Trainee, data: Dataset) -> AbstractContextManager[RlStep | None]:
    """What a step does with its rows, where that isn't learning to say them."""
    return learning(config, trainee.model, data) if config.is_rl else nullcontext()


@contextmanager
def _stoppable(placement: Placement | None) -> Iterator[None]:
    """SIGTERM ends a run at once while it has nothing to lose: before the first step, after the last one.

    A container's first process would not even notice it. A rank of several is ended by the signal itself: it may be waiting where no
    handler is called.
    """
    if placement is not None and placement.size > 1:
        yield
        return

    def end(*_: object) -> None:
        raise Interrupted("asked to stop outside of training; the next run goes on from the newest checkpoint")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _stopping(trainer: Trainer) -> Iterator[None]:
    """SIGTERM ends the run after the step under way."""
    before = signal.signal(signal.SIGTERM, lambda *_: trainer.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _publish(config: TrainConfig, trainee: Trainee, ranks: Ranks, fence: Fence) -> dict[str, Any]:
    """Write the result; what it is, for the ending."""
    if config.method == "full" or config.merge:
        export_checkpoint(config.output, config.model, trainee, ranks=ranks, fence=fence)
        return {"checkpoint": str(config.output)}
    base, model = config.model.resolve().name, trainee.model.decoder.config
    file = export_adapter(config.output, trainee.places, config.lora, model, base, ranks=ranks, fence=fence)
    log.info("adapter %s written, sha256 %s", config.output, file.sha256)
    size = ranks.agree(lambda: sum(path.stat().st_size for path in config.output.iterdir()))  # another node may not see it yet
    return {"adapter": {"path": str(config.output), "sha256": file.sha256, "bytes": size}}
