"""Properties of the remedy: any order of events in a small world, any facts whatever, and a status that says all that a memory knows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from glm5_operator.api.health_policy import Mode
from glm5_operator.api.node import RemedyReport, RemedyState
from glm5_operator.health.remedy.answers import check_id
from glm5_operator.health.remedy.decision import ComputeCheck, Room
from glm5_operator.health.remedy.machine import decide
from glm5_operator.health.remedy.memory import Checked, Memory, dump, load
from glm5_operator.health.remedy.policy import Policy, Thermal
from glm5_operator.health.types import CardHealth, Fault, Grade, NodeHealth, Product, ResetResult, Source, Trust
from tests.support.clock import BEGIN
from tests.unit.health.remedy.test_chaos import COMPUTES, OUTCOMES
from tests.unit.health.remedy.world import CARDS, Pod, World, settle

STATES: tuple[RemedyState, ...] = (
    "Healthy", "Suspect", "Quiescing", "Draining", "WaitingMindCluster", "Resetting", "Verifying", "Returning", "Quarantined",
)  # fmt: skip
number = st.integers(0, CARDS - 1)


class Remedy(RuleBasedStateMachine):
    """One node, and whoever wants to break it. `World.check` holds the invariants on each decision; in the end it must come to rest."""

    @initialize(resets=st.integers(0, 2), hot_reset=st.booleans(), debounce=st.sampled_from((0, 60)), computes=st.booleans())
    def begin(self, resets: int, hot_reset: bool, debounce: int, computes: bool) -> None:
        self.outcomes = list(OUTCOMES)
        self.outcome = "Heals"
        hot = (Thermal(85, 95, timedelta(minutes=1), "Reset"),)
        policy = Policy(mode="Auto", resets=resets, debounce=timedelta(seconds=debounce), compute_check=computes, thermal=hot)
        self.world = World(policy, 1, lambda: self.outcome, hot_reset=hot_reset)
        self.site = self.world.sites[0]
        self.pods = 0

    @rule(seconds=st.sampled_from((1, 2, 5, 30, 120, 600, 3600, 43200)), times=st.integers(1, 8))
    def wait(self, seconds: int, times: int) -> None:
        for _ in range(times):
            self.world.tick(seconds)

    @rule(card=number, grade=st.sampled_from((None, *Grade, Grade.RESET, Grade.RESET)))
    def fault(self, card: int, grade: Grade | None) -> None:
        self.site.cards[card].grade = grade

    @rule(card=number, field=st.sampled_from(("missing", "process", "hot", "readable")))
    def flip(self, card: int, field: str) -> None:
        setattr(self.site.cards[card], field, not getattr(self.site.cards[card], field))

    @rule(card=number, stuck=st.booleans())
    def pod(self, card: int, stuck: bool) -> None:
        if not self.site.holder(card) and not self.site.running:
            self.pods += 1
            self.site.pods[f"prod/chat-{self.pods}"] = Pod(f"prod/chat-{self.pods}", "chat", (card,), stuck=stuck)

    @rule()
    def agent(self) -> None:
        if self.site.alive:
            self.world.kill_agent(self.site)
        else:
            self.world.start_agent(self.site)

    @rule(outcome=st.sampled_from(sorted(set(OUTCOMES))))
    def resets_end(self, outcome: str) -> None:
        self.outcome = outcome

    @rule(result=st.sampled_from(sorted(set(COMPUTES))))
    def checks_end(self, result: str) -> None:
        self.world.computes = lambda: result

    @rule(died=st.lists(st.booleans(), min_size=1, max_size=3))
    def operator_dies(self, died: list[bool]) -> None:
        left = iter(died)
        self.world.dies = lambda: next(left, False)

    @rule(mode=st.sampled_from(("Auto", "Auto", "DryRun", "Off")))
    def mode(self, mode: Mode) -> None:
        self.world.policy = replace(self.world.policy, mode=mode)

    @precondition(lambda self: self.site.memory.state == "Quarantined")
    @rule()
    def release(self) -> None:
        self.site.released = True

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.dies = lambda: False
        self.world.policy = replace(self.world.policy, mode="Auto")
        settle(self.world, step=20)


TestRemedy = Remedy.TestCase
TestRemedy.settings = settings(
    max_examples=60, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # wall time is the machine's: tests of eight people share it


# --- any facts, any memory ---------------------------------------------------------------------------------------------------

moments = st.integers(-200_000, 200_000).map(lambda seconds: BEGIN + timedelta(seconds=seconds))
names = st.sampled_from(("a/x", "a/y", "b/z"))
faults = st.builds(Fault, st.just("X"), st.just("y"), st.sampled_from(Grade), st.booleans())
cards = st.lists(
    st.builds(
        CardHealth,
        physical=st.integers(0, 5),
        npu=st.integers(0, 3),
        known=st.booleans(),
        missing=st.booleans(),
        faults=st.lists(faults, max_size=2).map(tuple),
        holder=st.one_of(st.just(""), names),
        pids=st.sampled_from((None, (), (1,))),
        memory_used=st.sampled_from((None, 0, 99_999)),
        temperature=st.sampled_from((None, 99)),
        utilisation=st.sampled_from((None, 99)),
        link_up=st.sampled_from((None, True, False)),
    ),
    max_size=4,
    unique_by=lambda card: card.physical,
).map(tuple)
some = st.frozensets(st.integers(0, 5), max_size=2)
nodes = st.builds(
    NodeHealth,
    name=st.just("n"),
    product=st.sampled_from((None, *Product)),
    cards=cards,
    source=st.sampled_from(Source),
    trust=st.sampled_from((Trust.FRESH, *Trust)),
    as_of=st.one_of(st.none(), moments),
    measured=st.one_of(st.none(), moments),
    ready=st.booleans(),
    hccs=st.sampled_from((None, True, False)),
    virtual=st.booleans(),
    allocations_known=st.booleans(),
    pods=st.lists(names, max_size=2, unique=True).map(tuple),
    uids=st.dictionaries(names, st.sampled_from(("u1", "u2")), max_size=2),
    hot_reset=st.booleans(),
    recovering=some,
    manual=some,
    reset=st.one_of(st.none(), st.builds(ResetResult, st.just("r"), st.sampled_from(("Running", "Succeeded", "Failed", "Refused", "New")))),
)
ids = st.lists(st.integers(0, 5), max_size=3, unique=True).map(tuple)
memories = st.builds(
    Memory,
    state=st.sampled_from(STATES),
    since=st.one_of(st.none(), moments),
    reason=st.sampled_from(("CardFault", "Degraded", "LastReplica", "FactsStale", "Idle")),
    dry_run=st.booleans(),
    id=st.sampled_from(("", "r")),
    radius=st.sampled_from((None, "Node", "Device", "Card")),
    cards=ids,
    faulty=ids,
    restarted=ids,
    restarting=st.sampled_from(((), ("a/x/u1",), ("a/x/", "b/z/u2"))),
    linked=ids,
    resets=st.lists(moments, max_size=3).map(tuple),
    remedies=st.lists(moments, max_size=3).map(tuple),
    quieted=st.lists(names, max_size=2, unique=True).map(tuple),
    cordoned=st.booleans(),
    healthy_since=st.one_of(st.none(), moments),
    check=st.one_of(st.none(), st.builds(Checked, st.sampled_from(("Asked", "Passed", "Failed", "Skipped")), moments, st.just("x"))),
)
checks = st.tuples(st.sampled_from(("Waiting", "Passed", "Failed", "CouldNotRun")), st.sampled_from(("", "no image")))
rooms = st.builds(Room, st.integers(0, 1), st.frozensets(names), st.frozensets(names), st.frozensets(names))
modes = st.sampled_from(("Auto", "Auto", "DryRun", "Off"))


@given(nodes, memories, modes, st.booleans(), st.tuples(moments, checks, rooms))
def test_whatever_the_facts_and_the_status_say_there_is_a_decision_and_it_is_the_same_twice(
    node: NodeHealth, memory: Memory, mode: Mode, released: bool, look: tuple[datetime, tuple[Any, str], Room]
) -> None:
    now, known, room = look
    policy = Policy(mode=mode, compute_check=True)
    room = replace(room, check=ComputeCheck(check_id(memory), known[0], unavailable=known[1]))
    decision = decide(node, policy, memory, room, now, released=released)

    assert decide(node, policy, memory, room, now, released=released) == decision
    assert not decision.check or (decision.memory.state == "Verifying" and decision.reset is None)
    assert load(dump(decision.memory)) == decision.memory
    assert not set(decision.restart) & room.last or decision.memory.since != now.replace(microsecond=0), "the last replica is waited for"
    if node.reset is not None and node.reset.state == "Running":
        assert decision.memory.state != "Returning" or memory.state == "Returning", "nothing returns under a running reset"
    if decision.reset and memory.state != "Resetting":
        taken = {card.physical: card for card in node.cards if card.physical in decision.reset.cards}
        assert node.trust is Trust.FRESH
        assert taken.keys() == set(decision.reset.cards)
        assert all(card.known and card.pids == () and not card.holder for card in taken.values())
        assert node.allocations_known
        assert decision.reset.radius != "Node" or not node.pods


@given(memories)
def test_the_status_says_all_that_a_memory_knows(memory: Memory) -> None:
    memory = memory.to(memory.since or BEGIN, memory.state, memory.reason, memory.message)
    report = dump(memory)

    assert load(report) == memory
    assert load(RemedyReport.model_validate_json(report.model_dump_json(by_alias=True, exclude_none=True))) == memory
