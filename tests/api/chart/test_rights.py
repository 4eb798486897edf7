"""The chart's roles are enough for all that the operator does, and give users what the built-in roles promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from glm5_operator.api import names
from glm5_operator.kube import rights
from tests.api.chart.conftest import SYSTEM, Release, Running, Start, as_json, condition, granted_by, operator_pod, used_by
from tests.cluster.api import ApiCluster
from tests.cluster.shell import run, wait_for
from tests.cluster.tools import tool
from tests.support import gangs, kubelet
from tests.support.agents import Agent, agent_pod
from tests.support.chart import only
from tests.support.kube import Kube
from tests.support.trainers import a_volume, finetune

pytestmark = pytest.mark.api

POOL: dict[str, Any] = {
    "apiVersion": "glm5.dev/v1alpha1",
    "kind": "NPUPool",
    "metadata": {"name": "cards"},
    "spec": {"role": "Inference", "nodeSelector": {"accelerator": "huawei-Ascend910"}, "taint": True},
}
SERVICE: dict[str, Any] = {
    "apiVersion": "glm5.dev/v1alpha1",
    "kind": "GLM5Service",
    "metadata": {"name": "chat", "namespace": "team"},
    "spec": {
        "model": {"name": "tiny", "weights": "bf16", "source": "image:///models/tiny", "memory": "1Gi"},
        "parallelism": {"tensor": 1},
        "pool": "cards",
    },
}
SERVICES = "/apis/glm5.dev/v1alpha1/namespaces/team/glm5services"
RUNS = "/apis/glm5.dev/v1alpha1/namespaces/team/glm5finetunejobs"
POOLS = "/apis/glm5.dev/v1alpha1/npupools"
REFUSALS = re.compile(r"forbidden|unauthorized", re.IGNORECASE)  # by word: a time of day may end in ",403"


ASKED_BY_ADMISSION = {("glm5.dev", f"{plural}/finalizers", "update") for plural in ("glm5services", "glm5finetunejobs")}
"""Never a request: OwnerReferencesPermissionEnforcement, where it is on, asks for it when a child with blockOwnerDeletion is written."""


def leftovers(owner: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Children of a service that no plan has (say, of an older version of the operator), each with the path of its collection."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": "chat",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    metadata = {"name": "leftover", "labels": names.child_labels("chat"), "ownerReferences": [reference]}
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c:1"}]}}
    deployment = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return [
        (
            "/apis/apps/v1/namespaces/team/deployments",
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment},
        ),
        (
            "/api/v1/namespaces/team/services",
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 1}]}},
        ),
    ]


def fine_tune_by_volcano(release: Release) -> None:
    """A run whose pods are one PodGroup, until it is suspended; a quota holds its check up. Nobody schedules its pods here."""
    kube, http = Kube(release.cluster.http), release.cluster.http
    quota = {"kind": "ResourceQuota", "metadata": {"name": "none", "namespace": "team"}, "spec": {"hard": {"pods": "0"}}}
    kube.create(quota)
    run = finetune("team", "group", pool="training", podTemplate={"spec": {"schedulerName": "volcano"}})
    http.post(RUNS, json=run | {"apiVersion": "glm5.dev/v1alpha1"}).raise_for_status()
    wait_for("the quota to be named", lambda: condition(release.get(f"{RUNS}/group"), "Ready").get("reason") == "QuotaExceeded", timeout=60)
    kube.delete("ResourceQuota", "team", "none")
    wait_for("its PodGroup", lambda: gangs.pod_groups(kube, "team") != [], timeout=60)
    patch = {"spec": {"policy": {"suspend": True}}}
    http.patch(f"{RUNS}/group", json=patch, headers={"Content-Type": "application/merge-patch+json"}).raise_for_status()
    wait_for("its PodGroup to go", lambda: gangs.pod_groups(kube, "team") == [], timeout=60)
    http.delete(f"{RUNS}/group").raise_for_status()


def fine_tune(release: Release) -> None:
    """One run on the same nodes, from its volumes to its end, after which nothing of it stays but how it ended."""
    http = release.cluster.http
    training = {**POOL, "metadata": {"name": "training"}, "spec": {**POOL["spec"], "role": "Training", "taint": False}}
    http.post(POOLS, json=training).raise_for_status()
    for name in ("ckpt", "adapters"):
        for path, document in a_volume("team", name):
            http.post(path, json=document).raise_for_status()
    http.post(
        RUNS, json=finetune("team", pool="training", policy={"ttlAfterFinished": "0s"}) | {"apiVersion": "glm5.dev/v1alpha1"}
    ).raise_for_status()
    wait_for("the run to end", lambda: (release.get(f"{RUNS}/tune").get("status") or {}).get("outcome") == "Succeeded", timeout=60)
    wait_for("its pods to go", lambda: release.get("/apis/batch/v1/namespaces/team/jobs")["items"] == [], timeout=60)
    fine_tune_by_volcano(release)
    http.delete(f"{RUNS}/tune").raise_for_status()
    http.delete(f"{POOLS}/training").raise_for_status()
    wait_for("nodes to be released", lambda: node_marks(release.cluster) == [(None, [])] * 2, timeout=60)


def heal(release: Release) -> None:
    """A card of the service's node fails, and is reset; the service goes to the other node meanwhile."""
    kube = Kube(release.cluster.http)
    policy = {"mode": "Auto", "debounce": "1s", "verify": "1s", "drain": "2s", "computeCheck": True}
    kube.patch("NPUPool", "", "cards", {"spec": {"health": policy}})
    agents = {node: Agent(kube, node) for node in ("npu-0", "npu-1")}
    for node, agent in agents.items():
        kube.create(agent_pod(node, SYSTEM))
        agent.say()
    (pod,) = kube.list("Pod", "team")
    sick = agents[pod["spec"]["nodeName"]]
    sick.ill(0)

    def asked() -> bool:
        sick.say()  # that its cards are free by now
        return sick.reset_asked() is not None

    wait_for("the reset to be asked for", asked, timeout=60)
    sick.reset_done()
    end_of_compute_check(kube, sick.node)
    healthy = "/apis/glm5.dev/v1alpha1/ascendnodes/" + sick.node
    wait_for("the node to be back", lambda: release.get(healthy)["status"]["remedy"]["state"] == "Healthy", timeout=60)
    history = release.get(healthy)["status"]["remedy"]["history"]
    assert any("compute check passed: 8 x npu" in entry.get("message", "") for entry in history), history
    wait_for("the check's pod to go", lambda: compute_checks(kube) == [], timeout=60)
    for node in agents:
        kube.delete("Pod", SYSTEM, f"agent-{node}")


