"""A small version of the remedy, searched to its end: one pool, one A2 node of two cards, every order of events.

Card 0 gets every kind of fault, a pod comes and goes on card 1, or as the last one of its service on card 0, facts go stale, other nodes
take the room, the agent answers everything it can answer, MindCluster resets or doesn't, a person releases. Time passes in steps of a
quarter of an hour or not at all; ages beyond all limits are one. Budgets never refill here, which allows more than life does: what can't
happen here can't happen there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, cast

import pytest

from glm5_operator.health.remedy.answers import check_id
from glm5_operator.health.remedy.decision import OUT_OF_SERVICE, ComputeCheck, Decision, Room, Step
from glm5_operator.health.remedy.machine import decide
from glm5_operator.health.remedy.memory import Checked, Entry, Memory
from glm5_operator.health.remedy.policy import Policy
from glm5_operator.health.types import CardHealth, Fault, Grade, NodeHealth, Product, ResetResult, Trust
from tests.support.clock import BEGIN

QUARTER = timedelta(minutes=15)
OLDEST = 4  # quarters; the longest limit is an hour


class Small(Policy):
    """One remedy more than the reset, so that the search ends soon."""

    @property
    def remedies(self) -> int:
        return 1


POLICY = Small(
    mode="Auto", resets=1, window=timedelta(days=365), debounce=QUARTER, verify=QUARTER, drain=QUARTER, compute_check=True, thermal=()
)
FAULTS = (None, Grade.RESTART_ENGINE, Grade.RESET_WHEN_IDLE, Grade.RESET, Grade.NO_NEW_PODS, Grade.ISOLATE)
CHECKS = ("Passed", "Failed", "CouldNotRun")
ANSWERS = (None, "Running", "Succeeded", "Failed", "Unknown", "Refused:CardsBusy", "Refused:NeedsHost")
PODS = ("team-x/notebook-0",)
REST = frozenset({"Healthy", "Suspect", "Quarantined"})


@dataclass(frozen=True)
class Event:
    """What is the case at one look."""

    fault: Grade | None = None
    held: bool = False
    fresh: bool = True
    answer: str | None = None
    others: int = 0
    last: bool = False
    recovering: bool = False
    released: bool = False
    hot_reset: bool = False
    check: str = "Waiting"
    later: bool = True

    def room(self, memory: Memory) -> Room:
        unavailable = "no image" if self.check == "Unavailable" else ""
        state = cast(Any, "Waiting" if unavailable else self.check)
        return Room(
            others=self.others,
            last=frozenset(PODS) if self.last else frozenset(),
            check=ComputeCheck(check_id(memory), state, unavailable=unavailable),
        )

    @property
    def node(self) -> NodeHealth:
        faults = (Fault("X", self.fault.value, self.fault),) if self.fault else ()
        cards = (
            CardHealth(0, 0, faults=faults, holder=PODS[0] if self.held and self.last else "", memory_used=3000),
            CardHealth(1, 1, holder=PODS[0] if self.held and not self.last else "", memory_used=3000),
        )
        state, _, reason = (self.answer or "").partition(":")
        return NodeHealth(
            "n",
            Product.A2,
            cards,
            trust=Trust.FRESH if self.fresh else Trust.STALE,
            hccs=True,
            pods=PODS if self.held else (),
            hot_reset=self.hot_reset,
            recovering=frozenset({0}) if self.recovering else frozenset(),
            reset=ResetResult("asked", state, reason) if state else None,
        )


def events(memory: Memory, *, hot_reset: bool) -> Iterator[Event]:
    """Everything that matters in this state."""
    for later in (False, True):
        yield Event(fresh=False, hot_reset=hot_reset, later=later)
        for fault in FAULTS:
            for held in (False, True):
                plain = Event(fault, held, hot_reset=hot_reset, later=later)
                yield plain
                if memory.state in {"Healthy", "Suspect", "Quiescing"}:
                    yield replace(plain, others=1)
                    if held and fault in {Grade.RESTART_ENGINE, Grade.RESET}:
                        yield replace(plain, last=True)
                if memory.state == "Resetting":
                    yield from (replace(plain, answer=answer) for answer in ANSWERS if answer)
                if check_id(memory) and fault in {None, Grade.RESET}:
                    yield from (replace(plain, check=check) for check in CHECKS)
                elif memory.state == "Verifying" and memory.check is None and fault is None:
                    yield replace(plain, check="Unavailable")
                if memory.state == "Quarantined":
                    yield replace(plain, released=True)
                if hot_reset:
                    yield replace(plain, recovering=True)


@cache
def look(memory: Memory, event: Event) -> tuple[Decision, Memory]:
    """The decision, and its memory with all times as ages."""
    now = BEGIN + (QUARTER if event.later else timedelta(0))
    decision = decide(event.node, POLICY, memory, event.room(memory), now, released=event.released)
    return decision, aged(decision.memory, now)


def aged(memory: Memory, now: datetime) -> Memory:
    """The same memory with all times as ages, and without what no decision in this state reads."""

    def age(time: datetime | None, most: int = OLDEST) -> datetime | None:
        return None if time is None else BEGIN - QUARTER * min(most, (now - time) // QUARTER)

    timed = memory.state not in {"Healthy", "Quiescing", "Returning", "Quarantined"} and (memory.state != "Suspect" or memory.restarted)
    reason_timed = memory.state in {"Quiescing", "Draining"} or memory.reason.startswith("Facts")
    since = age(memory.since) if timed else BEGIN
    reason_since = age(memory.reason_since) if reason_timed else since
    memory = replace(
        memory,
        since=since,
        healthy_since=age(memory.healthy_since, 1),
        resets=(BEGIN,) * len(memory.resets),
        remedies=(BEGIN,) * len(memory.remedies),
        history=(Entry(reason_since or BEGIN, memory.state, memory.reason),),
        check=_checked(memory.check, now),
        id="asked" if memory.state in {"Resetting", "Verifying"} and memory.id else "",
        message="",
    )
    if memory.state in {"Healthy", "Quarantined"} or (memory.state == "Returning" and not memory.reason.startswith("Facts")):
        memory = replace(memory, reason="", history=(), faulty=(), cards=(), radius=None, healthy_since=None, linked=(), restarted=())
    return memory


def _checked(check: Checked | None, now: datetime) -> Checked | None:
    """One that has its answer has no age, and a check that was skipped is as one that went well."""
    if check is None or check.state == "Asked":
        return check and Checked("Asked", BEGIN - min(QUARTER, now - check.since))
    return Checked("Failed" if check.state == "Failed" else "Passed", BEGIN)


@cache
def reachable(hot_reset: bool) -> dict[Memory, list[tuple[Event, Decision, Memory]]]:
    """All states there are, with all that can happen in them."""
    found: dict[Memory, list[tuple[Event, Decision, Memory]]] = {}
    todo = deque([Memory()])
    while todo:
        memory = todo.popleft()
        if memory in found:
            continue
        found[memory] = [(event, *look(memory, event)) for event in events(memory, hot_reset=hot_reset)]
        todo.extend(after for _, _, after in found[memory])
    return found


@pytest.fixture(params=[False, True], ids=["resets", "MindCluster resets"])
def graph(request: pytest.FixtureRequest) -> dict[Memory, list[tuple[Event, Decision, Memory]]]:
    return reachable(request.param)


Graph = dict[Memory, list[tuple[Event, Decision, Memory]]]


def test_no_reset_is_asked_for_while_somebody_holds_a_card_or_the_budget_is_spent(graph: Graph) -> None:
    for before, steps in graph.items():
        for event, decision, _ in steps:
            asked_anew = decision.reset is not None and before.state != "Resetting"
            assert not (asked_anew and (event.held or not event.fresh or event.recovering)), (before, event)
            assert not (decision.reset and event.fresh and event.held and not event.answer), (before, event)
            assert len(decision.memory.resets) <= POLICY.resets, (before, event)


def test_nothing_is_done_on_facts_that_are_not_fresh(graph: Graph) -> None:
    for before, steps in graph.items():
        for event, decision, after in steps:
            if not event.fresh:
                assert (decision.quiesce, decision.evict, decision.restart) == ((), (), ()), (before, event)
                assert after.state in {before.state, "Quarantined"}, (before, event)
                assert (decision.reset is not None) == (before.state == "Resetting" == after.state), (before, event)


def test_a_check_by_computing_is_asked_for_in_verify_alone_and_what_it_cannot_say_holds_nothing_up(graph: Graph) -> None:
    seen = set()
    for before, steps in graph.items():
        for event, decision, after in steps:
            assert not decision.check or (after.state == "Verifying" and decision.reset is None and not decision.evict), (before, event)
            if check_id(before) and event.fresh and event.fault is None and not event.recovering:
                seen.add((event.check, after.state))
    assert {("Passed", "Returning"), ("CouldNotRun", "Returning"), ("Waiting", "Returning"), ("Failed", "Quarantined")} <= seen
    assert ("Failed", "Returning") not in seen
    assert ("Passed", "Draining") not in seen


def test_the_last_replica_in_traffic_is_kept_for_as_long_as_pods_have_to_end(graph: Graph) -> None:
    taken = set()
    for before, steps in graph.items():
        for event, decision, _ in steps:
            now = BEGIN + (QUARTER if event.later else timedelta(0))
            if event.last and decision.restart:
                assert before.since is not None
                assert now - before.since >= POLICY.drain, (before, event)
                taken.add("restarted")
            if event.last and decision.evict and before.state in {"Healthy", "Suspect", "Quiescing"}:
                assert (before.state, before.reason) == ("Quiescing", "LastReplica"), (before, event)
                assert before.reason_since is not None
                assert now - before.reason_since >= POLICY.drain, (before, event)
                taken.add("drained")
    assert taken == {"restarted", "drained"}


def test_only_a_person_ends_a_quarantine(graph: Graph) -> None:
    for before, steps in graph.items():
        for event, _, after in steps:
            assert before.state != "Quarantined" or after.state == "Quarantined" or event.released, (before, event)


def test_a_node_leaves_service_only_where_there_is_room(graph: Graph) -> None:
    for before, steps in graph.items():
        for event, decision, after in steps:
            if event.others and before.state not in OUT_OF_SERVICE:
                assert after.state not in OUT_OF_SERVICE - {"Returning", "WaitingMindCluster"}, (before, event)
                assert decision.evict == (), (before, event)


def test_it_leaves_and_comes_back_a_bounded_number_of_times(graph: Graph) -> None:
    assert max(len(memory.remedies) for memory in graph) == POLICY.remedies + 1
    for before, steps in graph.items():
        if len(before.remedies) > POLICY.remedies:
            assert not any(after.state == "Healthy" for event, _, after in steps if before.state not in {"Returning", "Healthy"}), before


def test_whatever_stays_as_it_is_the_remedy_comes_to_rest(graph: Graph) -> None:
    good: set[tuple[Memory, Event]] = set()
    for start, steps in graph.items():
        for steady in {replace(event, later=True, others=0, released=False) for event, _, _ in steps}:
            path: list[Memory] = []
            memory = start
            while memory not in path and (memory, steady) not in good:
                path.append(memory)
                memory = look(memory, steady)[1]
            if memory in path:  # from here on it goes round: mostly in one place
                assert {each.state for each in path[path.index(memory) :]} <= REST, (start, steady)
            assert len(path) < 40, (start, steady)
            good |= {(each, steady) for each in path}


def test_from_everywhere_a_node_that_is_well_gets_back_into_service(graph: Graph) -> None:
    for start in graph:
        memory = start
        for _ in range(20):
            answer = "Succeeded" if memory.state == "Resetting" else None
            decision, memory = look(memory, Event(answer=answer, released=memory.state == "Quarantined"))
            if memory.state == "Healthy" and decision.step is Step.NO_ACTION and not decision.taint:
                break
        else:
            pytest.fail(f"not back from {start}")
