"""Reconcile one NPUPool: observe, plan, apply to nodes, report, and say when to look again.

Called by the queue with a key; the pool of that key may have been deleted, and then its nodes are let go: there is no finalizer, so a
deletion that nobody watched is found by the label that points to nothing. Writes our own label and taint on nodes, and nothing else there.
A node whose cards are being reset keeps its label until that is over: with the label go its agent, its taints and what is remembered of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.api.common import InvalidObjectError
from glm5_operator.api.pool import NPUPool
from glm5_operator.controllers.announce import announce
from glm5_operator.controllers.taints import CLOSING, intolerant, kept_away, with_taint
from glm5_operator.controllers.traffic import Traffic
from glm5_operator.health.resets import resets_end
from glm5_operator.kube import ApiFailure, Key, Outcome, kinds
from glm5_operator.plan import findings
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.lending import plan_loan
from glm5_operator.plan.pool import NodeChange, PoolPlan, members, plan_pool, plan_release
from glm5_operator.plan.pool_audit import Audit
from glm5_operator.status.conditions import gave_up, is_stalled
from glm5_operator.status.pool import in_words, new_violations, pool_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from glm5_operator.controllers.auditing import Auditor
    from glm5_operator.controllers.facts import Facts
    from glm5_operator.kube import Applier, Cache, Events, Resource
    from glm5_operator.status.pool import PoolReport

ABREAST: Final = 8
"""Nodes that are written to at the same time: one after the other, 2,000 of a new pool don't get their label within one pass."""
HELD_AGAIN: Final = timedelta(seconds=10)
"""While a reset keeps a label on a node: the agent's last word on it wakes that node, and not a pool that is to let go of it."""


