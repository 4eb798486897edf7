"""One node from all its sources: which of them is believed, what each card has, and what is said when they don't agree. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from glm5_operator.health.types import CardHealth, Fault, Grade, NodeHealth, Product, Source, Trust
from glm5_operator.health.view import node_health
from tests.support.clock import at, stamp
from tests.support.mindcluster import card_fault, cluster_map, config_map, device_list, device_map, fixture, host_map

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]


def a_card(physical: int, health: str = "OK", **more: Any) -> Json:  # noqa: ANN401  any field of a CardReport
    return {"physical": physical, "npu": physical, "chip": 0, "health": health, "pids": [], **more}


def an_ascend_node(*cards: Json, observed: str = stamp(at()), tool: str = "Working", **facts: Any) -> Json:  # noqa: ANN401  any fact
    read = cards or tuple(a_card(number) for number in range(8))
    report = {"observedAt": observed, "tool": {"state": tool, "message": "ret is -8005"}, "cards": list(read), "allocationsKnown": True}
    return {"metadata": {"name": "n1"}, "status": {"facts": report | facts}}


def a_node(cards: int = 8, offered: int | None = None, resource: str = "huawei.com/Ascend910", **metadata: Any) -> Json:  # noqa: ANN401  any field of its metadata
    amounts = {"capacity": {resource: str(cards)}, "allocatable": {resource: str(cards if offered is None else offered)}}
    return {"metadata": {"name": "n1", **metadata}, "status": amounts | {"conditions": [{"type": "Ready", "status": "True"}]}}


def a_pod(name: str, **limits: str) -> Json:
    asked = {key.replace("_", "/"): value for key, value in limits.items()}
    return {"metadata": {"namespace": "team", "name": name}, "spec": {"containers": [{"name": "c", "resources": {"limits": asked}}]}}


def health(
    ascend_node: Json | None = None,
    *maps: Json,
    node: Json | None = None,
    pods: Iterable[Json] = (),
    ready: bool | None = True,
    minutes: float = 1,
) -> NodeHealth:
    return node_health(node or a_node(), ascend_node, maps, pods, agent_ready=ready, now=at(minutes=minutes))


def grades(found: NodeHealth) -> dict[int, Grade]:
    return {card.physical: card.grade for card in found.cards if card.grade}


def card(found: NodeHealth, physical: int) -> CardHealth:
    return next(card for card in found.cards if card.physical == physical)


# One source


def test_without_mindcluster_the_agents_words_are_believed() -> None:
    found = health(
        an_ascend_node(a_card(0), a_card(1, "Alarm", codes=["80E18404"]), a_card(2, "Warning"), a_card(3, "Unknown")), node=a_node(4)
    )

    assert (found.source, found.trust, found.as_of) == (Source.AGENT, Trust.FRESH, at())
    assert grades(found) == {1: Grade.RESET, 2: Grade.NOTE}
    assert card(found, 1).faults == (Fault("80E18404", "Alarm", Grade.RESET),)
    assert [card.physical for card in found.cards if not card.known] == [3]


def test_fault_levels_decide_the_grade_and_the_agents_words_do_not_join_in() -> None:
    """C09: 2 nothing, 4 isolated in spite of a harmless code beside it, 6 reset, 0 its network only."""
    mixed = fixture("mixed_levels")
    mixed["metadata"]["name"] = "mindx-dl-deviceinfo-n1"
    mixed["data"]["DeviceInfoCfg"] = mixed["data"]["DeviceInfoCfg"].replace("1790000000}", f"{int(at().timestamp())}}}")
    agent = an_ascend_node(*(a_card(number, "Warning", codes=["80E18402"]) for number in range(8)))

    found = health(agent, mixed)

    assert (found.source, found.trust, found.as_of) == (Source.MIND_CLUSTER, Trust.FRESH, at())
    assert grades(found) == {0: Grade.DEGRADED, 2: Grade.NOTE, 4: Grade.ISOLATE, 6: Grade.RESET}
    assert [(fault.code, fault.grade) for fault in card(found, 4).faults] == [("A8028801", Grade.ISOLATE), ("80E18401", Grade.NOTE)]
    assert card(found, 0).faults[0].network


def test_where_the_codes_levels_do_not_explain_the_decision_the_decision_counts() -> None:
    """A site may have configured less or more than the codes' own levels: fault_handling is what it wants done."""
    for own, decided, grade in [("SeparateNPU", "RestartNPU", Grade.RESET), ("NotHandleFault", "ManuallySeparateNPU", Grade.ISOLATE)]:
        fault = card_fault(3, own, fault_handling=decided)

        found = health(an_ascend_node(), device_map("n1", device_list(fault), at()))

        assert card(found, 3).faults == (Fault("80E18404", decided, grade, since=card(found, 3).faults[0].since),)