def compute_checks(kube: Kube) -> list[dict[str, Any]]:
    return [pod for pod in kube.list("Pod", SYSTEM) if names.COMPUTE_CHECK_LABEL in pod["metadata"].get("labels", {})]


def end_of_compute_check(kube: Kube, node: str) -> None:
    """The pod that computes on the node's cards runs, holds all of them, and says that they are well."""

    def running() -> bool:
        return [(pod["spec"].get("nodeName"), pod["status"].get("phase")) for pod in compute_checks(kube)] == [(node, "Running")]

    wait_for("the compute check to run", running, timeout=60)
    (pod,) = compute_checks(kube)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"]["huawei.com/Ascend910"] == "8"
    word = '{"outcome": "Passed", "message": "8 x npu"}'
    state = {"terminated": {"exitCode": 0, "reason": "Completed", "message": word}}
    told = {"name": container["name"], "image": container["image"], "restartCount": 0, "state": state}
    kubelet.report(kube, pod, told, phase="Succeeded")


def events_of(release: Release, name: str) -> list[dict[str, Any]]:
    items = release.get("/apis/events.k8s.io/v1/namespaces/team/events")["items"]
    return [item for item in items if item["regarding"]["name"] == name]


def node_marks(cluster: ApiCluster) -> list[tuple[str | None, list[str]]]:
    """Our label and our taints, by node."""
    nodes = cluster.http.get("/api/v1/nodes").json()["items"]
    return [
        (
            node["metadata"]["labels"].get("glm5.dev/pool"),
            [taint["value"] for taint in node["spec"].get("taints", []) if taint["key"] == "glm5.dev/role"],
        )
        for node in nodes
    ]


