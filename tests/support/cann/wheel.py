"""The pinned torch_npu in a cache folder of its own: in the tests' environment it would be loaded by every `import torch`."""

import os
import shutil
import sys
from pathlib import Path

from tests.cluster import cache
from tests.cluster.errors import UnavailableError
from tests.cluster.shell import run

REQUIREMENTS = Path(__file__).parents[3] / "requirements" / "npu.txt"


def torch_npu() -> Path:
    """The folder to put on PYTHONPATH, installed when it isn't in the cache (40 MB to download, 120 MB on disk)."""
    key = cache.content_key(REQUIREMENTS, sys.version.split()[0], os.uname().machine)
    return cache.artefact("torch-npu", key, _install)


def _install(folder: Path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise UnavailableError("uv installs torch_npu and is not on PATH: `make test` puts it there, so does `python3 -m pip install uv`")
    # Without its needs: torch and the rest are the tests' own.
    how = ("--python", sys.executable, "--target", folder, "--compile-bytecode", "--no-deps")
    log = cache.logs() / "torch-npu.log"
    log.unlink(missing_ok=True)
    run(uv, "pip", "install", *how, "--requirement", REQUIREMENTS, log=log)
