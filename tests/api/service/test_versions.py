"""Case C18 on a real API server: a driver too old for the image keeps a service from starting, and a new one heals it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import kubelet
from tests.support.documents import bare_node, pool, tiny
from tests.support.kube import Json, Kube, until
from tests.support.pods import an_end, waiting

DRIVER = "huawei.com/driver.version"
OLD = "found driver 24.1.rc1, need 25.2 or later for CANN 9.1.0 in "


@pytest.fixture
def machine(kube: Kube, home: str) -> Iterator[str]:
    """A node without a kubelet; no pool selects it yet."""
    name = f"silent-{home}"
    kube.create(bare_node(name, home))
    with kubelet.heartbeat(kube, name):
        yield name
        for service in kube.list("GLM5Service", home):
            kube.delete("GLM5Service", home, service["metadata"]["name"])
        kube.delete("NPUPool", "", home)
    kube.delete("Node", "", name)


def deployments(kube: Kube, home: str) -> list[Json]:
    return list(kube.list("Deployment", home))


def test_the_plugins_label_of_an_old_driver_stalls_a_service_and_a_new_driver_starts_it(kube: Kube, home: str, machine: str) -> None:
    kube.patch("Node", "", machine, {"metadata": {"labels": {DRIVER: "24.1.rc1"}}})
    kube.create(pool(home))
    kube.create(tiny(home, pool=home))
    ready = kube.wait_condition(home, "chat", "VersionsDoNotFit")
    assert ready["message"].startswith(OLD)
    assert f"on {machine} of NPUPool {home}: update the driver there" in ready["message"]
    assert kube.condition(home, "chat", "Stalled")["status"] == "True"
    assert deployments(kube, home) == []

    kube.patch("Node", "", machine, {"metadata": {"labels": {DRIVER: "25.5.1"}}})
    until("its pods to be planned", lambda: len(deployments(kube, home)) == 1, 30, lambda: str(kube.condition(home, "chat")))


def test_what_the_node_agent_reads_counts_where_no_label_tells(kube: Kube, home: str, machine: str) -> None:
    kube.create(pool(home))
    until("the AscendNode", lambda: kube.find("AscendNode", "", machine) is not None)

    def report(driver: str) -> None:
        facts = {"observedAt": "2026-11-30T12:00:00Z", "tool": {"state": "Working"}, "driver": driver}
        kube.patch("AscendNode", "", machine, {"status": {"facts": facts}}, subresource="status")

    report("24.1.rc1")
    kube.create(tiny(home, pool=home))
    assert kube.wait_condition(home, "chat", "VersionsDoNotFit")["message"].startswith(OLD)

    report("25.2.0")
    until("its pods to be planned", lambda: len(deployments(kube, home)) == 1, 30, lambda: str(kube.condition(home, "chat")))


def test_what_only_the_engine_can_see_is_repeated_by_the_condition(kube: Kube, home: str, machine: str) -> None:
    kube.create(pool(home))
    kube.create(tiny(home, pool=home))
    pod = kubelet.the_pod(kube, home)
    said = "--device npu can't be used here:\n  - versions: found torch_npu 2.11.0, need 2.12.0 for torch 2.12.0; install that one"
    kubelet.report(kube, pod, waiting("CrashLoopBackOff", restarts=1, last=an_end(9, message=f"glm5-runtime serve can't start:\n{said}")))
    message = kube.wait_condition(home, "chat", "VersionsDoNotFit")["message"]
    expected = f"container engine doesn't run on node {machine}: found torch_npu 2.11.0, need 2.12.0 for torch 2.12.0; install that one"
    assert expected in message
    assert kube.condition(home, "chat", "Stalled")["status"] == "True"
