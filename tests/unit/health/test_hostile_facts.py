"""Facts that no node can have, from an agent, a map or an annotation: they are told, nothing is done of them, and what is decided can be
written into the status. Real: view, remedy, status. Nothing is faked.
"""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.api.node import AscendNodeStatus
from glm5_operator.health.remedy.decision import Room
from glm5_operator.health.remedy.machine import decide
from glm5_operator.health.remedy.memory import Memory
from glm5_operator.health.remedy.policy import RESET_TAKES, Policy
from glm5_operator.health.resets import resets_end
from glm5_operator.health.types import NodeHealth, Product, Trust
from glm5_operator.health.view import node_health
from glm5_operator.status.node import node_status
from tests.support.clock import at, stamp
from tests.support.mindcluster import card_fault, device_list, device_map

Json = dict[str, Any]


def sick(*physical: int, **facts: Any) -> Json:  # noqa: ANN401 - any fact
    cards = [{"physical": number, "npu": 0, "health": "Alarm", "pids": [], "temperature": 119} for number in physical]
    return {"observedAt": stamp(at()), "tool": {"state": "Working"}, "cards": cards, "allocationsKnown": True, **facts}


def seen(facts: Json, *maps: Json, minutes: float = 1, **annotations: str) -> NodeHealth:
    node = {"metadata": {"name": "n1", "annotations": annotations}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    status = {"metadata": {"name": "n1"}, "status": {"facts": facts}}
    return node_health(node, status, maps, (), agent_ready=True, now=at(minutes=minutes), product=Product.A2)


def told(node: NodeHealth) -> Json:
    """The status after some looks at a node that stays as it is; reading it raises what the API server would refuse."""
    memory, status = Memory(), Json()
    for minute in range(1, 30):
        decision = decide(node, Policy(mode="Auto"), memory, Room(), at(minutes=minute))
        status, memory = node_status({"metadata": {"name": "n1"}}, node, decision, at(minutes=minute)), decision.memory
    AscendNodeStatus.model_validate(status, by_alias=True, by_name=False)
    return status


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (sick(10**15), "names card 1000000000000000"),
        (sick(-5, 0), "names card -5"),
        (sick(0, missing=[99_999]), "names card 99999"),
        (sick(3, 3), "names a card twice"),
    ],
)
def test_cards_that_no_node_can_have_are_told_and_nothing_is_done_of_them_nor_of_the_others(facts: Json, why: str) -> None:
    found = seen(facts)
    assert (found.trust, found.cards, found.allocations_known) == (Trust.CONTRADICTORY, (), False)
    assert why in found.why
    assert told(found)["remedy"]["state"] == "Healthy"
    # Not while MindCluster is believed either: who holds which card isn't known any more, and a reset would hit whoever does.
    beside = seen(facts, device_map("n1", device_list(card_fault(0, "RestartNPU")), at()))
    assert beside.trust is Trust.FRESH
    assert not beside.allocations_known


@pytest.mark.parametrize("when", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", stamp(at(minutes=30))])
def test_facts_of_a_time_that_can_not_be_are_stale_and_never_fresh_for_ever(when: str) -> None:
    found = seen(sick(0) | {"observedAt": when})
    assert found.trust is Trust.STALE
    assert told(found)["remedy"]["state"] == "Healthy"
    assert seen(sick(0) | {"observedAt": stamp(at(minutes=5))}).trust is Trust.FRESH, "a clock may be somewhat ahead"


@pytest.mark.parametrize(
    "devices",
    [
        device_list(card_fault(9999, "RestartNPU")),
        {"huawei.com/Ascend910-Unhealthy": ",".join(f"Ascend910-{number}" for number in range(65))},
        {"huawei.com/Ascend910-Recovering": ",".join(f"Ascend910-{number}" for number in range(5000))},
    ],
    ids=["id", "bad", "recovering"],
)
def test_a_map_with_devices_that_no_node_can_have_says_nothing(devices: Json) -> None:
    found = seen(sick(), device_map("n1", devices, at()))
    assert found.cards == ()
    assert "can't be read" in found.why
    told(found)


def test_more_cards_from_both_sources_than_a_node_can_have_are_believed_of_neither() -> None:
    of_the_map = {"huawei.com/Ascend910-Unhealthy": ",".join(f"Ascend910-{number}" for number in range(100, 140))}
    found = seen(sick(*range(40)), device_map("n1", of_the_map, at(minutes=59)), minutes=60)  # the agent's word is too old to contradict
    assert found.trust is Trust.CONTRADICTORY
    assert told(found)["remedy"]["state"] == "Healthy"


@pytest.mark.parametrize("number", ["-3", "1024", "99999999999999999999"])
def test_a_card_that_can_not_be_is_nobodys_to_reset(number: str) -> None:
    found = seen(sick(0), ResetInfo=f'{{"ThirdPartyResetDevs": [{{"PhyID": {number}}}]}}')
    assert "annotation ResetInfo can't be read" in found.why
    assert found.recovering == frozenset()
    told(found)


@pytest.mark.parametrize("started", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", stamp(at(minutes=600)), stamp(at(minutes=59))])
def test_a_reset_that_an_agent_says_began_later_than_now_holds_a_node_no_longer_than_one_that_begins_now(started: str) -> None:
    now = at(minutes=60)
    ends = resets_end({"resets": [{"id": "r-1", "state": "Running", "started": started}]}, now)
    assert ends is not None
    assert now < ends <= now + RESET_TAKES
