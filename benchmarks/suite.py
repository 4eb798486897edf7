"""Running parts in processes of their own, and what is shown and kept of their figures. Used by the engine's and training's benchmarks."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.engine.figures import BUSY_COLUMNS, COLUMNS, Figure, busy_row, section
from benchmarks.process import machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.utilisation import Utilisation

ROOT = Path(__file__).parents[1]
console = Console(stderr=True)


def run_part(module: str, name: str, hint: str, *, keeps_threads: bool = False, options: Sequence[str] = ()) -> dict[str, list[float]]:
    """One part in a new process: what another part has left in memory or caches changes nothing. `hint`: how to run it alone."""
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}", "HF_HUB_OFFLINE": "1"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `glm5-runtime` sets it; for both sides
    if not keeps_threads:
        environ.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-m", module, name, *options]
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"part {name} failed with code {done.returncode}; run it alone: {hint}")
    figures: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(name: str, figures: Sequence[Figure], busy: Utilisation) -> None:
    """What a part has found, how long it took, and what else the machine did meanwhile."""
    table = Table(*COLUMNS)
    for figure in figures:
        table.add_row(*figure.row())
    console.print(table)
    pairs = zip(BUSY_COLUMNS, busy_row(name, busy), strict=True)
    console.print("; ".join(f"{column}: {cell}" for column, cell in pairs), soft_wrap=True)


def append(title: str, packages: Sequence[str], figures: Sequence[Figure], busy: Mapping[str, Utilisation]) -> None:
    """Add a dated section to docs/benchmarks.md."""
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    with (ROOT / "docs" / "benchmarks.md").open("a") as page:
        page.write(section(f"{title}, {datetime.date.today().isoformat()}", f"{machine()}; {versions}", figures, busy))
