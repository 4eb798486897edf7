"""Whether cards of a node are being reset, or may be at any moment, by what its AscendNode remembers. Pure.

Called by the node controller before it lets go of a node, which forgets all that is remembered, and by the pool controller before it takes
its label off one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from glm5_operator.health.move import way as ways
from glm5_operator.health.remedy import memory as memories
from glm5_operator.health.remedy.policy import MIND_CLUSTER_TAKES, RESET_TAKES

if TYPE_CHECKING:
    from collections.abc import Mapping


def resets_end(status: Mapping[str, Any], now: datetime) -> datetime | None:
    """When the resets that are asked for or running have ended at the latest; None when there is none.

    The agent's last word ends one at once. There is a latest time because an agent that is gone says nothing any more.

    Args:
        status: the AscendNode's: the remedy, the move, and `resets` as the agent wrote it.
        now: what began later by a node's clock, or by a forged word, began now.
    """
    memory, way = memories.load(memories.read(status.get("remedy"))), ways.load(status.get("move"))
    told = {report.get("id"): report for report in status.get("resets") or ()}
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
    ends = [min(since, now) + RESET_TAKES for since in began if since is not None]
    if memory.state == "WaitingMindCluster" and memory.since is not None:
        ends.append(memory.since + MIND_CLUSTER_TAKES)
    return max(ends, default=None)


def _moment(text: object) -> datetime | None:
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
