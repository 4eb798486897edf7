"""One node's health, put together from all that is known of it: the only maker of `types.NodeHealth`.

Called by the node controller with what its cache has, and by `glm5 doctor` with what it collected. Cards' faults come from one source:
MindCluster's ConfigMaps where they are there and fresh, else the node agent; the two never mix. What isn't health (who holds a card,
processes, memory, temperature) comes from the agent whichever source is believed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api.node_facts import MOST_CARDS
from glm5_operator.health.sources import levels, mindcluster
from glm5_operator.health.sources.mindcluster_faults import Told, told, worst_first
from glm5_operator.health.types import GRADES, LAST_ID, CardHealth, Fault, Grade, NodeHealth, Product, ResetResult, Source, Trust
from glm5_operator.plan.product import extended_resources, node_facts, resource_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AGENT_FRESH_FOR: Final = timedelta(minutes=25)
"""Two heartbeats of the agent and then some: it writes on change, and every 10 minutes as a sign of life."""
AGENT_AHEAD: Final = timedelta(minutes=10)
"""How much a node's clock may be ahead of ours: of facts that are yet to come nobody can say when they are too old."""
REMEMBERED_FOR: Final = timedelta(hours=1)
"""How long a fault in a map that is no longer written speaks against npu-smi's OK; after that the plugin counts as removed."""

FACTS_FRESH: Final = "FactsFresh"
"""The condition of an AscendNode that says whether the facts can be believed."""
_NET_WELL: Final = {"Success", "Init", "Unknown"}
"""hccn_tool's; Init where no address to detect was set."""


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
    agent = _agent(report, agent_ready=agent_ready, now=now)
    maps_say = told(facts.name, maps, now)
    holding = [pod for pod in pods if _holds_cards(pod, resource_name)]
    waiting = mindcluster.waiting((node.get("metadata") or {}).get("annotations") or {})
    from_maps = maps_say.fresh
    cards = _of_maps(agent, maps_say) if from_maps else agent.cards
    verdict = _of_both(agent, maps_say, now) if maps_say.where else _Verdict(agent.trust, agent.why)
    if not (report.get("virtual") or maps_say.recovering):
        verdict = _with_plugin(verdict, cards, facts.name, *_offered(node, resource_name))
    notes = [verdict.why, *maps_say.problems, *([str(waiting)] if isinstance(waiting, mindcluster.Unreadable) else [])]
    resets = waiting if isinstance(waiting, mindcluster.Waiting) else mindcluster.Waiting()
    return NodeHealth(
        name=facts.name,
        product=product or _product(report.get("product")) or facts.product,
        cards=cards,
        source=Source.MIND_CLUSTER if from_maps else Source.AGENT if report else Source.NONE,
        trust=verdict.trust,
        why="; ".join(note for note in notes if note),
        as_of=maps_say.updated if from_maps else agent.seen,
        measured=agent.seen,
        doubted_since=None if verdict.trust is Trust.FRESH else _doubted_since(status.get("conditions") or (), now),
        ready=facts.ready,
        hccs=report.get("hccs"),
        virtual=bool(report.get("virtual")),
        allocations_known=agent.trust not in {Trust.STALE, Trust.CONTRADICTORY} and bool(report.get("allocationsKnown")),
        pods=tuple(sorted(map(_name, holding))),
        uids={_name(pod): str(uid) for pod in holding if (uid := pod["metadata"].get("uid"))},
        hot_reset=hot_reset,
        recovering=(maps_say.recovering if from_maps else frozenset()) | resets.third_party,
        manual=resets.manual,
        reset=_reset(status.get("resets") or ()),
    )


@dataclass(frozen=True, slots=True)
class _Verdict:
    trust: Trust
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Agent:
    """What the node agent says: its cards, the missing ones too, and whether it can be believed about their health."""

    trust: Trust
    why: str
    seen: datetime | None
    cards: tuple[CardHealth, ...]
    words: Mapping[int, str]

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(card.physical for card in self.cards)


def _agent(report: Mapping[str, Any], *, agent_ready: bool | None, now: datetime) -> _Agent:
    seen = _moment(report.get("observedAt"))
    verdict = _agent_trust(report, seen, agent_ready=agent_ready, now=now)
    read, missing = tuple(report.get("cards") or ()), frozenset(report.get("missing") or ())
    if absurd := _absurd([card["physical"] for card in read], missing):
        verdict, read, missing = _Verdict(Trust.CONTRADICTORY, absurd), (), frozenset()
    # The agent lists a missing card as it last was, for its ids and for who was given it.
    cards = [_card(card, trust=verdict.trust) for card in read]
    cards = [replace(card, missing=True, known=False, pids=None) if card.physical in missing else card for card in cards]
    cards += [_absent(physical, cards) for physical in sorted(missing - {card.physical for card in cards})]
    cards.sort(key=lambda card: card.physical)
    words = {int(card["physical"]): str(card.get("health") or "Unknown") for card in read if not card.get("stale")}
    return _Agent(verdict.trust, verdict.why, seen, tuple(cards), words)


