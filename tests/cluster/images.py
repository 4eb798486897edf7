"""The project's own images, built with whatever engine there is and whatever base can be had. Used by the CLI and the demo.

Where no registry can be reached the base is a debootstrap tree, Python packages come from a wheelhouse made on this host,
and the runtime image holds no torch (its tag says so): site_packages.py is mounted beside it. The Dockerfile is the same everywhere.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.cluster import cache, debian
from tests.cluster.engine import Engine
from tests.cluster.errors import UnavailableError
from tests.cluster.kind import can_pull, no_pull
from tests.cluster.shell import run
from tests.cluster.site_packages import torch_index
from tests.cluster.versions import DEBIAN

_REPOSITORY = Path(__file__).parents[2]
_MODEL = "tests/fixtures/tiny-glm5"
_SOURCES = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "requirements", "operator", "runtime", _MODEL)
PYTHON_BASE = "python:3.11-slim-bookworm"
_BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_KEY_LABEL = "dev.glm5.content"
TARGETS = ("operator", "runtime")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What a builder may choose, as make variables or in the environment.

    Attributes:
        torch_index: $TORCH_INDEX_URL, an index with CPU builds of torch.
        runtime_extra: $RUNTIME_EXTRA, `npu` for torch_npu too.
        operator_base: $OPERATOR_BASE, in place of the public Python image.
        runtime_base: $RUNTIME_BASE, the same for the runtime: an image with CANN.
        platform: $PLATFORM such as linux/arm64, where the engine can build for it.
    """

    torch_index: str = ""
    runtime_extra: str = ""
    operator_base: str = ""
    runtime_base: str = ""
    platform: str = ""

    @classmethod
    def of_environment(cls) -> Self:
        """As the environment says."""
        names = ("RUNTIME_EXTRA", "OPERATOR_BASE", "RUNTIME_BASE", "PLATFORM")
        return cls(torch_index() or "", *(os.environ.get(name, "") for name in names))

    def base(self, target: str) -> str:
        """The base that was asked for, or nothing."""
        return self.operator_base if target == "operator" else self.runtime_base


def tag(target: str, *, with_torch: bool = True) -> str:
    """The project's version; a runtime image without torch serves nothing by itself, and its tag says so."""
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
    return f"{project['version']}{'' if with_torch or target == 'operator' else '-without-torch'}"


def reference(target: str, *, with_torch: bool = True) -> str:
    """The image's name: glm5-operator or glm5-runtime with its tag."""
    return f"glm5-{target}:{tag(target, with_torch=with_torch)}"


def build(docker: Engine, target: str, options: ImageOptions | None = None) -> str:
    """Build one target unless the engine has it with the same content, and return its name.

    Raises:
        UnavailableError: What was asked for needs a registry, and none can be reached.
    """
    asked = options or ImageOptions.of_environment()
    offline = not asked.base(target) and is_offline(docker)
    if offline:
        _refuse_offline(docker, target, asked)
    base = _base(docker, offline=is_offline(docker))
    # Both always: an engine without BuildKit also builds the stages before the one that was asked for.
    arguments = {"OPERATOR_BASE": asked.operator_base or base, "RUNTIME_BASE": asked.runtime_base or base}
    if target == "runtime":
        arguments |= {"RUNTIME_PACKAGES": "none" if offline else "all", "RUNTIME_EXTRA": asked.runtime_extra}
        arguments |= {"TORCH_INDEX_URL": asked.torch_index}
    key = cache.content_key(target, asked.platform, *arguments.values(), *(_REPOSITORY / name for name in _SOURCES))
    name = reference(target, with_torch=not offline)
    if docker.docker("images", "--quiet", "--filter", f"label={_KEY_LABEL}={key}", name).strip():
        return name
    log = cache.logs() / f"image-{target}.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.root(), prefix=".context-") as context:
        _stage(Path(context))
        if offline:
            shutil.copytree(wheelhouse(), Path(context) / "wheelhouse", copy_function=os.link)
        docker.docker(
            *("build", "--target", target, "--tag", name, "--label", f"{_KEY_LABEL}={key}"),
            *(word for argument in arguments.items() for word in ("--build-arg", "=".join(argument))),
            *(("--platform", asked.platform) if asked.platform else ()),
            *(("--network", "none") if offline else ()),
            context,
            log=log,
        )
    docker.docker("image", "prune", "--force", "--filter", f"label={_KEY_LABEL}")  # the one that lost its name just now
    return name


def _refuse_offline(docker: Engine, target: str, asked: ImageOptions) -> None:
    wanted = {"PLATFORM": asked.platform, "RUNTIME_EXTRA": asked.runtime_extra if target == "runtime" else ""}
    named = " and ".join(f"{name}={value}" for name, value in wanted.items() if value)
    if named:
        raise UnavailableError(
            f"{named} needs a base image, and {PYTHON_BASE} can't be pulled ({no_pull(docker, PYTHON_BASE)}): "
            f"name one that this engine has or can pull with {target.upper()}_BASE"
        )


def save(docker: Engine, name: str) -> Path:
    """Write an image as a tar file into the cache, for `docker load`, `ctr images import` or `skopeo copy`."""
    folder = cache.root() / "images"
    folder.mkdir(exist_ok=True)
    file = folder / f"{name.replace(':', '-')}.tar"
    docker.docker("save", "--output", file, name)
    return file


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
    if docker.has_image(PYTHON_BASE):
        return False
    return docker.has_image(local_base()) or not can_pull(docker, PYTHON_BASE)


def base_tree() -> Path:
    """The Debian system that stands in for the public Python base."""
    return debian.tree("python", _BASE_PACKAGES)


def _base(docker: Engine, *, offline: bool) -> str:
    """The Python base: the public one, else a Debian tree imported under a name of its own."""
    if not offline:
        return PYTHON_BASE
    name = local_base()
    if not docker.has_image(name):
        with tempfile.NamedTemporaryFile(dir=cache.root(), prefix=".base-", suffix=".tar") as tar:
            run("tar", "-C", base_tree(), "-cf", tar.name, ".")
            docker.docker("import", tar.name, name)
    return name


def local_base() -> str:
    """The name of the image that stands in for it."""
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
