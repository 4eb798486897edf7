"""N GLM5Services on a real API server: how long, how much, how many writes; beside the same objects with no operator.

`make bench-control-plane` runs it. Nodes and pods are KWOK's, so the figures are the control plane's alone. Each round starts a
fresh cluster; floor and operator run in the same cluster one after the other. The last line printed is JSON.
"""

from __future__ import annotations

import datetime
import json
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import audit
from benchmarks.operators import USER, OperatorProcess, operator_kubeconfig
from benchmarks.process import machine, machine_cpu_seconds
from glm5_operator.api.pool import NPUPool
from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.facts import NodeFacts, PoolFacts, Product, ServiceFacts
from glm5_operator.plan.service import plan_service
from tests.cluster.api import ApiCluster, ApiOptions
from tests.cluster.nodes import RESOURCE, node_labels
from tests.cluster.shell import wait_for
from tests.support.crds import install_crds

ROOT = Path(__file__).parents[1]
CREATORS = 16
SPACE = "bench"
BUSY = ("glm5_operator_queue_depth", "glm5_operator_queue_running")
console = Console(stderr=True)
Request = tuple[str, str]
"""Verb and resource."""


@dataclass(frozen=True, slots=True)
class Round:
    """Figures of one round. Times in seconds, memory in MB; idle_requests are those of the minute after the restart."""

    n: int
    wall_s: float
    floor_s: float
    ratio: float
    cpu_s: float
    rss_mb: float
    writes_per_object: float
    resync_s: float
    resync_writes: int
    idle_requests: int
    takeover_s: float
    reconcile_p50_s: float
    reconcile_p99_s: float
    foreign_cpu_s: float


POOL: dict[str, Any] = {
    "apiVersion": "glm5.dev/v1alpha1",
    "kind": "NPUPool",
    "metadata": {"name": "inference"},
    "spec": {"role": "Inference", "nodeSelector": {"accelerator": "huawei-Ascend910"}, "namespaces": [SPACE]},
}


def a_service(name: str) -> dict[str, Any]:
    """One replica on one card."""
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5Service",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "model": {"name": "tiny-glm5", "weights": "bf16", "source": "image:///models/tiny-glm5", "memory": "1Gi"},
            "parallelism": {"tensor": 1},
            "pool": "inference",
        },
    }


def main(
    services: Annotated[int, typer.Option(help="Number of services.")] = 1000,
    rounds: Annotated[int, typer.Option(help="Rounds, each on a fresh cluster.")] = 3,
    record: Annotated[bool, typer.Option(help="Append the result to docs/benchmarks.md.")] = True,
) -> None:
    """Run the rounds, print a line each, then one JSON line of medians."""
    results: list[Round] = []
    requests: list[Counter[Request]] = []
    versions = ""
    for number in range(1, rounds + 1):
        with tempfile.TemporaryDirectory(prefix="glm5-bench-") as name:
            folder = Path(name)
            (folder / "audit.yaml").write_text(audit.POLICY % USER)
            with ApiCluster.start(options=ApiOptions(qps=1000, audit_policy=folder / "audit.yaml")) as cluster:
                versions = f"Kubernetes {cluster.http.get('/version').json()['gitVersion']}, kopf {metadata.version('kopf')}"
                result, asked = run_round(cluster, services, folder)
        results.append(result)
        requests.append(asked)
        console.print(f"round {number}/{rounds}: {asdict(result)}", highlight=False)
    summary = {key: round(statistics.median(getattr(r, key) for r in results), 3) for key in asdict(results[0])}
    if record:
        append(services, versions, results, requests)
    print(json.dumps(summary))


def run_round(cluster: ApiCluster, n: int, folder: Path) -> tuple[Round, Counter[Request]]:
    """Floor, then operator, then restart, then take-over; also the requests that the operator made for the N services."""
    prepare(cluster, n)
    kubeconfig = operator_kubeconfig(cluster, folder)
    floor_s = measure_floor(cluster, n)
    log = audit.AuditLog(cluster.audit_log)
    operator = OperatorProcess.start(kubeconfig, folder, "first")
    try:
        cluster.http.post("/apis/glm5.dev/v1alpha1/npupools", json=POOL).raise_for_status()
        wait_for("the pool", lambda: is_ready(cluster.http.get("/apis/glm5.dev/v1alpha1/npupools/inference").json()), timeout=120)
        log.since_last()
        wall_s, cpu_s, foreign_cpu_s = measure_services(cluster, operator, n)
        idle(operator)
        requests = settled(log)
        p50, p99 = (operator.quantile("glm5_operator_reconcile_seconds", q, kind="GLM5Service") for q in (0.5, 0.99))
        rss_mb = operator.usage().peak_mb
    finally:
        operator.end()
    log.since_last()
    operator, resync_s, resync_writes = measure_resync(kubeconfig, folder, log, n)
    idle_requests = measure_idle(log)
    takeover_s = measure_takeover(cluster, operator, kubeconfig, folder)
    figures = Round(
        n=n,
        wall_s=wall_s,
        floor_s=floor_s,
        ratio=wall_s / floor_s,
        cpu_s=cpu_s,
        rss_mb=rss_mb,
        writes_per_object=audit.writes(requests) / n,
        resync_s=resync_s,
        resync_writes=resync_writes,
        idle_requests=idle_requests,
        takeover_s=takeover_s,
        reconcile_p50_s=p50,
        reconcile_p99_s=p99,
        foreign_cpu_s=foreign_cpu_s,
    )
    return figures, requests


