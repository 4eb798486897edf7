"""The health benchmark's last line, and the load that it puts on the API server. The parts themselves run in tests/api/health."""

from __future__ import annotations

import re

from benchmarks.engine.figures import Figure
from benchmarks.health.__main__ import AIMS, PART_OF, PARTS, result
from benchmarks.health.steady import HOT_NODES, READING, Steady

KEYS = ["quiesce_p99_s", "reset_requested_s", "back_s", "agent_rss_mb", "agent_cpu", "node_writes_s", "storm_s"]


def test_the_last_line_has_the_seven_figures_and_says_why_one_is_missing() -> None:
    assert list(AIMS) == KEYS
    assert all(re.fullmatch(r"≤ \d+(\.\d+)?", aim) for aim in AIMS.values())
    assert set(PART_OF) == set(AIMS)
    assert set(PART_OF.values()) == set(PARTS)

    found = result({"storm_s": Figure("storm_s", [30.0, 20.0, 10.0])}, {"walk": "part walk failed with code 1"})

    assert list(found)[:7] == KEYS
    assert (found["storm_s"], found["back_s"], found["agent_cpu"]) == (20.0, None, None)
    assert (found["back_s_reason"], found["agent_cpu_reason"]) == ("part walk failed with code 1", "part agent wasn't run")
    assert "storm_s_reason" not in found


def test_2000_nodes_at_work_write_five_times_a_second_at_most() -> None:
    fleet, seconds, written = Steady([f"n{number}" for number in range(20)]), 600, 0

    for now in range(0, seconds, int(READING)):
        written += sum(fleet.due(node, now) is not None for node in fleet.ready(now))

    assert sum(node.hot for node in fleet.nodes) == HOT_NODES * 20
    per_second = written / seconds * 2000 / 20
    assert 3 < per_second <= 5  # a sign of life each 10 minutes alone makes 3.3


def test_each_node_is_read_once_in_ten_seconds() -> None:
    fleet = Steady(["a", "b", "c"])

    assert sorted(node.name for _ in range(1) for node in fleet.ready(READING)) == ["a", "b", "c"]
    assert fleet.ready(READING) == []
    assert len(fleet.ready(2 * READING)) == 3
