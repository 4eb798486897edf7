"""The page of troubles names every trouble that doctor can tell, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glm5_operator.health.doctor import diagnose, mindcluster_troubles, node_troubles, pod_troubles
from glm5_operator.health.doctor.pains import pains

ROOT = Path(__file__).parents[3]


def told() -> set[str]:
    """Names in the code: of texts from the data, of rules from their source; the tool's state is put together there."""
    sources = "".join(Path(str(module.__file__)).read_text() for module in (diagnose, mindcluster_troubles, node_troubles, pod_troubles))
    rules = set(re.findall(r'Diagnosis\(\s*"([A-Z]\w+)"', sources))
    assert len(rules) > 25
    return rules | {pain.name for pain in pains()} | {f"NpuSmi{state}" for state in ("Failing", "Hanging", "Missing")}


@pytest.mark.parametrize("page", ["doctor.md", "doctor.zh-CN.md"])
def test_the_page_names_every_trouble_and_no_other(page: str) -> None:
    rows = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")]
    named = {word for row in rows for word in re.findall(r"`([A-Z]\w+)`", row.split("|")[2])}
    assert named == told() | {"Error"}
