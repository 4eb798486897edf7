"""What /healthz and /readyz answer. Pure: time is a number."""

from __future__ import annotations

import random

from glm5_operator.kube.health import Health
from glm5_operator.kube.queue import Backoff, WorkQueue
from glm5_operator.kube.types import Key

KEY = Key("GLM5Service", "ns", "a")


def a_health(now: float = 0.0) -> Health:
    health = Health(dead_after=180.0, reconcile_timeout=60.0, started=now)
    health.tick(now)
    return health


def a_queue() -> WorkQueue:
    return WorkQueue(Backoff(1.0, 60.0, 5, 60.0), random.Random(1))


def faults(health: Health, now: float, queue: WorkQueue | None = None, *, working: bool = True) -> list[str]:
    health.tick(now)
    return health.live_faults(now, queue or a_queue(), working=working)


def test_a_fresh_process_is_alive_but_not_ready() -> None:
    health = a_health()

    assert faults(health, 1.0) == []
    assert health.ready_faults(1.0) != []
    health.synced = True
    assert health.ready_faults(1.0) == []


def test_a_silent_watch_fails_liveness_and_names_its_kind() -> None:
    health = a_health()
    health.expect("Pod", 0.0)
    health.expect("Node", 0.0)
    health.sign_of_life("Node", 170.0)

    assert faults(health, 179.0) == []
    assert faults(health, 190.0) == ["the watch of Pod gave no sign of life for 190 s"]
    health.sign_of_life("Pod", 200.0)
    assert faults(health, 201.0) == []


def test_a_dead_watch_of_one_namespace_does_not_hide_behind_the_others() -> None:
    health = a_health()
    for namespace in ("prod", "test"):
        health.expect("Pod", 0.0, namespace)
    health.sign_of_life("Pod", 170.0, "test")

    assert faults(health, 190.0) == ["the watch of Pod in namespace prod gave no sign of life for 190 s"]
    assert health.watch_ages(190.0) == {("Pod",): 190.0}


def test_news_of_any_namespace_are_a_sign_of_life_of_the_clusters_one_watch() -> None:
    health = a_health()
    health.expect("Pod", 0.0)
    health.sign_of_life("Pod", 170.0, "prod")

    assert faults(health, 190.0) == []


def test_a_kind_that_is_not_watched_yet_is_not_missed() -> None:
    health = a_health()
    health.sign_of_life("Pod", 0.0)

    assert faults(health, 1000.0) == []
    assert health.watch_ages(1000.0) == {}


def test_a_stuck_event_loop_fails_liveness() -> None:
    health = a_health()

    assert "the event loop has not run for 11 s" in health.live_faults(11.0, a_queue(), working=True)


def test_a_reconcile_that_outlives_its_timeout_fails_liveness() -> None:
    health, queue = a_health(), a_queue()
    queue.add(KEY, 0.0)
    queue.take(0.0)

    assert faults(health, 100.0, queue) == []
    assert faults(health, 130.0, queue) == ["a reconcile has been running for 130 s"]


def test_a_key_that_no_worker_takes_fails_liveness_only_of_who_works() -> None:
    health, queue = a_health(), a_queue()
    queue.add(KEY, 0.0)

    assert faults(health, 130.0, queue) == ["a key has been due for 130 s and no worker takes it"]
    assert faults(health, 130.0, queue, working=False) == [], "a standby's queue waits for the lease"


def test_a_long_line_with_busy_workers_is_slow_not_dead() -> None:
    health, queue = a_health(), a_queue()
    queue.add(KEY, 0.0)
    queue.add(Key("GLM5Service", "ns", "b"), 0.0)
    queue.take(125.0)

    assert faults(health, 130.0, queue) == []
