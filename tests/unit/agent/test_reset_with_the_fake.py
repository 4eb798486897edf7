"""The agent's resets against the fake npu-smi of the test clusters: two readings of the same source, written apart from each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.devices import NodeDevices, ResetMode
from tests.cluster.tools import tool
from tests.unit.agent.npu_smi_reset import a_node, a_request, an_agent


async def reset(
    folder: Path, node: NodeDevices, radius: str, cards: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str, NodeDevices]:
    """State, reason, and the cards afterwards."""
    state = folder / "node.json"
    node.write(state)
    monkeypatch.setenv("GLM5_FAKE_ASCEND", str(state))
    monkeypatch.delenv("ASCEND_VISIBLE_DEVICES", raising=False)
    (folder / "npu-smi").symlink_to(tool("ascend-fake"))
    facts = a_node(node.product, len(node.devices))
    named = {device.physical: (device.npu, device.chip) for device in node.devices}
    placed = tuple(card.model_copy(update={"npu": named[card.physical][0], "chip": named[card.physical][1]}) for card in facts.cards)
    agent = an_agent(folder, folder / "npu-smi", facts.model_copy(update={"cards": placed}))
    report = await agent.handle(a_request(radius=radius, cards=cards))
    return report.state, report.reason, NodeDevices.read(state)


Case = tuple[str, bool, str, tuple[int, ...], tuple[tuple[int, ...], ...]]
"""Product, HCCS on, radius and cards that are asked for, and which cards npu-smi reset, command by command."""
CASES: list[Case] = [
    ("A2", True, "Node", tuple(range(8)), (tuple(range(8)),)),
    ("A2", False, "Device", (3,), ((3,),)),
    ("A2", False, "Node", tuple(range(8)), tuple((card,) for card in range(8))),
    ("A3", False, "Node", tuple(range(16)), (tuple(range(16)),)),
    ("310P", False, "Card", (2, 3), ((2, 3),)),
    ("950", False, "Device", (3,), ((3,),)),
]


@pytest.mark.parametrize("case", CASES)
async def test_what_was_asked_for_is_reset_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    product, hccs, radius, cards, done = case
    node = NodeDevices.idle(product).resetting(hccs=hccs).change(cards[0], health="Critical")

    state, reason, after = await reset(tmp_path, node, radius, cards, monkeypatch)

    assert (state, reason, after.reset.done) == ("Succeeded", "", done)
    assert {device.health for device in after.devices} == {"OK"}


@pytest.mark.parametrize(("product", "hccs"), [("A2", True), ("A3", False)])
async def test_one_card_alone_is_declined_where_it_takes_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: str, hccs: bool
) -> None:
    node = NodeDevices.idle(product).resetting(hccs=hccs).change(3, health="Critical")

    state, reason, after = await reset(tmp_path, node, "Device", (3,), monkeypatch)

    assert (state, reason, after.reset.done) == ("Refused", "HccsOn", ())


@pytest.mark.parametrize(
    ("mode", "state", "reason"),
    [
        ("ok", "Succeeded", ""),
        ("stays_sick", "Succeeded", ""),  # the facts that follow say otherwise
        ("fail", "Failed", "ToolFailed"),
        ("fail_exit_0", "Failed", "ToolFailed"),
        ("in_use", "Refused", "CardsBusy"),
        ("another_user", "Refused", "AnotherReset"),
        ("needs_host", "Refused", "NeedsHost"),
        ("virtual", "Refused", "VirtualNPU"),
        ("not_root", "Refused", "NotRoot"),
    ],
)
async def test_however_it_goes_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ResetMode, state: str, reason: str
) -> None:
    node = NodeDevices.idle("A2").resetting(mode, hccs=True).change(3, health="Critical")

    found, why, after = await reset(tmp_path, node, "Node", tuple(range(8)), monkeypatch)

    assert (found, why) == (state, reason)
    assert (after.devices[3].health == "OK") == (mode == "ok")
