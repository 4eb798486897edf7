"""`glm5 nodes`, `node release`, `doctor` on a real API server. The test plays agent and operator; there is no kubelet, so no logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.cli.conftest import Site
from tests.support.mindcluster import card_fault, cluster_map, device_list

pytestmark = pytest.mark.api

Json = dict[str, Any]
FIXTURES = Path(__file__).parents[2] / "fixtures"
NODES = "/apis/glm5.dev/v1alpha1/ascendnodes"


class Machine:
    """A Node with its AscendNode."""

    def __init__(self, site: Site) -> None:
        self.site, self.name = site, f"npu-{site.namespace}"
        self.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        self.post(NODES, {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": self.name}, "spec": {}})

    def post(self, path: str, body: Json) -> None:
        self.site.cluster.http.post(path, json=body).raise_for_status()

    @property
    def ascend_node(self) -> Json:
        found: Json = self.site.cluster.http.get(f"{NODES}/{self.name}").raise_for_status().json()
        return found

    def report(self, remedy: Json | None = None, *, age: timedelta = timedelta(seconds=5), **facts: object) -> None:
        cards = [
            {"physical": number, "npu": number, "health": "OK", "name": "910B3", "pids": [], "memoryUsed": 3300} for number in range(8)
        ]
        cards[0]["holder"] = {"namespace": "prod", "pod": "chat-0"}
        observed = (datetime.now(UTC) - age).isoformat(timespec="seconds").replace("+00:00", "Z")
        stated = {"observedAt": observed, "tool": {"state": "Working"}, "product": "A2", "driver": "25.5.1", "allocationsKnown": True}
        status = {"facts": {**stated, "cards": cards, **facts}, **({"remedy": remedy} if remedy else {})}
        body = {**self.ascend_node, "status": status}
        self.site.cluster.http.put(f"{NODES}/{self.name}/status", json=body).raise_for_status()

    def row(self) -> list[str]:
        lines = self.site.glm5("nodes").stdout.splitlines()
        return next(line for line in lines if line.startswith(self.name)).split()

    def pod(self, name: str = "chat-0", *, cards: int = 2, says: str = "", **container: object) -> None:
        """A pod there, and a Warning about it."""
        namespace = self.site.namespace
        limits = {"limits": {"huawei.com/Ascend910": str(cards)}} if cards else {}
        engine = {"name": "engine", "image": "x:1", "resources": limits, **container}
        pod = {"metadata": {"name": name, "namespace": namespace}, "spec": {"nodeName": self.name, "containers": [engine]}}
        self.post(f"/api/v1/namespaces/{namespace}/pods", {"apiVersion": "v1", "kind": "Pod", **pod})
        uid = self.site.cluster.http.get(f"/api/v1/namespaces/{namespace}/pods/{name}").json()["metadata"]["uid"]
        about = {"kind": "Pod", "name": name, "namespace": namespace, "uid": uid}
        metadata = {"name": f"{name}.1", "namespace": namespace}
        event = {"metadata": metadata, "involvedObject": about, "type": "Warning", "reason": "Failed", "message": says}
        self.post(f"/api/v1/namespaces/{namespace}/events", {"apiVersion": "v1", "kind": "Event", **event})

    def fault_of_others(self) -> None:
        """A public fault in ClusterD's map of all nodes, and the device plugin's word on the Node that its reset failed."""
        public = card_fault(2, "SeparateNPU", code="220001001", kind="PublicFault")
        entry = {"DeviceList": device_list(public), "UpdateTime": 1790000000}
        found = cluster_map(
            {f"mindx-dl-deviceinfo-{self.name}": entry, "mindx-dl-deviceinfo-other": entry}, f"cluster-info-device-{self.name}"
        )
        found["metadata"]["labels"] = {"mx-consumer-volcano": "true"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mindx-dl"}}
        self.site.cluster.http.post("/api/v1/namespaces", json=namespace)  # another test may have made it
        self.post("/api/v1/namespaces/mindx-dl/configmaps", found)
        event = {
            "metadata": {"name": f"{self.name}.reset.end", "namespace": "kube-system"},
            "involvedObject": {"kind": "Node", "name": self.name},
            "type": "Warning",
            "reason": "HotResetFailed",
            "action": "HotResetFailed",
            "message": f"hot reset failed, nodeName:{self.name}, devices:0,1, err:timeout",
            "eventTime": "2026-11-30T10:00:00.000000Z",
            "reportingComponent": "device-plugin",
            "reportingInstance": self.name,
        }
        self.post("/api/v1/namespaces/kube-system/events", {"apiVersion": "v1", "kind": "Event", **event})


@pytest.fixture
def machine(site: Site) -> Iterator[Machine]:
    machine = Machine(site)
    yield machine
    site.cluster.http.delete(f"/api/v1/namespaces/mindx-dl/configmaps/cluster-info-device-{machine.name}")
    site.cluster.http.delete(f"/api/v1/nodes/{machine.name}")
    site.cluster.http.delete(f"{NODES}/{machine.name}")


QUARANTINED = {"state": "Quarantined", "since": "2026-11-30T12:00:00Z", "reason": "BudgetUsedUp", "message": "two resets did not help"}


def test_nodes_show_cards_holders_and_why_one_is_out(machine: Machine) -> None:
    assert machine.row()[1:] == ["no", "node", "agent", "has", "read", "it", "yet"]
    machine.report(missing=[8])
    assert machine.row()[1:9] == ["A2", "25.5.1", "8", "1/8", "1", "missing,", "8", "OK"]
    machine.report(QUARANTINED)
    line = " ".join(machine.row())
    assert "8 OK Quarantined" in line
    assert line.endswith("BudgetUsedUp: two resets did not help")


def test_one_node_shows_a_line_for_each_card_and_json_the_objects(machine: Machine) -> None:
    machine.report()
    lines = machine.site.glm5("nodes", machine.name).stdout.splitlines()
    assert [line.split()[0] for line in lines if "910B3" in line] == [str(number) for number in range(8)]
    assert "prod/chat-0" in next(line for line in lines if line.startswith("0 "))
    data = json.loads(machine.site.glm5("nodes", machine.name, "-o", "json").stdout)
    assert [node["metadata"]["name"] for node in data["nodes"]] == [machine.name]
    assert "managedFields" not in data["nodes"][0]["metadata"]


def test_a_node_that_does_not_exist_is_told(machine: Machine) -> None:
    run = machine.site.glm5("nodes", "absent")
    assert (run.exit_code, run.stderr.splitlines()[0].split(";")[0]) == (3, "error: AscendNode absent: doesn't exist")
    assert machine.site.glm5("node", "release", "absent").exit_code == 3


def test_a_quarantined_node_is_released_with_who_and_why_and_others_are_not(machine: Machine) -> None:
    machine.report({**QUARANTINED, "state": "Draining"})
    refused = machine.site.glm5("node", "release", machine.name)
    assert (refused.exit_code, "isn't in quarantine: its remedy is Draining" in refused.stderr) == (3, True)
    machine.report(QUARANTINED)
    run = machine.site.glm5("node", "release", machine.name, "--reason", "card 3 replaced")
    assert run.exit_code == 0
    found = machine.ascend_node["metadata"]
    assert found["annotations"]["glm5.dev/release"].endswith(": card 3 replaced")
    assert "glm5-cli" in {entry["manager"] for entry in found["managedFields"]}
    assert machine.ascend_node["status"]["remedy"]["state"] == "Quarantined"  # that is the operator's to change


def test_an_image_is_compared_with_a_nodes_driver(machine: Machine) -> None:
    image = ("--image", "quay.io/ascend/vllm-ascend:v0.23.0")
    assert "nobody has read its driver yet; state --driver" in machine.site.glm5("compat", "--node", machine.name, *image).stderr
    machine.report()
    assert machine.site.glm5("compat", "--node", machine.name, *image).exit_code == 0
    machine.report(driver="24.1.rc1")
    run = machine.site.glm5("compat", "--node", machine.name, *image)
    assert (run.exit_code, "found driver 24.1.rc1, need 25.2 or later" in run.stderr) == (4, True)


def test_doctor_finds_nothing_on_a_node_that_is_well(machine: Machine) -> None:
    machine.report()
    run = machine.site.glm5("doctor", "--node", machine.name)
    assert (run.exit_code, run.stdout) == (0, "")


def test_doctor_names_troubles_of_facts_pods_and_events_and_its_bundle_says_the_same_without_a_cluster(
    machine: Machine, tmp_path: Path
) -> None:
    machine.report(missing=[8], age=timedelta(hours=1))
    secret = {"name": "API_KEY", "value": "hunter2"}
    machine.pod(says='no runtime for "ascend" is configured', env=[{"name": "ASCEND_RT_VISIBLE_DEVICES", "value": "3,4"}, secret])
    machine.pod("ascend-device-plugin-x", cards=0, says="dcmi module initialize failed. ret is -8005")
    machine.pod("web", cards=0, says="EI0006: nobody asked")
    devices = yaml.safe_load((FIXTURES / "deviceinfo" / "mixed_levels.yaml").read_text())
    devices["metadata"]["name"] = f"mindx-dl-deviceinfo-{machine.name}"
    machine.post("/api/v1/namespaces/kube-system/configmaps", devices)
    machine.fault_of_others()
    path = tmp_path / "bundle.tar.gz"
    run = machine.site.glm5("doctor", "--node", machine.name, "--bundle", str(path), "-o", "json")
    assert run.exit_code == 4
    troubles = {one["name"]: one["evidence"] for one in json.loads(run.stdout)["nodes"][0]["troubles"]}
    assert [line.rpartition(": card ")[2] for line in troubles["CardFault"]][-1] == "2: SeparateNPU, codes 220001001"
    names = list(troubles)
    assert names == [
        "FactsStale",
        "CardMissing",
        "CardFault",
        "DeviceNumbersWrong",
        "SharedMemorySmall",
        "HotResetFailed",
        "RuntimeHandlerMissing",
        "DevicesClosed",
    ]
    offline = machine.site.glm5("doctor", "--from", str(path), "-o", "json")
    # How old facts were when they were collected isn't how old they are.
    assert {one["name"] for one in json.loads(offline.stdout)["nodes"][0]["troubles"]} == set(names[1:])
    assert b"hunter2" not in subprocess.run(["gzip", "-dc", str(path)], capture_output=True, check=True).stdout


def test_doctor_of_the_whole_cluster_has_pods_that_wait_for_a_node(machine: Machine) -> None:
    machine.report()
    namespace = machine.site.namespace
    engine = {
        "name": "engine",
        "image": "x:1",
        "resources": {"limits": {"huawei.com/Ascend910": "1"}},
        "env": [{"name": "ASCEND_VISIBLE_DEVICES", "value": "0"}],
    }
    pod = {"metadata": {"name": "waits", "namespace": namespace}, "spec": {"schedulerName": "nobody", "containers": [engine]}}
    machine.post(f"/api/v1/namespaces/{namespace}/pods", {"apiVersion": "v1", "kind": "Pod", **pod})
    run = machine.site.glm5("doctor", "-o", "json")
    found = {entry["node"]: [one["name"] for one in entry["troubles"]] for entry in json.loads(run.stdout)["nodes"]}
    assert found[""] == ["CardsChosenByHand"]
    assert found[machine.name] == []


def test_a_node_that_kubernetes_does_not_have_is_told(machine: Machine) -> None:
    run = machine.site.glm5("doctor", "--node", "absent")
    assert (run.exit_code, run.stderr.startswith("error: Node absent: doesn't exist")) == (3, True)


@pytest.mark.parametrize("typed", [("node", "release"), ("nodes",), ("doctor", "--node")])
def test_the_shell_completes_names_of_nodes(machine: Machine, typed: tuple[str, ...]) -> None:
    words = ["glm5", *typed, machine.name[:-1]]
    environment = {"KUBECONFIG": str(machine.site.cluster.kubeconfig), "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    program = Path(sys.executable).with_name("glm5")
    done = subprocess.run(
        [program], env={**os.environ, **environment, "_GLM5_COMPLETE": "complete_bash"}, capture_output=True, text=True, check=True
    )
    assert (done.stdout.split(), done.stderr) == ([machine.name], "")


def test_completion_without_a_cluster_is_silent(machine: Machine, tmp_path: Path) -> None:
    words = {"COMP_WORDS": "glm5 nodes x", "COMP_CWORD": "2", "_GLM5_COMPLETE": "complete_bash", "KUBECONFIG": str(tmp_path / "absent")}
    program = Path(sys.executable).with_name("glm5")
    done = subprocess.run([program], env={**os.environ, **words}, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")
