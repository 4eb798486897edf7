"""Why an attempt ended: each kind of end is told apart, and of several the one that explains the others. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glm5_operator.status.ends import FREE, PASSING, Cause, explaining, last_word, pod_end, pod_ends
from tests.support.clock import at, stamp
from tests.support.runs import a_rank, failed

Json = dict[str, Any]


def cause_of(pod: Json, *, lost: bool = False) -> Cause | None:
    end = pod_end(pod, node_is_lost=lost)
    return None if end is None else end.cause


def test_a_pod_that_runs_or_has_ended_well_has_no_end_to_explain() -> None:
    assert cause_of(a_rank()) is None
    assert cause_of(a_rank(phase="Succeeded", code=0)) is None
    assert cause_of(a_rank(phase="Pending")) is None


HCCL_TIMEOUT = (Path(__file__).parents[2] / "fixtures" / "plog" / "hccl_ei0006.txt").read_text()
ENDS: dict[str, tuple[Json, Cause]] = {
    "settings that can't be used": (failed(code=2, word={"outcome": "ConfigError", "message": "lora.rank: 8"}), Cause.CONFIGURATION),
    "data that can't be used": (failed(code=3, word={"outcome": "DataError", "message": "line 7"}), Cause.DATA),
    "numbers that aren't finite": (failed(code=4, word={"outcome": "NotFinite", "message": "layer 3"}), Cause.NUMERICAL),
    "the disk": (failed(code=5, word={"outcome": "CheckpointError", "message": "no space"}), Cause.STORAGE),
    "a rank elsewhere is gone": (failed(code=6, word={"outcome": "RankLost", "message": "rank 2 never came"}), Cause.RANK_LOST),
    "a later attempt owns the folders": (failed(code=7, word={"outcome": "Superseded", "message": "attempt 4 is there"}), Cause.SUPERSEDED),
    "nobody says what answers are worth": (failed(code=8, word={"outcome": "RewardError", "message": "HTTP 503"}), Cause.REWARD),
    "asked to stop by nobody we know": (failed(code=143, word={"outcome": "Interrupted", "message": "stopped"}), Cause.UNKNOWN),
    "main memory": (failed(code=137, reason="OOMKilled"), Cause.OUT_OF_MEMORY),
    "memory of a card": (failed(word="torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2 GiB"), Cause.OUT_OF_MEMORY),
    "a card's error code in the log": (failed(word="RuntimeError: ACL error 507033, device open failed"), Cause.CARD_FAULT),
    "an uncorrectable memory error": (failed(word="fault 80E01801 on device 3"), Cause.CARD_FAULT),
    "HCCL waited for a rank": (failed(word=HCCL_TIMEOUT), Cause.RANK_LOST),
    "HCCL waited, and CANN says inner error to that": (failed(word=f"{HCCL_TIMEOUT}EE9999: Inner Error!"), Cause.RANK_LOST),
    "a number that is no error code": (failed(word="loss at token 8507033 is 3.2"), Cause.UNKNOWN),
    "a crash without words": (failed(code=139), Cause.UNKNOWN),
    "made room for another": (failed(code=143, disrupted="PreemptionByScheduler"), Cause.PREEMPTED),
    "drained": (failed(code=143, disrupted="EvictionByEvictionAPI"), Cause.PREEMPTED),
    "tainted away": (a_rank(disrupted="DeletionByTaintManager", deleted=True), Cause.PREEMPTED),
    "collected with its node": (failed(code=137, disrupted="DeletionByPodGC"), Cause.NODE_LOST),
    "deleted by somebody": (a_rank(deleted=True), Cause.POD_DELETED),
    "deleted and ended by the signal": (failed(code=143, deleted=True), Cause.POD_DELETED),
}


@pytest.mark.parametrize(("pod", "cause"), ENDS.values(), ids=ENDS)
def test_each_kind_of_end_has_its_cause(pod: Json, cause: Cause) -> None:
    assert cause_of(pod) is cause


def test_a_node_that_can_not_give_its_cards_is_a_card_fault() -> None:
    pod = a_rank(phase="Failed")
    pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": "Allocate failed", "containerStatuses": []}

    assert cause_of(pod) is Cause.CARD_FAULT


def test_a_pod_on_a_lost_node_is_lost_whatever_it_said_last() -> None:
    assert cause_of(a_rank(), lost=True) is Cause.NODE_LOST


def test_the_message_names_pod_node_code_and_last_words() -> None:
    end = pod_end(failed(1, code=1, word="\x1b[31mTraceback\x1b[0m\n  boom\n", node="n7"), node_is_lost=False)

    assert end is not None
    assert end.message == "pod tune-attempt-1-1 on node n7: exit code 1: Traceback | boom"
    assert (end.node, end.exit_code, end.time) == ("n7", 1, at())


def test_the_rank_that_knows_why_explains_those_that_only_lost_it() -> None:
    pods = [
        failed(0, code=1, word="connection reset by peer", finished=at(seconds=1)),
        failed(1, code=4, word={"outcome": "NotFinite", "message": "layer 3"}, finished=at(seconds=2)),
        failed(2, code=143, deleted=True, finished=at(seconds=3)),
    ]
    ends = [end for pod in pods if (end := pod_end(pod, node_is_lost=False)) is not None]

    found = explaining(ends)
    assert found is not None
    assert found.cause is Cause.NUMERICAL


@pytest.mark.parametrize(
    "other",
    [
        failed(1, code=1, word="Traceback (most recent call last): ImportError: libhccl.so", finished=at(seconds=9)),
        failed(1, code=137, word="rank 3 was killed by SIGKILL", finished=at(seconds=9)),
        failed(1, code=139, finished=at(seconds=9)),
        a_rank(1, deleted=True),
        failed(1, code=1, word="ACL error 507033", finished=at(seconds=9)),
    ],
    ids=["import", "killed", "crashed", "deleted", "card"],
)
def test_a_rank_that_lost_another_is_explained_by_that_one(other: Json) -> None:
    pods = [failed(0, code=6, word={"outcome": "RankLost", "message": "rank 3 is gone"}, finished=at(seconds=1)), other]
    found = explaining(end for pod in pods if (end := pod_end(pod, node_is_lost=False)) is not None)

    assert found is not None
    assert found.cause is not Cause.RANK_LOST


@pytest.mark.parametrize(
    "other", [failed(1, word="Traceback: ImportError", finished=at(seconds=200)), a_rank(1)], ids=["crashed", "never came"]
)
def test_a_time_out_of_hccl_names_the_victim_so_it_is_never_the_cause_where_there_is_another(other: Json) -> None:
    """C16: every rank but the culprit says EI0006, rank 0 first."""
    victim = failed(0, word=HCCL_TIMEOUT, finished=at(seconds=120))
    found = explaining(pod_ends([(victim, False), (other, False)]))

    assert found is not None
    assert found.cause is (Cause.UNKNOWN if "ImportError" in str(other) else Cause.RANK_LOST)
    assert ("ImportError" in found.message) == ("ImportError" in str(other))


def deleted_at(seconds: int, pod: Json) -> Json:
    pod["metadata"] |= {"deletionTimestamp": stamp(at(seconds=seconds + 7)), "deletionGracePeriodSeconds": 7}
    return pod


@pytest.mark.parametrize(("seconds", "cause"), [(2, Cause.POD_DELETED), (6, Cause.RANK_LOST)])
def test_who_is_told_to_end_after_a_failure_was_not_deleted_by_somebody(seconds: int, cause: Cause) -> None:
    lost = failed(0, code=6, word={"outcome": "RankLost", "message": "rank 1 is gone"}, finished=at(seconds=5))
    for other in (a_rank(1), failed(1, code=143, finished=at(seconds=9)), failed(1, code=137, finished=at(seconds=14))):
        found = explaining(pod_ends([(lost, False), (deleted_at(seconds, other), False)]))

        assert found is not None
        assert found.cause is cause


def test_a_rank_that_was_killed_is_told_by_its_launcher_though_the_pod_is_being_deleted() -> None:
    lost = failed(0, code=6, word={"outcome": "RankLost", "message": "rank 1 is gone"}, finished=at(seconds=5))
    killed = deleted_at(6, failed(1, code=137, word={"outcome": "RankKilled", "message": "local rank 1 ended by SIGKILL"}))
    found = explaining(pod_ends([(lost, False), (killed, False)]))

    assert found is not None
    assert (found.cause, "SIGKILL" in found.message) == (Cause.UNKNOWN, True)


def test_a_rank_that_nobody_explains_says_so_itself() -> None:
    found = explaining([end] if (end := pod_end(failed(code=6, word={"message": "rank 3 never came"}), node_is_lost=False)) else [])

    assert found is not None
    assert (found.cause, "rank 3 never came" in found.message) == (Cause.RANK_LOST, True)


def test_of_two_with_one_cause_the_earlier_explains() -> None:
    pods = [failed(0, word="later", finished=at(seconds=9)), failed(1, word="sooner", finished=at(seconds=2))]
    found = explaining(end for pod in pods if (end := pod_end(pod, node_is_lost=False)) is not None)

    assert found is not None
    assert "sooner" in found.message


def test_only_what_may_pass_is_tried_again_and_only_what_others_decided_is_free() -> None:
    assert set(Cause) - PASSING == {Cause.CONFIGURATION, Cause.DATA, Cause.NUMERICAL, Cause.OUT_OF_MEMORY}
    assert {Cause.PREEMPTED, Cause.SUPERSEDED, Cause.SUSPENDED} == FREE


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '"word"', "null"])
def test_a_last_word_that_is_no_object_is_none(text: str) -> None:
    assert last_word(failed(word=text)) == {}
