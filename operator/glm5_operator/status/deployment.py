"""A published adapter on its way into a running service: Waiting → Loading → Evaluating → Canary → Deployed, or RolledBack.

Called by the deployments' controller. Pure: each step is decided from what the job's status says and what is seen now, so an operator that
starts anew goes on where the last one was. Nothing here can start a training run: it is looked at only once that has ended well.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api.deploy import (
    DEFAULT_CANARY_SHARE,
    DEFAULT_CANARY_TIME,
    DEFAULT_LEAST_REQUESTS,
    DEFAULT_MOST_FAILURES,
)
from glm5_operator.status.adapters import FAILED, LOADED, LOADING, SAME_SHARE, are_silent, first_refusal, has, share_waits
from glm5_operator.status.canary import Tally, tally
from glm5_operator.status.conditions import Condition, Truth, clipped, moment, stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from glm5_operator.api.deploy import DeploySpec, EvaluateSpec
    from glm5_operator.plan.facts import Finding
    from glm5_operator.status.adapters import PodAnswer

DEPLOYED: Final = "Deployed"
"""The condition."""

ALL: Final = 1.0
"""Share of an adapter that was found good."""
REFUSED_AFTER: Final = timedelta(seconds=60)
"""A pod that can't load an adapter tries again; a volume may show a new folder late."""
SOON: Final = timedelta(seconds=2)
COUNTING: Final = timedelta(seconds=5)
LOOKING: Final = timedelta(seconds=30)
"""Of what only events tell, which this outlasts."""
EARLY_FAILURES: Final = 3
"""Failed requests from which on a canary ends before its time: one alone may be chance."""
MOST_MESSAGE: Final = 500

Json = dict[str, Any]


class Stage(StrEnum):
    """Phases of a deployment."""

    WAITING = "Waiting"
    LOADING = "Loading"
    EVALUATING = "Evaluating"
    CANARY = "Canary"
    DEPLOYED = "Deployed"
    ROLLED_BACK = "RolledBack"


class Reason(StrEnum):
    """Why an adapter waits or was taken out, beside what `plan.deployment` finds."""

    SERVICE_NOT_READY = "ServiceNotReady"
    LOAD_FAILED = "LoadFailed"
    EVALUATION_FAILED = "EvaluationFailed"
    WORSE_LOSS = "WorseLoss"
    WORSE_EXACT_MATCH = "WorseExactMatch"
    EXACT_MATCH_TOO_LOW = "ExactMatchTooLow"
    TOO_MANY_FAILURES = "TooManyFailures"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The evaluation's Job.

    Attributes:
        state: Absent, Running, Succeeded, Failed, or Lost when it has ended and nothing says how.
        word: what it found, as its pod said.
        message: why it failed, or what keeps it from running.
    """

    state: str = "Absent"
    word: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of the service that a job deploys to.

    Attributes:
        hindrance: why the adapter can't go there.
        ready: the service serves.
        pods: its ready pods.
        live: uids of all its pods.
        evaluated: the evaluation.
        share: part of the model's own traffic that it gets when it asks for all: newer deployments come first.
        listed: `status.adapters` of the service, which the condition goes by from then on.
    """

    hindrance: Finding | None = None
    ready: bool = False
    pods: Sequence[PodAnswer] = ()
    live: frozenset[str] = frozenset()
    evaluated: Evaluated = field(default_factory=Evaluated)
    share: float = 1.0
    listed: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What follows.

    Attributes:
        report: `status.deployment`.
        evaluates: the evaluation's Job is to be there.
        again: when time alone may change something.
    """

    report: Json
    evaluates: bool = False
    again: timedelta | None = None


def advance(deploy: DeploySpec, sha256: str, previous: Mapping[str, Any], seen: Seen, now: datetime) -> Step:
    """One step. `previous` is `status.deployment`, of this deployment or of one that the spec doesn't mean any more; or empty."""
    same = (previous.get("service"), previous.get("adapter")) == (deploy.service, deploy.adapter)
    same = same and previous.get("digest", deploy_digest(deploy)) == deploy_digest(deploy)  # an operator before this one wrote none
    report = dict(previous) if same and moment(previous.get("since")) else _phase({}, deploy, Stage.WAITING, now)
    phase = report.get("phase")
    if phase == Stage.ROLLED_BACK:
        return Step(report)
    report.pop("reason", None)  # of a write that failed in the last pass; why it waits is found anew
    if seen.hindrance is not None:
        return _waits(report, deploy, seen.hindrance.reason, seen.hindrance.message, now)
    if phase == Stage.WAITING:
        if not seen.ready:
            return _waits(report, deploy, Reason.SERVICE_NOT_READY, f"GLM5Service {deploy.service} doesn't serve yet", now)
        return Step(_phase(report, deploy, Stage.LOADING, now) | {"began": stamp(now)}, again=SOON)
    if phase == Stage.LOADING:
        return _loading(report, deploy, sha256, seen, now)
    if phase == Stage.EVALUATING:
        return _evaluating(report, deploy, sha256, seen, now)
    if phase == Stage.CANARY:
        return _canary(report, deploy, sha256, seen, now)
    return Step(report)