def test_what_is_no_health_comes_from_the_agent_whoever_is_believed() -> None:
    agent = an_ascend_node(a_card(0, pids=[71], memoryUsed=3300, temperature=44, holder={"namespace": "team", "pod": "chat"}, link="Up"))

    for maps in ((), (device_map("n1", device_list(), at()),)):
        found = health(agent, *maps, node=a_node(1)).cards[0]
        assert (found.pids, found.memory_used, found.temperature, found.holder, found.link_up) == ((71,), 3300, 44, "team/chat", True)


def test_a_map_of_another_namespace_or_node_is_passed_over() -> None:
    """Its label is anybody's to set: who may write ConfigMaps somewhere must not be able to drain nodes."""
    forged = device_map("n1", device_list(card_fault(0, "RestartNPU")), at())
    forged["metadata"]["namespace"] = "team"

    found = health(an_ascend_node(), forged, device_map("n2", device_list(card_fault(1, "RestartNPU")), at()))

    assert (found.source, grades(found)) == (Source.AGENT, {})


def test_clusterds_copy_serves_where_the_plugins_own_map_is_not_seen_and_does_not_make_an_old_one_young() -> None:
    """With a public fault ClusterD writes its own time into the copy, whether or not the plugin still runs."""

    def entry(minutes: float) -> Json:
        updated = int(at(minutes=minutes).timestamp())
        return cluster_map({"mindx-dl-deviceinfo-n1": {"DeviceList": device_list(card_fault(5, "RestartNPU")), "UpdateTime": updated}})

    assert grades(health(an_ascend_node(), entry(0))) == {5: Grade.RESET}
    assert grades(health(an_ascend_node(), device_map("n1", device_list(), at(minutes=-30)), entry(0))) == {}
    assert grades(health(an_ascend_node(), config_map("mindx-dl-deviceinfo-n1", {"DeviceInfoCfg": "{"}), entry(0))) == {5: Grade.RESET}
    assert grades(health(an_ascend_node(), device_map("n1", device_list(), at()), entry(-1))) == {}


def test_maps_of_all_nodes_are_believed_in_the_namespace_of_clusterd_alone() -> None:
    fault = {"DeviceList": device_list(card_fault(5, "RestartNPU")), "UpdateTime": int(at().timestamp())}
    forged = cluster_map({"mindx-dl-deviceinfo-n1": fault})
    forged["metadata"]["namespace"] = "kube-system"

    assert grades(health(an_ascend_node(), forged)) == {}


def test_a_hosts_fault_in_the_map_of_all_nodes_counts_while_clusterd_writes() -> None:
    """The entry has no time: what a ClusterD that has ended left there would keep the node away for ever."""
    part = {"DeviceType": "CPU", "DeviceId": 0, "FaultCode": ["00000001"], "FaultLevel": "SeparateFault"}
    hosts = cluster_map({"mindx-dl-nodeinfo-n1": {"FaultDevList": [part], "NodeStatus": "UnHealthy"}}, "cluster-info-node-cm")

    def copy(minutes: float) -> Json:
        updated = int(at(minutes=minutes).timestamp())
        return cluster_map({"mindx-dl-deviceinfo-n1": {"DeviceList": device_list(), "UpdateTime": updated}})

    own = device_map("n1", device_list(), at())
    assert grades(health(an_ascend_node(), own, hosts, copy(0))) == dict.fromkeys(range(8), Grade.ISOLATE)
    assert grades(health(an_ascend_node(), own, hosts, copy(-30))) == {}
    assert grades(health(an_ascend_node(), own, hosts)) == {}


