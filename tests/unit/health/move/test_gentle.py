"""A move is gentle with services: who gets requests leaves traffic first, and the last replica of a service is waited for.

The move is the real one; pods, their traffic and evictions are played by `Cluster`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.health.move.handover import SELDOM, Stepped, Wanted, step
from glm5_operator.health.move.way import Way, dump, load
from glm5_operator.health.remedy.policy import RETURN_TAKES, SETTLE
from glm5_operator.health.types import NodeHealth
from tests.support.clock import at
from tests.support.health import a_node, policy

DRAIN = policy().drain


@dataclass
class Cluster:
    """One node on its way, with pods of services ("" for none) on it, and which services have a replica in traffic elsewhere."""

    pods: dict[str, str]
    elsewhere: set[str] = field(default_factory=set)
    lent: bool = False
    wanted: bool = True
    obey: bool = True
    """Pods end when they are asked to."""
    labels: bool = True
    """Pods' labels can be changed."""
    quiet: dict[str, datetime] = field(default_factory=dict)
    last_since: dict[str, datetime] = field(default_factory=dict)
    way: Way | None = None
    seconds: float = 0

    @property
    def now(self) -> datetime:
        return at(seconds=self.seconds)

    @property
    def node(self) -> NodeHealth:
        return a_node(held_by=dict(enumerate(sorted(self.pods))))

    def serving(self) -> set[str]:
        return {pod for pod, service in self.pods.items() if service and pod not in self.quiet}

    def last(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for pod in sorted(self.serving() - self.last_of_elsewhere()):
            found.setdefault(self.pods[pod], pod)
        return {pod: service for service, pod in found.items()}

    def last_of_elsewhere(self) -> set[str]:
        return {pod for pod, service in self.pods.items() if service in self.elsewhere}

    def look(self, after: float = 1) -> Stepped:
        """One step, and what follows from it in the cluster. Holds what a move never does."""
        self.seconds += after
        last = self.last()
        wanted = Wanted(
            "inference",
            "training" if self.wanted else "",
            lent=self.lent,
            serving=frozenset(self.serving()),
            quiet=frozenset(self.quiet),
            last=last,
        )
        done = step(self.node, load(dump(self.way)), wanted, policy(), self.now)
        self.check(done, last)
        self.way = done.way
        if self.labels:
            self.quiet |= {pod: self.now for pod in done.quiesce if pod in self.serving()}
            self.quiet = {pod: since for pod, since in self.quiet.items() if pod not in done.back}
        if self.obey:
            for pod in done.evict:
                del self.pods[pod]
                self.quiet.pop(pod, None)
        return done

    def check(self, done: Stepped, last: dict[str, str]) -> None:
        assert done.holds or not (done.quiesce or done.evict or done.reset)
        for pod in done.evict:
            if self.pods[pod]:
                assert pod in self.quiet, f"{pod} is asked to end in traffic"
                assert self.now - self.quiet[pod] >= SETTLE, f"{pod} has only just left traffic"
        began = done.way.drained if done.way is not None else None
        for pod in last.keys() & set(done.quiesce):
            assert not self.lent, "a loan takes a last replica"
            assert began is not None
            assert self.now - began >= DRAIN, f"{pod} is the last one of its service"

    def looks(self, seconds: float, after: float = 1) -> list[Stepped]:
        return [self.look(after) for _ in range(int(seconds / after))]

    @property
    def reason(self) -> str:
        return self.way.reason if self.way is not None else ""


def test_pods_of_services_leave_traffic_before_they_are_asked_to_end_and_others_are_asked_at_once() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat", "team/job-0": ""}, {"prod/chat"})

    done = cluster.look()
    assert (done.quiesce, done.evict, cluster.reason) == (("prod/chat-0", "team/job-0"), ("team/job-0",), "Quieting")
    assert [cluster.look().evict for _ in range(3)] == [(), (), ("prod/chat-0",)]
    assert cluster.look().reset is not None


def test_a_pod_whose_label_can_not_be_changed_is_not_sent_away() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat"}, {"prod/chat"}, labels=False)

    assert {done.evict for done in cluster.looks(60)} == {()}
    assert cluster.reason == "Quieting"


def test_the_last_replica_of_a_service_is_waited_for_until_drain_is_over_and_the_move_says_which() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat"})

    seen = cluster.looks(DRAIN.total_seconds() - 10, after=10)
    assert {(done.quiesce, done.evict) for done in seen} == {((), ())}
    assert cluster.way is not None
    assert (cluster.way.state, cluster.way.reason) == ("Draining", "LastReplica")
    assert "service prod/chat" in cluster.way.message
    assert "prod/chat-0" in cluster.way.message
    assert "2026-11-29T12:15:10Z" in cluster.way.message

    cluster.looks(30)
    assert cluster.pods == {}


def test_a_replica_that_is_served_for_elsewhere_is_not_waited_for_any_longer() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat"})
    cluster.looks(60)
    assert cluster.reason == "LastReplica"

    cluster.elsewhere.add("prod/chat")
    cluster.looks(5)

    assert cluster.pods == {}


def test_of_two_replicas_on_the_node_one_goes_and_the_other_waits_for_its_heir() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat", "prod/chat-1": "prod/chat"})

    cluster.looks(60)

    assert list(cluster.pods) == ["prod/chat-0"]
    assert cluster.reason == "LastReplica"
    assert cluster.quiet == {}


def test_a_pod_that_was_waited_for_has_its_time_to_end() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat"}, obey=False)
    cluster.looks(DRAIN.total_seconds() + 60, after=10)
    assert cluster.reason == "PodsEnding"

    cluster.looks(DRAIN.total_seconds(), after=10)
    assert (cluster.reason, cluster.quiet) == ("PodsDoNotEnd", {}), "it serves on until the next try"

    cluster.looks(2 * DRAIN.total_seconds(), after=10)
    assert cluster.quiet
    assert cluster.reason == "PodsEnding"


def test_a_pod_that_can_not_be_taken_out_of_traffic_is_told_and_serves_on() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat"}, {"prod/chat"}, labels=False)
    cluster.looks(60)
    assert cluster.reason == "Quieting"

    cluster.looks(DRAIN.total_seconds() + RETURN_TAKES.total_seconds(), after=10)
    assert cluster.way is not None
    assert (cluster.way.state, cluster.way.reason) == ("Blocked", "PodsDoNotEnd")
    assert "prod/chat-0 can't be taken out of traffic" in cluster.way.message


def test_a_loan_whose_pods_do_not_end_is_given_up_and_they_serve_on() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat"}, {"prod/chat"}, lent=True, obey=False)
    cluster.looks(60)
    assert cluster.quiet

    done = next(done for done in cluster.looks(2 * DRAIN.total_seconds(), after=10) if done.gives_up)
    assert done.way is not None
    assert "prod/chat-0 hasn't ended" in done.way.message
    cluster.wanted = False
    cluster.looks(2)
    assert (cluster.way, cluster.quiet) == (None, {})


def test_while_only_an_heir_is_waited_for_the_node_is_looked_at_seldom_and_in_time() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat", "team/job-0": ""})
    assert [done.requeue_after for done in cluster.looks(2)] == [SELDOM, SELDOM]
    cluster.seconds = DRAIN.total_seconds() - 20
    assert cluster.look().requeue_after == timedelta(seconds=20)


def test_a_loan_does_not_begin_on_a_node_with_a_last_replica() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat"}, lent=True)

    done = cluster.look()

    assert (done.gives_up, done.holds, done.quiesce, done.evict) == (True, False, (), ())
    assert cluster.way is not None
    assert (cluster.way.state, cluster.way.reason) == ("Waiting", "GivenUp")
    assert "service prod/chat" in cluster.way.message
    cluster.wanted = False
    assert cluster.look() == Stepped()


def test_a_loan_that_would_take_a_last_replica_in_the_end_is_given_up_and_all_go_back_into_traffic() -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat", "prod/code-0": "prod/code"}, {"prod/code"}, lent=True)
    cluster.pods.pop("prod/chat-0")
    cluster.looks(2)
    assert cluster.quiet.keys() == {"prod/code-0"}

    cluster.pods["prod/chat-0"] = "prod/chat"  # it tolerates our taint, or was bound a moment before
    assert cluster.look().gives_up
    cluster.wanted = False
    assert cluster.look().back == ("prod/code-0",)
    assert cluster.look() == Stepped()


def test_a_loan_takes_no_last_replica_either_when_other_pods_have_had_their_time() -> None:
    cluster = Cluster({"team/job-0": ""}, lent=True, obey=False)
    cluster.looks(DRAIN.total_seconds() - 60, after=10)
    assert cluster.reason == "PodsEnding"

    cluster.pods["prod/chat-0"] = "prod/chat"
    assert cluster.look().gives_up


@pytest.mark.parametrize("labels", [True, False])
def test_a_stopped_move_is_over_when_its_pods_are_back_in_traffic_or_after_a_while(labels: bool) -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat"}, {"prod/chat"}, obey=False)
    cluster.looks(10)
    assert cluster.quiet

    cluster.wanted, cluster.labels = False, labels
    done = cluster.look()
    assert (done.back, done.holds, done.evict, cluster.reason) == (("prod/chat-0",), True, (), "Stopped")
    cluster.looks(1 if labels else RETURN_TAKES.total_seconds())
    assert cluster.way is None
    assert bool(cluster.quiet) is not labels


def test_a_move_that_has_not_begun_leaves_what_a_remedy_took_out_of_traffic() -> None:
    way = Way("inference", "training", "Waiting", at(), at(), reason="InRemedy")

    assert (
        step(a_node(held_by={0: "prod/chat-0"}), way, Wanted("inference", "", quiet=frozenset({"prod/chat-0"})), policy(), at(seconds=1))
        == Stepped()
    )


EVENTS = ("wait", "wait", "long", "heir", "no heir", "arrives", "another", "ends", "stop", "go", "stuck")


@given(st.booleans(), st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 30)), max_size=40))
def test_whatever_happens_no_service_is_taken_by_surprise_and_after_a_stop_all_are_back(lent: bool, events: list[tuple[str, int]]) -> None:
    cluster = Cluster({"prod/chat-0": "prod/chat", "prod/code-0": "prod/code", "team/job-0": ""}, {"prod/code"}, lent=lent)
    for number, (event, seconds) in enumerate(events):
        match event:
            case "long":
                cluster.seconds += 400
            case "heir":
                cluster.elsewhere.add("prod/chat")
            case "no heir":
                cluster.elsewhere.discard("prod/chat" if number % 2 else "prod/code")
            case "arrives" if len(cluster.pods) < 8:
                cluster.pods[f"prod/code-{number + 1}"] = "prod/code"
            case "another" if len(cluster.pods) < 8:
                cluster.pods[f"prod/solo-{number}"] = "prod/solo"
            case "ends" if cluster.pods:
                cluster.quiet.pop(pod := min(cluster.pods), None)
                del cluster.pods[pod]
            case "stop" | "go":
                cluster.wanted = event == "go"
            case "stuck":
                cluster.obey = not cluster.obey
        cluster.look(seconds)
    cluster.wanted = False
    resets = cluster.way is not None and cluster.way.state == "Resetting"
    cluster.looks(3)
    if not resets:
        assert (cluster.way, cluster.quiet) == (None, {})