def deploy_digest(deploy: DeploySpec) -> str:
    """Of `spec.deploy`, in 16 hex digits: what was removed and set anew with other values between two passes is another deployment."""
    return hashlib.sha256(deploy.model_dump_json(by_alias=True, exclude_none=True).encode()).hexdigest()[:16]


def deployed_condition(
    deploy: DeploySpec, outcome: str, report: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], sha256: str = ""
) -> Condition:
    """True once the adapter answers all that it is to answer, and while it does.

    `listed`: `status.adapters` of the service; `sha256`: of the weights that the job published.
    """
    phase, message = str(report.get("phase") or ""), str(report.get("message") or "")
    if not phase:
        return Condition(DEPLOYED, Truth.FALSE, "NotPublished" if outcome else "NotYet", "")
    if phase == Stage.DEPLOYED:
        said = message or f"{deploy.adapter} is in GLM5Service {deploy.service}"
        return _not_served(deploy, listed, sha256) or Condition(DEPLOYED, Truth.TRUE, Stage.DEPLOYED.value, said)
    reason = str(report.get("reason") or phase)
    said = f"{phase}: {message}" if message else phase
    return Condition(DEPLOYED, Truth.FALSE, reason, said)


def _not_served(deploy: DeploySpec, listed: Sequence[Mapping[str, Any]], sha256: str) -> Condition | None:
    """It was deployed, and pods that came since lack it: the model without it answers there. The phase stays, for they try on."""
    found = next((item for item in listed if item.get("name") == deploy.adapter), None)
    if found is None:
        return Condition(DEPLOYED, Truth.UNKNOWN, "NotListed", f"GLM5Service {deploy.service} says nothing of {deploy.adapter} now")
    state, why = str(found.get("state") or ""), str(found.get("message") or "")
    if sha256 and found.get("sha256", sha256) != sha256:
        other = f"GLM5Service {deploy.service} has other weights as {deploy.adapter}: sha256 {found['sha256']}, published {sha256}"
        return Condition(DEPLOYED, Truth.FALSE, Stage.LOADING.value, other)
    if state == LOADED:
        return Condition(DEPLOYED, Truth.FALSE, Stage.LOADING.value, why) if why else None  # not with its share in every pod
    having, of = int(found.get("pods") or 0), int(found.get("of") or 0)
    silent = state == LOADING and of > 0 and why  # of pods that all answer it is known what they lack
    reason = Reason.LOAD_FAILED.value if state == FAILED else Stage.LOADING.value
    where = f"{having} of {of} ready pods of GLM5Service {deploy.service} have {deploy.adapter} now"
    return Condition(DEPLOYED, Truth.UNKNOWN if silent else Truth.FALSE, reason, f"{where}: {why}" if why else where)


def _loading(report: Json, deploy: DeploySpec, sha256: str, seen: Seen, now: datetime) -> Step:
    """Every ready pod must have these very weights."""
    having = sum(has(pod, deploy.adapter, sha256) for pod in seen.pods)
    if seen.pods and having == len(seen.pods):
        if deploy.evaluate is not None:
            return Step(_phase(report, deploy, Stage.EVALUATING, now), evaluates=True, again=LOOKING)
        return _exposed(report, deploy, sha256, seen, now)
    refusal = first_refusal(seen.pods, deploy.adapter)
    if refusal and now >= _since(report) + REFUSED_AFTER:
        return _back(report, deploy, Reason.LOAD_FAILED, refusal, now)
    if are_silent(seen.pods):
        return Step(report | {"message": "no pod says which adapters it has: let the operator reach the engine's port"}, again=LOOKING)
    return Step(report | {"message": refusal or f"{having} of {len(seen.pods)} ready pods have it"}, again=SOON)


