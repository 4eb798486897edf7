"""Plays the node agent: writes facts and resets into an AscendNode as it would, under its field manager, and a pod that is ready."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.support.kube import Json, Kube

APPLY = {"Content-Type": "application/apply-patch+yaml"}
NAMESPACE = "glm5-system"


def agent_pod(node: str, namespace: str = NAMESPACE) -> Json:
    """A pod of the agent's DaemonSet; KWOK has it ready on its nodes."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"agent-{node}",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/component": "node-agent"},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "agent", "image": "glm5-operator:0.1.0"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


@dataclass
class Agent:
    """The agent of one node, with what it says now. `say` writes it."""

    kube: Kube
    node: str
    cards: int = 8
    product: str = "A2"
    hccs: bool = True
    health: dict[int, tuple[str, str]] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    tool: str = "Working"
    resets: list[Json] = field(default_factory=list)

    def say(self) -> None:
        """Write facts and resets; who holds which card is as kubelet would give it: in the order of the pods' names."""
        status = {"facts": self._facts(), "resets": self.resets}
        body = {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": self.node}, "status": status}
        params = {"fieldManager": "glm5-agent", "force": "true"}
        answer = self.kube.http.patch(
            self.kube.path("AscendNode", "", self.node, "status"), content=json.dumps(body), headers=APPLY, params=params
        )
        assert answer.is_success, answer.text

    def ill(self, card: int, word: str = "Critical", code: str = "80E01801") -> None:
        """Have a card fail, and say so."""
        self.health[card] = (word, code)
        self.say()

    def well(self) -> None:
        """Have all cards be well, and say so."""
        self.health.clear()
        self.say()

    def reset_asked(self) -> Json | None:
        """What the operator asks for now."""
        found: Json | None = (self.kube.get("AscendNode", "", self.node).get("spec") or {}).get("reset")
        return found

    def reset_done(self, state: str = "Succeeded", reason: str = "", message: str = "") -> None:
        """Say what became of the reset that is asked for; after one that succeeded the cards are well."""
        asked = self.reset_asked()
        assert asked is not None
        now = _now()
        entry = {"id": asked["id"], "state": state, "reason": reason, "message": message, "started": now, "ended": now, "exitCode": 0}
        self.resets.append({key: value for key, value in entry.items() if value not in {"", None}})
        if state == "Succeeded":
            self.health.clear()
        self.say()

    def holders(self) -> Mapping[int, Json]:
        """Card → who holds it."""
        pods = [pod for pod in self.kube.list("Pod") if pod["spec"].get("nodeName") == self.node and _runs(pod)]
        held = [(pod, name) for pod in sorted(pods, key=_name) for name, count in _cards(pod) for _ in range(count)]
        return {
            card: {"namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"], "container": name}
            for card, (pod, name) in enumerate(held)
        }

    def _facts(self) -> Json:
        holders = self.holders()
        cards = [self._card(number, holders) for number in range(self.cards) if number not in self.missing]
        return {
            "observedAt": _now(),
            "tool": {"state": self.tool, "version": "25.3.rc1"},
            "cards": cards if self.tool == "Working" else [],
            "missing": list(self.missing),
            "product": self.product,
            "allocationsKnown": True,
            "virtual": False,
            "hccs": self.hccs,
        }

    def _card(self, number: int, holders: Mapping[int, Json]) -> Json:
        word, code = self.health.get(number, ("OK", ""))
        card: Json = {"physical": number, "npu": number, "chip": 0, "health": word, "memoryUsed": 3400, "memoryTotal": 65536, "link": "Up"}
        card |= {"temperature": 45, "utilisation": 0, "pids": [4000 + number] if number in holders else []}
        return card | ({"codes": [code]} if code else {}) | ({"holder": holders[number]} if number in holders else {})


def _cards(pod: Json) -> Iterable[tuple[str, int]]:
    for container in pod["spec"]["containers"]:
        limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
        yield from ((container["name"], int(count)) for name, count in limits.items() if name.startswith("huawei.com/"))


def _runs(pod: Json) -> bool:
    return pod["status"].get("phase") not in {"Failed", "Succeeded"}


def _name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
