"""The admission layer alone: no operator runs, no node has a label or a taint, and the chart's policies meet pods that want cards.

Real: API server, controller manager, scheduler, the policies as helm renders them. Nothing else is there that could refuse a pod.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.cluster.api import ApiCluster, ApiOptions
from tests.cluster.nodes import RESOURCE
from tests.cluster.tools import tool
from tests.support.chart import Chart
from tests.support.crds import install_crds
from tests.support.documents import pool
from tests.support.kube import Json, Kube, until

pytestmark = pytest.mark.api

POOL = {"glm5.dev/pool": "inference"}
VALUES = {"admission": {"exemptNamespaces": ["lab"], "daemonSetNamespaces": ["site"], "resources": ["example.com/card"]}}


@dataclass(frozen=True)
class Early:
    """A cluster that has the policies and not yet the CRDs, and what it answered to pods then: why it refused them, "" where it didn't."""

    cluster: ApiCluster
    plain: str
    cards: str


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Early]:
    """The policies, the namespaces that they name, and one more policy that tells when they have been read."""
    with ApiCluster.start(options=ApiOptions(kwok=False)) as cluster:
        kube = Kube(cluster.http)
        for name in ("prod", "dev", "lab", "site"):
            kube.create({"kind": "Namespace", "metadata": {"name": name}})
            until(f"the ServiceAccount of {name}", lambda name=name: kube.find("ServiceAccount", name, "default") is not None)
        policies = [item for item in Chart(tool("helm"), tmp_path_factory.mktemp("helm")).render(VALUES) if "Admission" in item["kind"]]
        for item in (*policies, *_canary()):
            kube.create(item)
        # The API server reads all policies in one go.
        canary = a_pod("prod", resource="")
        canary["metadata"]["labels"] = {"canary": "yes"}
        until("the canary to be refused", lambda: "the canary sings" in _refusal(kube, canary), 60, lambda: _refusal(kube, canary))
        yield Early(cluster, _refusal(kube, a_pod("prod", resource="")), _refusal(kube, a_pod("prod")))


def _canary() -> tuple[Json, Json]:
    group, metadata = "admissionregistration.k8s.io/v1", {"name": "canary"}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    constraints = {"resourceRules": rules, "objectSelector": {"matchLabels": {"canary": "yes"}}}
    spec = {"matchConstraints": constraints, "validations": [{"expression": "false", "message": "the canary sings"}]}
    binding = {"policyName": "canary", "validationActions": ["Deny"]}
    return (
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    )


@pytest.fixture(scope="module")
def bare(early: Early) -> Kube:
    """CRDs and policies, the namespaces that they name, and a pool that is open to `prod` alone."""
    install_crds(early.cluster)
    kube = Kube(early.cluster.http)
    kube.create(pool("inference", namespaces=["prod"], enforcement="Deny"))
    # The API server looks for kinds that it didn't find each 30 s.
    until(
        "the policies to be in force",
        lambda: "must name its pool" in _refusal(kube, a_pod("prod")),
        120,
        lambda: _refusal(kube, a_pod("prod")),
    )
    return kube


@pytest.fixture
def enforcement(bare: Kube) -> Iterator[None]:
    """Whatever a test sets the pool to, the next finds it as it was."""
    yield
    bare.patch("NPUPool", "", "inference", {"spec": {"enforcement": "Deny"}})
    until("pods to be refused again", lambda: "must name its pool" in _refusal(bare, a_pod("prod")), 60)


def a_pod(namespace: str, *, name: str = "", resource: str = RESOURCE, count: str = "1", **spec: object) -> Json:
    resources = {"limits": {resource: count}} if resource else {}
    container = {"name": "main", "image": "train:1", "resources": resources}
    return {
        "kind": "Pod",
        "metadata": {"name": name or _fresh(), "namespace": namespace},
        "spec": {"containers": [container], **spec},
    }


def _fresh() -> str:
    return f"p-{secrets.token_hex(4)}"


def _answer(kube: Kube, document: Json) -> httpx.Response:
    version = {"Pod": "v1", "Deployment": "apps/v1", "Job": "batch/v1", "DaemonSet": "apps/v1"}[document["kind"]]
    path = kube.path(document["kind"], document["metadata"]["namespace"])
    return kube.http.post(path, params={"dryRun": "All"}, json={"apiVersion": version, **document})


def _refusal(kube: Kube, document: Json) -> str:
    """Why the API server doesn't take it; empty when it does. Nothing is stored."""
    answer = _answer(kube, document)
    assert answer.is_success or answer.status_code in {403, 422}, answer.text
    return "" if answer.is_success else str(answer.json()["message"])