@dataclass(frozen=True)
class PoolController:
    """Keeps the nodes of each NPUPool labelled, and its counts true."""

    cache: Cache
    applier: Applier
    events: Events
    facts: Facts
    daemon_sets: Callable[[], Awaitable[Sequence[Resource]]]
    resync: timedelta
    recheck: timedelta  # while the plan has a warning: a taint may wait for a DaemonSet, and those aren't watched
    auditor: Auditor
    interval: timedelta  # of audits

    async def reconcile(self, key: Key, now: datetime) -> Outcome:
        """Bring the nodes of `key` to their planned state and write its status once."""
        pool = self._observe(key)
        if pool is None:
            return await self._release(key, now)
        stated = _read(pool)
        plan = _unreadable(stated) if isinstance(stated, InvalidObjectError) else await self._plan(stated)
        plan, held = self._hold(plan, now)
        audit = Audit() if isinstance(stated, InvalidObjectError) else self.auditor.audit(stated, plan, now)
        failures = await self._apply(key.name, plan.changes)
        if not isinstance(stated, InvalidObjectError):
            plan, refused_loan = await self._lend(stated, plan, now)
            failures += refused_loan
        report = pool_status(pool, plan, audit, [failure.message for failure in failures], now, moves=self.auditor.moves(key.name))
        refused = await self.applier.write_status(pool, report.status)
        self._tell(pool, report)
        if held:
            told = findings.reset_runs(held)
            self.events.normal(pool, told.reason, told.message)
        if not isinstance(stated, InvalidObjectError) and stated.spec.enforcement == "Evict":
            # What a disruption budget holds back is asked for again with the next audit.
            await self.auditor.evict(report.status.get("violations") or (), now)
        return self._outcome(plan, report, failures, refused, _again(held, now) if held else self.resync)

    async def give_up(self, key: Key, reason: str, now: datetime) -> None:
        """Say in the status, and by an Event, that the budget of failures is used up."""
        pool = self.cache.get(key.kind, key.namespace, key.name)
        if pool is None or is_stalled(pool):
            return
        status = gave_up(pool, reason, now)
        await self.applier.write_status(pool, status)
        announce(self.events, pool, status)

    def _observe(self, key: Key) -> Resource | None:
        pool = self.cache.get(key.kind, key.namespace, key.name)
        return None if pool is None or pool["metadata"].get("deletionTimestamp") else pool

    def _tell(self, pool: Resource, report: PoolReport) -> None:
        announce(self.events, pool, report.status)
        for violation in new_violations(pool.get("status") or {}, report.status):
            self.events.warning(pool, "PoolViolated", in_words(violation))

    async def _plan(self, pool: NPUPool) -> PoolPlan:
        locked_out, away = await self._locked_out(pool)
        return plan_pool(pool, self.facts.pools(), self.facts.nodes(), locked_out, away)

    async def _locked_out(self, pool: NPUPool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """DaemonSets that keep the role's taint from being set, and those that a remedy's or a move's keeps from nodes now.

        DaemonSets aren't watched: they are read when it matters, which for most pools is never.
        """
        mine = members(pool, self.facts.pools(), self.facts.nodes())
        closed = [node.name for node in mine if any(taint.partition("=")[0] in CLOSING for taint in node.taints)]
        if not pool.spec.taint and not closed:
            return (), ()
        found, role = await self.daemon_sets(), names.role_taint_value(pool.spec.role)
        locked_out = intolerant(found, self._nodes(node.name for node in mine), role) if pool.spec.taint else ()
        return locked_out, kept_away(found, self._nodes(closed))

    def _nodes(self, wanted: Iterable[str]) -> list[Resource]:
        return [node for name in wanted if (node := self.cache.get(kinds.NODE.name, "", name)) is not None]

    async def _apply(self, pool: str, changes: Sequence[NodeChange]) -> list[ApiFailure]:
        failures: list[ApiFailure] = []
        for begin in range(0, len(changes), ABREAST):
            done = await asyncio.gather(*(self._set(pool, change) for change in changes[begin : begin + ABREAST]))
            failures += [failure for failure in done if failure is not None]
        return failures

    async def _set(self, pool: str, change: NodeChange) -> ApiFailure | None:
        node = self.cache.get(kinds.NODE.name, "", change.node)
        if node is None or (change.label is None and not _is_of(pool, node)):
            return None  # gone, or another pool's since: with each write before, time has passed
        return await self.applier.patch_node(node, labels={names.POOL_LABEL: change.label}, taints=with_taint(node, change.taint))

    def _hold(self, plan: PoolPlan, now: datetime) -> tuple[PoolPlan, dict[str, datetime]]:
        """The plan without the changes that must wait, and until when at most."""
        held = self._resetting(plan.changes, now)
        if not held:
            return plan, {}
        changes = tuple(change for change in plan.changes if change.node not in held)
        return replace(plan, changes=changes, warnings=(*plan.warnings, findings.reset_runs(held))), held

    def _resetting(self, changes: Sequence[NodeChange], now: datetime) -> dict[str, datetime]:
        """Of the nodes that would lose their pool's label those whose cards are being reset, and until when at most."""
        labels = {node.name: node.labels.get(names.POOL_LABEL) for node in self.facts.nodes()} if changes else {}
        found = {}
        for change in changes:
            if labels.get(change.node) in {None, change.label}:
                continue
            ends = resets_end((self.cache.get(names.NODE_KIND, "", change.node) or {}).get("status") or {}, now)
            if ends is not None and now < ends:
                found[change.node] = ends
        return found

    async def _lend(self, pool: NPUPool, plan: PoolPlan, now: datetime) -> tuple[PoolPlan, list[ApiFailure]]:
        """Send the next node on its way; where it has to go is all that is written, the rest is every move's."""
        traffic, refused = Traffic(self.cache, self.applier), set[str]()

        def spares(node: str) -> bool:
            spared = traffic.spares(node)
            refused.update(() if spared else (node,))
            return spared

        loan = plan_loan(pool, self.facts.nodes(), now, spares)
        if loan is None:
            return (replace(plan, warnings=(*plan.warnings, findings.none_to_lend(sorted(refused)))) if refused else plan), []
        node = self.cache.get(kinds.NODE.name, "", loan.node)
        if node is None:
            return plan, []
        notes = {names.MOVE_ANNOTATION: loan.target, names.LENT_ANNOTATION: loan.mark}
        failure = await self.applier.patch_node(node, labels={}, annotations=notes)
        return plan, [] if failure is None else [failure]

    async def _release(self, key: Key, now: datetime) -> Outcome:
        changes = plan_release(key.name, self.facts.nodes())
        held = self._resetting(changes, now)
        failures = await self._apply(key.name, [change for change in changes if change.node not in held])
        for node, ends in held.items():
            # The pool is gone: only the node can tell why it is still labelled.
            if (ascend_node := self.cache.get(names.NODE_KIND, "", node)) is not None:
                told = findings.reset_runs({node: ends})
                self.events.normal(ascend_node, told.reason, f"pool {key.name} is gone; {told.message}")
        if failures:
            return Outcome.retry(failures[0].reason)
        return Outcome.again(_again(held, now)) if held else Outcome.done()

    def _outcome(
        self, plan: PoolPlan, report: PoolReport, failures: list[ApiFailure], refused: ApiFailure | None, most: timedelta
    ) -> Outcome:
        if failures:
            return Outcome.retry(report.status["conditions"][0]["reason"], failures[0].retry_after)
        if refused:
            return Outcome.retry(refused.reason, refused.retry_after)
        if plan.stalled:
            return Outcome.stalled(plan.stalled.reason, most)
        return Outcome.again(min(self.interval, most, self.recheck if plan.warnings else self.resync))


def _again(held: Mapping[str, datetime], now: datetime) -> timedelta:
    return min(min(held.values()) - now, HELD_AGAIN)


def _read(resource: Resource) -> NPUPool | InvalidObjectError:
    try:
        return NPUPool.parse(resource)
    except InvalidObjectError as error:
        return error


def _unreadable(error: InvalidObjectError) -> PoolPlan:
    message = f"correct the spec, or bring CRD and operator to one version: {error}"
    return PoolPlan((), (), {}, None, None, 0, 0, 0, Finding("InvalidSpec", message), ())


def _is_of(pool: str, node: Resource) -> bool:
    return bool((node["metadata"].get("labels") or {}).get(names.POOL_LABEL) == pool)
