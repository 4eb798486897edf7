"""Pods that aren't ours hold cards as well (case F03). Real: scheduler, API server, the operator. Kubelet is played."""

from __future__ import annotations

from tests.support import kubelet
from tests.support.documents import cards, tiny
from tests.support.kube import Json, Kube, until

LIMIT = 30


def lab(namespace: str, count: int) -> Json:
    """A pod that somebody runs beside the operator; it carries none of our labels."""
    resources = {"limits": {"huawei.com/Ascend910": str(count)}}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": f"silent-{namespace}"},
        "containers": [{"name": "notebook", "image": "jupyter:1", "resources": resources}],
    }
    return {"kind": "Pod", "metadata": {"name": "lab", "namespace": namespace, "labels": {"app": "jupyter"}}, "spec": spec}


def wait_cards(kube: Kube, pool: str, **expected: int) -> None:
    def counts() -> Json:
        found: Json = kube.get("NPUPool", "", pool)["status"]["cards"]
        return found

    until(f"{pool} to count {expected}", lambda: counts() == expected, LIMIT, lambda: str(counts()))


def test_cards_of_a_strangers_pod_are_counted_left_alone_and_named_until_it_ends(kube: Kube, home: str, silent_pool: str) -> None:
    kube.create(lab(home, 7))
    wait_cards(kube, silent_pool, total=8, held=7, free=1)

    kube.create(tiny(home, "one", pool=silent_pool))
    pod = kubelet.the_pod(kube, home, besides={"lab"})
    rolling = kube.get("Deployment", home, "one-engine")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}, "a surge would wait for the card that the old pod holds"
    wait_cards(kube, silent_pool, total=8, held=8, free=0)

    kube.create(tiny(home, "two", pool=silent_pool, **cards(2)))
    ready = kube.wait_condition(home, "two", "InsufficientCards", timeout=LIMIT)
    assert f"{home}/lab" in ready["message"]

    kube.patch("Pod", home, "lab", {"status": {"phase": "Succeeded"}}, subresource="status")
    kubelet.the_pod(kube, home, besides={"lab", pod["metadata"]["name"]})
    wait_cards(kube, silent_pool, total=8, held=3, free=5)