def owned(document: Json, template: Json) -> Json:
    """A workload around that pod's spec."""
    labels = {"app": document["metadata"]["name"]}
    spec = {"template": {"metadata": {"labels": labels}, "spec": template["spec"]}}
    if document["kind"] != "Job":
        spec["selector"] = {"matchLabels": labels}
    return {**document, "spec": {**document.get("spec", {}), **spec}}


def test_no_pod_waits_for_a_crd_that_is_not_there(early: Early) -> None:
    """Nor for one that the API server hasn't found yet. `bare` then shows that the same policies hold once it has."""
    assert early.plain == ""
    assert early.cards == ""


def test_a_pod_that_names_a_pool_open_to_its_namespace_is_taken(bare: Kube) -> None:
    assert _refusal(bare, a_pod("prod", nodeSelector=POOL)) == ""


def test_a_pod_without_cards_is_nobodys_business(bare: Kube) -> None:
    assert _refusal(bare, a_pod("dev", resource="")) == ""
    assert _refusal(bare, a_pod("dev", resource="", nodeName="node-1")) == ""
    assert _refusal(bare, a_pod("dev", resource="nvidia.com/gpu")) == ""


@pytest.mark.parametrize("selector", [{}, {"kubernetes.io/hostname": "node-1"}, {"glm5.dev/pool": ""}])
def test_a_pod_that_names_no_pool_is_refused_and_told_where_to_write_it(bare: Kube, selector: Json) -> None:
    assert "spec.nodeSelector glm5.dev/pool" in _refusal(bare, a_pod("prod", nodeSelector=selector))


@pytest.mark.parametrize("selector", [{}, POOL])
def test_a_pod_that_presets_a_node_is_refused_whatever_pool_it_names(bare: Kube, selector: Json) -> None:
    assert "may not name a node" in _refusal(bare, a_pod("prod", nodeName="node-1", nodeSelector=selector))


def test_a_pool_that_is_not_open_to_the_namespace_is_refused_by_name(bare: Kube) -> None:
    assert "NPUPool inference isn't open to namespace dev" in _refusal(bare, a_pod("dev", nodeSelector=POOL))


@pytest.mark.parametrize("resource", ["huawei.com/Ascend310P", "huawei.com/npu", "huawei.com/Ascend910-2c", "example.com/card"])
def test_every_name_of_a_card_counts(bare: Kube, resource: str) -> None:
    assert "must name its pool" in _refusal(bare, a_pod("prod", resource=resource))


def test_cards_of_an_init_container_or_of_the_last_of_many_containers_count(bare: Kube) -> None:
    wants = {"name": "init", "image": "i:1", "resources": {"limits": {RESOURCE: "1"}}}
    plain = [{"name": f"c-{number}", "image": "i:1"} for number in range(200)]
    assert "must name its pool" in _refusal(bare, a_pod("prod", resource="", initContainers=[wants]))
    assert "must name its pool" in _refusal(bare, a_pod("prod", containers=[*plain, wants]))