def _agent_trust(report: Mapping[str, Any], seen: datetime | None, *, agent_ready: bool | None, now: datetime) -> _Verdict:
    if not report:
        return _Verdict(Trust.UNAVAILABLE, "the node agent hasn't reported yet: see that its pod runs on the node")
    written = report.get("observedAt") or "nobody knows when"
    if agent_ready is False:
        return _Verdict(Trust.STALE, f"the node agent isn't ready; its facts are of {written}")
    if seen is None or now - seen > AGENT_FRESH_FOR:
        return _Verdict(Trust.STALE, f"the node agent's facts are of {written}, and should be written every 10 minutes")
    if seen - now > AGENT_AHEAD:
        return _Verdict(Trust.STALE, f"the node agent's facts are of {written}, which is yet to come: set the node's clock")
    tool = report.get("tool") or {}
    if tool.get("state") != "Working":
        how = str(tool.get("state") or "not read").lower()
        return _Verdict(Trust.UNAVAILABLE, f"npu-smi is {how}, which says nothing of the cards: {tool.get('message') or 'no output'}")
    return _Verdict(Trust.FRESH)


def _absurd(physical: list[int], missing: frozenset[int]) -> str:
    """Why no node can have these cards, in words. A remedy is told in requests that take no such ids, so it can't be about them."""
    if strange := sorted(number for number in {*physical, *missing} if not 0 <= number <= LAST_ID):
        return f"the node agent names card {strange[0]}, and physical ids are 0 to {LAST_ID}: see its log"
    if len(set(physical)) < len(physical):
        return "the node agent names a card twice: see its log"
    return ""


def _of_both(agent: _Agent, maps_say: Told, now: datetime) -> _Verdict:
    """Whether what is believed can be, where MindCluster says something too."""
    heard = agent.trust is Trust.FRESH
    if not maps_say.fresh:
        lost = [card.physical for card in agent.cards if _asks(maps_say.of(card.physical)) and not card.faults] if heard else []
        recent = maps_say.updated is not None and now - maps_say.updated <= REMEMBERED_FOR
        if lost and recent:
            return _Verdict(Trust.CONTRADICTORY, f"npu-smi finds {_listed(lost)} well, of which MindCluster's last word was a fault")
        return _Verdict(agent.trust, agent.why)
    if len(maps_say.listed | agent.ids) > MOST_CARDS:
        return _Verdict(Trust.CONTRADICTORY, f"MindCluster and the node agent name {len(maps_say.listed | agent.ids)} cards together")
    if not heard:
        return _Verdict(Trust.FRESH, agent.why)
    strange = sorted(maps_say.listed - agent.ids)
    if strange:
        return _Verdict(Trust.CONTRADICTORY, f"MindCluster names {_listed(strange)}, which npu-smi doesn't have")
    gone = sorted(card.physical for card in agent.cards if card.missing and card.physical in maps_say.available)
    if gone:
        return _Verdict(Trust.CONTRADICTORY, f"MindCluster offers {_listed(gone)}, which npu-smi has lost")
    sick = {physical for physical, word in agent.words.items() if word in {"Alarm", "Critical"}}
    unheard = sorted(sick - maps_say.recovering - (maps_say.faults or {}).keys())  # a fault of the host or switch explains no card's
    if unheard:
        return _Verdict(Trust.CONTRADICTORY, f"npu-smi calls {_listed(unheard)} sick, of which MindCluster knows no fault")
    return _Verdict(Trust.FRESH)


def _of_maps(agent: _Agent, maps_say: Told) -> tuple[CardHealth, ...]:
    """The agent's cards with MindCluster's faults, and those that only MindCluster names.

    Of a card that was missing when the agent was last believed nobody knows, unless MindCluster names it.
    """
    heard = agent.trust is Trust.FRESH
    everywhere = [*agent.cards, *(_absent(physical, agent.cards, missing=False) for physical in sorted(maps_say.listed - agent.ids))]
    everywhere.sort(key=lambda card: card.physical)
    return tuple(
        replace(
            card,
            missing=card.missing and heard,
            known=not card.missing or (not heard and card.physical in maps_say.listed),
            faults=maps_say.of(card.physical),
        )
        for card in everywhere
    )


