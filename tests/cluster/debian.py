"""Debian packages for the kind cluster: missing ones on this host, and whole system trees. Needs root.

Used where no container registry can be reached: nodeimage.py and images.py make their base images from such trees.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.cluster import cache
from tests.cluster.errors import UnavailableError
from tests.cluster.shell import run
from tests.cluster.versions import DEBIAN

_PACKAGES = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "debootstrap": "debootstrap",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
}
_DOCS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
_WASTE = (*_DOCS, "var/cache/apt", "var/lib/apt/lists", "var/cache/debconf", "var/log")


def install_missing(programs: Iterable[str]) -> None:
    """Install the packages of those programs that are not on PATH.

    Raises:
        UnavailableError: Some are missing and this is not root on a Debian system.
    """
    packages = sorted({_PACKAGES[program] for program in programs if shutil.which(program) is None})
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        names = " ".join(packages)
        raise UnavailableError(
            f"not installed: {names}. On Debian: `apt-get install {names}`; run as root on Debian 12, this does it itself"
        )
    log = cache.logs() / "apt.log"
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with cache.locked("apt"):
        run("apt-get", "update", log=log, env=quiet)
        run("apt-get", "install", "-y", "--no-install-recommends", *packages, log=log, env=quiet)


def tree(name: str, packages: tuple[str, ...]) -> Path:
    """A minimal Debian system with those packages, as a folder in the cache; never changed, only copied."""
    key = cache.content_key(DEBIAN, os.uname().machine, *packages)
    return cache.artefact(f"debian-{name}", key, lambda draft: _debootstrap(draft, packages))


def _debootstrap(folder: Path, packages: tuple[str, ...]) -> None:
    require_root("a Debian system is unpacked with debootstrap")
    install_missing(["debootstrap"])
    log = cache.logs() / f"{folder.name.removeprefix('.draft-')}.log"
    log.unlink(missing_ok=True)
    run("debootstrap", "--variant=minbase", f"--include={','.join(packages)}", DEBIAN, folder, mirror(), log=log)
    for waste in _WASTE:
        cache.remove(folder / waste)
        (folder / waste).mkdir()


def mirror() -> str:
    """The Debian mirror that this host's own apt uses, else the public one."""
    default = "http://deb.debian.org/debian"
    if shutil.which("apt-get") is None:
        return default
    lines = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages").splitlines()
    for line in lines:
        uri, codename, component = line.split()
        if codename == DEBIAN and component == "main" and "security" not in uri:
            return uri
    return default


def require_root(why: str) -> None:
    """Raise UnavailableError when this process is not root."""
    if os.geteuid() != 0:
        raise UnavailableError(
            f"{why}, which needs root, because no usable Docker engine with the image of a node was found. "
            "Start Docker on a machine that can pull kindest/node, or run this as root on Debian 12."
        )
