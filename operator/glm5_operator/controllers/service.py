"""Reconcile one GLM5Service: observe, plan, apply, report, and say when to look again.

Called by the queue with a key, never with an event: create, edit, drift, restart and failure all take this path.
Decides nothing: decisions live in `plan` and `status`, which are pure. Writes nothing but through `kube`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.api.common import InvalidObjectError
from glm5_operator.api.service import GLM5Service
from glm5_operator.controllers.announce import announce
from glm5_operator.controllers.steady import keep_strategy
from glm5_operator.kube import ApiFailure, Applied, Key, Outcome, kinds
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.service import ServicePlan, plan_service
from glm5_operator.status.adapters import adapter_reports, are_silent, is_settled
from glm5_operator.status.conditions import gave_up, is_stalled
from glm5_operator.status.pods import is_replica, is_true
from glm5_operator.status.service import Observed, Report, WriteFault, service_status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5_operator.controllers.adapters import Adapters
    from glm5_operator.controllers.facts import Facts
    from glm5_operator.kube import Applier, Cache, Events, Resource

ADAPTERS_AGAIN: Final = timedelta(seconds=3)
"""While an adapter is on its way to a pod: no event tells that it has arrived."""
SILENT_AGAIN: Final = timedelta(seconds=30)
"""While no pod answers: each time costs a worker of the queue the whole time of a request."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What this pass works on."""

    service: Resource
    children: tuple[Resource, ...]
    pods: tuple[Resource, ...]


@dataclass(frozen=True)
class ServiceController:
    """Keeps each GLM5Service as its spec says."""

    cache: Cache
    applier: Applier
    events: Events
    facts: Facts
    adapters: Adapters
    resync: timedelta  # long: watches carry news, this only repairs what they missed
    recheck: timedelta  # after a refused write: what stands in the way sends us no event when it goes

    async def reconcile(self, key: Key, now: datetime) -> Outcome:
        """Bring the children of `key` to their planned state and write its status once."""
        seen = self._observe(key)
        if seen is None:
            return Outcome.done()  # owner references remove the children
        plan = self._plan(seen)
        applied = await self._apply(seen, plan)
        answers = () if plan.adapters is None else await self.adapters.ask(seen.pods)
        reports = None if plan.adapters is None else adapter_reports(plan.adapters, answers)
        report = self._report(seen, plan, applied, reports, now)
        # What jobs that deploy to it wait for.
        failure = await self.applier.write_status(seen.service, report.status, tell=reports is not None)
        announce(self.events, seen.service, report.status)
        return self._outcome(report, applied, failure, now, asks_again=SILENT_AGAIN if are_silent(answers) else ADAPTERS_AGAIN)

    async def give_up(self, key: Key, reason: str, now: datetime) -> None:
        """Say in the status, and by an Event, that the budget of failures is used up."""
        service = self.cache.get(key.kind, key.namespace, key.name)
        if service is None or is_stalled(service):
            return
        status = gave_up(service, reason, now)
        await self.applier.write_status(service, status)
        announce(self.events, service, status)

    def _observe(self, key: Key) -> _Seen | None:
        service = self.cache.get(key.kind, key.namespace, key.name)
        if service is None or service["metadata"].get("deletionTimestamp"):
            return None
        children = tuple(self.cache.children(service["metadata"]["uid"]))
        name = names.deployment_name(key.name)
        selector = ((_deployment(children) or {}).get("spec") or {}).get("selector", {}).get("matchLabels") or {}
        return _Seen(service, children, tuple(pod for pod in self.cache.pods(key) if is_replica(pod, name, selector)))

    def _plan(self, seen: _Seen) -> ServicePlan:
        try:
            service = GLM5Service.parse(seen.service)
        except InvalidObjectError as error:
            # The API server's schema lets nothing else in; a CRD newer or older than this operator does.
            return ServicePlan(
                (), None, Finding("InvalidSpec", f"correct the spec, or bring CRD and operator to one version: {error}"), (), ""
            )
        plan = plan_service(service, self.facts.service(service.spec.pool, seen.pods, self.adapters.facts(seen.service)))
        return keep_strategy(plan, seen.service, _deployment(seen.children))

    async def _apply(self, seen: _Seen, plan: ServicePlan) -> Applied:
        if plan.stalled:
            return Applied()  # what serves keeps serving
        applied = await self.applier.converge(seen.service, plan.objects, seen.children)
        if plan.adapters is None:
            return applied
        return replace(applied, errors=(*applied.errors, *await self.adapters.announce(plan.adapters, seen.pods)))

    def _report(self, seen: _Seen, plan: ServicePlan, applied: Applied, adapters: list[dict[str, Any]] | None, now: datetime) -> Report:
        # The writes of this pass are in the cache already: an old Deployment must not vouch for a new plan.
        children = self.cache.children(seen.service["metadata"]["uid"]) if applied.changed else seen.children
        waiting = any(not is_true(pod, "PodScheduled") for pod in seen.pods)
        holders = self.facts.holders(seen.service["spec"].get("pool", ""), seen.pods) if waiting else ()
        observed = Observed(_deployment(children), seen.pods, self.facts.held_by(seen.pods), holders, adapters)
        return service_status(seen.service, plan, observed, [_fault(failure) for failure in applied.errors], now)

    def _outcome(self, report: Report, applied: Applied, failure: ApiFailure | None, now: datetime, *, asks_again: timedelta) -> Outcome:
        failures = [*applied.errors, *([failure] if failure else [])]
        if transient := [item for item in failures if item.retryable]:
            waits = [item.retry_after for item in transient if item.retry_after]
            return Outcome.retry(min(item.reason for item in transient), max(waits) if waits else None)  # as the status names it
        if failures:
            return Outcome.stalled(failures[0].reason, self.recheck)
        if report.stalled:
            return Outcome.stalled(report.status["conditions"][0]["reason"], self.resync)
        after = self.resync if is_settled(report.status.get("adapters") or ()) else asks_again
        if report.look_again is not None:
            after = min(after, max(timedelta(0), report.look_again - now))
        return Outcome.again(after)


def _deployment(children: Iterable[Resource]) -> Resource | None:
    return next((child for child in children if child["kind"] == kinds.DEPLOYMENT.name), None)


def _fault(failure: ApiFailure) -> WriteFault:
    where = f"{failure.target.kind} {failure.target.name}"
    message = failure.message if where in failure.message else f"{where}: {failure.message}"
    return WriteFault(failure.reason, message, failure.retryable)
