"""`glm5-runtime train --check`: everything about a run that can be known without a card, from the same file and by the same code.

Called by the command line; the operator runs it before the first attempt. Reads settings, the model's description and all rows; loads no
weights, writes nothing but the result.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from glm5_runtime.config import ConfigError, ModelConfig
from glm5_runtime.model.quant import DESCRIPTION
from glm5_runtime.train.command import EXIT_CODES, MOST_MESSAGE, must_be_readable, write_ending
from glm5_runtime.train.config import read_config
from glm5_runtime.train.data import reading
from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.lora import chosen
from glm5_runtime.train.rl.rollout import Prompt, longest_answer
from glm5_runtime.train.source import split

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.data.report import Report

log = logging.getLogger(__name__)

_SHOWN_LINES = 5
"""Bad lines in the message: a pattern shows, and a container's last words are short."""


def check(config_path: Path, result: Path | None = None) -> int:
    """Returns the exit code that the run would have, 0 when nothing speaks against it. `result`: file for the finding, as JSON."""
    found: dict[str, Any] = {}
    try:
        report = _read(read_config(config_path))
        found = {"outcome": "Succeeded", "data": _numbers(report)}
        code = 0
        if report.faults:
            code, found = EXIT_CODES[reading.DataError], {"outcome": "DataError", "message": _message(report), "data": _numbers(report)}
    except Exception as error:
        code = next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
        found = {"outcome": type(error).__name__, "message": (str(error) or repr(error))[:MOST_MESSAGE]}
        if code == 1:
            log.exception("the check failed")
    log.log(logging.INFO if code == 0 else logging.ERROR, "check: %s", found.get("message") or found)
    if result is not None:
        write_ending(result, found)
    return code


def _read(config: TrainConfig) -> Report:
    """The report of all rows; raises ConfigError, TemplateError, FileMissingError."""
    settings = config.data
    must_be_readable(settings.files)
    if (config.model / DESCRIPTION).exists():
        raise ConfigError(f"model {config.model}: its weights are quantised ({DESCRIPTION}); train on the bf16 checkpoint")
    model = ModelConfig.from_dir(config.model)
    if config.has_adapters:
        chosen(model, config.lora)
    renderer = Renderer.from_dir(config.model, settings.chat_template, settings.model_version)
    how = reading.ReadingConfig(settings.max_length, settings.format, settings.long_rows, settings.lenient)
    longest = 0

    def look(example: Example) -> None:
        nonlocal longest
        longest = max(longest, len(Prompt.of(example).tokens))

    report = reading.check(settings.files, renderer, how, for_training=True, look=look if config.is_rl else None)
    if config.rl is not None:
        longest_answer(config.rl, longest, model)
    if not report.faults and not split(range(report.kept), config.evaluation.share, config.training.seed)[0]:
        raise ConfigError(f"evaluation.share: nothing is left to train on, of {report.kept} rows in data.files; hold fewer back")
    return report


def _numbers(report: Report) -> dict[str, Any]:
    told = report.as_json()
    names = ("rows_read", "rows_kept", "rows_skipped", "examples", "tokens", "trained_tokens", "padding")
    return {name.removeprefix("rows_"): told[name] for name in names}


def _message(report: Report) -> str:
    bad = [f"{each.file}:{each.line}: {each.reason}: {each.message}" for each in report.bad_lines[:_SHOWN_LINES]]
    more = [f"{report.skipped - len(bad)} more"] if report.skipped > len(bad) > 0 else []
    return "; ".join([*report.faults, *bad, *more])[:MOST_MESSAGE]
