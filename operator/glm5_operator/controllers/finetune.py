"""Reconcile one GLM5FinetuneJob: observe, decide its course, plan the attempt that is due, apply, report, and say when to look again.

Called by the queue with a key, never with an event. Decides nothing: what happens next is `status.course`, what an attempt looks like is
`plan.attempt`, both pure. Writes nothing but through `kube`, and never into a Job that exists.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.api.common import InvalidObjectError
from glm5_operator.api.finetune import GLM5FinetuneJob
from glm5_operator.controllers.announce import announce
from glm5_operator.controllers.deployment import Deployed, is_evaluation
from glm5_operator.controllers.training_metrics import count_ended
from glm5_operator.kube import ApiFailure, Applied, Key, Outcome, kinds
from glm5_operator.kube.gangs import Installed
from glm5_operator.plan import gang
from glm5_operator.plan.attempt import AttemptPlan, claim_of, outcome_record, plan_attempt, rendezvous_service
from glm5_operator.plan.check import check_digest, check_objects
from glm5_operator.plan.facts import Claim, Finding, FinetuneFacts
from glm5_operator.plan.finetune_findings import advice
from glm5_operator.plan.product import is_in_remedy
from glm5_operator.status.check import Check, CheckState, read_check
from glm5_operator.status.conditions import gave_up, is_stalled, moment, stamp
from glm5_operator.status.course import Course, Seen, Stage, course, newest_of
from glm5_operator.status.ends import Cause, is_ended
from glm5_operator.status.finetune import Told, finetune_status, invalid_status
from glm5_operator.status.pods import is_true
from glm5_operator.status.service import WriteFault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from glm5_operator.controllers.deployment import Deployments
    from glm5_operator.controllers.facts import Facts
    from glm5_operator.kube import Applier, Cache, Events, Manifest, Resource
    from glm5_operator.metrics import Metrics
    from glm5_operator.status import causes
    from glm5_operator.status.progress import Heard


LOOK_FOR_PODS: Final = timedelta(seconds=10)
"""Of a Job that lacks pods: its controller tells why by an Event, which no watch of ours brings."""
SLOW_TO_CREATE: Final = timedelta(seconds=5)
"""The Job's controller has had the time to create them."""


async def nothing_refused(_: Resource) -> causes.Cause | None:
    """Nobody knows of a refusal."""
    return None


async def nothing_installed() -> Installed:
    """A cluster without gang schedulers."""
    return Installed()


LOOK_FOR_CARDS: Final = timedelta(seconds=30)
"""Of a run that waits for cards: pods that free some wake it; this finds what no event told."""


