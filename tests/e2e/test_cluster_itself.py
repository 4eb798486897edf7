"""The kind test cluster does what its users rely on.

Cards follow their file, pods get them as from Ascend's plugin. That `down` leaves nothing: test_leaves_nothing.py.
"""

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.archive import write_image
from tests.cluster.devices import NodeDevices
from tests.cluster.kind import SHARED_NODE_PATH, KindCluster
from tests.cluster.nodes import RESOURCE
from tests.cluster.shell import wait_for
from tests.cluster.tools import tool, tool_key

pytestmark = pytest.mark.e2e

PROBE = f"ascend-fake:{tool_key('ascend-fake')}"  # on every worker already, and can be npu-smi


@pytest.fixture
def worker(kind_cluster: KindCluster) -> Iterator[str]:
    """The second worker with idle cards, put back as it was afterwards."""
    name = kind_cluster.workers[1]
    yield name
    NodeDevices.idle(kind_cluster.options.products[1]).write(kind_cluster.cards(name))
    wait_for("its cards to be back", lambda: allocatable(kind_cluster, name) == 8, timeout=30)


@pytest.fixture
def pod(kind_cluster: KindCluster, worker: str) -> Iterator[tuple[str, str]]:
    """A pod on that worker with two cards; its program is a copy of the node's npu-smi that asks for the map and ends."""
    name = f"probe-{secrets.token_hex(3)}"
    container = {
        "name": "probe",
        "image": PROBE,
        "imagePullPolicy": "Never",
        "command": ["/usr/local/bin/npu-smi", "info", "-m"],
        "resources": {"limits": {RESOURCE: "2"}},
    }
    # Where the demo's chart is installed already, a pod that asks for cards must name the pool that has the node, in a namespace of it.
    labels = kind_cluster.kubectl_json("get", "node", worker)["metadata"]["labels"]
    selector = {key: labels[key] for key in ("kubernetes.io/hostname", "glm5.dev/pool") if key in labels}
    pool = kind_cluster.kubectl_json("get", "npupool", selector["glm5.dev/pool"])["spec"] if "glm5.dev/pool" in selector else {}
    namespace = next(iter(pool.get("namespaces", ())), "default")
    spec = {"nodeSelector": selector, "restartPolicy": "Never", "containers": [container]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    kind_cluster.kubectl("apply", "--filename=-", stdin=json.dumps(manifest))
    yield f"--namespace={namespace}", name
    kind_cluster.kubectl("delete", "pod", f"--namespace={namespace}", name, "--grace-period=0", "--force", "--wait=false")


def allocatable(cluster: KindCluster, node: str, resource: str = RESOURCE) -> int:
    return int(cluster.kubectl_json("get", "node", node)["status"]["allocatable"].get(resource, "0"))


def inside(cluster: KindCluster, node: str, *words: str) -> str:
    return cluster.engine.docker("exec", node, *words)


def test_the_kubelets_allocatable_follows_health_and_number_of_cards(kind_cluster: KindCluster, worker: str) -> None:
    file = kind_cluster.cards(worker)
    node = NodeDevices.read(file)
    node.change(3, health="Alarm").change(5, health="Critical").write(file)
    wait_for("six healthy cards", lambda: allocatable(kind_cluster, worker) == 6, timeout=30)
    capacity = kind_cluster.kubectl_json("get", "node", worker)["status"]["capacity"][RESOURCE]
    assert capacity == "8", "a sick card is still there"
    node.change(3, health="Warning").write(file)
    wait_for("a warning that takes no card away", lambda: allocatable(kind_cluster, worker) == 8, timeout=30)
    node.only(range(4)).write(file)
    wait_for("four cards left on the bus", lambda: allocatable(kind_cluster, worker) == 4, timeout=30)


def test_a_pod_gets_physical_ids_and_npu_smi_counts_logic_ids_from_zero(
    kind_cluster: KindCluster, worker: str, pod: tuple[str, str]
) -> None:
    def ended() -> bool:
        return kind_cluster.kubectl_json("get", "pod", *pod)["status"]["phase"] in {"Succeeded", "Failed"}

    wait_for("the probe to end", ended, timeout=60)
    rows = [line.split() for line in kind_cluster.kubectl("logs", *pod).splitlines()[1:]]
    chips = [(row[0], row[2]) for row in rows if row[-1] != "Mcu"]
    container = json.loads(
        inside(kind_cluster, worker, "crictl", "ps", "--all", "--output=json", f"--label=io.kubernetes.pod.name={pod[1]}")
    )
    details = json.loads(inside(kind_cluster, worker, "crictl", "inspect", container["containers"][0]["id"]))
    given = dict(entry.split("=", 1) for entry in details["info"]["runtimeSpec"]["process"]["env"])["ASCEND_VISIBLE_DEVICES"]
    assert re.fullmatch(r"\d,\d", given)
    assert chips == [(physical, str(logic)) for logic, physical in enumerate(given.split(","))]


def test_npu_smi_on_the_node_shows_all_cards_and_follows_the_file(kind_cluster: KindCluster, worker: str) -> None:
    file = kind_cluster.cards(worker)
    NodeDevices.read(file).change(2, temperature=91, aicore=97).write(file)
    table = inside(kind_cluster, worker, "npu-smi", "info")
    assert len(re.findall(r"910B3 +\| OK", table)) == 8
    assert re.search(r"\| 2 +910B3 +\| OK +\| [\d.]+ +91 ", table)


def test_another_resource_name_is_registered_when_the_file_names_one(kind_cluster: KindCluster, worker: str) -> None:
    file = kind_cluster.cards(worker)
    before = json.loads(file.read_text())
    file.write_text(json.dumps({**before, "resource": "huawei.com/ascend-1980"}))
    wait_for("the other resource", lambda: allocatable(kind_cluster, worker, "huawei.com/ascend-1980") == 8, timeout=30)
    file.write_text(json.dumps(before))
    wait_for("the usual resource", lambda: allocatable(kind_cluster, worker) == 8, timeout=30)


def test_workers_look_like_real_a2_nodes(kind_cluster: KindCluster) -> None:
    for name in kind_cluster.workers:
        labels = kind_cluster.kubectl_json("get", "node", name)["metadata"]["labels"]
        assert labels["accelerator"] == "huawei-Ascend910"
        assert labels["accelerator-type"] == "module-910b-8"
        assert labels["node.kubernetes.io/npu.chip.name"] == "910B3"


def test_services_and_names_reach_pods_on_both_nodes(kind_cluster: KindCluster) -> None:
    dns = kind_cluster.kubectl_json("get", "service", "kube-dns", "--namespace=kube-system")["spec"]["clusterIP"]
    for node in kind_cluster.workers:
        # The node's own resolver is Docker's; asking the cluster's server from the host side goes through kube-proxy and the pod routes.
        inside(kind_cluster, node, "bash", "-c", f"exec 3<>/dev/tcp/{dns}/53")


def test_images_written_without_an_engine_can_be_loaded(kind_cluster: KindCluster, tmp_path: Path) -> None:
    archive = tmp_path / "probe.tar"
    write_image(archive, "local/probe:1", {"/pause": tool("pause")}, ("/pause",))
    kind_cluster.load(str(archive))
    for node in kind_cluster.workers:
        assert "local/probe" in inside(kind_cluster, node, "crictl", "images")


def test_what_one_worker_writes_into_the_shared_folder_the_others_and_the_host_read(kind_cluster: KindCluster) -> None:
    name = f"probe-{secrets.token_hex(3)}"
    writer, *readers = kind_cluster.workers

    inside(kind_cluster, writer, "setpriv", "--reuid=1000", "sh", "-c", f"echo {writer} > {SHARED_NODE_PATH}/{name}")

    assert [inside(kind_cluster, reader, "cat", f"{SHARED_NODE_PATH}/{name}").strip() for reader in readers] == [writer] * 3
    assert (kind_cluster.shared / name).read_text().strip() == writer
    (kind_cluster.shared / name).unlink()
