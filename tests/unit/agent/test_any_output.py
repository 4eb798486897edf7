"""Whatever the tools print, the agent has a report that the API server would take: nothing raises, and every field keeps its limit."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm5_operator.agent.runner import Answer, End
from glm5_operator.api.node_facts import NodeFactsReport
from tests.support.vendor_tools import TEXTS, Bench, exited

FILES = sorted(path.name for path in TEXTS.glob("*.txt"))
TABLES = [name for name in FILES if "info_" in name]


@st.composite
def outputs(draw: st.DrawFn, names: list[str]) -> Answer:
    """An output of a real machine, as it is or changed: cut, a word stretched, a piece replaced by anything; or no answer at all."""
    text = (TEXTS / draw(st.sampled_from(names))).read_text()
    change = draw(st.sampled_from(("none", "cut", "stretch", "replace", "end")))
    at = draw(st.integers(0, max(len(text) - 1, 0)))
    if change == "end":
        return Answer(draw(st.sampled_from([End.TIMED_OUT, End.BUSY, End.MISSING])), text[:at], why=draw(st.text(max_size=2000)))
    if change == "cut":
        text = text[:at]
    elif change == "stretch":
        text = text[:at] + text[at : at + 1] * draw(st.integers(2, 3000)) + text[at + 1 :]
    elif change == "replace":
        text = text[:at] + draw(st.text(max_size=300)) + text[at + draw(st.integers(0, 40)) :]
    return exited(text, code=draw(st.sampled_from([0, 1, 255, -9])))


async def report_of(table: Answer, other: Callable[[], Answer]) -> list[NodeFactsReport]:
    """The reports of three polls, with every other question answered by anything."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench.at(Path(folder))
        bench.runner.fallback = other
        bench.runner.answers["npu-smi info"] = table
        reports = [await bench.collector.read("2026-11-30T12:00:00Z", 0.0)]
        for _ in range(40):
            if not await bench.rare.ask_next(0.0):
                break
        return [*reports, *[await bench.collector.read("2026-11-30T12:00:00Z", at) for at in (2.0, 700.0)]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(outputs(TABLES), st.data())
def test_three_polls_of_any_output_give_reports_within_the_apis_limits(table: Answer, data: st.DataObject) -> None:
    pool = data.draw(st.lists(outputs(FILES), min_size=1, max_size=6))
    turn = iter(range(10**6))

    for report in asyncio.run(report_of(table, lambda: pool[next(turn) % len(pool)])):
        dumped = report.model_dump(by_alias=True, exclude_none=True)
        assert NodeFactsReport.model_validate(dumped, by_alias=True) == report
        assert report.tool.message.isprintable()
