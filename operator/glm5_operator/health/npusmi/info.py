"""To be filled in: info."""

from __future__ import annotations

from glm5_operator.health.reading import ParseProblem

from .readings import InfoTable


def parse_info(text: str) -> InfoTable:
    """`npu-smi info`."""
    return InfoTable(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))
