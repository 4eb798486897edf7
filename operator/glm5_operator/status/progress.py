"""How far a run is, as its trainer tells it: what is believed of an answer of `GET /progress` and of a last word, and what the status says.

Used by `finetune` and `course`. Both come from inside a pod: a value of another type or size than it should have is as good as none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.status.conditions import clipped, moment, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LARGEST: Final = 2**53
"""Whole numbers up to here are the same in every JSON reader."""
LONGEST_ETA: Final = timedelta(days=3650)
_NUMBERS: Final[dict[str, tuple[str, type]]] = {
    "step": ("step", int),
    "totalSteps": ("total", int),
    "epoch": ("epoch", float),
    "loss": ("loss", float),
    "learningRate": ("learning_rate", float),
    "tokensPerSecond": ("tokens_per_second", float),
    "evaluationLoss": ("evaluation_loss", float),
    "overflows": ("overflows", int),
}
"""Field of the status → field of the trainer's answer or last word."""
_BY_REWARDS: Final[dict[str, tuple[str, type]]] = {"reward": ("reward", float)}
_CHECKPOINT: Final[dict[str, tuple[str, type]]] = {"step": ("step", int), "time": ("time", datetime), "sha256": ("sha256", str)}
_ADAPTER: Final[dict[str, tuple[str, type]]] = {"sha256": ("sha256", str), "size": ("bytes", int)}
_LOSSES: Final = {"loss", "evaluationLoss"}
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Heard:
    """What the trainer of an attempt answered, and when."""

    attempt: int
    answer: Mapping[str, Any]
    time: datetime


def progress_fields(
    previous: Mapping[str, Any], output: str, words: Iterable[Mapping[str, Any]], heard: Heard | None, *, attempt: int, trains: bool
) -> dict[str, Any]:
    """The fields of the status that tell progress. What nobody tells any more stays as it was told last, but for the time of the end.

    `words`: last words of the pods of `attempt`, the newest, which come after everything heard. `heard`: of that attempt, None when nothing
    was; once it has ended (not `trains`) this counts no more, for the last words may have gone with the pods. No attempt goes backwards.
    """
    heard = heard if trains else None
    own = _is_of(previous, attempt)
    word = max(words, key=_step, default={})
    found: dict[str, Any] = {name: previous[name] for name in (*_NUMBERS, *_BY_REWARDS, "checkpoint", "adapter") if name in previous}
    for told in (heard.answer if heard else {}, word):
        if _goes_back(told, found, own=own):
            continue
        found |= believed(told, _NUMBERS) | believed(told.get("rl"), _BY_REWARDS)
        if checkpoint := _checkpoint(told, found.get("checkpoint") or {}):
            found["checkpoint"] = checkpoint
        elif _has_none(told):
            found.pop("checkpoint", None)
    if adapter := believed(word.get("adapter"), _ADAPTER):
        found["adapter"] = {"path": output, **adapter}  # the trainer knows it by its path in the pod
    if heard is not None and (eta := _eta(heard)) is not None:
        found["eta"] = eta
    return found


def reached(words: Iterable[Mapping[str, Any]], heard: Heard | None) -> dict[str, Any]:
    """Step and loss that an attempt came to, for its entry in the history."""
    told = [*([heard.answer] if heard else []), *words]
    furthest = max(told, key=_step, default={})
    fields = believed(furthest, {name: _NUMBERS[name] for name in ("step", "loss")})
    return fields if "step" in fields else {}


def believed(word: object, table: Mapping[str, tuple[str, type]]) -> dict[str, Any]:
    """The fields of a table that were told in the right type; what was told beside them is no business of the status."""
    if not isinstance(word, dict):
        return {}
    told = {name: _value(word.get(key), kind) for name, (key, kind) in table.items()}
    return {name: _rounded(name, value) for name, value in told.items() if value is not None}


def _rounded(name: str, value: object) -> object:
    """Losses stand in a column of `kubectl get`, and say no more by further digits."""
    return float(f"{value:.4g}") if name in _LOSSES and isinstance(value, float) else value


def _is_of(previous: Mapping[str, Any], attempt: int) -> bool:
    """The step of the status is surely of this attempt: no earlier one came as far."""
    earlier = max((_step(item) for item in previous.get("history") or ()), default=-1)
    return previous.get("attempt") == attempt and _step(previous) > earlier


def _goes_back(told: Mapping[str, Any], found: Mapping[str, Any], *, own: bool) -> bool:
    """Of an attempt that has come further (`own`); or of one at step 0 that has yet to look which checkpoint it goes on from."""
    step, known = _step(told), _step(found)
    looks = step == 0 < known and not _checkpoint(told, {})
    written = _step(_checkpoint(told, {}))
    return looks or (own and (0 <= step < known or 0 <= written < _step(found.get("checkpoint") or {})))


def _value(value: object, kind: type) -> object:
    if isinstance(value, bool):
        return None
    if kind is float:
        return float(f"{value:.6g}") if isinstance(value, int | float) and -1e300 < value < 1e300 else None
    if kind is int:
        return value if isinstance(value, int) and 0 <= value <= LARGEST else None
    if kind is datetime:
        when = moment(value) if isinstance(value, str) else None
        return stamp(when) if when else None
    return clipped(value, 256) if isinstance(value, str) else None


def _step(word: Mapping[str, Any]) -> int:
    step = _value(word.get("step"), int)
    return step if isinstance(step, int) else -1


def _checkpoint(word: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """A whole record, or only the step: then what was told of that step before stays."""
    for key in ("last_checkpoint", "checkpoint"):
        told = believed(word.get(key), _CHECKPOINT)
        if "step" in told:
            if not _DIGEST.fullmatch(str(told.get("sha256") or "")):
                told.pop("sha256", None)
            return told
    step = _value(word.get("checkpoint_step"), int)
    if step is None or before.get("step") == step:
        return {}
    return {"step": step}


def _has_none(word: Mapping[str, Any]) -> bool:
    """What an earlier attempt wrote was damaged and set aside. Before its first step a trainer only hasn't looked yet."""
    return "checkpoint" in word and word["checkpoint"] is None and _step(word) > 0


def _eta(heard: Heard) -> str | None:
    seconds = _value(heard.answer.get("eta_seconds"), float)
    if not isinstance(seconds, float) or not 0 <= seconds <= LONGEST_ETA.total_seconds():
        return None
    return stamp(heard.time + timedelta(seconds=seconds))
