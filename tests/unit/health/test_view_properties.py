"""Whatever the sources say, in whatever state they are: what the view may never conclude from it. Pure."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_operator.health.types import Grade, NodeHealth, Source, Trust
from glm5_operator.health.view import node_health
from tests.support.clock import at, stamp
from tests.support.mindcluster import card_fault, config_map, device_list, device_map, host_map

Json = dict[str, Any]

WORDS = ["OK", "Warning", "Alarm", "Critical", "Unknown"]
LEVELS = [
    "NotHandleFault",
    "SubHealthFault",
    "RestartBusiness",
    "FreeRestartNPU",
    "RestartNPU",
    "PreSeparateNPU",
    "SeparateNPU",
    "OfTomorrow",
]

cards = st.lists(
    st.fixed_dictionaries(
        {"health": st.sampled_from(WORDS)},
        optional={
            "stale": st.just(value=True),
            "pids": st.just([7]),
            "codes": st.sampled_from([["80E18402"], ["80E18404"]]),
            "link": st.sampled_from(["Up", "Down"]),
            "address": st.just("192.0.2.1"),
        },
    ),
    max_size=4,
)
ages = st.sampled_from([-60.0, -1.0, 0.0, 5.0, 12.0, 30.0, 90.0])
faults = st.lists(
    st.builds(card_fault, st.integers(0, 5), st.sampled_from(LEVELS), kind=st.sampled_from(["CardUnhealthy", "CardNetworkUnhealthy"])),
    max_size=3,
)
maps = st.lists(
    st.one_of(
        st.builds(
            lambda found, age, recovering: device_map("n1", device_list(*found, recovering=recovering), at(minutes=-age)),
            faults,
            ages,
            st.sampled_from(["", "Ascend910-0"]),
        ),
        st.just(config_map("mindx-dl-deviceinfo-n1", {"DeviceInfoCfg": "{"})),
        st.just(host_map("n1", {"DeviceType": "CPU", "DeviceId": 0, "FaultCode": ["1"], "FaultLevel": "SeparateFault"})),
    ),
    max_size=2,
)


@st.composite
def sources(draw: st.DrawFn) -> tuple[Json | None, list[Json], bool | None, str]:
    """AscendNode, maps, whether the agent is ready, and whether npu-smi works."""
    read = [{"physical": number, "npu": number, **card} for number, card in enumerate(draw(cards))]
    tool = draw(st.sampled_from(["Working", "Working", "Failing", "Hanging"]))
    report = {
        "observedAt": stamp(at(minutes=-draw(ages))),
        "tool": {"state": tool},
        "cards": read,
        "missing": draw(st.sampled_from([[], [5], [0]])),
    }
    node = draw(st.sampled_from([None, {"metadata": {"name": "n1"}, "status": {"facts": report}}]))
    return node, draw(maps), draw(st.sampled_from([True, True, False, None])), tool


def view(ascend_node: Json | None, told: list[Json], ready: bool | None) -> NodeHealth:
    return node_health({"metadata": {"name": "n1"}}, ascend_node, told, (), agent_ready=ready, now=at())


@settings(max_examples=150)
@given(sources())
def test_nothing_is_known_without_somebody_who_can_know_it(given_: tuple[Json | None, list[Json], bool | None, str]) -> None:
    ascend_node, told, ready, tool = given_
    found = view(ascend_node, told, ready)

    if found.source is Source.AGENT and found.trust in {Trust.FRESH, Trust.CONTRADICTORY}:
        assert (tool, ready) in {("Working", True), ("Working", None)}
    if found.trust is not Trust.FRESH:
        assert found.why
    if found.source is Source.AGENT and found.trust in {Trust.STALE, Trust.UNAVAILABLE}:
        assert not any(card.known for card in found.cards)
    if found.source is Source.NONE:
        assert found.trust is Trust.UNAVAILABLE
    for card in found.cards:
        assert not (card.missing and card.known)
    if (tool, ready) not in {("Working", True), ("Working", None)}:
        assert {card.pids for card in found.cards} <= {None}


@settings(max_examples=150)
@given(sources())
def test_the_two_sources_never_mix(given_: tuple[Json | None, list[Json], bool | None, str]) -> None:
    ascend_node, told, ready, _ = given_
    found = view(ascend_node, told, ready)
    text = json.dumps(told)
    words = {fault.level for card in found.cards for fault in card.faults}

    if found.source is Source.MIND_CLUSTER:
        assert not words & {"Warning", "Alarm", "Critical", "Down"}
        assert all(level in text for level in words)
    else:
        assert words <= {"Warning", "Alarm", "Critical", "Down"}


@settings(max_examples=150)
@given(sources())
def test_no_warning_network_fault_or_unknown_level_ever_asks_for_a_reset(given_: tuple[Json | None, list[Json], bool | None, str]) -> None:
    ascend_node, told, ready, _ = given_
    for card in view(ascend_node, told, ready).cards:
        for fault in card.faults:
            if fault.network or fault.level in {"Warning", "OfTomorrow", "NotHandleFault", "PreSeparateNPU", "SeparateNPU"}:
                assert fault.grade not in {Grade.RESET, Grade.RESET_WHEN_IDLE}


@settings(max_examples=150)
@given(sources())
def test_the_order_of_the_maps_does_not_matter(given_: tuple[Json | None, list[Json], bool | None, str]) -> None:
    ascend_node, told, ready, _ = given_
    named = {entry["metadata"]["name"]: entry for entry in told}

    assert view(ascend_node, list(named.values()), ready) == view(ascend_node, list(reversed(named.values())), ready)
