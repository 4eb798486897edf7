"""Whether cards of a node are being reset, or may be at any moment, by what its AscendNode remembers. Pure.

Called by the node controller before it lets go of a node, which forgets all that is remembered.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from glm5_operator.health.remedy.policy import MIND_CLUSTER_TAKES, RESET_TAKES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5_operator.health.move.way import Way
    from glm5_operator.health.remedy.memory import Memory


def resets_end(memory: Memory, way: Way | None, reports: Iterable[Mapping[str, Any]]) -> datetime | None:
    """When the resets that are asked for or running have ended at the latest; None when there is none.

    The agent's last word ends one at once. There is a latest time because an agent that is gone says nothing any more.

    Args:
        memory: of the remedy.
        way: of the node's move, where it is on one.
        reports: `status.resets`, as the agent wrote it.
    """
    told = {report.get("id"): report for report in reports}
    asked = {}
    if memory.state == "Resetting":
        asked[memory.id] = memory.since
    if way is not None and way.state == "Resetting" and way.reset is not None:
        asked[way.reset.id] = way.since
    began = [since for id_, since in asked.items() if told.get(id_, {}).get("state", "Running") == "Running"]
    # One that nobody waits for any more may run on.
    began += [
        _moment(report.get("started")) for report in told.values() if report.get("state") == "Running" and report.get("id") not in asked
    ]
    ends = [since + RESET_TAKES for since in began if since is not None]
    if memory.state == "WaitingMindCluster" and memory.since is not None:
        ends.append(memory.since + MIND_CLUSTER_TAKES)
    return max(ends, default=None)


def _moment(text: object) -> datetime | None:
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