def test_public_faults_stand_only_in_clusterds_copy_and_join_the_plugins_own() -> None:
    def copy(minutes: float) -> Json:
        faults = (card_fault(2, "SeparateNPU", code="220001001", kind="PublicFault"), card_fault(3, "RestartNPU"))
        updated = int(at(minutes=minutes).timestamp())
        return cluster_map({"mindx-dl-deviceinfo-n1": {"DeviceList": device_list(*faults), "UpdateTime": updated}})

    assert grades(health(an_ascend_node(), device_map("n1", device_list(), at()), copy(0))) == {2: Grade.ISOLATE}
    assert grades(health(an_ascend_node(), device_map("n1", device_list(), at()), copy(-30))) == {}


@pytest.mark.parametrize(
    ("level", "grade"), [("NotHandle", None), ("SubHealthFault", Grade.DEGRADED), ("Separate", Grade.ISOLATE), ("?", Grade.ISOLATE)]
)
def test_a_fault_of_the_servers_switch_is_one_of_all_its_cards(level: str, grade: Grade | None) -> None:
    codes = [] if grade is None else ["[0x00f103b0,155904,na,na]"]
    said = json.dumps({"FaultCode": codes, "FaultLevel": level, "NodeStatus": "UnHealthy", "UpdateTime": 1})

    found = health(an_ascend_node(), device_map("n1", device_list(), at(), SwitchInfoCfg=said))

    assert grades(found) == ({} if grade is None else dict.fromkeys(range(8), grade))


def test_a_fault_of_the_host_is_one_of_all_its_cards() -> None:
    host = host_map("n1", {"DeviceType": "Memory", "DeviceId": 3, "FaultCode": ["01000017"], "FaultLevel": "SeparateFault"})

    found = health(an_ascend_node(), device_map("n1", device_list(), at()), host)

    assert grades(found) == dict.fromkeys(range(8), Grade.ISOLATE)
    assert card(found, 0).faults[0].code == "Memory 3 01000017"


def test_a_lost_heartbeat_of_the_node_asks_for_nothing() -> None:
    other = fixture("a5_resource_name")
    other["metadata"]["name"] = "mindx-dl-deviceinfo-n1"
    other["data"]["DeviceInfoCfg"] = other["data"]["DeviceInfoCfg"].replace("1790000000}", f"{int(at().timestamp())}}}")

    found = health(an_ascend_node(), other, node=a_node(resource="huawei.com/npu"))

    assert grades(found) == dict.fromkeys(range(8), Grade.NOTE) | {5: Grade.RESET}


# Age and silence


@pytest.mark.parametrize("minutes", [11.5, 60, -3])
def test_an_old_map_and_one_of_the_future_are_shown_and_the_agent_is_believed(minutes: float) -> None:
    found = health(an_ascend_node(observed=stamp(at(minutes=minutes))), device_map("n1", device_list(), at()), minutes=minutes)

    assert (found.source, found.trust) == (Source.AGENT, Trust.FRESH)
    assert "mindx-dl-deviceinfo-n1 is of 2026-11-29T12:00:00Z" in found.why


@pytest.mark.parametrize("text", ["{", "", "[]", '{"DeviceInfo": {"DeviceList": {"x-Fault": "[{]"}}}'])
def test_a_broken_map_is_shown_and_the_agent_is_believed(text: str) -> None:
    found = health(an_ascend_node(a_card(0, "Alarm")), config_map("mindx-dl-deviceinfo-n1", {"DeviceInfoCfg": text}), node=a_node(1))

    assert (found.source, found.trust, grades(found)) == (Source.AGENT, Trust.FRESH, {0: Grade.RESET})
    assert "mindx-dl-deviceinfo-n1 can't be read" in found.why


