"""The Go programs of the test clusters: which there are, and how they are built into the cache.

Used by api.py, nodeimage.py, kind.py and, through `tool()`, by tests that need kubectl or helm. Each program is an
artefact of its own, so a change to the fake device plugin doesn't build Kubernetes again.
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import cache
from tests.cluster.errors import CommandFailedError, UnavailableError
from tests.cluster.shell import run
from tests.cluster.versions import KUBERNETES

SOURCES = Path(__file__).parent / "go"


@dataclass(frozen=True, slots=True)
class GoTool:
    """One program: the folder under go/ whose go.mod pins it, its package, and extra linker flags."""

    module: str
    package: str
    ldflags: str = ""


# Without its version the API server calls itself v0.0.0, and clients and kubeadm misbehave.
_KUBE_VERSION = " ".join(
    f"-X k8s.io/component-base/version.{key}={value}"
    for key, value in {
        "gitVersion": KUBERNETES,
        "gitMajor": KUBERNETES[1:].split(".")[0],
        "gitMinor": KUBERNETES.split(".")[1],
    }.items()
)
_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubeadm", "kubelet", "kube-proxy")

TOOLS: dict[str, GoTool] = {
    "etcd": GoTool("etcd", "."),
    **{name: GoTool("kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBE_VERSION) for name in _KUBERNETES},
    "kwok": GoTool("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "helm": GoTool("helm", "helm.sh/helm/v4/cmd/helm"),
    "kind": GoTool("kind", "sigs.k8s.io/kind"),
    "crictl": GoTool("crictl", "sigs.k8s.io/cri-tools/cmd/crictl"),
    "coredns": GoTool("coredns", "."),
    "pause": GoTool("fake", "./pause"),
    "runc-clamp": GoTool("fake", "./runc-clamp"),
    "podroutes": GoTool("fake", "./podroutes"),
    "ascend-fake": GoTool("fake", "./ascend-fake"),
}

API_TOOLS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "helm")
NODE_TOOLS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubeadm", "kubectl"),
    *("crictl", "coredns", "pause", "podroutes", "runc-clamp"),
)
KIND_TOOLS = ("kind", "kubectl", "helm", "ascend-fake")


def tool(name: str) -> Path:
    """The path of a built program, building it first when needed."""
    spec = TOOLS[name]
    folder = cache.artefact(f"tool-{name}", tool_key(name), lambda draft: _build(name, spec, draft))
    return folder / name


def is_built(name: str) -> bool:
    """Whether `tool(name)` returns at once."""
    return cache.artefact_path(f"tool-{name}", tool_key(name)).exists()


def tool_key(name: str) -> str:
    """Content key: pinned modules, our own sources of that folder, flags, and the machine's kind."""
    spec = TOOLS[name]
    folder = SOURCES / spec.module
    own = [folder / spec.package] if spec.package.startswith("./") else sorted(folder.glob("*.go"))
    return cache.content_key(folder / "go.mod", folder / "go.sum", *own, spec.package, spec.ldflags, os.uname().machine)


def missing(names: Iterable[str]) -> list[str]:
    """Those of the programs that are not built yet, in building order."""
    return [name for name in dict.fromkeys(names) if not is_built(name)]


def module_dir(module: str, path: str) -> Path:
    """The folder in Go's module cache that holds the source of `path` as pinned by go/<module>."""
    return Path(run(_go(), "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path, cwd=SOURCES / module, env=_ENV).strip())


_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}  # cgo would make dynamic programs; their images are empty


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise UnavailableError(
            "the test clusters' programs are built with Go ≥ 1.25 and there is none on PATH: install it from https://go.dev/dl"
        )
    return go


def _build(name: str, spec: GoTool, folder: Path) -> None:
    folder.mkdir()
    argv = [_go(), "build", "-mod=readonly", "-trimpath", "-ldflags", f"-s -w {spec.ldflags}".strip(), "-o", str(folder / name)]
    log = cache.logs() / f"build-{name}.log"
    log.unlink(missing_ok=True)
    try:
        run(*argv, spec.package, cwd=SOURCES / spec.module, env=_ENV, log=log)
    except CommandFailedError as error:
        if "missing go.sum entry" in error.output:
            raise UnavailableError(f"go/{spec.module}: run `go mod tidy` there, go.sum lacks an entry") from error
        raise
