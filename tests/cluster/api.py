"""A bare Kubernetes control plane on this host: etcd, API server, controller manager, scheduler, and KWOK on request.

For tests of what talks to the API only, and for benchmarks: no root, no containers, ready in a few seconds. Used by
plugin.py, the CLI and benchmarks. Pods run nowhere here: on KWOK nodes they become Running and Ready by themselves,
elsewhere a test writes their status.
"""

import contextlib
import json
import os
import shutil
import ssl
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.cluster import cache
from tests.cluster.certificates import make_certificates
from tests.cluster.errors import ClusterError
from tests.cluster.nodes import kwok_node
from tests.cluster.processes import Identity, Processes, free_ports
from tests.cluster.shell import run, wait_for
from tests.cluster.tools import tool


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """How the control plane is run.

    Attributes:
        kwok: Run KWOK, which keeps nodes labelled `type=kwok` and their pods Ready.
        qps: Requests a second that controllers and scheduler may make; 0 leaves their defaults (20 to 50).
        audit_policy: Audit policy file; the log is then `audit.log` in the cluster's folder. None means no audit.
    """

    kwok: bool = True
    qps: int = 0
    audit_policy: Path | None = None


@dataclass(frozen=True)
class ApiCluster:
    """A running API-server-only cluster. Leaving it as a context manager stops it and removes its folder (logs are kept)."""

    name: str
    folder: Path
    server: str
    options: ApiOptions = field(default_factory=ApiOptions)

    @staticmethod
    def start(name: str | None = None, options: ApiOptions | None = None) -> "ApiCluster":
        """Start a cluster, or return the running one of that name.

        Args:
            name: Names a cluster that outlives this process. Without a name it belongs to this process, and the next
                start of any cluster removes it when this process died without stopping it.
            options: How to run it.

        Raises:
            ClusterError: A part did not start; the message holds the end of its log.
        """
        sweep()
        settings = options or ApiOptions()
        own = name is None
        name = name or f"p{os.getpid()}-{time.monotonic_ns() % 10**9}"
        with cache.locked(f"api-{name}"):
            found = ApiCluster.find(name)
            if found is not None and found.alive:
                if options is not None and found.options != options:
                    raise ClusterError(f"API cluster {name} runs with {found.options}: stop it before starting it with {options}")
                return found
            _discard(_folder(name))
            attempts = 3  # a free port can be taken by someone else before the server binds it
            for attempt in range(1, attempts + 1):
                try:
                    return _launch(name, settings, own=own)
                except ClusterError as error:
                    _discard(_folder(name))
                    if attempt == attempts or "address already in use" not in str(error):
                        raise
        raise AssertionError("unreachable")

    @classmethod
    def find(cls, name: str) -> Self | None:
        """The cluster of that name as it was started, alive or not; None when there is none."""
        try:
            state = json.loads((_folder(name) / "state.json").read_text())
            audit = state["options"].pop("audit_policy")
            options = ApiOptions(**state["options"], audit_policy=Path(audit) if audit else None)
            return cls(name, _folder(name), state["server"], options)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a cluster administrator."""
        return self.folder / "pki" / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """The audit log, one JSON event a line; present when an audit policy was given."""
        return self.folder / "audit.log"

    @property
    def processes(self) -> Processes:
        """Its programs by name (etcd, kube-apiserver, …), with their logs."""
        return Processes(self.folder / "run")

    @property
    def alive(self) -> bool:
        """Whether every part runs and the API server says it is ready."""
        if not all(self.processes.alive(name) for name in _parts(self.options)):
            return False
        with _client(self.folder / "pki", self.server) as client:
            return _answers(client, "/readyz")

    @cached_property
    def http(self) -> httpx.Client:
        """HTTP client with the administrator's certificate; paths are those of the API server."""
        return _client(self.folder / "pki", self.server)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl on this cluster and return its output."""
        return run(tool("kubectl"), "--kubeconfig", self.kubeconfig, *words, stdin=stdin)

    def add_nodes(
        self,
        count: int,
        *,
        prefix: str = "npu",
        product: str = "A2",
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create that many KWOK nodes `<prefix>-0` … and wait until they are Ready; returns their names."""
        names = [f"{prefix}-{index}" for index in range(count)]
        for name in names:
            answer = self.http.post("/api/v1/nodes", json=kwok_node(name, product=product, labels=labels, resources=resources))
            answer.raise_for_status()

        def ready() -> bool:
            items = self.http.get("/api/v1/nodes", params={"resourceVersion": "0"}).json()["items"]
            return set(names) <= {node["metadata"]["name"] for node in items if _is_usable(node)}

        wait_for(f"{count} KWOK nodes to be Ready", ready, timeout=60 + count / 20)
        return names

    def stop(self) -> None:
        """End its processes, keep their logs in the cache's logs folder, remove everything else."""
        if "http" in self.__dict__:
            self.http.close()
        _discard(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def sweep() -> list[str]:
    """Remove clusters whose owning process died; returns their names."""
    removed = []
    for folder in cache.runs().glob("api-*"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            owner = json.loads((folder / "owner.json").read_text())
            if not Identity(**owner).alive:
                _discard(folder)
                removed.append(folder.name.removeprefix("api-"))
    return removed


def names() -> list[str]:
    """Every cluster that has a folder."""
    return sorted(folder.name.removeprefix("api-") for folder in cache.runs().glob("api-*"))


def _folder(name: str) -> Path:
    return cache.runs() / f"api-{name}"


def _discard(folder: Path) -> None:
    if not folder.exists():
        return
    processes = Processes(folder / "run")
    processes.stop_all()
    kept = cache.logs() / folder.name
    kept.mkdir(exist_ok=True)
    for log in processes.folder.glob("*.log"):
        shutil.copy2(log, kept / log.name)
    cache.remove(folder)


def _parts(options: ApiOptions) -> tuple[str, ...]:
    base = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    return (*base, "kwok") if options.kwok else base


def _launch(name: str, options: ApiOptions, *, own: bool) -> ApiCluster:
    programs = {part: tool(part) for part in _parts(options)}
    folder = _folder(name)
    folder.mkdir(mode=0o700)
    if own:
        owner = Identity.of(os.getpid())
        assert owner is not None
        (folder / "owner.json").write_text(json.dumps(asdict(owner)))
    etcd, peer, secure, kcm, scheduler, kwok = free_ports(6)
    server = f"https://127.0.0.1:{secure}"
    pki = folder / "pki"
    make_certificates(pki, server)
    cluster = ApiCluster(name, folder, server, options)
    arguments = {
        "etcd": _etcd_arguments(folder, etcd, peer),
        "kube-apiserver": _apiserver_arguments(folder, secure, etcd, options),
        "kube-controller-manager": _manager_arguments(pki, kcm, options.qps),
        "kube-scheduler": _scheduler_arguments(pki, scheduler, options.qps),
        "kwok": _kwok_arguments(folder, kwok, options.qps),
    }

    def start(part: str) -> None:
        cluster.processes.start(part, [programs[part], *arguments[part]])

    start("etcd")
    start("kube-apiserver")
    _wait_ready(cluster, "kube-apiserver", "/readyz")
    for part in _parts(options)[2:]:
        start(part)
    _wait_ready(cluster, "kube-controller-manager", "/api/v1/namespaces/default/serviceaccounts/default")
    _wait_ready(cluster, "kube-scheduler", "/api/v1/namespaces/kube-system")
    state = {"server": server, "options": {**asdict(options), "audit_policy": str(options.audit_policy) if options.audit_policy else None}}
    (folder / "state.json").write_text(json.dumps(state))
    return cluster


def _wait_ready(cluster: ApiCluster, part: str, path: str) -> None:
    def ready() -> bool:
        for name in cluster.processes.names():
            if not cluster.processes.alive(name):
                raise ClusterError(f"{name} of test cluster {cluster.name} ended:\n{cluster.processes.tail(name)}")
        return _answers(client, path)

    try:
        with _client(cluster.folder / "pki", cluster.server) as client:
            wait_for(part, ready, timeout=120, every=0.05)
    except ClusterError as error:
        if "in vain" not in str(error):
            raise
        raise ClusterError(f"{error}; the end of its log:\n{cluster.processes.tail(part)}") from error


def _etcd_arguments(folder: Path, port: int, peer: int) -> list[str]:
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    return [
        *("--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level", "warn"),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}"),
        *("--quota-backend-bytes", str(2 << 30)),
    ]


def _apiserver_arguments(folder: Path, port: int, etcd: int, options: ApiOptions) -> list[str]:
    pki = folder / "pki"
    arguments = [
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--authorization-mode=Node,RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",  # the kubernetes Service may not point at a loopback address
    ]
    if options.qps:
        arguments += ["--max-requests-inflight=3000", "--max-mutating-requests-inflight=1000"]
    if options.audit_policy:
        arguments += [f"--audit-policy-file={options.audit_policy.resolve()}", f"--audit-log-path={folder / 'audit.log'}"]
    return arguments


def _qps(qps: int) -> list[str]:
    return [f"--kube-api-qps={qps}", f"--kube-api-burst={2 * qps}"] if qps else []


def _manager_arguments(pki: Path, port: int, qps: int) -> list[str]:
    arguments = [
        f"--kubeconfig={pki / 'kube-controller-manager.kubeconfig'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        *_qps(qps),
    ]
    if qps:
        workers = ("deployment", "replicaset", "statefulset", "endpoint", "service-endpoint", "gc")
        arguments += [f"--concurrent-{kind}-syncs=20" for kind in workers]
    return arguments


def _scheduler_arguments(pki: Path, port: int, qps: int) -> list[str]:
    kubeconfig = f"--kubeconfig={pki / 'kube-scheduler.kubeconfig'}"
    return [kubeconfig, "--bind-address=127.0.0.1", f"--secure-port={port}", "--leader-elect=false", *_qps(qps)]


def _kwok_arguments(folder: Path, port: int, qps: int) -> list[str]:
    config = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {"podPlayStageParallelism": 16 if qps else 4, "nodePlayStageParallelism": 16 if qps else 4},
    }
    (folder / "kwok.json").write_text(json.dumps(config))
    return [
        f"--kubeconfig={folder / 'pki' / 'kwok.kubeconfig'}",
        f"--config={folder / 'kwok.json'}",
        "--manage-nodes-with-label-selector=type=kwok",
        "--node-lease-duration-seconds=40",
        "--cidr=10.244.0.0/16",
        "--node-ip=127.0.0.1",
        f"--server-address=127.0.0.1:{port}",
    ]


def _client(pki: Path, server: str) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    return httpx.Client(base_url=server, verify=context, timeout=30, trust_env=False)


def _answers(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False


def _is_usable(node: dict[str, Any]) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")
