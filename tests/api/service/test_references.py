"""Case B14: what a service refers to may appear late, change and go; each missing thing is named, and nothing has to be touched to heal.

Real: pools, claims, the scheduler's words about them. Played by the test: kubelet's words about Secrets and ConfigMaps.
"""

from __future__ import annotations

from tests.cluster.nodes import kwok_node
from tests.support import kubelet
from tests.support.documents import tiny
from tests.support.kube import Kube, until
from tests.support.pods import running, waiting


def test_missing_claim_secret_and_config_map_are_named_one_after_the_other(kube: Kube, home: str, silent_pool: str) -> None:
    template = {"spec": {"containers": [{"name": "engine", "env": [_from("configMapKeyRef", "prompts")]}]}}
    model = {"name": "tiny", "weights": "bf16", "source": "pvc://weights/tiny", "memory": "1Gi"}
    auth = {"secretRef": {"name": "api-key", "key": "token"}}
    kube.create(tiny(home, pool=silent_pool, model=model, auth=auth, podTemplate=template))

    assert "create PersistentVolumeClaim weights" in kube.wait_condition(home, "chat", "VolumeMissing")["message"]
    _claim(kube, home, "weights")

    pod = kubelet.the_pod(kube, home)
    kubelet.report(kube, pod, waiting("CreateContainerConfigError", 'secret "api-key" not found'), phase="Pending")
    assert "create Secret api-key" in kube.wait_condition(home, "chat", "SecretMissing")["message"]

    kubelet.report(kube, pod, waiting("CreateContainerConfigError", 'configmap "prompts" not found'), phase="Pending")
    assert "create ConfigMap prompts" in kube.wait_condition(home, "chat", "ConfigMapMissing")["message"]

    kubelet.report(kube, pod, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "chat")


def test_a_service_waits_for_a_late_pool_and_for_its_nodes(kube: Kube, home: str) -> None:
    kube.create(tiny(home, pool=f"late-{home}"))
    missing = kube.wait_condition(home, "chat", "PoolNotFound")
    assert f"late-{home}" in missing["message"]
    assert kube.condition(home, "chat", "Stalled")["status"] == "True"
    assert kube.leftovers(home) == []

    late = {"role": "Inference", "nodeSelector": {"example.com/late": home}}
    kube.create({"kind": "NPUPool", "metadata": {"name": f"late-{home}"}, "spec": late})
    kube.wait_condition(home, "chat", "PoolHasNoNodes")

    # A node of another pool can't be taken; one of nobody can.
    (node,) = _spare_node(kube, home)
    kube.patch("Node", "", node, {"metadata": {"labels": {"example.com/late": home}}})

    kube.wait_ready(home, "chat")
    kube.delete("NPUPool", "", f"late-{home}")
    kept = kube.wait_condition(home, "chat", "PoolNotFound")
    assert "pods of the previous plan keep serving (1 ready)" in kept["message"]
    until("the node to be let go", lambda: "glm5.dev/pool" not in kube.get("Node", "", node)["metadata"]["labels"], 10)
    kube.delete("GLM5Service", home, "chat")
    until("nothing to be left", lambda: kube.leftovers(home) == [], 30)
    kube.delete("Node", "", node)


def test_a_change_of_the_pool_reaches_its_services(kube: Kube, home: str, silent_pool: str) -> None:
    kube.create(tiny(home, pool=silent_pool))
    pod = kubelet.the_pod(kube, home)
    kubelet.report(kube, pod, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "chat")

    mount = {"spec": {"runtimeClassName": None, "tolerations": [{"key": "site", "operator": "Exists"}]}}
    kube.patch("NPUPool", "", silent_pool, {"spec": {"podTemplate": mount}})

    def tolerates() -> bool:
        template = kube.get("Deployment", home, "chat-engine")["spec"]["template"]
        return {"key": "site", "operator": "Exists"} in template["spec"].get("tolerations", [])

    until("the pool's toleration in the service's pods", tolerates, 20)


def test_a_closed_namespace_is_told_and_opening_it_heals(kube: Kube, home: str, silent_pool: str) -> None:
    kube.patch("NPUPool", "", silent_pool, {"spec": {"namespaces": ["somewhere-else"]}})
    kube.create(tiny(home, pool=silent_pool))

    assert home in kube.wait_condition(home, "chat", "NamespaceNotAllowed")["message"]

    kube.patch("NPUPool", "", silent_pool, {"spec": {"namespaces": ["somewhere-else", home]}})
    pod = kubelet.the_pod(kube, home)
    kubelet.report(kube, pod, running(ready=True, started=True), ready=True)
    kube.wait_ready(home, "chat")


def _spare_node(kube: Kube, home: str) -> list[str]:
    """A KWOK node that no pool selects."""
    name = f"spare-{home}"
    document = {**kwok_node(name), "kind": "Node"}
    kube.create(document)
    until("the spare node", lambda: any(c["status"] == "True" for c in kube.get("Node", "", name)["status"].get("conditions", ())), 20)
    return [name]


def _from(kind: str, name: str) -> dict[str, object]:
    return {"name": "PROMPTS", "valueFrom": {kind: {"name": name, "key": "text"}}}


def _claim(kube: Kube, namespace: str, name: str) -> None:
    """A claim and the volume it is bound to, as a storage provisioner leaves them."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    kube.create(
        {
            "kind": "PersistentVolume",
            "metadata": {"name": f"{namespace}-{name}"},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "storageClassName": "",
                "hostPath": {"path": "/tmp"},
                "claimRef": {"namespace": namespace, "name": name},
            },
        }
    )
    kube.create(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"accessModes": modes, "storageClassName": "", "resources": {"requests": size}, "volumeName": f"{namespace}-{name}"},
        }
    )
