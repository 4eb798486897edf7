"""What a Deployment says when its pods can't be created or don't get on: quota, limits, Pod Security, admission, deadline.

Used by `service`, and by the controllers for Jobs. The texts come from the API server through conditions of Deployments and Events of
Jobs; without this they stay two objects below the one the user looks at.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from glm5_operator.status.causes import Cause, Reason
from glm5_operator.status.conditions import moment

if TYPE_CHECKING:
    from collections.abc import Mapping

_POD_NAME = re.compile(r'^pods "([^"]+)-[a-z0-9]+" is forbidden: |^(?:Pod )?"([^"]+)-[a-z0-9]+" is invalid: ')
_QUOTA = re.compile(r"exceeded quota: (?P<name>\S+), requested: (?P<asked>.+?), used: (?P<used>.+?), limited: (?P<limit>\S+)")
_QUOTA_NEEDS = re.compile(r"failed quota: (?P<name>\S+): must specify (?P<what>.+)")
_POD_SECURITY = re.compile(r'violates PodSecurity "(?P<level>[^"]+)": (?P<why>.+)')
_POLICY = re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'.*? denied request: (?P<why>.+)")
_WEBHOOK = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request: (?P<why>.+)')
_ACCOUNT = re.compile(r"serviceaccount \"(?P<name>[^\"]+)\" not found")
_LIMIT_RANGE = re.compile(r"(?:maximum|minimum) \S+ usage per |limit to request ratio per ")


def refusal(deployment: Mapping[str, Any]) -> Cause | None:
    """Why pods of `deployment` can't be created, if so."""
    condition = _condition(deployment, "ReplicaFailure")
    if condition is None or condition.get("status") != "True":
        return None
    text = _POD_NAME.sub("", str(condition.get("message", "")))
    reason, message = _read(text, deployment["metadata"].get("namespace", ""))
    return Cause(reason, message, moment(condition.get("lastTransitionTime")))


def job_refusal(note: str, namespace: str) -> Cause:
    """Why the pods of a Job can't be created, from the Event that its controller makes of it: Jobs have no condition for that."""
    reason, message = _read(_POD_NAME.sub("", note.removeprefix("Error creating: ")), namespace)
    return Cause(reason, message, None)


def deadline_exceeded(deployment: Mapping[str, Any]) -> Cause | None:
    """The Deployment gave its rollout more than the start-up window and saw no progress."""
    condition = _condition(deployment, "Progressing")
    if condition is None or condition.get("reason") != "ProgressDeadlineExceeded":
        return None
    limit = deployment.get("spec", {}).get("progressDeadlineSeconds", 600)
    message = f"no pod of the new revision became ready within {limit} s; see the pods' logs, or revert the last change of the spec"
    return Cause(Reason.DEADLINE_EXCEEDED, message, moment(condition.get("lastTransitionTime")))


def _read(text: str, namespace: str) -> tuple[Reason, str]:
    if found := _QUOTA.search(text):
        asked, used, limit = found["asked"], found["used"], found["limit"]
        return Reason.QUOTA_EXCEEDED, (
            f"ResourceQuota {found['name']} of namespace {namespace} refuses a pod: asked {asked}, used {used}, limit {limit}; "
            "raise the quota, free some of it, or ask for less"
        )
    if found := _QUOTA_NEEDS.search(text):
        return Reason.QUOTA_NEEDS_LIMITS, (
            f"ResourceQuota {found['name']} of namespace {namespace} wants every pod to state {found['what']}; "
            "set resources of that container in spec.podTemplate"
        )
    if found := _POD_SECURITY.search(text):
        return Reason.POD_SECURITY, (
            f"Pod Security level {found['level']} of namespace {namespace} refuses the pod: {found['why']}; "
            "change spec.podTemplate (of the service or its pool), or the namespace's level"
        )
    if found := _POLICY.search(text) or _WEBHOOK.search(text):
        return Reason.ADMISSION_DENIED, f"admission policy {found['name']} refuses the pod: {found['why']}"
    if found := _ACCOUNT.search(text):
        return (
            Reason.SERVICE_ACCOUNT_MISSING,
            f"create ServiceAccount {found['name']} in namespace {namespace}, or don't name it in podTemplate",
        )
    if _LIMIT_RANGE.search(text):
        return (
            Reason.LIMIT_RANGE,
            f"a LimitRange of namespace {namespace} refuses the pod: {text}; change it, or resources in spec.podTemplate",
        )
    return Reason.PODS_REFUSED, f"the API server refuses to create pods: {text}"


def _condition(deployment: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    conditions = deployment.get("status", {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), None)