@pytest.mark.parametrize(
    ("ready", "minutes", "trust"), [(True, 24, Trust.FRESH), (None, 24, Trust.FRESH), (False, 1, Trust.STALE), (True, 26, Trust.STALE)]
)
def test_the_agents_facts_are_fresh_while_it_is_ready_and_shows_signs_of_life(ready: bool | None, minutes: float, trust: Trust) -> None:
    agent = an_ascend_node(a_card(0, "Alarm", pids=[], memoryUsed=3000))

    found = health(agent, node=a_node(1), ready=ready, minutes=minutes)

    assert found.trust is trust
    assert found.cards[0].known is (trust is Trust.FRESH)
    assert found.cards[0].pids == (() if trust is Trust.FRESH else None)
    assert found.cards[0].grade is Grade.RESET  # the last word, which nobody acts on
    assert bool(found.why) is (trust is not Trust.FRESH)


@pytest.mark.parametrize("state", ["Failing", "Hanging", "Missing"])
def test_a_tool_that_does_not_work_says_nothing_of_the_cards(state: str) -> None:
    """C06, C07: their state is unknown, and the reason is shown."""
    found = health(an_ascend_node(a_card(0, "OK"), tool=state), node=a_node(1))

    assert (found.trust, found.cards[0].known, found.cards[0].pids) == (Trust.UNAVAILABLE, False, None)
    assert state.lower() in found.why
    assert "-8005" in found.why


def test_mindcluster_is_believed_while_the_agent_is_away_but_no_process_count_is_then() -> None:
    found = health(an_ascend_node(), device_map("n1", device_list(card_fault(3, "RestartNPU")), at()), ready=False)

    assert (found.source, found.trust, grades(found)) == (Source.MIND_CLUSTER, Trust.FRESH, {3: Grade.RESET})
    assert {card.pids for card in found.cards} == {None}
    assert not found.allocations_known
    assert "agent isn't ready" in found.why


@pytest.mark.parametrize(("listed", "known"), [("Ascend910-2", True), ("", False)])
def test_a_card_is_not_missing_by_the_word_of_an_agent_that_is_not_believed_any_more(listed: str, known: bool) -> None:
    """It may have been put back since, or npu-smi shows none at all."""
    agent = an_ascend_node(a_card(0), a_card(1), missing=[2], tool="Failing")

    found = card(health(agent, device_map("n1", device_list(available=listed), at())), 2)

    assert (found.missing, found.known) == (False, known)


def test_a_node_of_which_nobody_has_said_anything_is_unknown() -> None:
    found = health(None)

    assert (found.source, found.trust, found.cards) == (Source.NONE, Trust.UNAVAILABLE, ())


def test_mindcluster_alone_gives_the_cards_that_it_names() -> None:
    found = health(None, device_map("n1", device_list(card_fault(3, "RestartNPU"), available="Ascend910-0,Ascend910-1"), at()))

    assert [(card.physical, card.known, card.grade) for card in found.cards] == [(0, True, None), (1, True, None), (3, True, Grade.RESET)]


def test_a_card_that_could_not_be_read_this_time_is_unknown_and_the_others_are_not() -> None:
    found = health(an_ascend_node(a_card(0, pids=[5], temperature=40), a_card(1, "Alarm", stale=True, pids=[])), node=a_node(2))

    assert [(card.known, card.pids) for card in found.cards] == [(True, (5,)), (False, None)]


# Contradictions


def test_a_card_that_npu_smi_calls_sick_and_mindcluster_does_not_know_of_is_a_contradiction() -> None:
    agent = an_ascend_node(*(a_card(number, "Critical" if number == 5 else "OK") for number in range(8)))

    found = health(agent, device_map("n1", device_list(), at()))

    assert (found.trust, grades(found)) == (Trust.CONTRADICTORY, {})
    assert "card 5" in found.why
    told = health(agent, device_map("n1", device_list(card_fault(5, "NotHandleFault")), at()))
    assert (told.trust, grades(told)) == (Trust.FRESH, {5: Grade.NOTE})  # it knows, and nothing is to be done
    resetting = health(agent, device_map("n1", device_list(recovering="Ascend910-5"), at()))
    assert (resetting.trust, resetting.recovering) == (Trust.FRESH, {5})


