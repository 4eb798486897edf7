"""`make bench-engine`: every part in a process of its own, a table, a section of docs/benchmarks.md, and one line of JSON at the end.

Method: both sides run in one process on one checkpoint, one after the other in every repetition; what is compared is the ratio of a
repetition. The first run of each is not counted. The figure is the median of the repetitions, with the least, the most and the spread
(`figures`). Meanwhile a thread looks at how busy the machine is, and with what (`benchmarks.utilisation`).
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from benchmarks.engine.figures import Figure
from benchmarks.suite import append, console, run_part, show
from benchmarks.utilisation import Utilisation, watched

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
            values = run_part("benchmarks.engine.parts", name, f"make bench-engine PARTS={name}", keeps_threads=name == "http")
        busy[name] = watch.utilisation
        found = [Figure(title(name, key), each, AIMS.get(key, "")) for key, each in values.items()]
        show(name, found, busy[name])
        figures |= {figure.name: figure for figure in found}
    if record:
        append("Engine", ("torch", "transformers"), list(figures.values()), busy)
    print(json.dumps({key: round(figures[key].median, 4) for key in AIMS if key in figures}))


def title(part: str, key: str) -> str:
    """What a figure is called among those of all parts."""
    return key if key in AIMS or key.startswith("decode1_") else f"{part}: {key}"


if __name__ == "__main__":
    typer.run(main)
