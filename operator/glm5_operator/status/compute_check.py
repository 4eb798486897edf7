"""What the pod of a compute check says: its verdict, or why there is none. Pure.

Called by the controller of these pods. Only the runtime's own word speaks against a card; whatever else ended the pod says nothing of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal

from glm5_operator.api import names
from glm5_operator.health.remedy.decision import ComputeCheck
from glm5_operator.status.conditions import clipped

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_TEXT: Final = 400
_UNSTARTABLE: Final = frozenset({"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"})
"""Of a waiting container: minutes don't help. ErrImagePull is tried again."""
_OUTCOMES: Final[dict[str, Literal["Passed", "Failed", "CouldNotRun"]]] = {
    "Passed": "Passed",
    "Failed": "Failed",
    "Skipped": "CouldNotRun",
}
"""Words of `glm5-runtime doctor --compute`; tests/contract holds them to the runtime's."""


def check_of(pod: Mapping[str, Any], check: str) -> ComputeCheck:
    """How far the check of this id is, by its pod."""
    status = pod.get("status") or {}
    states = [entry.get("state") or {} for entry in status.get("containerStatuses") or ()]
    state: Mapping[str, Any] = states[0] if states else {}
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    if ended and (verdict := _verdict(str(ended.get("message") or ""))) is not None:
        return ComputeCheck(check, *verdict)
    if status.get("phase") in {"Failed", "Succeeded"}:
        said = status.get("message") or ended.get("message") or ended.get("reason") or "it gave no verdict"
        reason = status.get("reason") or ended.get("reason") or ""
        return ComputeCheck(check, "CouldNotRun", _text(f"its pod ended without a verdict ({reason or 'no reason'}): {said}"))
    if waiting.get("reason") in _UNSTARTABLE:
        return ComputeCheck(check, "CouldNotRun", _text(f"{waiting['reason']}: {waiting.get('message') or 'its container cannot start'}"))
    return ComputeCheck(check, "Waiting", _text(_why_waiting(status, waiting)))


def is_compute_check(pod: Mapping[str, Any], namespace: str | None) -> bool:
    """Whether a pod is a compute check of this operator, by label and namespace: who may make pods there may do what the operator may."""
    metadata = pod["metadata"]
    return metadata.get("namespace") == namespace and names.COMPUTE_CHECK_LABEL in (metadata.get("labels") or {})


def _verdict(message: str) -> tuple[Literal["Passed", "Failed", "CouldNotRun"], str] | None:
    try:
        said = json.loads(message.strip().splitlines()[-1]) if message.strip() else None
    except ValueError:
        return None
    if not isinstance(said, dict) or (outcome := _OUTCOMES.get(str(said.get("outcome")))) is None:
        return None
    return outcome, _text(str(said.get("message") or ""))


def _why_waiting(status: Mapping[str, Any], waiting: Mapping[str, Any]) -> str:
    unscheduled: Mapping[str, Any] = next((one for one in status.get("conditions") or () if one.get("type") == "PodScheduled"), {})
    if unscheduled.get("status") == "False":
        return str(unscheduled.get("message") or unscheduled.get("reason") or "")
    return str(waiting.get("reason") or "")


def _text(text: str) -> str:
    return clipped(text, _MOST_TEXT)
