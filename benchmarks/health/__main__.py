"""`make bench-health`: every part in a process of its own, a table, a section of docs/benchmarks.md, and one line of JSON at the end.

Method: a real API server, the operator and node agents as real processes; KWOK plays kubelets, so pods are ready and end at once, and
drains take no time of their own. The cards are a fake npu-smi's that prints real layouts and asks before it resets; what an agent needs
counts its calls of the fake. The policy's own waits are a second each. Figures are of seconds since the fault shows in npu-smi.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from benchmarks.engine.figures import Figure
from benchmarks.suite import append, console, run_part, show
from benchmarks.utilisation import Utilisation, watched

PARTS = ("agent", "walk", "steady", "storm")
AIMS = {
    "quiesce_p99_s": "≤ 5",
    "reset_requested_s": "≤ 10",
    "back_s": "≤ 10",
    "agent_rss_mb": "≤ 90",
    "agent_cpu": "≤ 0.01",
    "node_writes_s": "≤ 5",
    "storm_s": "≤ 60",
}
PART_OF = {
    "quiesce_p99_s": "walk",
    "reset_requested_s": "walk",
    "back_s": "walk",
    "agent_rss_mb": "agent",
    "agent_cpu": "agent",
    "node_writes_s": "steady",
    "storm_s": "storm",
}


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"Only these parts: {', '.join(PARTS)}.")] = None,
    record: Annotated[bool, typer.Option(help="Append the result to docs/benchmarks.md.")] = True,
    tiny: Annotated[bool, typer.Option(help="The least that runs every line: no figures.")] = False,
) -> None:
    """Measure the way from a fault to capacity back, and what watching costs."""
    figures: dict[str, Figure] = {}
    busy: dict[str, Utilisation] = {}
    failed: dict[str, str] = {}
    names = part or PARTS
    for number, name in enumerate(names, 1):
        console.print(f"part {number} of {len(names)}: {name} …")
        try:
            with console.status(name), watched() as watch:
                values = run_part("benchmarks.health.parts", name, f"make bench-health PARTS={name}", options=["--tiny"] if tiny else [])
        except SystemExit as error:  # the others still say something
            failed[name] = str(error)
            console.print(str(error))
            continue
        busy[name] = watch.utilisation
        found = [Figure(key if key in AIMS else f"{name}: {key}", each, AIMS.get(key, "")) for key, each in values.items()]
        show(name, found, busy[name])
        figures |= {figure.name: figure for figure in found}
    if record and not tiny and figures:
        append("Health", ("pydantic", "httpx", "kopf"), list(figures.values()), busy)
    print(json.dumps(result(figures, failed)))


def result(figures: dict[str, Figure], failed: dict[str, str]) -> dict[str, float | str | None]:
    """The last line: each figure with an aim, null where it wasn't measured, and then why."""
    found: dict[str, float | str | None] = {name: round(figures[name].median, 4) if name in figures else None for name in AIMS}
    why = {f"{name}_reason": failed.get(PART_OF[name], f"part {PART_OF[name]} wasn't run") for name in AIMS if found[name] is None}
    return {**found, **why}


if __name__ == "__main__":
    typer.run(main)
