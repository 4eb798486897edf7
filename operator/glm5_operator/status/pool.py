"""The whole `.status` of an NPUPool, from its plan.

Called by the pool controller. Counting is the plan's; this only says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glm5_operator.status import conditions as c
from glm5_operator.status.conditions import Condition, Truth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from glm5_operator.plan.pool import PoolPlan

CONFLICT = "Conflict"
MOST_CONFLICTS = 1024
"""As many as the CRD's list takes."""


@dataclass(frozen=True, slots=True)
class PoolReport:
    """The status, and whether it says Stalled."""

    status: dict[str, Any]
    stalled: bool


def pool_status(pool: Mapping[str, Any], plan: PoolPlan, faults: Sequence[str], now: datetime) -> PoolReport:
    """Compute the status. `pool` is the object as the API server gave it; `faults` are nodes' failed writes, in the server's words."""
    verdict = _verdict(pool, plan, faults)
    previous = pool.get("status") or {}
    generation = pool["metadata"]["generation"]
    fields = {
        "observedGeneration": generation,
        "product": plan.product.value if plan.product else None,
        "resourceName": plan.resource_name,
        "nodes": len(plan.members),
        "cards": {"total": plan.cards, "held": plan.held_cards, "free": plan.free_cards},
        "conflicts": [{"node": node, "pool": owner} for node, owner in sorted(plan.conflicts.items())][:MOST_CONFLICTS],
        "conditions": c.dated((*verdict, _conflict(plan)), previous.get("conditions") or (), generation, now),
    }
    status = {name: value for name, value in fields.items() if value is not None and value != []}
    return PoolReport(status, stalled=verdict[2].status is Truth.TRUE)


def _verdict(pool: Mapping[str, Any], plan: PoolPlan, faults: Sequence[str]) -> tuple[Condition, ...]:
    if plan.stalled:
        return c.stuck(plan.stalled.reason, plan.stalled.message)
    if faults:
        message = f"{len(faults)} nodes can't be labelled, to be tried again: {min(faults)}"
        return c.failing("NodeWriteFailed", message, pool)
    if not plan.cards:
        what = plan.resource_name or "Ascend cards"
        return c.stuck("NoCards", f"{len(plan.members)} nodes offer no {what}: see that the device plugin runs on them")
    said = "".join(f"; {warning.reason}: {warning.message}" for warning in plan.warnings)
    return c.settled("Ready", f"{len(plan.members)} nodes with {plan.cards} cards{said}")


def _conflict(plan: PoolPlan) -> Condition:
    """Abnormal-true: the pool works with the nodes it has, but somebody's selectors overlap."""
    if not plan.conflicts:
        return Condition(CONFLICT, Truth.FALSE, "NoConflict", "")
    node, owner = min(plan.conflicts.items())
    more = f" and {len(plan.conflicts) - 1} more nodes" if len(plan.conflicts) > 1 else ""
    message = f"node {node}{more} belongs to pool {owner}, which selects it too: make the selectors exclusive"
    return Condition(CONFLICT, Truth.TRUE, "NodeInTwoPools", message)
