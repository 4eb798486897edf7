"""A node whose facts can't be believed for a moment, as in each update of the agent: who is told, and what is remembered.

Real: cache, facts, view, remedy, status. Faked: the edge that writes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.objects import a_service
from tests.unit.controllers.test_node import Bed, an_agent, facts, served

Json = dict[str, Any]


class Told(Bed):
    """A bed that keeps which trouble was told as an Event."""

    def __init__(self, *resources: Json) -> None:
        super().__init__(*resources)
        self.events: list[str] = []
        self.edge.warning = lambda resource, reason, message: self.events.append(reason)  # type: ignore[method-assign]

    @property
    def history(self) -> list[str]:
        found = self.cache.get("AscendNode", "", "npu-0")
        assert found is not None
        return [entry["reason"] for entry in found["status"]["remedy"]["history"]]

    def agent_goes(self, version: int = 1) -> None:
        self.cache.drop(_agent(version))

    def agent_comes(self, version: int) -> None:
        self.cache.put(_agent(version))


def _agent(version: int) -> Json:
    agent = an_agent()
    return {**agent, "metadata": {**agent["metadata"], "resourceVersion": str(version)}}


@pytest.mark.parametrize("health", ["OK", "Critical"])
async def test_an_update_of_the_agent_is_no_event_and_no_step_of_a_remedy_and_an_agent_that_stays_away_is(health: str) -> None:
    bed = Told(a_service("chat"), served(), served("chat-engine-5d9f-bbbbb", node="npu-1"))
    await bed.look()
    bed.told(facts(health))
    await bed.look(1)
    await bed.look(2)
    history, events = bed.history, list(bed.events)

    bed.agent_goes()
    for second in (5, 30, 65, 124):
        await bed.look(second)
        assert {done.split()[0] for done in bed.edge.did} <= {"remember"}
    assert (bed.history, bed.events) == (history, events)
    await bed.look(125)
    assert (bed.history[-1], bed.events[-1]) == ("FactsStale", "FactsStale")


async def test_of_agents_that_come_and_go_only_the_time_without_a_break_counts() -> None:
    bed = Told()
    await bed.look()
    bed.told(facts())
    await bed.look(1)
    for version, start in ((2, 10), (4, 200)):
        bed.agent_goes(version)
        await bed.look(start)
        await bed.look(start + 119)
        bed.agent_comes(version + 1)
        await bed.look(start + 120)

    assert (bed.history, bed.events) == (["FactsUnavailable", "Healthy"], [])
