"""Starts real operator processes for benchmarks, with a service account of their own so that the audit log can tell them apart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.process import Usage
from tests.cluster.api import ApiCluster
from tests.cluster.processes import free_ports
from tests.cluster.shell import wait_for

NAMESPACE = "glm5-system"
ACCOUNT = "glm5-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"


def operator_kubeconfig(cluster: ApiCluster, folder: Path) -> Path:
    """Create the operator's namespace and account (cluster-admin: rights are tested elsewhere), write its kubeconfig into `folder`."""
    post = cluster.http.post
    post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).raise_for_status()
    post(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", json={"metadata": {"name": ACCOUNT}}).raise_for_status()
    post(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        json={
            "metadata": {"name": "glm5-operator-benchmark"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        },
    ).raise_for_status()
    answer = post(
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token",
        json={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 36000}},
    ).raise_for_status()
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer.json()["status"]["token"]}
    path = folder / "operator.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


@dataclass(frozen=True)
class OperatorProcess:
    """One running operator."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @classmethod
    def start(cls, kubeconfig: Path, folder: Path, name: str, **variables: str) -> OperatorProcess:
        """Start one and wait until it answers /healthz."""
        (port,) = free_ports(1)
        log = folder / f"{name}.log"
        env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GLM5_OPERATOR_")},
            "KUBECONFIG": str(kubeconfig),
            "PYTHONDONTWRITEBYTECODE": "",  # so that only the first start compiles; in the image all is compiled
            "GLM5_OPERATOR_ADMIN_PORT": str(port),
            "GLM5_OPERATOR_ADMIN_HOST": "127.0.0.1",
            **variables,
        }
        with log.open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "glm5_operator"], env=env, stdout=out, stderr=subprocess.STDOUT)
        operator = cls(process, port, log)
        wait_for(f"operator {name}", operator.answers, timeout=60, every=0.05)
        return operator

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def answers(self) -> bool:
        """Whether /healthz answers 200."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the operator ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/healthz", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def usage(self) -> Usage:
        """CPU and memory so far."""
        return Usage.of(self.pid)

    def samples(self) -> list[tuple[str, dict[str, str], float]]:
        """All samples of /metrics as (name, labels, value)."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False).text
        return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(text) for s in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """Sum of the samples with that name and these labels."""
        return sum(value for found, has, value in self.samples() if found == name and labels.items() <= has.items())

    def quantile(self, name: str, q: float, **labels: str) -> float:
        """Upper bound of the histogram bucket that holds the quantile, seconds."""
        buckets: dict[float, float] = {}
        for found, has, value in self.samples():
            if found == f"{name}_bucket" and labels.items() <= has.items():
                bound = float(has["le"])
                buckets[bound] = buckets.get(bound, 0.0) + value
        count = buckets.get(float("inf"), 0.0)
        return next((bound for bound, value in sorted(buckets.items()) if count and value >= q * count), float("nan"))

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal and wait until it is gone."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(timeout=30)
