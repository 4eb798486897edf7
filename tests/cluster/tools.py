"""The Go programs of the test clusters: which there are, and how they are built into the cache.

Used by api.py, nodeimage.py, kind.py and, through `tool()`, by tests that need kubectl or helm. Each program is an
artefact of its own, so a change to the fake device plugin doesn't build Kubernetes again.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import cache
from tests.cluster.errors import UnavailableError
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
    "pod-resources": GoTool("fake", "./pod-resources"),
}

API_TOOLS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "helm", "pod-resources")
NODE_TOOLS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubeadm", "kubectl"),
    *("crictl", "coredns", "pause", "podroutes", "runc-clamp"),
)
KIND_TOOLS = ("kind", "kubectl", "ascend-fake", "helm")  # helm last: nothing waits for it until the cluster is up


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
    """The folder with the source of `path` as pinned by go/<module>, downloaded when it isn't in Go's module cache."""
    described = run(_require_go(), "mod", "download", "-json", path, cwd=SOURCES / module, env=_ENV)
    return Path(json.loads(described)["Dir"])


# cgo would make dynamic programs, and the images that hold them are empty otherwise.
_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}


def _build(name: str, spec: GoTool, folder: Path) -> None:
    folder.mkdir()
    words = ["build", "-mod=readonly", "-trimpath", "-ldflags", f"-s -w {spec.ldflags}".strip()]
    log = cache.logs() / f"build-{name}.log"
    log.unlink(missing_ok=True)
    if shutil.which("go") is None and shutil.which("docker") is not None:
        _build_in_container(name, spec, words, folder, log)
        return
    run(_require_go(), *words, "-o", folder / name, spec.package, cwd=SOURCES / spec.module, env=_ENV, log=log)


def _build_in_container(name: str, spec: GoTool, words: list[str], folder: Path, log: Path) -> None:
    """Build where a Docker engine and a registry are there and Go is not."""
    home = cache.root() / "go"  # build and module cache of these builds
    home.mkdir(exist_ok=True)
    env = {**_ENV, "GOCACHE": "/go-home/build", "GOMODCACHE": "/go-home/mod", "HOME": "/go-home"}
    run(
        *("docker", "run", "--rm", "--user", f"{os.getuid()}:{os.getgid()}"),
        *(word for item in env.items() for word in ("--env", "=".join(item))),
        *("--volume", f"{SOURCES}:/src:ro", "--volume", f"{home}:/go-home", "--volume", f"{folder}:/out"),
        *("--workdir", f"/src/{spec.module}", f"golang:{go_minimum()}", "go", *words, "-o", f"/out/{name}", spec.package),
        log=log,
    )


def go_minimum() -> str:
    """The oldest Go that builds all programs, such as 1.26: what their go.mod files ask for."""
    asked = [re.findall(r"^go (\d+)\.(\d+)", file.read_text(), re.MULTILINE)[0] for file in SOURCES.glob("*/go.mod")]
    return ".".join(max(asked, key=lambda version: tuple(map(int, version))))


def _require_go() -> str:
    go = shutil.which("go")
    if go is None:
        raise UnavailableError(
            f"the test clusters' programs are built with Go ≥ {go_minimum()}, and neither Go nor a Docker engine that could run it "
            "is here: install Go from https://go.dev/dl and put its bin folder on PATH"
        )
    return go
