"""The demo's third act: which node's card fails, and what is shown until the node is back. The cluster is a function here."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demo import healing, steps
from demo.site import Site
from tests.cluster.devices import NodeDevices


def step(state: str, second: int) -> dict[str, str]:
    return {"time": f"2026-11-30T10:00:{second:02}Z", "state": state, "reason": f"{state}Reason", "message": f"{state} now"}


OLD = [step("Healthy", 0)]
WAY = [*OLD, *(step(state, 5 + number) for number, state in enumerate(["Quiescing", "Draining", "Resetting", "Verifying", "Returning"]))]
BACK = [*WAY, step("Healthy", 20)]


def status(history: list[dict[str, str]], **facts: object) -> dict[str, Any]:
    """What an AscendNode says."""
    return {"facts": {"allocationsKnown": True, "cards": [{}], **facts}, "remedy": {"state": history[-1]["state"], "history": history}}


class Scripted(Site):
    """A place whose AscendNodes have these statuses, one after the other; without one there is no AscendNode."""

    def __init__(self, kind: SimpleNamespace | None = None, **statuses: list[dict[str, Any]]) -> None:
        super().__init__(kubeconfig=None, kubectl_path=Path("kubectl"), helm_path=Path("helm"), kind=kind)  # type: ignore[arg-type] # only its cards are asked for
        object.__setattr__(self, "left", statuses)
        object.__setattr__(self, "patched", [])

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        if words[:2] == ("get", "nodes"):
            assert words[3] == f"glm5.dev/pool={steps.TRAINING_POOL}"
            return "node/first\nnode/second\n"
        if words[0] == "patch":
            self.__dict__["patched"].append((words[2], json.loads(words[-1])))
            return ""
        left = self.__dict__["left"].get(words[2], [])
        return json.dumps({"status": left.pop(0) if len(left) > 1 else left[0]}) if left else ""


@pytest.mark.parametrize(
    ("first", "taken"),
    [
        (status(OLD), "first"),
        (status(OLD, cards=[{"holder": {"pod": "p"}}]), "second"),
        (status(OLD, allocationsKnown=False), "second"),
        (status([step("Quarantined", 0)]), "second"),
        ({}, "second"),
    ],
    ids=["idle", "held", "nobody knows", "sick already", "unread"],
)
def test_the_card_that_fails_is_on_a_node_that_nobody_uses(first: dict[str, Any], taken: str) -> None:
    found = healing.idle_node(Scripted(first=[first], second=[status(OLD)]))

    assert found is not None
    assert found.name == taken


def test_a_node_whose_training_has_just_ended_is_waited_for_but_not_for_ever() -> None:
    held = status(OLD, cards=[{"holder": {"pod": "p"}}])

    assert healing.idle_node(Scripted(first=[held, held, status(OLD)]), pause=0) is not None
    assert healing.idle_node(Scripted(first=[held]), timeout=0, pause=0) is None


def test_its_pool_heals_before_the_card_fails(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    NodeDevices.idle("A2").write(file)
    place = Scripted(SimpleNamespace(cards=lambda _: file))

    healing.fail_card(place, healing.Node("trains", {}, idle=True))

    ((pool, patch),) = place.__dict__["patched"]
    assert (pool, patch["spec"]["health"]["mode"]) == (steps.TRAINING_POOL, "Auto")
    assert [device.physical for device in NodeDevices.read(file).devices if device.health == "Critical"] == [healing.CARD]


def test_each_step_is_shown_once_until_the_node_is_back() -> None:
    before = healing.Node("trains", {"state": "Healthy", "history": OLD}, idle=True)
    shown: list[str] = []
    looks = [status(OLD), status([*OLD, step("Healthy", 4)]), status(WAY[:2]), status(WAY[:5]), status(WAY[:5]), status(BACK)]

    healing.follow(Scripted(trains=looks), before, lambda one: shown.append(healing.line(one)), pause=0)

    assert [line.split()[0] for line in shown] == ["Quiescing", "Draining", "Resetting", "Verifying", "Returning", "Healthy"]
    assert shown[0] == "  Quiescing  QuiescingReason: Quiescing now"


def test_a_node_in_quarantine_ends_the_demo_with_what_to_do() -> None:
    before = healing.Node("trains", {"state": "Healthy", "history": OLD}, idle=True)

    with pytest.raises(healing.NotHealedError, match=r"Quarantined(.|\n)*glm5 node release trains"):
        healing.follow(Scripted(trains=[status([*WAY, step("Quarantined", 30)])]), before, lambda _: None, pause=0)
