"""AscendNode's condition FactsFresh says whom it is from, and what is wrong with whoever else speaks. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.health.remedy.decision import Decision, Step
from glm5_operator.health.remedy.memory import Memory
from glm5_operator.health.view import node_health
from glm5_operator.status.node import node_status
from tests.support.clock import at, stamp
from tests.support.mindcluster import config_map, device_list, device_map

Json = dict[str, Any]

CARD = {"physical": 0, "npu": 0, "chip": 0, "health": "OK"}
AGENT: Json = {
    "metadata": {"name": "n1", "generation": 1},
    "status": {"facts": {"observedAt": stamp(at()), "tool": {"state": "Working"}, "cards": [CARD]}},
}
NODE = {"metadata": {"name": "n1"}}


def facts_fresh(*maps: Json, agent_ready: bool = True) -> tuple[str, str, str]:
    health = node_health(NODE, AGENT, maps, (), agent_ready=agent_ready, now=at(minutes=1))
    status = node_status(AGENT, health, Decision(Memory(since=at()), Step.NO_ACTION, "Healthy", ""), at(minutes=1))
    found = next(item for item in status["conditions"] if item["type"] == "FactsFresh")
    return found["status"], found["reason"], found["message"]


def test_one_source_that_is_fresh_has_nothing_beside_it() -> None:
    assert facts_fresh() == ("True", "Fresh", "from Agent")
    assert facts_fresh(device_map("n1", device_list(), at())) == ("True", "Fresh", "from MindCluster")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (device_map("n1", device_list(), at(hours=-2)), "is of 2026-11-29T10:00:00Z, and should be written every 5 minutes"),
        (config_map("mindx-dl-deviceinfo-n1", {"DeviceInfoCfg": "{"}), "can't be read: no JSON"),
    ],
)
def test_a_source_that_is_not_believed_is_shown_beside_the_one_that_is(other: Json, says: str) -> None:
    status, reason, message = facts_fresh(other)

    assert (status, reason) == ("True", "Fresh")
    assert message.startswith("from Agent; ")
    assert says in message


def test_an_agent_that_is_away_is_shown_while_mindcluster_is_believed() -> None:
    status, _, message = facts_fresh(device_map("n1", device_list(), at()), agent_ready=False)

    assert status == "True"
    assert message.startswith("from MindCluster; the node agent isn't ready")
    assert facts_fresh(agent_ready=False)[:2] == ("False", "Stale")
