"""The control plane of the health benchmark: a real API server with our CRDs, the operator as a process, pools of KWOK nodes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.audit import AuditLog
from benchmarks.health.node import Server
from benchmarks.operators import ACCOUNT, NAMESPACE, OperatorProcess, operator_kubeconfig
from tests.cluster.api import ApiCluster, ApiOptions
from tests.cluster.nodes import RESOURCE
from tests.support.agents import agent_pod
from tests.support.crds import install_crds
from tests.support.documents import RACK, cards, pool, tiny
from tests.support.kube import Kube, until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
AUDIT = ROOT / "tests/support/audit-writes.yaml"
SPACE = "bench"
POOL = "bench"
CARDS = 8
POLICY: dict[str, Any] = {"mode": "Auto", "debounce": "1s", "verify": "1s", "drain": "1h", "resets": 24}
"""Waits that people choose are short, so that what is measured is ours."""


@dataclass(frozen=True)
class Bench:
    """One running control plane.

    Attributes:
        cluster: the API server and its companions.
        kube: a client with all rights.
        folder: for files of this benchmark.
        server: how an agent reaches it.
        operator: the operator's process.
        log: what was written, since the last look.
    """

    cluster: ApiCluster
    kube: Kube
    folder: Path
    server: Server
    operator: OperatorProcess
    log: AuditLog

    def pool(self, nodes: int, **policy: object) -> list[str]:
        """A pool of that many nodes with an agent's pod on each; returns their names once all are the operator's."""
        names = self.cluster.add_nodes(nodes, labels={RACK: POOL}, resources={RESOURCE: str(CARDS)})
        self.kube.create(pool(POOL, health={**POLICY, **policy}))
        for name in names:
            self.kube.create(agent_pod(name))

        def all_there() -> bool:
            return {item["metadata"]["name"] for item in self.kube.list("AscendNode")} >= set(names)

        until(f"{nodes} AscendNodes", all_there, 60 + nodes / 5, self.told, 0.2)
        return names

    def services(self, count: int, replicas: int) -> None:
        """Services whose replicas take a whole node each, all ready."""
        for number in range(count):
            self.kube.create(tiny(SPACE, f"s{number}", pool=POOL, replicas=replicas, rollout={"strategy": "Recreate"}, **cards(CARDS)))

        def ready() -> bool:
            reasons = [self.kube.condition(SPACE, f"s{number}").get("reason") for number in range(count)]
            return reasons.count("Serving") == count

        until(f"{count} services to serve", ready, 120 + count, self.told, 0.5)

    def endpoints(self) -> dict[str, set[str]]:
        """Service → nodes of the pods that its clients reach."""
        found: dict[str, set[str]] = {}
        for item in self.kube.http.get(f"/apis/discovery.k8s.io/v1/namespaces/{SPACE}/endpointslices").json()["items"]:
            name = item["metadata"]["labels"].get("kubernetes.io/service-name", "")
            if name.endswith("-api"):
                nodes = {each["nodeName"] for each in item.get("endpoints") or () if each["conditions"].get("ready")}
                found.setdefault(name.removesuffix("-api"), set()).update(nodes)
        return found

    def remedies(self) -> dict[str, str]:
        """Node → state of its remedy."""
        nodes = self.kube.list("AscendNode")
        return {node["metadata"]["name"]: ((node.get("status") or {}).get("remedy") or {}).get("state", "") for node in nodes}

    def told(self) -> str:
        """How things are, for a wait that was in vain."""
        services = [
            (item["metadata"]["name"], self.kube.condition(SPACE, item["metadata"]["name"])) for item in self.kube.list("GLM5Service")
        ]
        unready = [f"{name}: {found.get('reason')}: {found.get('message')}" for name, found in services if found.get("reason") != "Serving"]
        remedies = {node: state for node, state in self.remedies().items() if state != "Healthy"}
        return "\n".join([*unready[:5], str(remedies)[:500], self.operator.log.read_text()[-2000:]])


@contextmanager
def running(folder: Path) -> Iterator[Bench]:
    """Start everything, with an operator that leads."""
    with ApiCluster.start(options=ApiOptions(qps=1000, audit_policy=AUDIT)) as cluster:
        install_crds(cluster)
        kube = Kube(cluster.http)
        kube.create({"kind": "Namespace", "metadata": {"name": SPACE}})
        kubeconfig = operator_kubeconfig(cluster, folder)
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(agent_token(cluster))
        operator = OperatorProcess.start(kubeconfig, folder, "operator")
        try:
            server = Server(cluster.server, cluster.folder / "pki" / "ca.crt", token)
            yield Bench(cluster, kube, folder, server, operator, AuditLog(cluster.audit_log))
        finally:
            operator.end()


def agent_token(cluster: ApiCluster) -> str:
    """One with all rights: the agent's own rights are tested elsewhere."""
    answer = cluster.http.post(
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token",
        json={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 36000}},
    ).raise_for_status()
    return str(answer.json()["status"]["token"])
