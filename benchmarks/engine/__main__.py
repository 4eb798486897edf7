"""`make bench-engine`: every part in a process of its own, a table, a section of docs/benchmarks.md, and one line of JSON at the end.

Method: both sides run in one process on one checkpoint, one after the other in every repetition; what is compared is the ratio of a
repetition. The first run of each is not counted. The figure is the median of the repetitions, with the least, the most and the spread
(`figures`). Meanwhile a thread looks at how busy the machine is, and with what (`benchmarks.utilisation`).
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engine.figures import BUSY_COLUMNS, COLUMNS, Figure, busy_row, section
from benchmarks.process import machine
from benchmarks.utilisation import Utilisation, watched

ROOT = Path(__file__).parents[2]
PARTS = ("decode1", "decode16", "decode64", "long_context", "prefill", "http", "prefix", "kv_formats", "adapters", "scheduling")
AIMS = {
    "decode1_x": "≥ 6",
    "decode16_x": "≥ 4",
    "decode64_x": "≥ 4",
    "long_8k_x": "≥ 10",
    "long_32k_x": "≥ 10",
    "long_growth": "≤ 2",
    "prefill_x": "≥ 2",
    "prefill_mem": "≤ 0.5",
    "http_share": "≥ 0.85",
    "prefix_ttft": "≤ 0.2",
    "kv_int8_x": "≥ 1.8",
    "kv_int4_x": "≥ 2.8",
    "adapters_share": "≥ 0.7",
    "scheduler_ms": "≤ 1",
}
console = Console(stderr=True)


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"Only these parts: {', '.join(PARTS)}.")] = None,
    record: Annotated[bool, typer.Option(help="Append the result to docs/benchmarks.md.")] = True,
) -> None:
    """Measure the engine against transformers and against itself."""
    figures: dict[str, Figure] = {}
    busy: dict[str, Utilisation] = {}
    names = part or PARTS
    for number, name in enumerate(names, 1):
        console.print(f"part {number} of {len(names)}: {name} …")
        with console.status(name), watched() as watch:
            values = run(name)
        busy[name] = watch.utilisation
        found = [Figure(title(name, key), each, AIMS.get(key, "")) for key, each in values.items()]
        show(name, found, busy[name])
        figures |= {figure.name: figure for figure in found}
    if record:
        append(list(figures.values()), busy)
    print(json.dumps({key: round(figures[key].median, 4) for key in AIMS if key in figures}))


def title(part: str, key: str) -> str:
    """What a figure is called among those of all parts."""
    return key if key in AIMS or key.startswith("decode1_") else f"{part}: {key}"


def run(name: str) -> dict[str, list[float]]:
    """One part in a new process: what another part has left in memory or caches changes nothing."""
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}", "HF_HUB_OFFLINE": "1"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `glm5-runtime` sets it; for both sides
    if name != "http":  # the server takes its threads from there; the others set theirs
        environ.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-m", "benchmarks.engine.parts", name]
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"part {name} failed with code {done.returncode}; run it alone: make bench-engine PARTS={name}")
    figures: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(name: str, figures: list[Figure], busy: Utilisation) -> None:
    """What a part has found, how long it took, and what else the machine did meanwhile."""
    table = Table(*COLUMNS)
    for figure in figures:
        table.add_row(*figure.row())
    console.print(table)
    pairs = zip(BUSY_COLUMNS, busy_row(name, busy), strict=True)
    console.print("; ".join(f"{column}: {cell}" for column, cell in pairs), soft_wrap=True)


def append(figures: list[Figure], busy: dict[str, Utilisation]) -> None:
    """Add a dated section to docs/benchmarks.md."""
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("torch", "transformers"))
    with (ROOT / "docs" / "benchmarks.md").open("a") as page:
        page.write(section(f"Engine, {datetime.date.today().isoformat()}", f"{machine()}; {versions}", figures, busy))


if __name__ == "__main__":
    typer.run(main)