def _evaluating(report: Json, deploy: DeploySpec, sha256: str, seen: Seen, now: datetime) -> Step:
    """On rows that it has not learned from, beside the model without it."""
    if deploy.evaluate is None or report.get("share") == ALL:  # found good already, and its share is on its way
        return _exposed(report, deploy, sha256, seen, now)
    found = seen.evaluated
    if found.state == "Failed":
        return _back(report, deploy, Reason.EVALUATION_FAILED, found.message or "the evaluation failed", now)
    if found.state == "Lost":
        return Step(report | {"message": "what the evaluation found is lost; it is begun anew"}, evaluates=False, again=SOON)
    if found.state != "Succeeded":
        return Step(report | {"message": found.message or "the evaluation runs"}, evaluates=True, again=LOOKING)
    told = _found(found.word)
    why = _worse(deploy.evaluate, told)
    if why is not None:
        return _back(report | {"evaluation": told}, deploy, *why, now)
    return _exposed(report | {"evaluation": told}, deploy, sha256, seen, now)


def _exposed(report: Json, deploy: DeploySpec, sha256: str, seen: Seen, now: datetime) -> Step:
    """To a part of the traffic first, if that is asked for, else to all."""
    canary = deploy.canary
    if canary is None:
        return _finished(report, deploy, sha256, seen, now)
    share = canary.share or DEFAULT_CANARY_SHARE
    begun = tally(Tally(), seen.pods, seen.live, deploy.adapter, counts_before=True)
    return Step(_phase(report, deploy, Stage.CANARY, now) | {"share": share, "canary": begun.as_json()}, again=COUNTING)


def _canary(report: Json, deploy: DeploySpec, sha256: str, seen: Seen, now: datetime) -> Step:
    """Its share of requests is watched for longer than the time if too few came in it."""
    canary = deploy.canary
    if canary is None:
        return _finished(report, deploy, sha256, seen, now)
    counted = tally(Tally.of(report.get("canary") or {}), seen.pods, seen.live, deploy.adapter)
    report = report | {"canary": counted.as_json()}
    allowed = DEFAULT_MOST_FAILURES if canary.most_failures is None else canary.most_failures
    over = _since(report) + (DEFAULT_CANARY_TIME if canary.time is None else canary.time)
    least = DEFAULT_LEAST_REQUESTS if canary.least_requests is None else canary.least_requests
    asked = bool(seen.pods) and all(pod.held is not None for pod in seen.pods)
    ending = now >= over and counted.requests >= least and asked
    if counted.excess > allowed and (ending or counted.failures >= EARLY_FAILURES):
        return _back(report, deploy, Reason.TOO_MANY_FAILURES, f"{counted.told}; {allowed:.1%} more than the others may fail", now)
    if ending:
        return _finished(report, deploy, sha256, seen, now)
    wait = LOOKING if are_silent(seen.pods) else max(SOON, min(COUNTING, over - now))
    waits = "" if now < over else f"; waits for {least} requests" if counted.requests < least else "; waits for every pod to answer"
    return Step(report | {"message": f"{counted.told}{waits}"}, again=wait)


def _finished(report: Json, deploy: DeploySpec, sha256: str, seen: Seen, now: datetime) -> Step:
    """It gets all of the traffic, and is deployed once every ready pod says so: kubelet brings them the file some seconds later."""
    report = report | {"share": ALL}
    if waits := share_waits(seen.pods, deploy.adapter, sha256, seen.share):
        refusal = first_refusal(seen.pods, deploy.adapter)
        return Step(report | {"message": f"{waits}: {refusal}" if refusal else waits}, again=LOOKING if are_silent(seen.pods) else SOON)
    if untold := _untold(deploy, sha256, seen):
        return Step(report | {"message": untold}, again=SOON)
    message = f"{deploy.adapter} answers by its own name and for the model of GLM5Service {deploy.service}"
    told = _told(report.get("evaluation") or {})
    return Step(_phase(report, deploy, Stage.DEPLOYED, now) | {"share": ALL, "message": f"{message}{f' ({told})' if told else ''}"})