def test_a_fault_of_the_host_does_not_explain_why_a_card_is_sick() -> None:
    host = host_map("n1", {"DeviceType": "PSU", "DeviceId": 1, "FaultCode": ["0300000D"], "FaultLevel": "NotHandleFault"})
    agent = an_ascend_node(a_card(0, "Alarm"))

    assert health(agent, device_map("n1", device_list(), at()), host, node=a_node(1)).trust is Trust.CONTRADICTORY


def test_a_map_that_names_cards_which_the_node_does_not_have_is_a_contradiction() -> None:
    found = health(an_ascend_node(), device_map("n1", device_list(card_fault(9, "RestartNPU"), card_fault(12, "RestartNPU")), at()))

    assert found.trust is Trust.CONTRADICTORY
    assert "cards 9, 12" in found.why


def test_a_card_that_is_gone_from_npu_smi_and_offered_by_mindcluster_is_a_contradiction() -> None:
    agent = an_ascend_node(*(a_card(number) for number in range(8) if number != 2), missing=[2])

    assert health(agent, device_map("n1", device_list(available="Ascend910-2"), at())).trust is Trust.CONTRADICTORY
    found = health(agent, device_map("n1", device_list(card_fault(2, "RestartNPU", code="40F84E00")), at()))
    assert (found.trust, card(found, 2).missing, card(found, 2).grade) == (Trust.FRESH, True, Grade.RESET)


@pytest.mark.parametrize(("level", "minutes", "trust"), [
    ("SeparateNPU", 20, Trust.CONTRADICTORY), ("SeparateNPU", 65, Trust.FRESH), ("NotHandleFault", 20, Trust.FRESH),
])  # fmt: skip
def test_a_fault_does_not_vanish_because_the_plugin_that_saw_it_died(level: str, minutes: float, trust: Trust) -> None:
    agent = an_ascend_node(observed=stamp(at(minutes=minutes)))

    found = health(agent, device_map("n1", device_list(card_fault(4, level)), at()), minutes=minutes)

    assert (found.source, found.trust) == (Source.AGENT, trust)


@pytest.mark.parametrize(
    ("offered", "cards", "trust"),
    [
        (8, ("OK",) * 8, Trust.FRESH),
        (7, ("OK",) * 8, Trust.CONTRADICTORY),
        (0, ("OK",) * 8, Trust.CONTRADICTORY),
        (6, (*("OK",) * 7, "Alarm"), Trust.FRESH),  # explained as far as anybody needs to act
        (7, (*("OK",) * 7, "Unknown"), Trust.FRESH),
        (7, (*("OK",) * 7, "Warning"), Trust.CONTRADICTORY),
    ],
)
def test_a_device_plugin_that_offers_fewer_cards_than_are_well_is_a_contradiction(
    offered: int, cards: tuple[str, ...], trust: Trust
) -> None:
    agent = an_ascend_node(*(a_card(number, word) for number, word in enumerate(cards)))

    assert health(agent, node=a_node(8, offered)).trust is trust


def test_cut_cards_cards_under_reset_and_cards_that_the_plugin_was_not_given_are_no_contradiction() -> None:
    assert health(an_ascend_node(), node={"metadata": {"name": "n1"}, "status": {}}).trust is Trust.FRESH
    assert health(an_ascend_node(virtual=True), node=a_node(8, 3)).trust is Trust.FRESH
    resetting = device_map("n1", device_list(recovering="Ascend910-0"), at())
    assert health(an_ascend_node(), resetting, node=a_node(8, 7)).trust is Trust.FRESH
    sharing = a_node(8, 8) | {"status": {"capacity": {"huawei.com/Ascend910": "4"}, "allocatable": {"huawei.com/Ascend910": "4"}}}
    assert health(an_ascend_node(), node=sharing).trust is Trust.FRESH


# The rest of the node


def test_a_missing_card_that_the_agent_still_lists_is_missing_with_its_ids_and_its_holder() -> None:
    last = {"npu": 9, "chip": 1, "stale": True, "pids": None, "holder": {"namespace": "team", "pod": "chat-0"}}
    found = card(health(an_ascend_node(a_card(0), a_card(5, "Unknown", **last), missing=[5])), 5)

    assert (found.npu, found.chip, found.missing, found.known, found.holder) == (9, 1, True, False, "team/chat-0")


