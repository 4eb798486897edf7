"""A control plane of its own for the tests of the whole operator, with the operator running in it as a process.

Not the shared `api_cluster`: other tests write objects of the same kinds there, and an operator would act on them.
Real: etcd, API server, quota, Pod Security, controller manager, garbage collector, scheduler, the operator. KWOK plays kubelets on nodes
`npu-*`; where a test needs what KWOK can't show (a failed pull, a crash), it writes the pod's status itself, in kubelet's words.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.api import ApiCluster, ApiOptions
from tests.support.crds import install_crds
from tests.support.documents import RACK, pool
from tests.support.kube import Kube, until
from tests.support.operator import OperatorProcess

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "tests/support/audit-writes.yaml"
NODES = 4


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


PROGRESS = {
    "GLM5_OPERATOR_PROGRESS_PORT": str(_free_port()),
    "GLM5_OPERATOR_PROGRESS_INTERVAL": "1",
    "GLM5_OPERATOR_PROGRESS_TELL": "2",
    "GLM5_OPERATOR_WATCH_DISCOVERY": "1",
    "GLM5_OPERATOR_AUDIT_INTERVAL": "2",
    "GLM5_OPERATOR_AUDIT_EVICT_AFTER": "4",
}
"""Soon, as tests want it. Pods without a kubelet have the address of this machine, so one port for progress serves for all."""


@dataclass(frozen=True)
class Operated:
    """The cluster, a client, and the operator in it."""

    cluster: ApiCluster
    kube: Kube
    operator: OperatorProcess

    def writes(self, namespace: str, user: str = "") -> list[str]:
        """What an operator wrote in a namespace, in order, as `verb resource/name`: from the API server's audit log."""
        found = []
        for line in self.cluster.audit_log.read_text().splitlines():
            entry = json.loads(line)
            target = entry.get("objectRef") or {}
            ours = entry.get("userAgent") == "glm5-operator" and entry["responseStatus"]["code"] < 300
            if ours and target.get("namespace") == namespace and user in entry["user"]["username"]:
                plural = "/".join(part for part in (target["resource"], target.get("subresource")) if part)
                found.append(f"{entry['verb']} {plural}/{target.get('name', '')}")
        return found


@pytest.fixture(scope="session")
def operated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Four KWOK nodes of eight A2 cards in pool `inference`, the CRDs, the operator."""
    with ApiCluster.start(options=ApiOptions(audit_policy=POLICY)) as cluster:
        install_crds(cluster)
        kube = Kube(cluster.http)
        kube.create({"kind": "Namespace", "metadata": {"name": "glm5-system"}})
        cluster.add_nodes(NODES, labels={RACK: "inference"})
        operator = OperatorProcess(cluster.kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log", dict(PROGRESS))
        operator.start()
        try:
            kube.create(pool("inference"))
            yield Operated(cluster, kube, operator)
        finally:
            if not operator.ended:
                operator.stop()


@pytest.fixture
def operated(operated_cluster: Operated) -> Iterator[Operated]:
    """The same, surely with a running operator and a settled pool; an operator that ends by itself fails the test it ended in."""
    if operated_cluster.operator.ended:
        operated_cluster.operator.start()
    kube = operated_cluster.kube
    until(
        "pool inference to be ready", lambda: kube.pool_condition("inference").get("status") == "True", 30, operated_cluster.operator.tail
    )
    yield operated_cluster
    assert not operated_cluster.operator.crashed, operated_cluster.operator.tail()


@pytest.fixture
def kube(operated: Operated) -> Kube:
    return operated.kube


@pytest.fixture
def home(operated: Operated) -> Iterator[str]:
    """A fresh namespace; its services are deleted after the test, so that their cards are free for the next one."""
    name = f"t-{secrets.token_hex(4)}"
    operated.kube.create({"kind": "Namespace", "metadata": {"name": name}})
    until("the namespace's ServiceAccount", lambda: operated.kube.find("ServiceAccount", name, "default") is not None)
    yield name
    for service in operated.kube.list("GLM5Service", name):
        operated.kube.delete("GLM5Service", name, service["metadata"]["name"])
    operated.kube.delete("Namespace", "", name)