def _untold(deploy: DeploySpec, sha256: str, seen: Seen) -> str:
    """What the service's own status has yet to say of it: without that, phase and condition would differ for a moment."""
    unserved = _not_served(deploy, seen.listed, sha256)
    if unserved is not None:
        return unserved.message
    listed = next(item for item in seen.listed if item.get("name") == deploy.adapter)
    same = abs(float(listed.get("share") or 0) - seen.share) < SAME_SHARE
    return "" if same else f"waits for GLM5Service {deploy.service} to list its share"


def _waits(report: Json, deploy: DeploySpec, reason: str, message: str, now: datetime) -> Step:
    """Back at the beginning, from wherever it was: the service that it was tried in is another one now, or takes no adapters."""
    waiting = report if report.get("phase") == Stage.WAITING else _phase({}, deploy, Stage.WAITING, now)
    return Step(waiting | {"reason": str(reason), "message": clipped(message, MOST_MESSAGE)}, again=LOOKING)


def _back(report: Json, deploy: DeploySpec, reason: str, message: str, now: datetime) -> Step:
    return Step(_phase(report, deploy, Stage.ROLLED_BACK, now) | {"reason": str(reason), "message": clipped(message, MOST_MESSAGE)})


def _phase(report: Json, deploy: DeploySpec, phase: Stage, now: datetime) -> Json:
    """A new phase begins: with no share and no words, and with what earlier ones found."""
    kept: Json = {name: report[name] for name in ("began", "evaluation", "canary") if name in report}
    names: Json = {"service": deploy.service, "adapter": deploy.adapter, "digest": deploy_digest(deploy)}
    return {"phase": phase.value, "since": stamp(now), **names, "share": 0.0, **kept}


def _since(report: Mapping[str, Any]) -> datetime:
    since = moment(report.get("since"))
    assert since is not None, "a report without a time is begun anew"
    return since


def _found(word: Mapping[str, Any]) -> Json:
    """`evaluation` of the status; what the evaluator said in another type isn't there."""
    found: Json = {}
    rows = word.get("rows")
    if isinstance(rows, int) and not isinstance(rows, bool):
        found["rows"] = rows
    for part, prefix in (("adapter", ""), ("base", "base ")):
        values = word.get(part)
        for key in ("loss", "exact_match"):
            value = values.get(key) if isinstance(values, dict) else None
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                found[_CAMEL[prefix + key]] = float(f"{value:.6g}")
    return found


_CAMEL: Final = {"loss": "loss", "exact_match": "exactMatch", "base loss": "baseLoss", "base exact_match": "baseExactMatch"}


def _worse(evaluate: EvaluateSpec, found: Mapping[str, Any]) -> tuple[str, str] | None:
    """Reason and words when clients would be worse off with it."""
    loss, base = found.get("loss"), found.get("baseLoss")
    if loss is None or base is None:
        return Reason.EVALUATION_FAILED, "the evaluation told no finite loss"
    tolerance = evaluate.tolerance or 0.0
    if loss > base + tolerance:
        return Reason.WORSE_LOSS, f"its loss is {loss:.4g}, without it {base:.4g}" + (
            f", and {tolerance:g} more is allowed" if tolerance else ""
        )
    exact, before = found.get("exactMatch"), found.get("baseExactMatch")
    least = evaluate.least_exact_match
    if least is not None and (exact is None or exact < least):
        return (
            Reason.EXACT_MATCH_TOO_LOW,
            f"{'no answer' if exact is None else f'{exact:.1%} of its answers'} are exactly right, and {least:.1%} must be",
        )
    if exact is not None and before is not None and exact < before:
        return Reason.WORSE_EXACT_MATCH, f"{exact:.1%} of its answers are exactly right, without it {before:.1%}"
    return None


def _told(found: Mapping[str, Any]) -> str:
    if "loss" not in found:
        return ""
    exact = f", {found['exactMatch']:.1%} exactly right" if "exactMatch" in found else ""
    return f"loss {found['loss']:.4g}, without it {found['baseLoss']:.4g}{exact}"
