"""The chart installed by helm on an API server of its own, and processes with the rights of its accounts.

Its own, because CRDs on the shared one were put there by hand, and helm takes over nothing that isn't its release's.

Real: helm, API server, RBAC, controller manager, service account tokens, the operator as a process. Faked: nodes and kubelets (KWOK).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from glm5_operator.kube.rights import Right
from tests.cluster.api import ApiCluster, ApiOptions
from tests.cluster.shell import run, wait_for
from tests.cluster.tools import tool
from tests.support.chart import CHART, Chart, Document, only

AUDIT_POLICY = Path(__file__).parents[2] / "support" / "audit-operator.yaml"
SYSTEM = "glm5-system"
RELEASE = "glm5"


@dataclass(frozen=True)
class Release:
    """One release of the chart on one cluster."""

    cluster: ApiCluster
    chart: Chart

    def helm(self, *words: str | Path) -> str:
        return run(tool("helm"), "--kubeconfig", self.cluster.kubeconfig, "--namespace", SYSTEM, *words)

    def install(self, chart: Path = CHART, *flags: str) -> None:
        self.helm("upgrade", "--install", RELEASE, chart, "--create-namespace", *flags)

    def rendered(self) -> list[Document]:
        return self.chart.render(release=RELEASE, namespace=SYSTEM)

    def get(self, path: str) -> Document:
        """The object at that path, {} when there is none."""
        answer = self.cluster.http.get(path)
        return dict(answer.json()) if answer.is_success else {}

    def kubeconfig_of(self, account: str, folder: Path) -> Path:
        """A kubeconfig that has nothing but a token of that service account."""
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        token = self.cluster.http.post(path, json=body).raise_for_status().json()["status"]["token"]
        authority = yaml.safe_load(self.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": authority}],
            "users": [{"name": account, "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": account}}],
            "current-context": "c",
        }
        file = folder / f"{account}.kubeconfig"
        file.write_text(yaml.safe_dump(config))
        return file


@pytest.fixture(scope="module")
def chart_cluster() -> Iterator[ApiCluster]:
    with ApiCluster.start(options=ApiOptions(audit_policy=AUDIT_POLICY)) as cluster:
        yield cluster


@pytest.fixture
def release(chart_cluster: ApiCluster, tmp_path: Path) -> Release:
    return Release(chart_cluster, Chart(tool("helm"), tmp_path))


@dataclass(frozen=True)
class Running:
    """A `glm5-operator` process and what it said."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def metrics(self) -> str:
        """Its /metrics, at the free port that it logged."""
        address = wait_for("the admin port", lambda: next((w for w in self.said().split() if w.startswith("http://")), None), timeout=30)
        return httpx.get(address.rstrip(",").replace("0.0.0.0", "127.0.0.1") + "/metrics", trust_env=False).text


def settings_of(pod: Document) -> dict[str, str]:
    """The environment that Kubernetes would give the container: values as they are, the field reference resolved."""
    (container,) = pod["spec"]["containers"]
    given = {}
    for variable in container["env"]:
        if "value" in variable:
            given[variable["name"]] = variable["value"]
        else:
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace", variable
            given[variable["name"]] = SYSTEM
    return given


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the operator program with the environment and arguments of a rendered pod; it is ended after the test."""
    with contextlib.ExitStack() as stack:

        def begin(pod: Document, kubeconfig: Path, *flags: str) -> Running:
            (container,) = pod["spec"]["containers"]
            log = tmp_path / f"{container['name']}.log"
            argv = [sys.executable, "-m", "glm5_operator", *container.get("args", []), "--kubeconfig", str(kubeconfig), *flags]
            environ = {name: value for name, value in os.environ.items() if not name.startswith(("GLM5_", "KUBE"))}
            with log.open("wb") as sink:
                process = subprocess.Popen(argv, stdout=sink, stderr=sink, env=environ | settings_of(pod))
            stack.callback(_end, process)
            return Running(process, log)

        yield begin


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def condition(resource: Document, kind: str) -> dict[str, Any]:
    """One condition of an object, {} while it isn't there."""
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return next((dict(item) for item in conditions if item["type"] == kind), {})


Use = tuple[str, str, str]
"""API group, resource (with its subresource as `plural/name`), verb."""


def used_by(account: str, cluster: ApiCluster) -> set[Use]:
    """What an account was allowed and did, by the audit log. An apply that made an object needed the right to create it beside its own."""
    uses = set()
    for line in cluster.audit_log.read_text().splitlines():
        entry = json.loads(line)
        target = entry.get("objectRef") or {}
        if entry["user"]["username"] != f"system:serviceaccount:{SYSTEM}:{account}" or "resource" not in target:
            continue
        resource = "/".join(part for part in (target["resource"], target.get("subresource")) if part)
        code = entry["responseStatus"]["code"]
        verbs = {entry["verb"]} if code != 403 else set()
        if entry["verb"] == "patch" and code == 201:
            verbs.add("create")
        uses |= {(target.get("apiGroup", ""), resource, verb) for verb in verbs}
    return uses


def granted_by(*tables: tuple[Right, ...]) -> set[Use]:
    """What the tables of rights allow."""
    return {
        (group, resource, verb)
        for table in tables
        for right in table
        for group in right.groups
        for resource in right.resources
        for verb in right.verbs
    }


def operator_pod(documents: list[Document]) -> Document:
    pod: Document = only(documents, "Deployment")["spec"]["template"]
    return pod


def as_json(document: Document) -> str:
    return json.dumps(document)
