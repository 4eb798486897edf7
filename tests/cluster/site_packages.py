"""The runtime's Python dependencies as one folder for Debian's Python 3.11, to be mounted into pods where no image with torch can be built.

Used by the CLI, the demo and the end-to-end fixtures. Holds nothing of this project: that is in the image.
"""

import os
import shutil
from pathlib import Path

from tests.cluster import cache
from tests.cluster.errors import UnavailableError
from tests.cluster.shell import run

REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "runtime.txt"
PYTHON = "3.11"
_GPU_ONLY = ("nvidia-", "cuda-", "triton")


def torch_index() -> str | None:
    """$TORCH_INDEX_URL: an index with CPU builds of torch (a tenth of the size); None takes torch from the usual index."""
    return os.environ.get("TORCH_INDEX_URL") or None


def site_packages() -> Path:
    """The folder, installed when it isn't in the cache; torch is the one of $TORCH_INDEX_URL."""
    index = torch_index()
    lines = requirement_lines(index)
    key = cache.content_key(PYTHON, os.uname().machine, index or "", *lines)
    return cache.artefact("runtime", key, lambda draft: _install(draft, lines, index)) / "site-packages"


def requirement_lines(index: str | None) -> list[str]:
    """The pinned requirements; with a CPU index without the packages that only the CUDA build needs."""
    lines = REQUIREMENTS.read_text().splitlines()
    return [line for line in lines if index is None or not line.startswith(_GPU_ONLY)]


def _install(folder: Path, lines: list[str], index: str | None) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise UnavailableError("uv installs the runtime's packages and is not on PATH: `python3 -m pip install uv`")
    target = folder / "site-packages"
    target.mkdir(parents=True)
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(lines) + "\n")
    extra = ["--extra-index-url", index] if index else []
    # Compiled here once: a pod mounts it read-only and would compile all of torch at every start.
    how = ("--python-version", PYTHON, "--target", target, "--compile-bytecode", "--no-deps")
    log = cache.logs() / "site-packages.log"
    log.unlink(missing_ok=True)
    run(uv, "pip", "install", *how, *extra, "--requirement", requirements, log=log)
    run("chmod", "-R", "a+rX", folder)  # pods run as uid 1000
