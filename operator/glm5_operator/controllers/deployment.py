"""Takes a job's published adapter into its service: observe, decide, have it evaluated, report.

Called by the fine-tuning controller at the end of each pass, with the status that it is about to write. Decides nothing: how far the
adapter is, is `status.deployment`, what keeps it out `plan.deployment`. The service's own controller writes the file that its pods read;
this one writes nothing but the evaluation's Job, and never looks at a job that has not ended well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.api.common import InvalidObjectError
from glm5_operator.api.service import GLM5Service
from glm5_operator.kube import ApiFailure, kinds
from glm5_operator.plan.adapters import full_share
from glm5_operator.plan.deployment import hindrance
from glm5_operator.plan.evaluation import CONTAINER, evaluation
from glm5_operator.plan.facts import AdapterFacts, Finding
from glm5_operator.status import conditions as c
from glm5_operator.status.deployment import Evaluated, Seen, Stage, Step, advance, deployed_condition
from glm5_operator.status.pods import is_replica, is_true
from glm5_operator.status.waiting import suspended_by_others

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from glm5_operator.api.deploy import DeploySpec
    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.controllers.adapters import Adapters
    from glm5_operator.controllers.facts import Facts
    from glm5_operator.kube import Applier, Cache, Events, Manifest, Resource

MOST_MESSAGE: Final = 400
ASKED_IN: Final = frozenset({Stage.LOADING, Stage.EVALUATING, Stage.CANARY})
"""Phases in which it matters what pods say."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """What a pass has come to.

    Attributes:
        status: the job's whole status, with its deployment.
        again: when to look again.
        failures: writes that failed.
        news: services wait for it.
    """

    status: dict[str, Any]
    again: timedelta | None = None
    failures: list[ApiFailure] = field(default_factory=list)
    news: bool = False


@dataclass(frozen=True)
class Deployments:
    """Deployments of all jobs."""

    cache: Cache
    applier: Applier
    events: Events
    facts: Facts
    adapters: Adapters

    async def advance(self, resource: Resource, job: GLM5FinetuneJob, status: Mapping[str, Any], now: datetime) -> Deployed:
        """The next step of `job`, whose status is to be `status` but for its deployment."""
        before = resource.get("status") or {}
        previous, deploy = before.get("deployment") or {}, job.spec.deploy
        rest = {name: value for name, value in status.items() if name != "deployment"}
        news = {name: before.get(name) for name in ("outcome", "adapter")} != {name: rest.get(name) for name in ("outcome", "adapter")}
        if deploy is None:
            failures = await self._evaluate(resource, None)
            return Deployed(rest, failures=failures, news=news or bool(previous))
        sha256 = str((rest.get("adapter") or {}).get("sha256") or "")
        if rest.get("outcome") != "Succeeded" or not sha256:
            return Deployed(_told(rest, resource, deploy, {}, now), news=news)
        step, wanted = await self._step(resource, job, deploy, sha256=sha256, previous=previous, now=now)
        failures = await self._evaluate(resource, wanted) if wanted or not step.evaluates else []
        report = step.report | ({"reason": failures[0].reason, "message": failures[0].message} if failures else {})
        self._announce(resource, previous, report)
        found = self.cache.get(kinds.SERVICE.name, resource["metadata"]["namespace"], deploy.service)
        told = _told(rest, resource, deploy, report, now, listed=_listed(found))
        return Deployed(told, step.again, failures, news or _asks_for(previous) != _asks_for(report))

    async def _step(
        self, resource: Resource, job: GLM5FinetuneJob, deploy: DeploySpec, *, sha256: str, previous: Mapping[str, Any], now: datetime
    ) -> tuple[Step, Manifest | None]:
        """The step, and the evaluation's Job if it takes one that isn't there."""
        namespace = resource["metadata"]["namespace"]
        found = self.cache.get(kinds.SERVICE.name, namespace, deploy.service)
        if found is not None and found["metadata"].get("deletionTimestamp"):
            found = None
        try:
            service = GLM5Service.parse(found) if found is not None else None
        except InvalidObjectError:
            return Step(dict(previous)), None  # of another version of the CRD: what is loaded stays
        seen = await self._see(resource, job, found, service, asks=previous.get("phase") in ASKED_IN)
        step = advance(deploy, sha256, previous, seen, now)
        if service is None or not step.evaluates or seen.evaluated.state != "Absent":
            return step, None
        pool = self.facts.pool(job.spec.pool)
        wanted = evaluation(job, service, pool.pool if pool else None, self.facts.site)
        if isinstance(wanted, Finding):
            return Step(step.report | {"reason": wanted.reason, "message": wanted.message}, evaluates=True, again=step.again), None
        return step, wanted

    async def _see(
        self, resource: Resource, job: GLM5FinetuneJob, found: Resource | None, service: GLM5Service | None, *, asks: bool
    ) -> Seen:
        if found is None or service is None:
            return Seen(hindrance(job, None, AdapterFacts()))
        facts = self.adapters.facts(found)
        why = hindrance(job, service, facts)
        if why is not None:
            return Seen(why)
        pods = self._replicas(found)
        live = frozenset(str(pod["metadata"]["uid"]) for pod in pods)
        ready = any(
            item.get("type") == c.READY and item.get("status") == "True" for item in (found.get("status") or {}).get("conditions") or ()
        )
        answers = await self.adapters.ask(pods) if asks else ()
        share = full_share(service, facts, job.metadata.name)
        return Seen(None, ready, answers, live, self._evaluated(resource), share, _listed(found))

    def _replicas(self, service: Resource) -> list[Resource]:
        metadata = service["metadata"]
        name = names.deployment_name(metadata["name"])
        live = self.cache.get(kinds.DEPLOYMENT.name, metadata["namespace"], name)
        selector = ((live or {}).get("spec") or {}).get("selector", {}).get("matchLabels") or {}
        key = self.cache.owner_of_label(names.SERVICE_LABEL, metadata["namespace"], names.fit(metadata["name"]))
        return [pod for pod in (self.cache.pods(key) if key else ()) if is_replica(pod, name, selector)]

    def _evaluated(self, resource: Resource) -> Evaluated:
        """How the evaluation's Job stands, and what its pod said."""
        job = next(iter(evaluations(self.cache, resource)), None)
        if job is None:
            return Evaluated()
        if is_true(job, "Complete") or is_true(job, "SuccessCriteriaMet"):
            words = [word for pod in self._evaluators(resource, job) if (word := _word(pod)).get("outcome") == "Succeeded"]
            return Evaluated("Succeeded", words[-1]) if words else Evaluated("Lost")
        if is_true(job, "Failed"):
            said = [message for pod in self._evaluators(resource, job) if (message := _said(pod))]
            why = next(
                (item.get("message") for item in (job.get("status") or {}).get("conditions") or () if item.get("type") == "Failed"), ""
            )
            return Evaluated("Failed", message=said[-1] if said else f"its Job failed: {why}")
        return Evaluated("Running", message=suspended_by_others(job))

    def _evaluators(self, resource: Resource, job: Resource) -> list[Resource]:
        """Pods of the evaluation, the newest last."""
        metadata = resource["metadata"]
        key = self.cache.owner_of_label(names.FINETUNE_LABEL, metadata["namespace"], names.fit(metadata["name"]))
        pods = [pod for pod in (self.cache.pods(key) if key else ()) if _is_of(pod, job)]
        return sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))

    async def _evaluate(self, resource: Resource, wanted: Manifest | None) -> list[ApiFailure]:
        """Begin the evaluation, or take away one that isn't wanted (any more). One that is under way is left as it is."""
        desired = [wanted] if wanted is not None else []
        live = evaluations(self.cache, resource)
        if not (desired or live):
            return []
        return list((await self.applier.converge(resource, desired, live)).errors)

    def _announce(self, resource: Resource, previous: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        phase = report.get("phase")
        if phase == previous.get("phase"):
            return
        if phase == Stage.ROLLED_BACK:
            self.events.warning(resource, Stage.ROLLED_BACK.value, f"{report.get('reason')}: {report.get('message')}")
        elif phase == Stage.DEPLOYED:
            self.events.normal(resource, Stage.DEPLOYED.value, str(report.get("message") or ""))


def evaluations(cache: Cache, resource: Resource) -> list[Resource]:
    """The evaluation's Job among the children of a fine-tuning job."""
    return [child for child in cache.children(resource["metadata"]["uid"]) if is_evaluation(child)]


def is_evaluation(child: Resource) -> bool:
    """A child that is no part of training."""
    return bool((child["metadata"].get("labels") or {}).get(names.APP_COMPONENT_LABEL) == names.COMPONENT_EVALUATION)


def _listed(service: Resource | None) -> Sequence[Mapping[str, Any]]:
    """`status.adapters` of a service."""
    return ((service or {}).get("status") or {}).get("adapters") or ()


def _told(
    rest: Mapping[str, Any],
    resource: Resource,
    deploy: DeploySpec,
    report: Mapping[str, Any],
    now: datetime,
    *,
    listed: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The status with the deployment and its condition; `listed`: adapters of the service, as its status has them."""
    before = resource.get("status") or {}
    sha256 = str((rest.get("adapter") or {}).get("sha256") or "")
    condition = deployed_condition(deploy, str(rest.get("outcome") or ""), report, listed, sha256)
    dated = c.dated((condition,), before.get("conditions") or (), resource["metadata"]["generation"], now)
    status = {**rest, "conditions": [*(rest.get("conditions") or ()), *dated]}
    return status | ({"deployment": dict(report)} if report else {})


def _asks_for(report: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a deployment the service's file is made from."""
    return tuple(report.get(name) for name in ("phase", "share", "service", "adapter", "began"))


def _is_of(pod: Resource, job: Resource) -> bool:
    owners: Iterable[Mapping[str, Any]] = pod["metadata"].get("ownerReferences") or ()
    return any(item.get("uid") == job["metadata"]["uid"] for item in owners)


def _terminated(pod: Resource) -> Mapping[str, Any]:
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    found: Mapping[str, Any] = next((item for item in states if item.get("name") == CONTAINER), {})
    return (found.get("state") or {}).get("terminated") or {}


def _word(pod: Resource) -> dict[str, Any]:
    try:
        word = json.loads(str(_terminated(pod).get("message") or ""))
    except (ValueError, RecursionError):
        return {}
    return word if isinstance(word, dict) else {}


def _said(pod: Resource) -> str:
    """Why an evaluator failed."""
    ended = _terminated(pod)
    if not ended:
        return ""
    said = str(_word(pod).get("message") or ended.get("message") or ended.get("reason") or "")
    return c.clipped(f"pod {pod['metadata']['name']}, exit code {ended.get('exitCode')}: {' '.join(said.split())}", MOST_MESSAGE)
