"""To be filled in: lists."""

from __future__ import annotations

from glm5_operator.health.reading import ParseProblem

from .readings import CardList, CardMap


def parse_list(text: str) -> CardList:
    """`npu-smi info -l`."""
    return CardList(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_map(text: str) -> CardMap:
    """`npu-smi info -m`."""
    return CardMap(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))
