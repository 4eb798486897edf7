"""Each reason that the agent can give for a reset's end stands in the page on health, in both languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glm5_operator.agent import reset, reset_records
from glm5_operator.health.sources.npusmi.readings import ResetRefusal

DOCS = Path(__file__).parents[3] / "docs"


def reasons() -> set[str]:
    sources = "".join(Path(module.__file__).read_text() for module in (reset, reset_records))
    return {*re.findall(r'"([A-Z][a-z]+[A-Z][A-Za-z]+)"', sources), *ResetRefusal}


@pytest.mark.parametrize("page", ["health.md", "health.zh-CN.md"])
def test_every_reason_of_a_reset_is_explained(page: str) -> None:
    text = (DOCS / page).read_text()

    assert len(reasons()) > 15
    assert {reason for reason in reasons() if f"`{reason}`" not in text} == set()
