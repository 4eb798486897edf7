"""The compute check in Verify: one short pod multiplies matrices on the node's cards. Asks for it once, and takes its result. Pure.

Called by `out_of_service` and `situation`. Only its own word that the cards compute wrongly counts: one that can't be run holds nothing up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from glm5_operator.health.remedy import policy as limits
from glm5_operator.health.remedy.answers import check_id, elapsed, seconds
from glm5_operator.health.remedy.memory import MOST_TEXT, Checked, Memory
from glm5_operator.health.types import Fault, Grade

if TYPE_CHECKING:
    from datetime import datetime

    from glm5_operator.api.node import CheckState
    from glm5_operator.health.remedy.decision import ComputeCheck
    from glm5_operator.health.remedy.policy import Policy

_ENDS: Final[dict[str, CheckState]] = {"Passed": "Passed", "Failed": "Failed", "CouldNotRun": "Skipped"}


def asked(memory: Memory, policy: Policy, known: ComputeCheck, now: datetime) -> Memory:
    """With the check asked for, or skipped where none can be run; as it was where this remedy has had its check, or the pool wants none."""
    if memory.check is not None or not policy.compute_check:
        return memory
    if known.unavailable:
        return replace(memory, check=Checked("Skipped", now, known.unavailable[:MOST_TEXT]))
    return replace(memory, check=Checked("Asked", now))


def noted(memory: Memory, policy: Policy, known: ComputeCheck, now: datetime) -> Memory:
    """With the result of the check that was asked for, once there is one, or none will be waited for any more."""
    if memory.check is None or not (id_ := check_id(memory)):
        return memory
    if known.id == id_ and known.state in _ENDS:
        state, message = _ENDS[known.state], known.message
    elif not policy.compute_check:
        state, message = "Skipped", "the pool asks for none any more"
    elif elapsed(now, memory.check.since, limits.COMPUTE_CHECK_TAKES):
        state, message = "Skipped", f"no result within {seconds(limits.COMPUTE_CHECK_TAKES)}{f': {known.message}' if known.message else ''}"
    else:
        return memory
    return replace(memory, check=replace(memory.check, state=state, message=message[:MOST_TEXT]))


def failed(memory: Memory) -> bool:
    """The cards computed wrongly, and no reset has ended since."""
    return memory.check is not None and memory.check.state == "Failed"


def fault(memory: Memory, card: int) -> Fault | None:
    """What a failed check says of a card: it is about all cards that the remedy took, or all of the node where it took none."""
    if not failed(memory) or (memory.cards and card not in memory.cards):
        return None
    return Fault("ComputeCheckFailed", "wrong numbers", Grade.RESET)


def told(memory: Memory) -> str:
    """How it went, in words for the step that follows; empty where no check was wanted."""
    if memory.check is None:
        return ""
    detail = f": {memory.check.message}" if memory.check.message else ""
    return f"; compute check {memory.check.state.lower()}{detail}"
