"""Who is asked for progress, what is taken of the answers, and how often. Faked: the pods' answers and the clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from glm5_operator.controllers import training_metrics
from glm5_operator.controllers.progress import SIDE_BY_SIDE, ProgressPoller
from glm5_operator.kube import Cache, Key
from glm5_operator.metrics import Metrics
from glm5_operator.pods import PodReader
from tests.support.clock import at
from tests.unit.controllers.test_finetune import KEY, a_run, job_of, pod

Json = dict[str, Any]


@dataclass
class Edge:
    """Stands in for PodReader: what each address answers, and who was asked."""

    answers: Json = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    woken: list[Key] = field(default_factory=list)
    now: datetime = field(default_factory=at)
    cache: Cache = field(default_factory=Cache)
    poller: ProgressPoller = field(init=False)

    def __post_init__(self) -> None:
        reader = cast(PodReader, self)
        interval, tell = timedelta(seconds=5), timedelta(seconds=10)
        self.poller = ProgressPoller(self.cache, reader, self.woken.append, interval, tell, 8090, now=lambda: self.now)

    async def read(self, hosts: Iterable[str], _port: int, _path: str) -> Json:
        self.asked.append(list(hosts))
        return {host: self.answers[host] for host in self.asked[-1] if host in self.answers}

    async def round(self, seconds: float = 0) -> None:
        self.now = at(seconds=seconds)
        await self.poller.round()

    def step(self, uid: str = "job-1") -> int | None:
        heard = self.poller.heard(uid)
        return None if heard is None else heard.answer["step"]


def rank(index: int = 0, *, host: str = "10.0.0.1", **fields: Any) -> Json:  # noqa: ANN401 - fields of a_rank
    made = pod(rank=index, podIP=host, **fields)
    made["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
    return made


def edge_with(*resources: Json) -> Edge:
    edge = Edge()
    for resource in resources:
        edge.cache.put(resource)
    return edge


RUN = a_run()
JOB = job_of(RUN)


async def test_the_first_pod_of_a_running_attempt_is_asked_and_its_news_wakes_the_job() -> None:
    edge = edge_with(RUN, JOB, rank(), rank(1, host="10.0.0.2"))
    edge.answers = {"10.0.0.1": {"attempt": 1, "step": 7}}

    await edge.round()

    assert edge.asked == [["10.0.0.1"]]
    assert (edge.step(), edge.woken) == (7, [KEY])


async def test_news_is_told_at_most_once_in_a_while_and_only_when_it_is_news() -> None:
    edge = edge_with(RUN, JOB, rank())
    told = []
    for seconds, step in ((0, 1), (5, 2), (10, 3), (15, 3), (40, 3), (45, 4)):
        edge.answers = {"10.0.0.1": {"attempt": 1, "step": step}}
        await edge.round(seconds)
        told.append(edge.step())

    assert told == [1, 1, 3, 3, 3, 4]
    assert len(edge.woken) == 3


@pytest.mark.parametrize("answer", [{}, {"step": 7}, {"attempt": 2, "step": 7}, {"attempt": "1", "step": 7}, {"attempt": True, "step": 7}])
async def test_an_answer_of_another_attempt_or_of_none_is_not_taken(answer: Json) -> None:
    edge = edge_with(RUN, JOB, rank())
    edge.answers = {"10.0.0.1": answer}

    await edge.round()

    assert (edge.step(), edge.woken) == (None, [])


@pytest.mark.parametrize(
    "resources",
    [
        (RUN, job_of(RUN, 1, "Complete"), rank()),
        (RUN, job_of(RUN, 1, "FailureTarget"), rank()),
        (RUN, JOB, rank(phase="Pending")),
        (RUN, JOB, rank(deleted=True)),
        (RUN, JOB, rank(host="")),
        (RUN, JOB, rank(attempt=2)),
    ],
    ids=["done", "failing", "pending", "going", "no address", "of another Job"],
)
async def test_nobody_else_is_asked(resources: tuple[Json, ...]) -> None:
    edge = edge_with(*resources)

    await edge.round()

    assert edge.asked == []


async def test_what_is_no_longer_there_is_forgotten() -> None:
    edge = edge_with(RUN, JOB, rank())
    edge.answers = {"10.0.0.1": {"attempt": 1, "step": 7}}
    await edge.round()
    edge.cache.drop({**JOB, "metadata": {**JOB["metadata"], "resourceVersion": "9"}})

    await edge.round(20)

    assert edge.step() is None


async def test_many_are_asked_in_turns() -> None:
    edge = Edge()
    for number in range(SIDE_BY_SIDE + 1):
        run = a_run(f"run-{number}")
        job = job_of(run)
        job["metadata"] |= {"uid": f"job-of-{number}", "name": f"run-{number}-attempt-1"}
        made = rank(host=f"10.0.1.{number}")
        made["metadata"]["name"] = f"run-{number}-0"
        made["metadata"]["labels"]["glm5.dev/finetune"] = f"run-{number}"
        made["metadata"]["ownerReferences"][0]["uid"] = f"job-of-{number}"
        for resource in (run, job, made):
            edge.cache.put(resource)

    await edge.round()

    assert [len(some) for some in edge.asked] == [SIDE_BY_SIDE, 1]


def test_the_metrics_say_what_the_status_says_and_go_with_the_job() -> None:
    metrics, cache = Metrics(), Cache()
    training_metrics.register(metrics, cache)
    status = {"step": 40, "totalSteps": 90, "loss": 2.5, "overflows": 3, "checkpoint": {"step": 30}, "attempt": 2, "reward": 0.5}
    status["eta"] = "1970-01-02T00:00:00Z"
    run = a_run(status=status)
    cache.put(run)

    said = metrics.exposition().decode()

    labels = '{name="tune",namespace="prod"}'
    for line in ("step", "steps", "loss", "checkpoint_step", "overflows_total"):
        assert f"glm5_finetune_{line}{labels}" in said
    assert f"glm5_finetune_step{labels} 40.0" in said
    assert f"glm5_finetune_reward{labels} 0.5" in said
    assert f"glm5_finetune_eta_timestamp_seconds{labels} 86400.0" in said
    assert f"glm5_finetune_epoch{labels}" not in said, "what isn't known has no number"
    cache.drop({**run, "metadata": {**run["metadata"], "resourceVersion": "9"}})
    assert labels not in metrics.exposition().decode()


def test_each_ended_attempt_is_counted_once_by_its_cause() -> None:
    metrics = Metrics()
    first = {"history": [{"attempt": 1, "cause": "NodeLost"}]}
    second = {"history": [*first["history"], {"attempt": 2, "cause": "RankLost"}], "outcome": None}

    for before, after in (({}, first), (first, first), (first, second), (second, {**second, "outcome": "Succeeded"})):
        training_metrics.count_ended(metrics, before, after)

    said = metrics.exposition().decode()
    for cause in ("NodeLost", "RankLost", "Succeeded"):
        assert f'glm5_finetune_attempts_ended_total{{cause="{cause}"}} 1.0' in said
