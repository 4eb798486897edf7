"""docs/health.md has the table of all transitions: it says what the remedy does, in both languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.health.remedy.test_chaos import Chaos
from tests.unit.health.remedy.world import settle

DOCS = Path(__file__).parents[4] / "docs"
STATES = ("Healthy", "Suspect", "Quiescing", "Draining", "WaitingMindCluster", "Resetting", "Verifying", "Returning", "Quarantined")
REMEDY = STATES[2:8]


def table(page: str) -> set[tuple[str, str, str]]:
    """From, to and reason of every row, one by one."""
    text = (DOCS / page).read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|") and line.count("|") == 5]
    found = set()
    for froms, tos, reasons, _ in rows:
        before = re.findall(r"`(\w+)`", froms) or list(REMEDY)
        after = re.findall(r"`(\w+)`", tos)
        if not set(before) <= set(STATES) or not set(after) <= set(STATES):
            continue
        for state in before:
            found |= {(state, to, reason) for to in after or [state] for reason in re.findall(r"`(\w+)`", reasons)}
    return found


def test_both_languages_have_the_same_table() -> None:
    assert table("health.md") == table("health.zh-CN.md")
    assert {before for before, _, _ in table("health.md")} == set(STATES)


@pytest.mark.parametrize(("seed", "hot_reset"), [(20, False), (21, True)])
def test_whatever_happens_in_chaos_is_in_the_table(seed: int, hot_reset: bool) -> None:
    chaos = Chaos(seed, hot_reset=hot_reset)
    chaos.run()
    chaos.calm()
    settle(chaos.world)
    told = table("health.md")

    # What DryRun undoes it grades anew in the same look: from anywhere before the cards were touched to where a healthy node would go.
    undone = {
        (before, after, reason) for before in ("Suspect", "Quiescing", "Draining") for state, after, reason in told if state == "Healthy"
    }
    moved = {step for step in chaos.world.steps if step[0] != step[1]}
    assert moved - told - undone == set()