def prepare(cluster: ApiCluster, n: int) -> None:
    """Nodes with enough cards, a namespace, the CRDs."""
    cluster.add_nodes(n // 8 + 16)
    cluster.http.post("/api/v1/namespaces", json={"metadata": {"name": SPACE}}).raise_for_status()
    install_crds(cluster)


def measure_floor(cluster: ApiCluster, n: int) -> float:
    """Seconds for the same children with nobody reconciling, until their pods are ready; then they are removed."""
    pool = NPUPool.model_validate({**POOL, "metadata": {"name": "inference"}})
    nodes = tuple(NodeFacts(f"npu-{i}", node_labels("A2"), Product.A2, {RESOURCE: 8}) for i in range(n // 8 + 16))
    facts = ServiceFacts(PoolFacts(pool, nodes))
    for node in nodes:
        cluster.http.patch(
            f"/api/v1/nodes/{node.name}",
            json={"metadata": {"labels": {"glm5.dev/pool": "inference"}}},
            headers={"content-type": "application/merge-patch+json"},
        ).raise_for_status()
    plans = [plan_service(GLM5Service.model_validate(a_service(f"s{i}")), facts) for i in range(n)]
    assert all(plan.stalled is None for plan in plans), plans[0].stalled
    begin = time.monotonic()
    with ThreadPoolExecutor(CREATORS) as pool_of_threads:
        list(pool_of_threads.map(lambda plan: [create(cluster, item) for item in plan.objects], plans))
        wait_watching(cluster, "/apis/apps/v1", "deployments", lambda d: d.get("status", {}).get("readyReplicas", 0) >= 1, n)
    seconds = time.monotonic() - begin
    for collection in ("/apis/apps/v1", "/api/v1"):
        kind = "deployments" if collection.startswith("/apis") else "services"
        if kind == "deployments":
            cluster.http.delete(f"{collection}/namespaces/{SPACE}/{kind}", params={"propagationPolicy": "Background"}, timeout=300)
        else:
            for item in cluster.http.get(f"{collection}/namespaces/{SPACE}/{kind}").json()["items"]:
                cluster.http.delete(f"{collection}/namespaces/{SPACE}/{kind}/{item['metadata']['name']}")

    def gone() -> bool:
        return not cluster.http.get(f"/api/v1/namespaces/{SPACE}/pods", params={"limit": 1}).json()["items"]

    wait_for("the floor's pods to go", gone, timeout=300, every=1.0)
    for node in nodes:
        cluster.http.patch(
            f"/api/v1/nodes/{node.name}",
            json={"metadata": {"labels": {"glm5.dev/pool": None}}},
            headers={"content-type": "application/merge-patch+json"},
        ).raise_for_status()
    return seconds


def measure_services(cluster: ApiCluster, operator: OperatorProcess, n: int) -> tuple[float, float, float]:
    """Seconds from the first create until every service is Ready, the operator's CPU seconds, CPU seconds of everything else."""
    used, whole = operator.usage().cpu, machine_cpu_seconds()
    begin = time.monotonic()
    with ThreadPoolExecutor(CREATORS) as threads:
        list(threads.map(lambda i: create(cluster, a_service(f"s{i}")), range(n)))
        wait_watching(cluster, "/apis/glm5.dev/v1alpha1", "glm5services", is_ready, n)
    wall = time.monotonic() - begin
    cpu = operator.usage().cpu - used
    return wall, cpu, machine_cpu_seconds() - whole - cpu


def measure_resync(kubeconfig: Path, folder: Path, log: audit.AuditLog, n: int) -> tuple[OperatorProcess, float, int]:
    """Restart: seconds until every service was reconciled again, and the writes that took (should be none)."""
    begin = time.monotonic()
    operator = OperatorProcess.start(kubeconfig, folder, "second")

    def looked_at_all() -> bool:
        # Every key is put into the queue at once, so an empty queue means that each had its turn, not one of them twice.
        samples = operator.samples()
        count = sum(
            value for name, labels, value in samples if name.endswith("reconcile_seconds_count") and labels["kind"] == "GLM5Service"
        )
        return count >= n and not any(value for name, _, value in samples if name in BUSY)

    wait_for("all services to be looked at again", looked_at_all, timeout=300, every=0.1)
    seconds = time.monotonic() - begin
    requests = settled(log)
    console.print("requests of the restart:", dict(requests), highlight=False)
    return operator, seconds, audit.writes(requests)


def measure_idle(log: audit.AuditLog) -> int:
    """Requests of a minute in which nothing happens, lease renewals aside."""
    log.since_last()
    time.sleep(60)
    requests = log.since_last()
    console.print("requests of an idle minute:", dict(requests), highlight=False)
    return sum(count for (_, resource), count in requests.items() if resource != "leases")


def measure_takeover(cluster: ApiCluster, leader: OperatorProcess, kubeconfig: Path, folder: Path) -> float:
    """Seconds from kill -9 of the leader until a standby has acted on a service created after the kill."""
    standby = OperatorProcess.start(kubeconfig, folder, "standby")
    try:
        leader.end(signal.SIGKILL)
        begin = time.monotonic()
        create(cluster, a_service("after-kill"))

        def acted() -> bool:
            found = cluster.http.get(
                f"/apis/apps/v1/namespaces/{SPACE}/deployments", params={"labelSelector": "glm5.dev/service=after-kill"}
            )
            return bool(found.json()["items"])

        wait_for("the standby", acted, timeout=120, every=0.05)
        return time.monotonic() - begin
    finally:
        standby.end()


def create(cluster: ApiCluster, item: dict[str, Any]) -> None:
    """POST one object."""
    group = item["apiVersion"]
    base = f"/apis/{group}" if "/" in group else f"/api/{group}"
    plural = {"GLM5Service": "glm5services", "NetworkPolicy": "networkpolicies"}.get(item["kind"], item["kind"].lower() + "s")
    item = {**item, "metadata": {**item["metadata"], "namespace": SPACE}}
    cluster.http.post(f"{base}/namespaces/{SPACE}/{plural}", json=item).raise_for_status()


def wait_watching(cluster: ApiCluster, base: str, plural: str, good: Callable[[dict[str, Any]], bool], n: int) -> None:
    """Follow a watch until N objects are good; cheaper for the API server than polling."""
    fine: set[str] = set()
    path, deadline = f"{base}/namespaces/{SPACE}/{plural}", time.monotonic() + 600
    with cluster.http.stream("GET", path, params={"watch": "1", "resourceVersion": "0"}, timeout=600) as stream:
        for line in stream.iter_lines():
            event = json.loads(line)
            name = event["object"].get("metadata", {}).get("name", "")
            if event["type"] in {"ADDED", "MODIFIED"} and good(event["object"]):
                fine.add(name)
            else:
                fine.discard(name)
            if len(fine) >= n:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(fine)} of {n} {plural} are ready after 600 s")


def is_ready(item: dict[str, Any]) -> bool:
    """Whether its Ready condition is True for the current generation."""
    conditions = item.get("status", {}).get("conditions", [])
    current = item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"]
    return current and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def idle(operator: OperatorProcess) -> None:
    """Wait until the operator has nothing due, waiting or running but its timers."""

    def quiet() -> bool:
        return sum(operator.total(name) for name in BUSY) == 0

    wait_for("an idle queue", quiet, timeout=120, every=0.2)


def settled(log: audit.AuditLog) -> Counter[Request]:
    """Requests until two looks a second apart show nothing but lease renewals."""
    requests = log.since_last()
    while True:
        time.sleep(1)
        more = log.since_last()
        requests += more
        if not [key for key in more if key[1] != "leases"]:
            return requests


def append(n: int, versions: str, results: list[Round], requests: list[Counter[Request]]) -> None:
    """Add a dated section to docs/benchmarks.md: figures with their spread, then the requests per service by verb and kind."""
    page = ROOT / "docs" / "benchmarks.md"
    lines = [f"\n## Control plane, {n} services, {datetime.date.today().isoformat()}\n"]
    lines += [f"{machine()}; {versions}; {len(results)} rounds\n", "| figure | median | least | most |", "|---|---|---|---|"]
    for key in [key for key in asdict(results[0]) if key != "n"]:
        values = [getattr(r, key) for r in results]
        lines.append(f"| {key} | {statistics.median(values):.3g} | {min(values):.3g} | {max(values):.3g} |")
    lines += ["\n| request of the operator | a service, median | least | most |", "|---|---|---|---|"]
    for request in sorted({request for asked in requests for request in asked if request[1] != "leases"}):
        values = [asked[request] / n for asked in requests]
        lines.append(f"| {' '.join(request)} | {statistics.median(values):.3g} | {min(values):.3g} | {max(values):.3g} |")
    with page.open("a") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    typer.run(main)
