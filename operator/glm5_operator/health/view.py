"""One node's health, put together from all that is known of it: the only maker of `types.NodeHealth`.

Called by the node controller with what its cache has, and by `glm5 doctor` with what it collected. Cards' faults come from one source:
MindCluster's ConfigMaps where they are there and fresh, else the node agent; the two never mix. What isn't health (who holds a card,
processes, memory, temperature) comes from the agent whichever source is believed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.health.levels import word_grade
from glm5_operator.health.types import CardHealth, Fault, NodeHealth, Product, ResetResult, Source, Trust
from glm5_operator.plan.product import node_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AGENT_FRESH_FOR: Final = timedelta(minutes=25)
"""Two heartbeats of the agent and then some: it writes on change, and every 10 minutes as a sign of life."""


def node_health(
    node: Mapping[str, Any],
    ascend_node: Mapping[str, Any] | None,
    maps: Iterable[Mapping[str, Any]],
    pods: Iterable[Mapping[str, Any]],
    *,
    agent_ready: bool | None,
    now: datetime,
    product: Product | None = None,
    resource_name: str = "",
    hot_reset: bool = False,
) -> NodeHealth:
    """What the remedy may know of the node.

    Args:
        node: the Node; its annotation ResetInfo is read too.
        ascend_node: its AscendNode; None when there is none yet.
        maps: MindCluster's ConfigMaps, this node's and those of the whole cluster; others among them are passed over.
        pods: all pods bound to the node that haven't ended and hold devices, whosever they are.
        agent_ready: the node agent's pod on this node is ready; None when nobody knows, then only the age of its facts counts.
        now: with a time zone.
        product: the pool's statement, which counts more than what the facts and the node's labels say.
        resource_name: the pool's extended resource, where it isn't one of huawei.com.
        hot_reset: MindCluster's plugin resets by itself (`mindcluster.hot_reset`).
    """
    facts = node_facts(node)
    status = (ascend_node or {}).get("status") or {}
    report: Mapping[str, Any] = status.get("facts") or {}
    trust, why = _agent_trust(report, agent_ready=agent_ready, now=now)
    return NodeHealth(
        name=facts.name,
        product=product or _product(report.get("product")) or facts.product,
        cards=tuple(_card(card) for card in report.get("cards") or ()),
        source=Source.AGENT if report else Source.NONE,
        trust=trust,
        why=why,
        as_of=_moment(report.get("observedAt")),
        ready=facts.ready,
        hccs=report.get("hccs"),
        virtual=bool(report.get("virtual")),
        allocations_known=bool(report.get("allocationsKnown")),
        pods=tuple(sorted(_name(pod) for pod in pods if _holds_cards(pod, resource_name))),
        hot_reset=hot_reset,
        reset=_reset(status.get("resets") or ()),
    )


def _agent_trust(report: Mapping[str, Any], *, agent_ready: bool | None, now: datetime) -> tuple[Trust, str]:
    if not report:
        return Trust.UNAVAILABLE, "the node agent hasn't reported yet: see that its pod runs on the node"
    tool = report.get("tool") or {}
    if tool.get("state") != "Working":
        return Trust.UNAVAILABLE, f"npu-smi is {str(tool.get('state') or 'unread').lower()}: {tool.get('message') or 'it said nothing'}"
    seen = _moment(report.get("observedAt"))
    if agent_ready is False:
        return Trust.STALE, f"the node agent isn't ready; its last facts are of {report.get('observedAt')}"
    if seen is None or now - seen > AGENT_FRESH_FOR:
        return Trust.STALE, f"the node agent's facts are of {report.get('observedAt') or 'nobody knows when'}"
    return Trust.FRESH, ""


def _card(card: Mapping[str, Any]) -> CardHealth:
    word = str(card.get("health") or "Unknown")
    grade = word_grade(word)
    codes = tuple(card.get("codes") or ()) or (word,)
    holder = card.get("holder") or {}
    pids = card.get("pids")
    return CardHealth(
        physical=int(card["physical"]),
        npu=int(card["npu"]),
        chip=int(card.get("chip") or 0),
        known=word != "Unknown" and not card.get("stale"),
        faults=tuple(Fault(str(code), word, grade) for code in codes) if grade else (),
        holder=f"{holder['namespace']}/{holder['pod']}" if holder else "",
        pids=None if pids is None else tuple(pids),
        memory_used=card.get("memoryUsed"),
        temperature=card.get("temperature"),
        utilisation=card.get("utilisation"),
        link_up={"Up": True, "Down": False}.get(str(card.get("link"))),
    )


def _reset(reports: Iterable[Mapping[str, Any]]) -> ResetResult | None:
    newest = next(iter(reversed(tuple(reports))), None)
    if newest is None:
        return None
    return ResetResult(
        id=str(newest.get("id") or ""),
        state=str(newest.get("state") or "Unknown"),
        reason=str(newest.get("reason") or ""),
        message=str(newest.get("message") or ""),
        ended=_moment(newest.get("ended")),
    )


def _product(word: object) -> Product | None:
    return next((product for product in Product if product.value == word), None)


def _holds_cards(pod: Mapping[str, Any], resource_name: str) -> bool:
    containers = [*(pod["spec"].get("initContainers") or ()), *(pod["spec"].get("containers") or ())]
    asked = {name for container in containers for name in (container.get("resources") or {}).get("limits") or {}}
    return any(name.startswith("huawei.com/") or name == resource_name for name in asked)


def _name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _moment(text: object) -> datetime | None:
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