@dataclass(frozen=True)
class FinetuneController:
    """Takes each GLM5FinetuneJob through its attempts to its end, and never further."""

    cache: Cache
    applier: Applier
    events: Events
    facts: Facts
    find_job: Callable[[str, str], Awaitable[Resource | None]]  # live, by namespace and name
    resync: timedelta
    recheck: timedelta
    metrics: Metrics
    heard: Callable[[str], Heard | None] = lambda _: None  # by the uid of an attempt's Job
    installed: Callable[[], Awaitable[Installed]] = nothing_installed
    refusal: Callable[[Resource], Awaitable[causes.Cause | None]] = nothing_refused  # why pods of a Job can't be created
    deployments: Deployments | None = None  # only in tests of training there is none
    # Two runs that look for cards of one pool at the same time would both find the same.
    pools: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def reconcile(self, key: Key, now: datetime) -> Outcome:
        """Take `key` as far as it goes now, and write its status once."""
        resource = self.cache.get(key.kind, key.namespace, key.name)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            return Outcome.done()  # owner references remove the children, and with them go the cards
        try:
            job = GLM5FinetuneJob.parse(resource)
        except InvalidObjectError as error:
            # The API server's schema lets nothing else in; a CRD newer or older than this operator does.
            finding = Finding("InvalidSpec", f"correct the spec, or bring CRD and operator to one version: {error}")
            await self.applier.write_status(resource, invalid_status(resource, finding, now))
            return Outcome.stalled(finding.reason, self.resync)
        seen = await self._observe(key, resource, job, now)
        way = course(resource.get("status") or {}, job.spec, seen, now)
        way, plan, applied = await self._act(resource, job, way, seen.check, now)
        faults = [_fault(item) for item in applied.errors]
        refused, way = await self._refused(way, seen, now)
        advised = (*advice(job.spec, self._same_output(resource)), *await self._gang_advice(job))
        told = Told(way, plan, advised, seen.pods, self.facts.held_by(seen.pods), faults, seen.heard, seen.check, refused)
        deployed = await self._deploy(resource, job, finetune_status(resource, told, now), now)
        status = deployed.status
        failure = await self.applier.write_status(resource, status, tell=deployed.news)
        if failure is None:
            count_ended(self.metrics, resource.get("status") or {}, status)
        announce(self.events, resource, status)
        if deployed.again is not None:
            way = replace(way, until=min(now + deployed.again, way.until or now + deployed.again))
        return self._outcome(way, plan, replace(applied, errors=(*applied.errors, *deployed.failures)), failure, now)

    def _same_output(self, resource: Resource) -> list[str]:
        """Other jobs of the namespace that publish where this one does. One that has failed has published nothing, and never will."""
        namespace, output = resource["metadata"]["namespace"], resource["spec"].get("output")
        found = [
            job
            for job in self.cache.list(kinds.FINETUNE.name, namespace)
            if job["spec"].get("output") == output
            and not job["metadata"].get("deletionTimestamp")
            and (job.get("status") or {}).get("outcome") != "Failed"
        ]
        others = [str(job["metadata"]["name"]) for job in found if job["metadata"]["uid"] != resource["metadata"]["uid"]]
        return others if len(others) < len(found) else []  # it is itself one of them, unless it has failed

    async def _gang_advice(self, job: GLM5FinetuneJob) -> tuple[Finding, ...]:
        if not gang.advice(job, kueue=False, volcano=False):
            return ()  # nobody was chosen: the server needn't be asked who is there
        gangs = await self.installed()
        return gang.advice(job, kueue=gangs.kueue, volcano=gangs.volcano)

    async def _deploy(self, resource: Resource, job: GLM5FinetuneJob, status: dict[str, Any], now: datetime) -> Deployed:
        return await self.deployments.advance(resource, job, status, now) if self.deployments else Deployed(status)

    async def give_up(self, key: Key, reason: str, now: datetime) -> None:
        """Say in the status, and by an Event, that the budget of failures is used up."""
        resource = self.cache.get(key.kind, key.namespace, key.name)
        if resource is None or is_stalled(resource):
            return
        status = gave_up(resource, reason, now)
        await self.applier.write_status(resource, status)
        announce(self.events, resource, status)

    async def _observe(self, key: Key, resource: Resource, job: GLM5FinetuneJob, now: datetime) -> Seen:
        children = [child for child in self.cache.children(resource["metadata"]["uid"]) if not is_evaluation(child)]
        checks = [child for child in children if child["kind"] == kinds.JOB.name and _is_check(child)]
        jobs = [child for child in children if child["kind"] == kinds.JOB.name and not _is_check(child)]
        jobs += await self._missing(key, resource, jobs)
        uids = {child["metadata"]["uid"] for child in jobs}
        # Pods of Jobs that are gone count too, until they are: they hold cards and write checkpoints.
        pods = tuple(pod for pod in self.cache.pods(key) if _is_of_a_job(pod, uids, names.finetune_labels(key.name)))
        pods += tuple(pod for pod in self.cache.ended_pods(key) if _is_of_a_job(pod, uids, {}))
        record = self.cache.get(kinds.CONFIG_MAP.name, key.namespace, names.outcome_name(key.name))
        ours = record is not None and any(child["metadata"]["uid"] == record["metadata"]["uid"] for child in children)
        nodes = {str(pod["spec"].get("nodeName") or "") for pod in pods} - {""}
        found = {name: self.cache.get(kinds.NODE.name, "", name) for name in nodes}
        gone = frozenset(name for name, node in found.items() if node is None)
        silent = frozenset(name for name, node in found.items() if node is not None and not is_true(node, "Ready"))
        sick = frozenset(name for name, node in found.items() if node is not None and is_in_remedy(node))
        heard = self.heard(newest["metadata"]["uid"]) if (newest := newest_of(jobs)) is not None else None
        check = self._check(key, resource, job, checks[0] if checks else None, now)
        return Seen(jobs, pods, dict((record or {}).get("data") or {}) if ours else {}, gone | silent, gone, sick, heard, check)

    def _check(self, key: Key, resource: Resource, job: GLM5FinetuneJob, found: Resource | None, now: datetime) -> Check:
        """What came of the check; `found` is its Job."""
        pods = [pod for pod in self.cache.pods(key) if _is_of_a_job(pod, {found["metadata"]["uid"]}, {})] if found else []
        return read_check(resource.get("status") or {}, check_digest(job), found, pods, now)

    async def _missing(self, key: Key, resource: Resource, jobs: list[Resource]) -> list[Resource]:
        """The newest attempt's Job, if the status knows it and the cache doesn't: a new leader's watches bring news in any order."""
        status = resource.get("status") or {}
        attempt = int(status.get("attempt") or 0)
        known = {(job["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL) for job in jobs}
        told = {item.get("attempt") for item in status.get("history") or ()}
        if not attempt or status.get("outcome") or attempt in told or str(attempt) in known:
            return []
        found = await self.find_job(key.namespace, names.attempt_name(key.name, attempt))
        owners = ((found or {}).get("metadata") or {}).get("ownerReferences") or ()
        return [found] if found is not None and any(item.get("uid") == resource["metadata"]["uid"] for item in owners) else []

    async def _act(
        self, resource: Resource, job: GLM5FinetuneJob, way: Course, check: Check | None, now: datetime
    ) -> tuple[Course, AttemptPlan | None, Applied]:
        """Bring the children to where the course is; a due attempt is planned and begun while no other run of the pool is."""
        if way.stage is Stage.CHECKING:
            return await self._look_first(resource, job, way, check)
        if way.stage is not Stage.DUE:
            return way, None, await self._converge(resource, job, way, ())
        async with self.pools[job.spec.pool]:
            attempt = way.record.attempt + 1
            plan = plan_attempt(job, await self._facts(resource, job, way), attempt)
            applied = await self._converge(resource, job, way, plan.objects)
        begun = self.cache.get(kinds.JOB.name, job.metadata.namespace or "", names.attempt_name(job.metadata.name, attempt))
        owned = begun is not None and any(item.get("uid") == job.metadata.uid for item in begun["metadata"].get("ownerReferences") or ())
        if plan.objects and begun is not None and owned:
            record = replace(way.record, attempt=attempt, started=way.record.started or now, retry=None)
            way = Course(Stage.RUNNING, record, begun, way.until)
        return way, plan, applied

    async def _look_first(
        self, resource: Resource, job: GLM5FinetuneJob, way: Course, check: Check | None
    ) -> tuple[Course, AttemptPlan | None, Applied]:
        """Have settings and data checked, by a pod like the attempt's; a check that is under way is left as it is."""
        plan = plan_attempt(job, await self._facts(resource, job, way), way.record.attempt + 1)
        new: tuple[Manifest, ...] = ()
        if check is not None and check.state is CheckState.NEEDED and plan.template is not None:
            new = check_objects(job, plan.template)
        stays = replace(way, job=check.job) if check is not None and check.state is CheckState.RUNNING else way
        return way, replace(plan, objects=(), waits=None), await self._converge(resource, job, stays, new)

    async def _refused(self, way: Course, seen: Seen, now: datetime) -> tuple[causes.Cause | None, Course]:
        """Why pods of the Job under way can't be created, when it lacks some for longer than it takes; and when to look again."""
        job = _lacks_pods(way, seen)
        if job is None:
            return None, way
        late = (moment(job["metadata"].get("creationTimestamp")) or now) + SLOW_TO_CREATE
        again = late if now < late else now + LOOK_FOR_PODS
        return (await self.refusal(job) if now >= late else None), replace(way, until=min(again, way.until or again))

    async def _converge(self, resource: Resource, job: GLM5FinetuneJob, way: Course, new: tuple[Manifest, ...]) -> Applied:
        """Write what is wanted, remove what isn't; the Job that stays and its training file are left as they are."""
        desired = list(new)
        if way.stage is Stage.FINISHED:
            desired.append(outcome_record(job, _outcome_data(way)))
        elif way.record.attempt or (new and way.stage is not Stage.CHECKING):
            desired.insert(0, rendezvous_service(job))
        # With a new attempt begun, the Job of the last one makes room for it.
        kept = _kept(job, way) if not new else set()
        live = [
            child
            for child in self.cache.children(resource["metadata"]["uid"])
            if (child["kind"], child["metadata"]["name"]) not in kept and not is_evaluation(child)
        ]
        return await self.applier.converge(resource, desired, live)

    async def _facts(self, resource: Resource, job: GLM5FinetuneJob, way: Course) -> FinetuneFacts:
        gangs = await self.installed()
        pool = self.facts.pool(job.spec.pool)
        avoided = frozenset(item["node"] for item in way.record.history if item.get("node") and item["cause"] == Cause.CARD_FAULT)
        resource_name = self.facts.resource_of_pool(job.spec.pool)
        claims = tuple(self._claims(resource, job.spec.pool, resource_name))
        return FinetuneFacts(pool, self.facts.site, claims, avoided, gangs.kueue, gangs.volcano)

    def _claims(self, resource: Resource, pool: str, resource_name: str) -> list[Claim]:
        """Cards of the pool that other runs were given and whose pods have no node yet."""
        found = []
        for other in self.cache.list(kinds.JOB.name):
            owner = other["metadata"].get("ownerReferences") or ()
            over = any(is_true(other, kind) for kind in ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"))
            if over or any(item.get("uid") == resource["metadata"]["uid"] for item in owner):
                continue
            key = self.cache.owner_of_label(
                names.FINETUNE_LABEL, other["metadata"]["namespace"], (other["metadata"].get("labels") or {}).get(names.FINETUNE_LABEL, "")
            )
            pods = [pod for pod in self.cache.pods(key) if _is_of_a_job(pod, {other["metadata"]["uid"]}, {})] if key else []
            bound = sum(bool(pod["spec"].get("nodeName")) for pod in pods if not is_ended(pod))
            at, waiting, cards = claim_of(other, resource_name, bound)
            if at == pool and waiting and cards:
                found.append(Claim(waiting, cards))
        return found

    def _outcome(self, way: Course, plan: AttemptPlan | None, applied: Applied, failure: ApiFailure | None, now: datetime) -> Outcome:
        failures = [*applied.errors, *([failure] if failure else [])]
        if transient := [item for item in failures if item.retryable]:
            waits = [item.retry_after for item in transient if item.retry_after]
            return Outcome.retry(min(item.reason for item in transient), max(waits) if waits else None)
        if failures:
            return Outcome.stalled(failures[0].reason, self.recheck)
        if plan is not None and plan.stalled:
            return Outcome.stalled(plan.stalled.reason, self.resync)
        after = LOOK_FOR_CARDS if plan is not None and plan.waits else self.resync
        if way.until is not None:
            after = min(after, max(timedelta(0), way.until - now))
        return Outcome.again(after)


def _kept(job: GLM5FinetuneJob, way: Course) -> set[tuple[str, str]]:
    """The Job that stays, with its training file."""
    if way.job is None:
        return set()
    attempt = str((way.job["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, ""))
    kept = {(kinds.JOB.name, way.job["metadata"]["name"])}
    if _is_check(way.job):
        return kept | {(kinds.CONFIG_MAP.name, way.job["metadata"]["name"])}
    if way.stage in {Stage.RUNNING, Stage.ENDING}:
        kept.add((kinds.POD_GROUP.name, way.job["metadata"]["name"]))
    return kept | ({(kinds.CONFIG_MAP.name, names.config_name(job.metadata.name, int(attempt)))} if attempt.isdigit() else set())


def _lacks_pods(way: Course, seen: Seen) -> Resource | None:
    """The Job under way that has fewer pods than it is to have."""
    job = way.job if way.stage is Stage.RUNNING else seen.check.job if way.stage is Stage.CHECKING and seen.check else None
    if job is None or job["spec"].get("suspend"):
        return None
    told = job.get("status") or {}
    pods = sum(int(told.get(field) or 0) for field in ("active", "succeeded", "failed"))
    return job if pods < int(job["spec"].get("completions") or 1) else None


def _is_check(child: Resource) -> bool:
    return bool((child["metadata"].get("labels") or {}).get(names.APP_COMPONENT_LABEL) == names.COMPONENT_CHECK)


def _outcome_data(way: Course) -> dict[str, str]:
    record = way.record
    return {
        "outcome": record.outcome,
        "reason": record.reason,
        "message": record.message,
        "attempt": str(record.attempt),
        **({"time": stamp(record.completed)} if record.completed else {}),
    }


def _is_of_a_job(pod: Resource, uids: set[str], labels: dict[str, str]) -> bool:
    """Whether one of these Jobs made the pod, or one that is gone. Anybody may put our label on a pod of theirs."""
    owners: list[dict[str, Any]] = [item for item in pod["metadata"].get("ownerReferences") or () if item.get("controller")]
    have = pod["metadata"].get("labels") or {}
    return any(
        item.get("kind") == kinds.JOB.name and (item.get("uid") in uids or (bool(labels) and labels.items() <= have.items()))
        for item in owners
    )


def _fault(failure: ApiFailure) -> WriteFault:
    where = f"{failure.target.kind} {failure.target.name}"
    message = failure.message if where in failure.message else f"{where}: {failure.message}"
    return WriteFault(failure.reason, message, failure.retryable)
