"""The whole `.status` of a GLM5Service, from its plan, its Deployment and its pods.

Called by the service controller. One function looks at everything and one order of questions decides, so that `Ready`, `Reconciling` and
`Stalled` can't contradict each other.

Ready is True only when every pod of the planned revision is ready, there are as many as asked for, and no pod of an older revision is left,
not even one that finishes its requests. Zero replicas on purpose count as Ready (`ScaledToZero`), as kstatus treats a Deployment with none:
a GitOps tool that waits for health would otherwise wait for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from glm5_operator.api import names
from glm5_operator.status import conditions as c
from glm5_operator.status.causes import ORDINARY, Cause, Reason, gravest, next_deadline
from glm5_operator.status.conditions import Condition, Truth
from glm5_operator.status.pods import PodState, pod_state
from glm5_operator.status.refusals import deadline_exceeded, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from glm5_operator.plan.service import ServicePlan

PLANNED = "Planned"
PODS_SCHEDULED = "PodsScheduled"
ENGINE_READY = "EngineReady"
DEGRADED = "Degraded"

HOPELESS_FAILED_PODS = 3
"""So many ended pods of one revision, with none alive after them, and the node or the spec is at fault rather than chance."""

MOST_HOLDERS = 3

_OF_TRAINING = ("Checking", "Queued", "Starting", "Training", "Suspended", "WaitingForCards", "AttemptEnding")
ORDINARY_REASONS = frozenset({"Applying", "RollingOut", "RolloutPaused", "ScalingToZero", *_OF_TRAINING, *ORDINARY})
"""Reasons for not being Ready that pass by themselves when all goes well."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the cache has of one service.

    Attributes:
        deployment: the service's Deployment; None before it exists.
        pods: all pods of the service, of any revision.
        held: the extended resources that its pods on nodes hold, ending pods included.
        card_holders: `namespace/name` of other services' pods on the pool's cards; only asked for when cards are short.
        adapters: `status.adapters`; None when nothing was planned about them.
    """

    deployment: Mapping[str, Any] | None
    pods: Sequence[Mapping[str, Any]] = ()
    held: Mapping[str, int] = field(default_factory=dict)
    card_holders: tuple[str, ...] = ()
    adapters: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class WriteFault:
    """A child that couldn't be written. `retryable`: time alone may heal it."""

    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The status, and what follows from it for the queue.

    Attributes:
        status: the whole `.status`.
        look_again: when time alone turns a cause into Stalled; None when only events can change the status.
        stalled: the status says Stalled.
    """

    status: dict[str, Any]
    look_again: datetime | None
    stalled: bool


@dataclass(frozen=True, slots=True)
class _Facts:
    """Counted once, asked often. Pods are `current` when they carry the planned revision."""

    desired: int
    revision: str
    paused: bool
    observed: bool
    rolled_out: bool
    live: tuple[PodState, ...]
    current: tuple[PodState, ...]
    old: tuple[PodState, ...]
    causes: tuple[Cause, ...]
    refused: Cause | None

    @property
    def ready(self) -> int:
        return sum(pod.ready for pod in self.live)

    @property
    def ready_current(self) -> int:
        return sum(pod.ready for pod in self.current)

    @property
    def complete(self) -> bool:
        """All pods are of the planned revision, as many as planned, and ready.

        Says nothing of the Deployment's observedGeneration: anybody's annotation on it raises its generation, and would make Ready blink.
        A pod carries the planned revision only once the Deployment was acted on.
        """
        counts = len(self.current) == self.desired == self.ready_current
        return counts and not self.old and self.rolled_out


def service_status(
    service: Mapping[str, Any], plan: ServicePlan, observed: Observed, faults: Sequence[WriteFault], now: datetime
) -> Report:
    """Compute the status. `service` is the object as the API server gave it; `faults` are this pass's failed writes.

    `observed` must be no older than this pass's own writes, or the old Deployment would vouch for the new plan.
    """
    facts = _facts(service, plan, observed)
    verdict = _verdict(service, plan, facts, faults, now)
    explained = (_planned(plan), _pods_scheduled(facts), _engine_ready(facts), _degraded(facts))
    previous = service.get("status") or {}
    generation = service["metadata"]["generation"]
    status = _fields(previous, plan, observed, facts) | {
        "observedGeneration": generation,
        "conditions": c.dated((*verdict, *explained), previous.get("conditions") or (), generation, now),
    }
    stalled = verdict[2].status is Truth.TRUE
    return Report(status, None if stalled else next_deadline(facts.causes, now), stalled)


def _facts(service: Mapping[str, Any], plan: ServicePlan, observed: Observed) -> _Facts:
    deployment = observed.deployment
    revision = plan.revision or _revision_of(deployment)
    states = tuple(pod_state(pod, plan.startup) for pod in observed.pods)
    current = tuple(pod for pod in states if not pod.leaving and pod.revision == revision)
    # Ended pods hold nothing; terminating ones of an older revision still finish requests and hold their cards.
    old = tuple(pod for pod in states if pod.revision != revision and (pod.terminating or not pod.leaving))
    refused = refusal(deployment) if deployment else None
    late = deadline_exceeded(deployment) if deployment else None
    causes = [_named(pod) for pod in current if pod.cause] + ([refused] if refused else []) + ([late] if late else [])
    if not current:
        causes += _ended(states, revision)
    return _Facts(
        desired=_desired(service, plan),
        revision=revision,
        paused=bool(((service.get("spec") or {}).get("rollout") or {}).get("paused")),
        observed=_is_observed(deployment),
        rolled_out=_is_rolled_out(deployment),
        live=tuple(pod for pod in states if not pod.leaving),
        current=current,
        old=old,
        causes=tuple(_with_holders(cause, observed) for cause in causes),
        refused=refused,
    )


def _verdict(
    service: Mapping[str, Any], plan: ServicePlan, facts: _Facts, faults: Sequence[WriteFault], now: datetime
) -> tuple[Condition, ...]:
    """Ready, Reconciling and Stalled. The order of the questions is the rule."""
    if plan.stalled:
        kept = f"; meanwhile the pods of the previous plan keep serving ({facts.ready} ready)" if facts.ready else ""
        return c.stuck(plan.stalled.reason, plan.stalled.message + kept)
    if faults:
        fault = min(faults, key=lambda item: (item.retryable, item.reason, item.message))
        return c.failing(fault.reason, fault.message, service) if fault.retryable else c.stuck(fault.reason, fault.message)
    if facts.desired == 0:
        return _scaled_to_zero(facts)
    if facts.complete:
        return c.settled("Serving", f"{facts.ready} of {facts.desired} pods serve")
    if not facts.observed:
        return c.on_its_way("Applying", "the Deployment's controller has yet to act on what was written", Truth.UNKNOWN)
    worst = gravest(facts.causes)
    if worst and any(cause.is_stalled(now) for cause in facts.causes):
        return c.stuck(worst.reason, _counted(facts, worst.message))
    if facts.paused and not facts.rolled_out:
        return c.on_its_way("RolloutPaused", _counted(facts, "set spec.rollout.paused to false to go on"))
    if worst:
        return c.on_its_way(worst.reason, _counted(facts, worst.message))
    return c.on_its_way("RollingOut", _counted(facts, _rolling(facts)))


def _scaled_to_zero(facts: _Facts) -> tuple[Condition, ...]:
    if left := sorted(pod.name for pod in (*facts.live, *facts.old)):
        return c.on_its_way("ScalingToZero", f"waiting for pod {left[0]} to end")
    return c.settled("ScaledToZero", "spec.replicas is 0: nothing runs and nothing is served")


def _rolling(facts: _Facts) -> str:
    if len(facts.current) < facts.desired:
        return "more pods of this revision are to come"
    if len(facts.current) > facts.desired:
        return "surplus pods are to end"
    if facts.old:
        names_of_old = sorted(pod.name for pod in facts.old)
        return f"waiting for pod {names_of_old[0]} of an older revision to end"
    return "waiting for the Deployment's controller to confirm"


def _counted(facts: _Facts, message: str) -> str:
    """With how many pods are ready: beside SERVING 3 a bare "0 of 3 pods ready" would contradict, so old ones that serve are told too."""
    old = facts.ready - facts.ready_current
    if not old:
        return f"{facts.ready_current} of {facts.desired} pods ready; {message}"
    serve = "1 old one serves" if old == 1 else f"{old} old ones serve"
    return f"{facts.ready_current} of {facts.desired} new pods ready, {serve}; {message}"


def _planned(plan: ServicePlan) -> Condition:
    if plan.stalled:
        return Condition(PLANNED, Truth.FALSE, plan.stalled.reason, plan.stalled.message)
    said = "".join(f"; {warning.reason}: {warning.message}" for warning in plan.warnings)
    resolved = plan.resolved
    cards = f"{resolved.cards} {resolved.resource_name or 'cards'}" if resolved and resolved.cards else "no card"
    what = f"{cards} for each replica"
    return Condition(PLANNED, Truth.TRUE, "Planned", what + said)


def _pods_scheduled(facts: _Facts) -> Condition:
    if facts.desired == 0:
        return Condition(PODS_SCHEDULED, Truth.TRUE, "ScaledToZero", "")
    if facts.refused:
        return Condition(PODS_SCHEDULED, Truth.FALSE, facts.refused.reason, facts.refused.message)
    waiting = [_named(pod) for pod in facts.current if not pod.scheduled and pod.cause]
    if worst := gravest(waiting):
        return Condition(PODS_SCHEDULED, Truth.FALSE, worst.reason, worst.message)
    scheduled = sum(pod.scheduled for pod in facts.current)
    enough = scheduled >= facts.desired
    return Condition(
        PODS_SCHEDULED,
        Truth.of(enough) if enough else Truth.UNKNOWN,
        "Scheduled" if enough else "Pending",
        f"{scheduled} of {facts.desired}",
    )


def _engine_ready(facts: _Facts) -> Condition:
    if facts.desired == 0:
        return Condition(ENGINE_READY, Truth.FALSE, "ScaledToZero", "")
    counted = f"{facts.ready_current} of {facts.desired}"
    if facts.ready_current >= facts.desired:
        return Condition(ENGINE_READY, Truth.TRUE, "EngineReady", counted)
    worst = gravest(_named(pod) for pod in facts.current if pod.scheduled and pod.cause)
    if worst is None:
        return Condition(ENGINE_READY, Truth.FALSE, "PodsNotScheduled", counted)
    return Condition(ENGINE_READY, Truth.FALSE, worst.reason, f"{counted}; {worst.message}")


def _degraded(facts: _Facts) -> Condition:
    """Abnormal-true: replicas that work and get no requests, since their cards are in remedy."""
    quiesced = sorted(pod.name for pod in facts.live if pod.quiesced)
    if not quiesced:
        return Condition(DEGRADED, Truth.FALSE, "AllReplicasInTraffic", "")
    message = f"{len(quiesced)} of {len(facts.live)} replicas are out of traffic for failed cards, the first is pod {quiesced[0]}"
    return Condition(DEGRADED, Truth.TRUE, Reason.REPLICA_QUIESCED, message)


def _fields(previous: Mapping[str, Any], plan: ServicePlan, observed: Observed, facts: _Facts) -> dict[str, Any]:
    """Everything but conditions. What a stalled plan can't say stays as long as its Deployment does."""
    kept = previous if observed.deployment else {}
    resource = plan.resolved.resource_name if plan.resolved else (previous.get("resolved") or {}).get("resourceName")
    fields = {
        "replicas": len(facts.live),
        "readyReplicas": facts.ready,
        "updatedReplicas": len(facts.current),
        "cardsHeld": observed.held.get(resource, 0) if resource else None,
        "revision": facts.revision or None,
        "selector": _selector(plan, observed) or kept.get("selector"),
        "endpoint": plan.endpoint or kept.get("endpoint"),
        "resolved": _resolved(plan) or kept.get("resolved"),
        "adapters": observed.adapters if observed.adapters is not None else kept.get("adapters") if plan.stalled else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _resolved(plan: ServicePlan) -> dict[str, Any] | None:
    return plan.resolved.model_dump(mode="json", by_alias=True, exclude_none=True) if plan.resolved else None


def _selector(plan: ServicePlan, observed: Observed) -> str | None:
    """For the scale subresource: autoscalers find the pods by it."""
    deployment = _planned_deployment(plan) or observed.deployment
    if deployment is None:
        return None
    labels = deployment["spec"]["selector"]["matchLabels"]
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _desired(service: Mapping[str, Any], plan: ServicePlan) -> int:
    deployment = _planned_deployment(plan)
    wanted = (deployment or service).get("spec", {}).get("replicas")
    return 1 if wanted is None else int(wanted)


def _planned_deployment(plan: ServicePlan) -> Mapping[str, Any] | None:
    return next((item for item in plan.objects if item.get("kind") == "Deployment"), None)


def _revision_of(deployment: Mapping[str, Any] | None) -> str:
    template = ((deployment or {}).get("spec") or {}).get("template") or {}
    return str(((template.get("metadata") or {}).get("labels") or {}).get(names.REVISION_LABEL, ""))


def _is_observed(deployment: Mapping[str, Any] | None) -> bool:
    """The Deployment's controller has seen its latest generation."""
    if deployment is None:
        return False
    return int((deployment.get("status") or {}).get("observedGeneration") or 0) >= int(deployment["metadata"].get("generation") or 0)


def _is_rolled_out(deployment: Mapping[str, Any] | None) -> bool:
    """The Deployment's own counts agree. Pods of a `kubectl rollout restart` keep our revision label, so ours alone don't tell."""
    if deployment is None:
        return False
    status, desired = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    return bool(status.get("replicas", 0) == status.get("updatedReplicas", 0) == desired)


def _named(pod: PodState) -> Cause:
    assert pod.cause is not None
    return replace(pod.cause, message=f"pod {pod.name}: {pod.cause.message}")


def _ended(states: Sequence[PodState], revision: str) -> list[Cause]:
    """Ended pods matter only when none of their revision is alive: otherwise they are history."""
    ended = [pod for pod in states if pod.cause and pod.leaving and pod.revision == revision]
    return [replace(_named(pod), hopeless=len(ended) >= HOPELESS_FAILED_PODS) for pod in ended]


def _with_holders(cause: Cause, observed: Observed) -> Cause:
    if cause.reason is not Reason.INSUFFICIENT_CARDS or not observed.card_holders:
        return cause
    shown = ", ".join(sorted(observed.card_holders)[:MOST_HOLDERS])
    more = len(observed.card_holders) - MOST_HOLDERS
    return replace(cause, message=f"{cause.message}; cards are held by pods {shown}" + (f" and {more} more" if more > 0 else ""))
