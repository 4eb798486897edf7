"""Which node a pool lends next, or takes back, as its spec.lend says. Pure; time is an argument.

Called by the pool controller. It only says where nodes are to be; how they get there is every move's way (`health.handover`). One node at a
time, none that a person has sent somewhere else, and none whose leaving would take a service's last replica out of traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.plan.facts import NodeFacts

KEEP: Final = timedelta(minutes=10)
"""How long a node stays at least, where the entry that lent it is gone."""
MOST_ASKED: Final = 8
"""Nodes of which it is asked whether they can be spared."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a node is to be from now on.

    Attributes:
        node: its name.
        target: value of names.MOVE_ANNOTATION.
        mark: value of names.LENT_ANNOTATION; None takes it off.
    """

    node: str
    target: str
    mark: str | None


@dataclass(frozen=True, slots=True)
class _Lent:
    node: NodeFacts
    since: datetime


def plan_loan(
    pool: NPUPool, nodes: Iterable[NodeFacts], now: datetime, spares: Callable[[str], bool] = lambda _: True
) -> Assignment | None:
    """The next node to lend or to take back; None when all is as wanted, while one is on its way, or where none can be spared.

    Args:
        pool: that lends.
        nodes: every node of the cluster.
        now: with a time zone.
        spares: whether every service would still be served without that node; asked of the idlest few, of which it looks at all pods.
    """
    name, everyone = pool.metadata.name, tuple(nodes)
    wanted = {loan.pool: loan for loan in pool.spec.lend or () if loan.pool != name}
    lent = _lent_by(name, everyone)
    if not wanted and not lent:
        return None
    for target in sorted({*wanted, *lent}):
        loan, out = wanted.get(target), lent.get(target, [])
        count, keep = (loan.nodes, loan.keep) if loan else (0, KEEP)
        if len(out) > count:
            # A mark of a time that is yet to come was written by somebody else, and would keep the node for ever.
            back = min(
                (one for one in out if not timedelta() <= now - one.since < keep),
                key=lambda one: (one.node.held, one.node.name),
                default=None,
            )
            if back is not None:
                return Assignment(back.node.name, name, None)
        elif len(out) < count and not any(_is_moving(node) for node in everyone if _is_of(name, node)):
            mine = (node for node in everyone if _is_of(name, node) and node.assigned in {"", name} and not _is_borrowed(name, node))
            free = (node for node in mine if node.ready and node.schedulable)
            idlest = sorted(free, key=lambda node: (node.held, node.name))[:MOST_ASKED]
            chosen = next((node for node in idlest if node.held == 0 or spares(node.name)), None)
            if chosen is not None:
                stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                return Assignment(chosen.name, target, f"{name} {target} {stamp}")
    return None


def _lent_by(pool: str, nodes: Iterable[NodeFacts]) -> dict[str, list[_Lent]]:
    """By the pool that has them, as the marks say. A node that a person has sent somewhere else since is theirs."""
    found: dict[str, list[_Lent]] = {}
    for node in nodes:
        words = node.lent_by.split(" ")
        if len(words) == 3 and words[0] == pool and words[1] == node.assigned:
            try:
                since = datetime.fromisoformat(words[2])
            except ValueError:
                continue
            found.setdefault(words[1], []).append(_Lent(node, since if since.tzinfo else since.replace(tzinfo=UTC)))
    return found


def _is_of(pool: str, node: NodeFacts) -> bool:
    return node.labels.get(names.POOL_LABEL) == pool


def _is_borrowed(pool: str, node: NodeFacts) -> bool:
    """Another pool's, which would never get it back if it were lent on: a node has one mark. And two pools would lend it to and fro."""
    words = node.lent_by.split(" ")
    return len(words) == 3 and words[0] != pool and words[1] == pool


def _is_moving(node: NodeFacts) -> bool:
    return bool(node.assigned) and node.assigned != node.labels.get(names.POOL_LABEL)
