"""`glm5 compat`: which versions of driver, CANN, torch_npu, torch, Python, MindCluster and vllm-ascend fit together.

Called by `node_commands`. Decides nothing: the planner's table is asked. Without versions the table itself is shown.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from glm5_operator.cli import documents, output
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.plan.compat import Check, Verdict, Versions, check, of_image, row_of, table

if TYPE_CHECKING:
    from glm5_operator.cli.cluster import Json


def show_compat(stated: Versions, image: str, report: str, form: output.Format) -> None:
    """Judge what was stated over what image and report tell; a mismatch ends the command with STALLED after the output.

    Args:
        stated: options of the command line.
        image: an image's reference; empty for none.
        report: file with the output of `glm5-runtime doctor --output json`; empty for none, - is standard input.
        form: of the output.
    """
    found = stated.over(of_report(_read(report)) if report else Versions())
    found = found.over(of_image(image)) if image else found
    if found == Versions():
        _show_table(form)
        return
    checks = check(found)
    _show_checks(found, checks, form)
    if wrong := [one for one in checks if one.verdict is Verdict.MISMATCH]:
        raise CliError(ExitCode.STALLED, "; ".join(one.sentence for one in wrong), remedy="take the versions named")


def of_report(report: Json) -> Versions:
    """What `glm5-runtime doctor --output json` found in its container."""

    def version(part: str) -> str:
        inner = report.get(part)
        found = inner.get("version") if isinstance(inner, dict) else inner
        return found if isinstance(found, str) else ""

    return Versions(**{part: version(part) for part in ("driver", "cann", "torch_npu", "torch", "python")})  # type: ignore[arg-type]


def _read(path: str) -> Json:
    found = documents.read(path)
    if len(found) != 1 or "npu_usable" not in found[0]:
        raise CliError(ExitCode.INPUT, "is no report of `glm5-runtime doctor --output json`", where=path)
    return found[0]


def _show_checks(found: Versions, checks: tuple[Check, ...], form: output.Format) -> None:
    if form is output.Format.TABLE and not checks:
        output.note("one version alone fits everything: state a second one")
        return
    if form is output.Format.TABLE:
        rows = [(one.verdict, one.found, one.beside, "" if one.verdict is Verdict.FITS else one.need) for one in checks]
        output.write_table(("VERDICT", "FOUND", "BESIDE", "NEED"), rows)
        output.write_lines(f"source: {source}" for source in dict.fromkeys(one.source for one in checks))
        return
    data = {
        "versions": {name: value for name, value in asdict(found).items() if value},
        "checks": [{**asdict(one), "sentence": one.sentence} for one in checks],
    }
    _write(json.loads(json.dumps(data)), form)  # plain words instead of enumerations, which YAML doesn't know


def _show_table(form: output.Format) -> None:
    known = table()
    if form is not output.Format.TABLE:
        _write(known.model_dump(mode="json", by_alias=True), form)
        return
    ordered = sorted({*known.drivers.cann, *known.torch_npu.cann}, key=lambda release: release.replace(".RC", ".0.RC"), reverse=True)
    rows = [
        (release, ", ".join(row_of(known.drivers.cann, release)), ", ".join(row_of(known.torch_npu.cann, release))) for release in ordered
    ]
    output.write_table(("CANN", "DRIVER", "TORCH_NPU"), rows)
    pythons = [(torch, f"{first} to {last}") for torch, (first, last) in known.python.torch.items()]
    output.write_table(("TORCH", "PYTHON"), pythons)
    clusters = [(name, ", ".join(row.cann), ", ".join(row.driver)) for name, row in known.mindcluster.releases.items()]
    output.write_table(("MINDCLUSTER", "CANN", "DRIVER"), clusters)
    releases = [
        (name, row.vllm, " to ".join(row.python or ()), row.cann, row.torch, row.torch_npu)
        for name, row in [*known.vllm_ascend.releases.items(), ("glm5-runtime", known.runtime)]
    ]
    output.write_table(("VLLM-ASCEND", "VLLM", "PYTHON", "CANN", "TORCH", "TORCH_NPU"), releases)
    parts = (known.drivers, known.torch_npu, known.python, known.mindcluster, known.vllm_ascend)
    output.write_lines(f"source: {source}" for source in dict.fromkeys(part.source for part in parts))


def _write(data: Json, form: output.Format) -> None:
    if form is output.Format.JSON:
        output.write_json(data)
    else:
        output.write_yaml([data])