def refused(operator: Running) -> list[str]:
    """What the API server refused for want of a right, by log and by metric."""
    lines = [line for line in operator.said().splitlines() if REFUSALS.search(line)]
    counted = [line for line in operator.metrics().splitlines() if re.search(r'code="40[13]"', line)]
    return lines + counted


@pytest.fixture
def installed(release: Release) -> Release:
    release.install()
    if not release.get("/api/v1/nodes/npu-0"):
        release.cluster.add_nodes(2)
        release.cluster.kubectl("create", "namespace", "team")
    return release


def test_the_operator_does_its_whole_work_under_exactly_the_charts_roles(installed: Release, start: Start, tmp_path: Path) -> None:
    cluster, documents = installed.cluster, installed.rendered()
    account = operator_pod(documents)["spec"]["serviceAccountName"]
    gangs.install(Kube(cluster.http), "podgroups")
    operator = start(operator_pod(documents), installed.kubeconfig_of(account, tmp_path), "--admin-port", "0")

    cluster.http.post(POOLS, json=POOL).raise_for_status()
    cluster.http.post(SERVICES, json=SERVICE).raise_for_status()
    wait_for("the service to serve", lambda: condition(installed.get(f"{SERVICES}/chat"), "Ready").get("status") == "True", timeout=60)
    assert node_marks(cluster) == [("cards", ["inference"])] * 2

    for path, document in a_volume("team", "tuned"):
        cluster.http.post(path, json=document).raise_for_status()
    change = {"spec": {"context": {"maxSequences": 4}, "replicas": 2, "adapterStorage": "pvc://tuned"}}
    headers = {"Content-Type": "application/merge-patch+json"}
    cluster.http.patch(f"{SERVICES}/chat", json=change, headers=headers).raise_for_status()
    wait_for("the change to serve", lambda: (installed.get(f"{SERVICES}/chat")["status"].get("readyReplicas")) == 2, timeout=60)
    wait_for("it to settle", lambda: condition(installed.get(f"{SERVICES}/chat"), "Ready").get("reason") == "Serving", timeout=60)

    # A budget goes with the second replica, a child without a place in the plan at once; trouble is told by an Event.
    cluster.http.patch(f"{SERVICES}/chat", json={"spec": {"replicas": 1}}, headers=headers).raise_for_status()
    for path, leftover in leftovers(installed.get(f"{SERVICES}/chat")):
        cluster.http.post(path, json=leftover).raise_for_status()
        wait_for(f"{path}/leftover to go", lambda path=path: not installed.get(f"{path}/leftover"), timeout=60)
    wait_for("the budget to go", lambda: installed.get("/apis/policy/v1/namespaces/team/poddisruptionbudgets")["items"] == [], timeout=60)
    lost = {**SERVICE, "metadata": {"name": "lost", "namespace": "team"}, "spec": {**SERVICE["spec"], "pool": "nowhere"}}
    cluster.http.post(SERVICES, json=lost).raise_for_status()
    wait_for("an Event", lambda: events_of(installed, "lost"), timeout=60)
    cluster.http.delete(f"{SERVICES}/lost").raise_for_status()

    cluster.kubectl("delete", "deployment", "chat-engine", "--namespace", "team")
    wait_for("the Deployment to be back", lambda: installed.get("/apis/apps/v1/namespaces/team/deployments/chat-engine"), timeout=30)

    heal(installed)
    cluster.http.delete(f"{SERVICES}/chat").raise_for_status()
    cluster.http.delete(f"{POOLS}/cards").raise_for_status()
    wait_for("nodes to be released", lambda: node_marks(cluster) == [(None, [])] * 2, timeout=60)
    wait_for("children to go", lambda: installed.get("/apis/apps/v1/namespaces/team/deployments")["items"] == [], timeout=60)

    fine_tune(installed)

    assert operator.process.poll() is None
    assert refused(operator) == []
    assert granted_by(rights.CLUSTER, rights.NAMESPACE) - used_by(account, cluster) == ASKED_BY_ADMISSION, "rights that nothing needs"