def test_missing_cards_belong_to_the_npu_of_their_neighbour_where_npus_have_two() -> None:
    dies = [{"physical": number, "npu": number // 2 + 4, "chip": number % 2, "health": "OK"} for number in range(16) if number != 5]

    found = card(health(an_ascend_node(*dies, missing=[5]), node=a_node(16)), 5)

    assert (found.npu, found.chip, found.missing, found.known, found.pids) == (6, 1, True, False, None)


def test_all_pods_that_hold_cards_count_whosever_they_are() -> None:
    pods = [
        a_pod("b", **{"huawei.com_Ascend910": "8"}),
        a_pod("a", **{"huawei.com_npu-core": "4"}),
        a_pod("c", cpu="1"),
        a_pod("d", **{"example.com_npu": "1"}),
    ]
    ended = a_pod("e", **{"huawei.com_Ascend910": "8"}) | {"status": {"phase": "Failed"}}

    found = node_health(a_node(), an_ascend_node(), (), [*pods, ended], agent_ready=True, now=at(), resource_name="example.com/npu")

    assert found.pods == ("team/a", "team/b", "team/d")


def test_who_waits_for_a_reset_by_hand_is_read_from_the_nodes_annotation() -> None:
    said = json.dumps({"ThirdPartyResetDevs": [{"PhyID": 1}], "ManualResetDevs": [{"PhyID": 6}]})

    found = health(an_ascend_node(), node=a_node(annotations={"ResetInfo": said}))

    assert (found.manual, found.recovering) == ({6}, {1})
    assert "ResetInfo can't be read" in health(an_ascend_node(), node=a_node(annotations={"ResetInfo": "{"})).why


@pytest.mark.parametrize(("card", "grade"), [
    ({"link": "Down", "address": "192.0.2.7"}, Grade.DEGRADED), ({"link": "Down"}, None),
    ({"link": "Up", "netHealth": "Socket failed", "address": "192.0.2.7"}, Grade.DEGRADED),
    ({"link": "Up", "netHealth": "Init", "address": "192.0.2.7"}, None),
])  # fmt: skip
def test_a_port_that_is_used_and_down_degrades_its_card(card: Json, grade: Grade | None) -> None:
    found = health(an_ascend_node(a_card(0, **card)), node=a_node(1)).cards[0]

    assert found.grade is grade
    assert all(fault.network for fault in found.faults)


def test_the_product_is_what_the_pool_says_then_the_agent_then_the_nodes_labels() -> None:
    labels = {"node.kubernetes.io/npu.chip.name": "910B3"}

    assert health(an_ascend_node(), node=a_node(labels=labels)).product is Product.A2
    assert health(an_ascend_node(product="A3"), node=a_node(labels=labels)).product is Product.A3
    found = node_health(a_node(), an_ascend_node(product="A3"), (), (), agent_ready=True, now=at(), product=Product.ATLAS_310P)
    assert found.product is Product.ATLAS_310P


def test_the_newest_report_of_a_reset_is_the_one_that_counts() -> None:
    agent = an_ascend_node()
    agent["status"]["resets"] = [{"id": "r1", "state": "Failed"}, {"id": "r2", "state": "Succeeded", "ended": stamp(at(minutes=3))}]

    reset = health(agent).reset

    assert reset is not None
    assert (reset.id, reset.state, reset.ended) == ("r2", "Succeeded", at(minutes=3))


def test_since_when_the_facts_are_doubted_says_the_condition_that_was_written_when_it_began() -> None:
    first = health(an_ascend_node(), ready=False, minutes=3)
    assert first.doubted_since == at(minutes=3)
    assert health(an_ascend_node()).doubted_since is None

    node = an_ascend_node()
    for status, since in (("False", at(minutes=3)), ("True", at(minutes=5))):
        node["status"]["conditions"] = [{"type": "FactsFresh", "status": status, "lastTransitionTime": stamp(at(minutes=3))}]
        assert health(node, ready=False, minutes=5).doubted_since == since