VISIBLE = "ASCEND_VISIBLE_DEVICES"
PLUGINS = {"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['huawei.com/Ascend910']"}}}
"""What Volcano's jobs have: the annotation is the scheduler's."""
TAKEN = [
    {"value": "0-7"},
    {"value": "$(CARDS)"},
    {"valueFrom": {"configMapKeyRef": {"name": "cards", "key": "all"}}},
    {"valueFrom": {"secretKeyRef": {"name": "cards", "key": "all"}}},
    {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['example.com/huawei.com-Ascend910']"}}},
    {"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
]


def a_container(*env: Json, cards: bool = True) -> Json:
    return {"name": "main", "image": "i:1", "env": [*env], "resources": {"limits": {RESOURCE: "1"}} if cards else {}}


@pytest.mark.parametrize("how", TAKEN, ids=str)
def test_cards_taken_past_kubernetes_are_refused_even_in_an_open_pool(bare: Kube, how: Json) -> None:
    """The Ascend Docker Runtime mounts what that variable names, whatever was allocated."""
    container = a_container({"name": VISIBLE, **how})
    assert "Kubernetes didn't give" in _refusal(bare, a_pod("prod", nodeSelector=POOL, containers=[container]))
    init = {**container, "name": "init", "resources": {}}
    assert "Kubernetes didn't give" in _refusal(bare, a_pod("prod", nodeSelector=POOL, initContainers=[init]))
    alone = {**container, "resources": {}}
    assert "Kubernetes didn't give" in _refusal(bare, a_pod("prod", nodeSelector=POOL, containers=[alone]))


@pytest.mark.parametrize("key", ["huawei.com/Ascend910", "huawei.com/AscendReal", "huawei.com/npu"])
def test_cards_may_come_from_the_plugins_annotation_in_a_pod_that_asks_for_cards_and_leaves_it_to_the_plugin(bare: Kube, key: str) -> None:
    given = {"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}
    sidecar = {**a_container(given, cards=False), "name": "sidecar"}
    fine = a_pod("prod", nodeSelector=POOL, containers=[a_container(given), sidecar])
    assert _refusal(bare, fine) == ""
    assert "Kubernetes didn't give" in _refusal(bare, a_pod("prod", nodeSelector=POOL, containers=[sidecar]))
    fine["metadata"]["annotations"] = {key: "Ascend910-0,Ascend910-1"}
    assert "Kubernetes didn't give" in _refusal(bare, fine)


def test_a_pod_that_wants_no_cards_may_say_so_and_may_take_all_of_a_config_map(bare: Kube) -> None:
    """What is in the map isn't known here, nor whether the pod comes to a node with cards: what it takes there the audit finds."""
    nothing = a_container({"name": VISIBLE, "value": "void"}, {"name": VISIBLE, "value": ""}, {"name": VISIBLE}, cards=False)
    nothing["envFrom"] = [{"configMapRef": {"name": "settings"}}, {"prefix": "ASCEND_", "configMapRef": {"name": "settings"}}]
    assert _refusal(bare, a_pod("dev", containers=[nothing])) == ""


@pytest.mark.parametrize("how", [*TAKEN, {"valueFrom": PLUGINS["valueFrom"]}], ids=str)
def test_a_container_for_debugging_takes_no_cards_either(bare: Kube, how: Json) -> None:
    made = bare.create(a_pod("dev", resource=""))["metadata"]["name"]
    debugger = {"name": "debugger", "image": "busybox:1", "env": [{"name": VISIBLE, **how}]}

    def refusal(container: Json) -> str:
        path = bare.path("Pod", "dev", made, "ephemeralcontainers")
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        patch = {"spec": {"ephemeralContainers": [container]}}
        answer = bare.http.patch(path, params={"dryRun": "All"}, json=patch, headers=headers)
        return "" if answer.is_success else str(answer.json()["message"])

    assert "Kubernetes didn't give" in refusal(debugger)
    assert refusal({**debugger, "env": []}) == "", "and no pool is asked for, nor a node forbidden"
    bare.delete("Pod", "dev", made)


def test_a_pod_with_more_variables_than_can_be_looked_through_is_refused(bare: Kube) -> None:
    """The rules have a budget of steps, and what goes beyond it passes: so who hides the variable among so many is refused unseen."""
    env = [{"name": f"V{number}", "value": "x"} for number in range(1000)]
    crowd = [{"name": f"c-{number}", "image": "i:1", "env": env} for number in range(5)]
    crowd[-1] = {**crowd[-1], "env": [*env, {"name": VISIBLE, "value": "0-7"}]}
    assert "more than 5000 environment variables" in _refusal(bare, a_pod("prod", nodeSelector=POOL, containers=crowd))
    # As many as are looked through, and of the kind that takes longest: what isn't found here was beyond the budget.
    most = a_container(*[PLUGINS] * 4999, {"name": VISIBLE, "value": "0-7"})
    assert "Kubernetes didn't give" in _refusal(bare, a_pod("prod", nodeSelector=POOL, containers=[most]))


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_pods_of_deployments_and_jobs_are_held_to_the_same(bare: Kube, kind: str) -> None:
    """They come from a controller in kube-system's name, so it is the pod's namespace that counts."""
    name = f"{kind.lower()}-{secrets.token_hex(3)}"
    restart = {"restartPolicy": "Never"} if kind == "Job" else {}
    document = owned({"kind": kind, "metadata": {"name": name, "namespace": "dev"}}, a_pod("dev", nodeSelector=POOL, **restart))
    bare.create(document)

    def refused() -> bool:
        notes = [item.get("note", "") for item in bare.list("Event", "dev") if name in item["regarding"]["name"]]
        return any("isn't open to namespace dev" in note for note in notes)

    until("its controller to be refused", refused, 60, lambda: str([item.get("note") for item in bare.list("Event", "dev")]))
    assert [pod for pod in bare.list("Pod", "dev") if pod["metadata"]["name"].startswith(name)] == []
    bare.delete(kind, "dev", name)


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_pods_of_deployments_and_jobs_that_keep_to_it_come_to_be(bare: Kube, kind: str) -> None:
    name = f"{kind.lower()}-{secrets.token_hex(3)}"
    restart = {"restartPolicy": "Never"} if kind == "Job" else {}
    bare.create(owned({"kind": kind, "metadata": {"name": name, "namespace": "prod"}}, a_pod("prod", nodeSelector=POOL, **restart)))
    until("its pod", lambda: any(pod["metadata"]["name"].startswith(name) for pod in bare.list("Pod", "prod")), 60)
    bare.delete(kind, "prod", name)


def test_pods_of_daemon_sets_pass_in_the_listed_namespaces_and_nowhere_else(bare: Kube) -> None:
    def of(kind: str, namespace: str, *, controller: bool = True) -> Json:
        document = a_pod(namespace)
        version = "apps/v1"
        reference = {"apiVersion": version, "kind": kind, "name": "burn-in", "uid": "1", "controller": controller}
        document["metadata"]["ownerReferences"] = [reference]
        return document

    assert _refusal(bare, of("DaemonSet", "site")) == ""
    assert "must name its pool" in _refusal(bare, of("DaemonSet", "prod"))
    assert "must name its pool" in _refusal(bare, of("StatefulSet", "site"))
    assert "must name its pool" in _refusal(bare, of("DaemonSet", "site", controller=False))
    assert "must name its pool" in _refusal(bare, a_pod("site"))


def test_an_exempt_namespace_is_left_alone(bare: Kube) -> None:
    assert _refusal(bare, a_pod("lab", nodeName="node-1")) == ""


def test_what_the_operator_makes_in_its_own_namespace_passes_in_a_pool_that_is_not_open_to_it_and_nobody_elses_pod_does(bare: Kube) -> None:
    system = "glm5-system"
    bare.create({"kind": "Namespace", "metadata": {"name": system}})
    until("its ServiceAccount", lambda: bare.find("ServiceAccount", system, "default") is not None)

    def refusal(account: str, namespace: str = system) -> str:
        user = {"Impersonate-User": f"system:serviceaccount:{system}:{account}", "Impersonate-Group": "system:masters"}
        document = {"apiVersion": "v1", **a_pod(namespace, nodeSelector=POOL)}
        answer = bare.http.post(bare.path("Pod", namespace), params={"dryRun": "All"}, json=document, headers=user)
        assert answer.is_success or answer.status_code in {403, 422}, answer.text
        return "" if answer.is_success else str(answer.json()["message"])

    assert refusal("r-glm5-operator") == ""
    assert "isn't open to namespace glm5-system" in refusal("default")
    assert "isn't open to namespace dev" in refusal("r-glm5-operator", "dev")


@pytest.mark.usefixtures("enforcement")
@pytest.mark.parametrize("stated", ["Warn", None])
def test_warn_takes_the_pod_and_says_what_is_wrong_and_is_what_a_pool_does_that_says_nothing(bare: Kube, stated: str | None) -> None:
    bare.patch("NPUPool", "", "inference", {"spec": {"enforcement": stated}})
    until("the pool's word to be heard", lambda: _refusal(bare, a_pod("prod")) == "", 60)

    warnings = "; ".join(_answer(bare, a_pod("dev", nodeName="node-1")).headers.get_list("Warning"))
    assert "may not name a node" in warnings
    assert "must name its pool" in warnings
    assert "isn't open to namespace dev" in "; ".join(_answer(bare, a_pod("dev", nodeSelector=POOL)).headers.get_list("Warning"))
    assert not _answer(bare, a_pod("prod", nodeSelector=POOL)).headers.get_list("Warning")


@pytest.mark.usefixtures("enforcement")
def test_one_pool_that_denies_is_enough_to_refuse_a_pod_without_a_pool(bare: Kube) -> None:
    bare.patch("NPUPool", "", "inference", {"spec": {"enforcement": "Warn"}})
    bare.create(pool("training", role="Training", enforcement="Evict"))
    until("both pools' word", lambda: "must name its pool" in _refusal(bare, a_pod("prod")), 60)
    assert _refusal(bare, a_pod("dev", nodeSelector=POOL)) == "", "inference only warns"
    assert _refusal(bare, a_pod("dev", nodeSelector={"glm5.dev/pool": "training"})) == "", "open to all"

    bare.delete("NPUPool", "", "training")
    until("only the pool that warns to be left", lambda: _refusal(bare, a_pod("prod")) == "", 60)