def test_cleanup_takes_the_lease_and_releases_all_nodes_under_exactly_its_hooks_roles(
    installed: Release, start: Start, tmp_path: Path
) -> None:
    cluster, documents = installed.cluster, installed.rendered()
    hooks = [item for item in documents if item["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-delete"]
    for hook in hooks:
        if hook["kind"] != "Job":
            cluster.kubectl("apply", "-f", "-", stdin=as_json(hook))
    account = operator_pod(documents)["spec"]["serviceAccountName"]
    operator = start(operator_pod(documents), installed.kubeconfig_of(account, tmp_path), "--admin-port", "0")
    cluster.http.post(POOLS, json=POOL).raise_for_status()
    wait_for("nodes to be marked", lambda: node_marks(cluster) == [("cards", ["inference"])] * 2, timeout=60)
    kube = Kube(cluster.http)
    wait_for("AscendNodes", lambda: len(kube.list("AscendNode")) == 2, timeout=60)
    labels = {"glm5.dev/serving": "remedy"}
    kube.create(
        {
            "kind": "Pod",
            "metadata": {"name": "quiet", "namespace": "team", "labels": labels},
            "spec": {"containers": [{"name": "c", "image": "c:1"}]},
        }
    )

    pod = only(hooks, "Job")["spec"]["template"]
    cleanup = start(pod, installed.kubeconfig_of(pod["spec"]["serviceAccountName"], tmp_path))

    assert cleanup.process.wait(60) == 0, cleanup.said()
    assert operator.process.wait(30) != 0, "whoever loses the lease ends"
    assert node_marks(cluster) == [(None, [])] * 2
    assert kube.list("AscendNode") == []
    assert kube.get("Pod", "team", "quiet")["metadata"]["labels"] == {"glm5.dev/serving": "true"}
    kube.delete("Pod", "team", "quiet")
    assert not REFUSALS.search(cleanup.said())
    account = pod["spec"]["serviceAccountName"]
    assert granted_by(rights.CLEANUP_CLUSTER, rights.CLEANUP_NAMESPACE) - used_by(account, cluster) == set(), "rights that nothing needs"


@pytest.mark.parametrize(
    ("role", "verb", "resource", "allowed"),
    [
        ("view", "get", "glm5services.glm5.dev", True),
        ("view", "create", "glm5services.glm5.dev", False),
        ("edit", "create", "glm5services.glm5.dev", True),
        ("edit", "delete", "glm5services.glm5.dev", True),
        ("edit", "patch", "glm5services.glm5.dev/scale", True),
        ("edit", "patch", "glm5services.glm5.dev/status", False),
        ("admin", "create", "glm5services.glm5.dev", True),
        ("view", "get", "glm5finetunejobs.glm5.dev", True),
        ("edit", "create", "glm5finetunejobs.glm5.dev", True),
        ("edit", "patch", "glm5finetunejobs.glm5.dev/status", False),
        ("edit", "create", "npupools.glm5.dev", False),
    ],
)
def test_users_get_services_through_the_built_in_roles(installed: Release, role: str, verb: str, resource: str, allowed: bool) -> None:
    cluster = installed.cluster
    user = f"{role}-user"
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": user, "namespace": "team"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    cluster.kubectl("apply", "-f", "-", stdin=as_json(binding))
    plural, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "resourceAttributes": {
                "namespace": "team",
                "verb": verb,
                "group": "glm5.dev",
                "resource": plural.split(".")[0],
                "subresource": subresource,
            },
        },
    }

    def verdict() -> bool:
        answer = cluster.http.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review).raise_for_status().json()
        return bool(answer["status"].get("allowed", False))

    if allowed:  # aggregation is a controller's work and comes a moment later
        wait_for(f"{role} to may {verb} {resource}", verdict, timeout=20)
    else:
        assert not verdict()


def test_pool_admins_are_bound_by_hand(installed: Release) -> None:
    name = f"{SYSTEM}:glm5-glm5-operator-pool-admin"
    installed.cluster.kubectl("create", "clusterrolebinding", "pools", f"--clusterrole={name}", "--user=pool-user")
    words = ("auth", "can-i", "create", "npupools.glm5.dev", "--as=pool-user")
    assert run(tool("kubectl"), "--kubeconfig", installed.cluster.kubeconfig, *words).strip() == "yes"
