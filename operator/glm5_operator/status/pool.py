"""The whole `.status` of an NPUPool, from its plan.

Called by the pool controller. Counting is the plan's; this only says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api.pool_status import MOST_HOLDERS, MOST_MOVES, MOST_PIDS, MOST_VIOLATIONS
from glm5_operator.status import conditions as c
from glm5_operator.status.conditions import Condition, Truth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from glm5_operator.plan.pool import PoolPlan
    from glm5_operator.plan.pool_audit import Audit, Breach, Holding, Stray

CONFLICT = "Conflict"
VIOLATED = "Violated"
MOST_CONFLICTS = 1024
"""As many as the CRD's list takes."""
MOST_ANNOTATED = 512
MOST_NAMED = 8
"""Ids of processes and cards in a message; the status has the others."""


@dataclass(frozen=True, slots=True)
class PoolReport:
    """The status, and whether it says Stalled."""

    status: dict[str, Any]
    stalled: bool


def pool_status(
    pool: Mapping[str, Any], plan: PoolPlan, audit: Audit, faults: Sequence[str], now: datetime, *, moves: Sequence[dict[str, Any]] = ()
) -> PoolReport:
    """Compute the status.

    Args:
        pool: the object as the API server gave it.
        plan: what is wanted of its nodes.
        audit: who holds its cards.
        faults: nodes' failed writes, in the server's words.
        now: with a time zone.
        moves: nodes on their way to it.
    """
    verdict = _verdict(pool, plan, faults)
    previous = pool.get("status") or {}
    generation = pool["metadata"]["generation"]
    fields = {
        "observedGeneration": generation,
        "product": plan.product.value if plan.product else None,
        "resourceName": plan.resource_name,
        "nodes": len(plan.members),
        "cards": {"total": plan.cards, "held": plan.held_cards, "free": plan.free_cards, "quarantined": audit.quarantined or None},
        "fragmentation": {"freeNodes": audit.free_nodes, "mostOnOneNode": audit.most_on_one_node, "freePairs": audit.free_pairs},
        "holders": [_holder(holding) for holding in audit.holdings[:MOST_HOLDERS]],
        "moreHolders": max(0, len(audit.holdings) - MOST_HOLDERS) or None,
        "violations": _violations(audit, previous.get("violations") or (), now),
        "moves": list(moves[:MOST_MOVES]),
        "conflicts": [{"node": node, "pool": owner} for node, owner in sorted(plan.conflicts.items())][:MOST_CONFLICTS],
        "conditions": c.dated((*verdict, _conflict(plan), _violated(audit)), previous.get("conditions") or (), generation, now),
    }
    status = {name: _without_none(value) for name, value in fields.items() if value is not None and value != []}
    return PoolReport(status, stalled=verdict[2].status is Truth.TRUE)


def new_violations(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those of the second status that the first one didn't have."""
    known = {_identity(entry) for entry in before.get("violations") or ()}
    return [entry for entry in after.get("violations") or () if _identity(entry) not in known]


def in_words(violation: Mapping[str, Any]) -> str:
    """What a pod does against the rules, or who uses cards of nobody, and what to do about it, for an Event."""
    if violation["reason"] == "NotAllocated":
        who = f"processes {_first(violation['pids'])} are on cards {_first(violation['cards'])} of node {violation['node']}"
        return (
            f"{who}, which no pod was given: `cat /proc/PID/cgroup` on the node tells their container; end it. "
            "Privileged containers and ASCEND_VISIBLE_DEVICES get cards that way"
        )
    count = violation["count"]
    who = f"pod {violation['namespace']}/{violation['pod']} holds {count} card{'s' * (count > 1)} of node {violation['node']}"
    return f"{who} {_WHY[violation['reason']]}"


_WHY: Final = {
    "NoPool": "and names no pool: start it anew with spec.nodeSelector glm5.dev/pool, or delete it",
    "OtherPool": "and names another pool: delete it, so that it starts on a node of its own pool",
    "NamespaceNotOpen": "and the pool isn't open to its namespace: delete it, or add the namespace to spec.namespaces",
}


def _first(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:MOST_NAMED])) + (" and more" if len(ids) > MOST_NAMED else "")


def _without_none(value: Any) -> Any:  # noqa: ANN401 - a field of the status, whatever it is
    """A field whose own fields are left out where they aren't known; none in quarantine is said by leaving that out, too."""
    return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


def _identity(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name)) for name in ("node", "namespace", "pod", "reason"))


def _holder(holding: Holding) -> dict[str, Any]:
    fields = {
        "node": holding.node,
        "namespace": holding.namespace,
        "pod": holding.pod,
        "count": holding.count,
        "cards": list(holding.cards) if holding.cards is not None else None,
        "annotated": c.clipped(holding.annotated, MOST_ANNOTATED) if holding.annotated else None,
    }
    found: dict[str, Any] = _without_none(fields)
    return found


def _violations(audit: Audit, previous: Sequence[Mapping[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """With the time at which each was seen first, from the status before."""
    since = {_identity(entry): entry.get("since") for entry in previous}
    return [{**entry, "since": since.get(_identity(entry)) or c.stamp(now)} for entry in _found(audit)[:MOST_VIOLATIONS]]


def _found(audit: Audit) -> list[dict[str, Any]]:
    """What is against the rules; first what no rule but this one sees."""
    return [*(_astray(stray) for stray in audit.strays), *(_violation(breach) for breach in audit.breaches)]


def _astray(stray: Stray) -> dict[str, Any]:
    used = {"cards": list(stray.cards), "pids": list(stray.pids[:MOST_PIDS])}
    return {"node": stray.node, "reason": "NotAllocated", "count": len(stray.cards), **used}


def _violation(breach: Breach) -> dict[str, Any]:
    held = breach.holding
    return {"node": held.node, "namespace": held.namespace, "pod": held.pod, "reason": breach.reason, "count": held.count}


def _violated(audit: Audit) -> Condition:
    """Abnormal-true: cards are in other hands than the pool says."""
    found = _found(audit)
    if not found:
        return Condition(VIOLATED, Truth.FALSE, "NoViolation", "")
    more = len(found) - 1
    message = in_words(found[0]) + (f"; and {more} more" if more else "")
    return Condition(VIOLATED, Truth.TRUE, found[0]["reason"], message)


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
