"""`make bench-train`: every part in a process of its own, a table, a section of docs/benchmarks.md, and one line of JSON at the end.

Method: the sides run in one process by turns, on the same rows and, where there are any, the same batches; what is compared is the ratio of
a repetition, and the figure is the median of the repetitions. Each side has the number of threads that suits it best. Recovery is
measured by the test cluster (`make test-e2e`), whose lines of figures are read from a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.engine.figures import Figure
from benchmarks.suite import append, console, run_part, show
from benchmarks.utilisation import Utilisation, watched

PARTS = ("sft", "sft_memory", "gae", "grpo", "buckets", "checkpoint")
AIMS = {
    "sft_x_peft": "≥ 1.5",
    "sft_x_trl": "≥ 1.5",
    "sft_mem": "≤ 0.8",
    "gae_x": "≥ 10",
    "grpo_x": "≥ 3",
    "bucket_x": "≥ 1.5",
    "checkpoint_overhead": "≤ 0.05",
    "recover_s": "≤ 20",
}


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"Only these parts: {', '.join(PARTS)}.")] = None,
    recovery: Annotated[Path | None, typer.Option(metavar="FILE", help="What `make test-e2e` has printed, for recover_s.")] = None,
    record: Annotated[bool, typer.Option(help="Append the result to docs/benchmarks.md.")] = True,
    tiny: Annotated[bool, typer.Option(help="The least that runs every line: no figures.")] = False,
) -> None:
    """Measure training against transformers, PEFT, TRL and verl's formulas."""
    figures: dict[str, Figure] = {}
    busy: dict[str, Utilisation] = {}
    names = part or PARTS
    for number, name in enumerate(names, 1):
        console.print(f"part {number} of {len(names)}: {name} …")
        with console.status(name), watched() as watch:
            values = run_part("benchmarks.train.parts", name, f"make bench-train PARTS={name}", options=["--tiny"] if tiny else [])
        busy[name] = watch.utilisation
        found = [Figure(key if key in AIMS else f"{name}: {key}", each, AIMS.get(key, "")) for key, each in values.items()]
        show(name, found, busy[name])
        figures |= {figure.name: figure for figure in found}
    seconds, why = recoveries(recovery)
    if seconds:
        figures["recover_s"] = Figure("recover_s", seconds, AIMS["recover_s"])
    console.print(f"recover_s: {why}")
    if record and not tiny:
        append("Training", ("torch", "transformers", "peft", "trl"), list(figures.values()), busy)
    print(json.dumps(result(figures, why)))


def recoveries(file: Path | None) -> tuple[list[float], str]:
    """Seconds from each fault to the next attempt's first step, loading the model left out, and where they come from or why there are none.

    The load is left out since it is the model's and the storage's own time; the end-to-end test prints it beside the whole.
    """
    if file is None:
        return [], "not measured: it needs the test cluster; give --recovery what make test-e2e has printed"
    lines = [line.strip() for line in file.read_text().splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{") and '"recover_s"' in line]
    seconds = [float(each["recover_s"]) - float(each.get("of_it_load_s", 0)) for each in found if each.get("attempts", 2) > 1]
    return seconds, f"{len(seconds)} faults of {file}" if seconds else f"not measured: {file} has no figures of a second attempt"


def result(figures: dict[str, Figure], why: str) -> dict[str, float | str | None]:
    """The last line: each figure with an aim, null where it wasn't measured; with the reason for recovery's."""
    found: dict[str, float | str | None] = {name: round(figures[name].median, 4) if name in figures else None for name in AIMS}
    return found if found["recover_s"] is not None else {**found, "recover_s_reason": why}


if __name__ == "__main__":
    typer.run(main)
