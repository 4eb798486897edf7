"""The demo's third act: an imitated card fails, and the operator heals its node. Used by __main__.py.

Only on the demo's own kind cluster: no real card is made sick. A node that nobody uses is taken, so that no work is disturbed.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo import steps
from glm5_operator.api import names
from tests.cluster.devices import NodeDevices
from tests.cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.site import Site

CARD = 3
POLICY = {"mode": "Auto", "debounce": "2s", "verify": "3s", "resets": 24, "window": "1m"}
"""Short times, and no end of resets: the demo may be looked at again and again. The defaults suit real cards."""
NO_IDLE_NODE = (
    f"the third act, a sick card, is left out: on each node of pool {steps.TRAINING_POOL} somebody holds cards, or something is wrong "
    "already; `glm5 nodes` says who and what"
)


class NotHealedError(ClusterError):
    """The node didn't come back; the message holds what its AscendNode says."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the training pool, and its remedy as its AscendNode says.

    Attributes:
        name: of the node.
        remedy: `status.remedy`.
        idle: whether kubelet says that nobody holds a card.
    """

    name: str
    remedy: dict[str, Any]
    idle: bool

    @property
    def steps(self) -> list[dict[str, str]]:
        """The newest steps of the remedy, oldest first."""
        found: list[dict[str, str]] = self.remedy.get("history") or []
        return found


def idle_node(site: Site, timeout: float = 30, pause: float = 1) -> Node | None:
    """A node whose cards are well and nobody's; None when none is after `timeout` seconds: pods of a training may just have ended."""
    deadline = time.monotonic() + timeout
    while True:
        listed = site.kubectl("get", "nodes", "-l", f"{names.POOL_LABEL}={steps.TRAINING_POOL}", "-o", "name").split()
        nodes = [look(site, name.removeprefix("node/")) for name in listed]
        found = next((node for node in nodes if node.idle and node.remedy.get("state") == "Healthy"), None)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(pause)


def look(site: Site, name: str) -> Node:
    """The node now."""
    printed = site.kubectl("get", "ascendnode", name, "--ignore-not-found", "-o", "json").strip()
    status: dict[str, Any] = json.loads(printed).get("status", {}) if printed else {}
    facts = status.get("facts") or {}
    idle = bool(facts.get("allocationsKnown")) and not any(card.get("holder") for card in facts.get("cards") or ())
    return Node(name, status.get("remedy") or {}, idle)


def fail_card(site: Site, node: Node) -> None:
    """Let the pool heal, then make a card of the node sick."""
    assert site.kind is not None
    site.kubectl("patch", "npupool", steps.TRAINING_POOL, "--type=merge", "-p", json.dumps({"spec": {"health": POLICY}}))
    file = site.kind.cards(node.name)
    NodeDevices.read(file).change(CARD, health="Critical", codes=("80E01801",)).write(file)


def line(step: dict[str, str]) -> str:
    """A step as one line."""
    return f"  {step['state']:<11}{step['reason']}: {step.get('message', '')}".rstrip(" :")


def follow(site: Site, before: Node, show: Callable[[dict[str, str]], None], timeout: float = 180, pause: float = 0.5) -> None:
    """Show each step of the remedy until the node is back.

    Raises:
        NotHealedError: It is in quarantine, or `timeout` seconds were not enough.
    """
    deadline, seen = time.monotonic() + timeout, before.steps
    states: set[str] = set()
    while True:
        now = look(site, before.name)
        for step in now.steps:
            if step not in seen and (states or step["state"] != "Healthy"):  # that the pool heals from now on is a step, too
                states.add(step["state"])
                show(step)
        if "Resetting" in states and now.remedy.get("state") == "Healthy":
            return
        seen = now.steps
        if now.remedy.get("state") == "Quarantined" or time.monotonic() > deadline:
            raise NotHealedError(
                f"node {now.name} did not come back: {json.dumps(now.remedy, indent=1)}\n"
                f"`glm5 doctor --node {now.name}` says what is wrong; `glm5 node release {now.name}` takes it out of quarantine"
            )
        time.sleep(pause)
