"""`make bench-engine`: every part in a process of its own, a table, a section of docs/benchmarks.md, and one line of JSON at the end.

Method: both sides run in one process on one checkpoint, one after the other in every repetition; what is compared is the ratio of a
repetition. The first run of each is not counted. The figure is the median of the repetitions, with the least and the most.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.process import machine

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
    found: dict[str, list[float]] = {}
    for name in part or PARTS:
        with console.status(f"{name} …"):
            figures = run(name)
        show(name, figures)
        found |= {key if key in AIMS or key.startswith("decode1_") else f"{name}: {key}": values for key, values in figures.items()}
    if record:
        append(found)
    print(json.dumps({key: round(statistics.median(found[key]), 4) for key in AIMS if key in found}))


def run(name: str) -> dict[str, list[float]]:
    """One part in a new process: what another part has left in memory or caches changes nothing."""
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}", "HF_HUB_OFFLINE": "1"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if name != "http":  # the server takes its threads from there; the others set theirs
        environ.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-m", "benchmarks.engine.parts", name]
    done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"part {name} failed with code {done.returncode}; run it alone: make bench-engine PARTS={name}")
    figures: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(name: str, figures: dict[str, list[float]]) -> None:
    """What a part has found."""
    table = Table(title=name, title_justify="left")
    for column in ("figure", "median", "least", "most", "aim"):
        table.add_column(column)
    for key, values in figures.items():
        table.add_row(key, *(f"{value:.3g}" for value in (statistics.median(values), min(values), max(values))), AIMS.get(key, ""))
    console.print(table)


def append(found: dict[str, list[float]]) -> None:
    """Add a dated section to docs/benchmarks.md."""
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("torch", "transformers"))
    lines = [f"\n## Engine, {datetime.date.today().isoformat()}\n", f"{machine()}; {versions}\n"]
    lines += ["| figure | median | least | most | runs | aim |", "|---|---|---|---|---|---|"]
    for key, values in found.items():
        spread = " | ".join(f"{value:.3g}" for value in (statistics.median(values), min(values), max(values)))
        lines.append(f"| {key} | {spread} | {len(values)} | {AIMS.get(key, '')} |")
    with (ROOT / "docs" / "benchmarks.md").open("a") as page:
        page.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    typer.run(main)
