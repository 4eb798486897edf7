"""The project's own images, built with whatever engine there is and whatever base can be had. Used by the CLI and the demo.

Where no registry can be reached the base is a debootstrap tree, Python packages come from a wheelhouse made on this host,
and the runtime image holds no torch: site_packages.py is mounted beside it. The Dockerfile is the same everywhere.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.cluster import cache, debian
from tests.cluster.engine import Engine
from tests.cluster.errors import UnavailableError
from tests.cluster.kind import can_pull
from tests.cluster.shell import run
from tests.cluster.versions import DEBIAN

_REPOSITORY = Path(__file__).parents[2]
_MODEL = "tests/fixtures/tiny-glm5"
_SOURCES = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "requirements", "operator", "runtime", _MODEL)
_PYTHON_BASE = "python:3.11-slim-bookworm"
_BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_KEY_LABEL = "dev.glm5.content"
TARGETS = ("operator", "runtime")


def reference(target: str) -> str:
    """The image's name: glm5-operator or glm5-runtime with the project's version."""
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
    return f"glm5-{target}:{project['version']}"


def build(docker: Engine, target: str) -> str:
    """Build one target unless the engine has it with the same content, and return its name."""
    offline = is_offline(docker)
    base = _base(docker, offline=offline)
    key = cache.content_key(base, target, *(_REPOSITORY / name for name in _SOURCES))
    name = reference(target)
    if docker.docker("images", "--quiet", "--filter", f"label={_KEY_LABEL}={key}", name).strip():
        return name
    arguments = {"OPERATOR_BASE": base, "RUNTIME_BASE": base, "RUNTIME_PACKAGES": "none" if offline else "all"}
    log = cache.logs() / f"image-{target}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.root(), prefix=".context-") as context:
        _stage(Path(context))
        if offline:
            shutil.copytree(wheelhouse(), Path(context) / "wheelhouse", copy_function=os.link)
        docker.docker(
            *("build", "--target", target, "--tag", name, "--label", f"{_KEY_LABEL}={key}"),
            *(word for argument in arguments.items() for word in ("--build-arg", "=".join(argument))),
            *(("--network", "none") if offline else ()),
            context,
            log=log,
        )
    docker.docker("image", "prune", "--force", "--filter", f"label={_KEY_LABEL}")  # the one that lost its name just now
    return name


def wheelhouse() -> Path:
    """Wheels of the operator's pinned requirements and of the build backend, for builds without a network."""
    requirements = (_REPOSITORY / "requirements" / "operator.txt").read_text()
    backend = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    key = cache.content_key(requirements, *backend, os.uname().machine)

    def download(folder: Path) -> None:
        folder.mkdir()
        log = cache.logs() / "wheelhouse.log"
        pip = (*_pip(), "download", "--quiet", "--only-binary=:all:", "--python-version=3.11", "--dest", str(folder))
        run(*pip, "--no-deps", "--requirement", _REPOSITORY / "requirements" / "operator.txt", log=log)
        run(*pip, *backend, log=log)

    return cache.artefact("wheelhouse", key, download)


def _pip() -> tuple[str, ...]:
    if importlib.util.find_spec("pip") is not None:  # uv's environments have none
        return (sys.executable, "-m", "pip")
    uv = shutil.which("uv")
    if uv is None:
        raise UnavailableError("neither pip nor uv here: one of them fetches the wheels of the images")
    return (uv, "tool", "run", "pip")


def is_offline(docker: Engine) -> bool:
    """Whether the public Python base can neither be found in the engine nor be pulled."""
    if docker.has_image(_PYTHON_BASE):
        return False
    return docker.has_image(_local_base()) or not can_pull(docker, _PYTHON_BASE)


def base_tree() -> Path:
    """The Debian system that stands in for the public Python base."""
    return debian.tree("python", _BASE_PACKAGES)


def _base(docker: Engine, *, offline: bool) -> str:
    """The Python base: the public one, else a Debian tree imported under a name of its own."""
    if not offline:
        return _PYTHON_BASE
    name = _local_base()
    if not docker.has_image(name):
        with tempfile.NamedTemporaryFile(dir=cache.root(), prefix=".base-", suffix=".tar") as tar:
            run("tar", "-C", base_tree(), "-cf", tar.name, ".")
            docker.docker("import", tar.name, name)
    return name


def _local_base() -> str:
    return f"local/python:3.11-{cache.content_key(*_BASE_PACKAGES, DEBIAN)}"


def _stage(context: Path) -> None:
    """Copy what the Dockerfile reads: the clone itself may hold gigabytes, and gets no wheelhouse folder from us."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in _SOURCES:
        source = _REPOSITORY / name
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=ignore)
        else:
            shutil.copy2(source, context / name)