def _with_plugin(verdict: _Verdict, cards: tuple[CardHealth, ...], node: str, offered: int, registered: int) -> _Verdict:
    """The device plugin's own word, as kubelet passes it on: fewer cards are allocatable than it has, and by what we know all are well.

    A fault that we know of explains it, and is dealt with first.
    """
    explained = any(card.missing or not card.known or card.grade not in {None, Grade.NOTE} for card in cards)
    if verdict.trust is not Trust.FRESH or explained or not cards or offered >= registered:
        return verdict
    why = (
        f"the device plugin offers {offered} of its {registered} cards, of which none has a fault: see its log and the node's events, "
        f"which `glm5 doctor --node {node}` reads"
    )
    return _Verdict(Trust.CONTRADICTORY, "; ".join(part for part in (verdict.why, why) if part))


def _offered(node: Mapping[str, Any], resource_name: str) -> tuple[int, int]:
    """Cards in the node's allocatable and capacity; no cards where it has none of their resources, or several."""
    facts, capacity = node_facts(node), extended_resources((node.get("status") or {}).get("capacity") or {})
    names = (resource_name,) if resource_name else resource_of((replace(facts, allocatable=capacity),))
    return (facts.allocatable.get(names[0], 0), capacity.get(names[0], 0)) if len(names) == 1 else (0, 0)


def _asks(faults: Iterable[Fault]) -> bool:
    """Something is to be done about them."""
    return any(GRADES.index(fault.grade) > GRADES.index(Grade.DEGRADED) for fault in faults)


def _listed(cards: Iterable[int]) -> str:
    ids = ", ".join(str(card) for card in cards)
    return f"card{'s' if ',' in ids else ''} {ids}"


def _card(card: Mapping[str, Any], *, trust: Trust) -> CardHealth:
    """A card as it was read last; what moves by itself counts only while it is read."""
    word = str(card.get("health") or "Unknown")
    holder = card.get("holder") or {}
    read = trust is Trust.FRESH and not card.get("stale")
    pids = card.get("pids")
    place = CardHealth(
        physical=int(card["physical"]),
        npu=int(card["npu"]),
        chip=int(card.get("chip") or 0),
        known=read and word != "Unknown",
        faults=worst_first((*_of_word(word, card.get("codes") or ()), *_of_network(card))),
        holder=f"{holder['namespace']}/{holder['pod']}" if holder else "",
        pids=None,
    )
    if not read:
        return place
    return replace(
        place,
        pids=None if pids is None else tuple(pids),
        memory_used=card.get("memoryUsed"),
        temperature=card.get("temperature"),
        utilisation=card.get("utilisation"),
        link_up={"Up": True, "Down": False}.get(str(card.get("link"))),
    )


def _of_word(word: str, codes: Iterable[str]) -> tuple[Fault, ...]:
    grade = levels.word_grade(word)
    if grade is None:
        return ()
    return tuple(Fault(str(code), word, levels.code_grade(str(code), word)) for code in codes) or (Fault(word, word, grade),)


def _of_network(card: Mapping[str, Any]) -> tuple[Fault, ...]:
    """A RoCE port without an address isn't used, so what its link does is no fault."""
    word = str(card.get("netHealth") or "")
    if card.get("link") == "Down" and card.get("address"):
        return (Fault("LinkDown", "Down", Grade.DEGRADED, network=True),)
    if card.get("address") and word and word not in _NET_WELL:
        return (Fault("NetHealth", word, Grade.DEGRADED, network=True),)
    return ()


def _absent(physical: int, cards: Iterable[CardHealth], *, missing: bool = True) -> CardHealth:
    """A card that npu-smi doesn't list: on products with two dies an NPU it belongs to its neighbour's, else its number is its NPU's."""
    sibling = next((card for card in cards if card.physical == physical ^ 1 and any(other.chip for other in cards)), None)
    npu, chip = (sibling.npu, physical & 1) if sibling else (physical, 0)
    return CardHealth(physical=physical, npu=npu, chip=chip, known=not missing, missing=missing, pids=None)


def _doubted_since(conditions: Iterable[Mapping[str, Any]], now: datetime) -> datetime:
    """Since the operator wrote so, else since now."""
    told = next((item for item in conditions if item.get("type") == FACTS_FRESH and item.get("status") == "False"), {})
    return _moment(told.get("lastTransitionTime")) or now


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
    if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return False
    containers = [*(pod["spec"].get("initContainers") or ()), *(pod["spec"].get("containers") or ())]
    asked = {name for container in containers for name in (container.get("resources") or {}).get("limits") or {}}
    return any(name.startswith("huawei.com/") or name == resource_name for name in asked)


def _name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _moment(text: object) -> datetime | None:
    """A time; None for what is none, and for one that can't be told in UTC."""
    try:
        read = datetime.fromisoformat(str(text))
        return read.astimezone(UTC) if read.tzinfo else read.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
