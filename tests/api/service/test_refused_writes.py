"""Children that the API server refuses: Stalled in its own words, and right by itself when what refused them is gone.

Real: quota and policy admission. What is lifted is lifted after the operator has given up, and sends it no event; its times are
shortened by settings.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import Json, Kube, stays, until

IMPATIENT = {
    "GLM5_OPERATOR_QUEUE_BACKOFF_BASE": "0.05",
    "GLM5_OPERATOR_QUEUE_BACKOFF_MAX": "1",
    "GLM5_OPERATOR_QUEUE_BUDGET": "3",
    "GLM5_OPERATOR_QUEUE_RECHECK": "1",
}
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
HOME = "kubernetes.io/metadata.name"
COUNT = {"count/deployments.apps": "0"}


@pytest.fixture(scope="module")
def impatient(operated_cluster: Operated) -> Iterator[Operated]:
    """The operator with short times; afterwards it has its usual ones."""
    operator, usual = operated_cluster.operator, dict(operated_cluster.operator.settings)
    if not operator.ended:
        operator.stop()
    operator.settings.update(IMPATIENT)
    operator.start()
    yield operated_cluster
    if not operator.ended:
        operator.stop()
    operator.settings.clear()
    operator.settings.update(usual)
    operator.start()


def test_a_quota_on_deployments_is_told_in_its_own_words_and_lifting_it_after_giving_up_heals(impatient: Operated, home: str) -> None:
    kube = impatient.kube
    kube.create({"kind": "ResourceQuota", "metadata": {"name": "none", "namespace": home}, "spec": {"hard": COUNT}})
    until("the quota to count", lambda: "hard" in kube.get("ResourceQuota", home, "none").get("status", {}))
    kube.create(tiny(home))

    given_up(impatient, home, "QuotaExceeded", "Deployment chat-engine", "exceeded quota: none", "limited: count/deployments.apps=0")

    kube.patch("ResourceQuota", home, "none", {"spec": {"hard": {"count/deployments.apps": "5"}}})
    kube.wait_ready(home, "chat")
    assert kube.condition(home, "chat", "Stalled")["status"] == "False"


@pytest.fixture(params=["Forbidden", "Invalid"])
def policy(kube: Kube, home: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A policy that denies Deployments in the namespace; it is in force when the test begins, and gone when it has ended."""
    match = {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}]}
    rule = {"expression": "false", "message": "ask the platform team for a licence", "reason": request.param}
    scope = {"namespaceSelector": {"matchLabels": {HOME: home}}}
    _post(kube, POLICIES, "ValidatingAdmissionPolicy", home, {"matchConstraints": match, "validations": [rule]})
    bound = {"policyName": home, "validationActions": ["Deny"], "matchResources": scope}
    _post(kube, BINDINGS, "ValidatingAdmissionPolicyBinding", home, bound)
    until("the policy to be in force", lambda: _is_denied(kube, home))
    yield str(request.param)
    _lift(kube, home)


def test_a_policy_that_denies_deployments_is_quoted_and_lifting_it_after_giving_up_heals(
    impatient: Operated, home: str, policy: str
) -> None:
    impatient.kube.create(tiny(home))

    given_up(impatient, home, policy, "Deployment chat-engine", home, "ask the platform team for a licence")

    _lift(impatient.kube, home)
    impatient.kube.wait_ready(home, "chat")


def given_up(operated: Operated, home: str, reason: str, *words: str) -> None:
    """Wait until the status says Stalled; it stays as it is while slow rechecks go on in vain."""
    kube = operated.kube
    until("Stalled", lambda: kube.condition(home, "chat", "Stalled").get("status") == "True", 60, lambda: str(kube.condition(home, "chat")))
    for kind in ("Ready", "Stalled"):
        told = kube.condition(home, "chat", kind)
        assert told["reason"] == reason
        for word in words:
            assert word in told["message"]
    version, tries = kube.get("GLM5Service", home, "chat")["metadata"]["resourceVersion"], _tries(operated)
    stays("the status", lambda: kube.get("GLM5Service", home, "chat")["metadata"]["resourceVersion"] == version, 4)
    assert 2 <= _tries(operated) - tries <= 8, "about one a second"
    until("an Event", lambda: any(event["reason"] == reason for event in kube.list("Event", home)))


def _tries(operated: Operated) -> float:
    return operated.operator.requests().get(("apply", "Deployment"), 0.0)


def _post(kube: Kube, path: str, kind: str, name: str, spec: Json) -> None:
    body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    answer = kube.http.post(path, json=body)
    assert answer.is_success, answer.text


def _lift(kube: Kube, name: str) -> None:
    for path in (BINDINGS, POLICIES):
        kube.http.delete(f"{path}/{name}")


def _is_denied(kube: Kube, namespace: str) -> bool:
    container = {"name": "c", "image": "c:1"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "probe"}, "spec": spec}
    return kube.http.post(kube.path("Deployment", namespace), json=body, params={"dryRun": "All"}).status_code in {403, 422}
