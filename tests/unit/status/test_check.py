"""What came of a check: from the status, its Job and its pods, in this order. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.status.check import Check, CheckState, read_check
from glm5_operator.status.course import Seen, Stage, course
from tests.support.clock import at, stamp
from tests.support.runs import a_job, a_rank, failed
from tests.unit.status.test_course import RUNNING, spec

Json = dict[str, Any]


def check_job(*conditions: str, digest: str = "d1", deleted: bool = False) -> Json:
    job = a_job(0, *conditions, deleted=deleted)
    job["metadata"]["labels"] = {"glm5.dev/check": digest, "app.kubernetes.io/component": "check"}
    return job


def read(job: Json | None, *pods: Json, status: Json | None = None) -> Check:
    return read_check(status or {}, "d1", job, pods, at())


def test_what_the_status_says_of_this_very_data_is_enough() -> None:
    told = {"digest": "d1", "time": stamp(at()), "read": 12}

    assert read(None, status={"dataCheck": told}).record == told
    assert read(None, status={"dataCheck": {**told, "digest": "d0"}}).state is CheckState.NEEDED


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (None, CheckState.NEEDED),
        (check_job(), CheckState.RUNNING),
        (check_job("FailureTarget"), CheckState.RUNNING),
        (check_job("Complete"), CheckState.GOOD),
        (check_job("SuccessCriteriaMet"), CheckState.GOOD),
        (check_job("Failed"), CheckState.STALE),
        (check_job("Complete", digest="d0"), CheckState.STALE),
        (check_job("Complete", deleted=True), CheckState.STALE),
    ],
)
def test_each_state_of_the_job(job: Json | None, state: CheckState) -> None:
    assert read(job).state is state


def test_good_data_is_kept_with_its_numbers_and_without_them_where_nobody_says_them() -> None:
    word = {"outcome": "Succeeded", "data": {"read": 12, "kept": 11, "skipped": 1, "tokens": 99}}

    found = read(check_job("Complete"), a_rank(phase="Succeeded", code=0, word=word)).record
    assert found == {"digest": "d1", "time": stamp(at()), "read": 12, "kept": 11, "skipped": 1}
    assert read(check_job("Complete"), a_rank(phase="Succeeded", code=0, word="{")).record == {"digest": "d1", "time": stamp(at())}


@pytest.mark.parametrize(
    ("pods", "state", "reason", "words"),
    [
        ((failed(code=3, word={"message": "line 7 is no JSON"}),), "Bad", "Data", "line 7 is no JSON"),
        ((failed(code=137), failed(code=2, word={"message": "lora.rank"})), "Bad", "Configuration", "lora.rank"),
        ((failed(code=137, reason="OOMKilled"),), "Stale", "CheckFailed", "memory"),
        ((failed(code=5, word={"message": "/data/qa.jsonl can't be read"}),), "Stale", "CheckFailed", "can't be read"),
        ((), "Stale", "CheckFailed", "told"),
    ],
)
def test_bad_data_is_told_apart_from_a_check_that_could_not_be_made(pods: tuple[Json, ...], state: str, reason: str, words: str) -> None:
    found = read(check_job("Failed"), *pods)

    assert (found.state, found.reason, words in found.message) == (state, reason, True)
    assert found.message.endswith("; correct it in a new job") is (state == "Bad")


def test_a_check_that_could_not_be_made_ends_nothing_however_often_it_was_tried() -> None:
    found = read(check_job("Failed"), failed(code=137))

    way = course({}, spec(maxAttempts=1), Seen(check=found), at())
    assert (way.stage, way.job, way.record.outcome) == (Stage.CHECKING, None, "")


def test_a_check_that_somebody_else_suspended_says_so() -> None:
    job = check_job()
    job["spec"]["suspend"] = True
    found = read(job)

    assert (found.state, found.reason, found.job) == (CheckState.RUNNING, "JobSuspended", job)
    assert "manageJobsWithoutQueueName" in found.message


def test_a_try_without_a_volume_says_so_in_one_sentence() -> None:
    message = '0/1 nodes are available: persistentvolumeclaim "nope" not found. not found'

    assert read(check_job(), a_rank(conditions=[{"type": "PodScheduled", "status": "False", "message": message}])).message.endswith(
        'persistentvolumeclaim "nope" not found'
    )


@pytest.mark.parametrize("code", [2, 3])
def test_until_its_job_has_failed_a_check_that_refused_is_no_try_that_failed(code: int) -> None:
    found = read(check_job("FailureTarget"), failed(code=137), failed(code=code, word="line 7", finished=at(seconds=9)))

    assert (found.state, found.reason) == (CheckState.RUNNING, "Checking")
    assert found.message.startswith("settings and data were checked and are refused:")
    assert found.message.endswith("line 7")


def test_tries_that_failed_are_counted_and_the_last_one_told() -> None:
    job = check_job()
    found = read(job, failed(code=5, word="later", finished=at(seconds=9)), failed(code=137, finished=at(seconds=3)), a_rank())

    assert (found.state, found.reason) == (CheckState.RUNNING, "CheckFailed")
    assert "2 tries failed, others follow; the last:" in found.message
    assert found.message.endswith("later")


def test_before_the_first_attempt_it_decides_and_after_it_no_more() -> None:
    running, good, bad = (Check(state, "Data", "m") for state in (CheckState.RUNNING, CheckState.GOOD, CheckState.BAD))

    assert course({}, spec(), Seen(check=running), at()).stage is Stage.CHECKING
    assert course({}, spec(), Seen(check=good), at()).stage is Stage.DUE
    refused = course({}, spec(), Seen(check=bad), at())
    assert (refused.stage, refused.record.outcome, refused.record.reason) == (Stage.FINISHED, "Failed", "Data")
    for check in (running, bad):
        assert course(RUNNING, spec(), Seen((a_job(),), (a_rank(),), check=check), at()).stage is Stage.RUNNING


def test_a_suspended_job_is_not_checked() -> None:
    assert course({}, spec(suspend=True), Seen(check=Check(CheckState.NEEDED)), at()).stage is Stage.SUSPENDED


def test_the_job_of_a_check_that_refused_stays_for_its_logs() -> None:
    job = check_job("Failed")
    bad = Check(CheckState.BAD, "Data", "m", job=job)

    assert course({}, spec(), Seen(check=bad), at()).job is job
    assert course({"outcome": "Failed", "completionTime": stamp(at())}, spec(), Seen(check=bad), at(minutes=1)).job is job
    assert (
        course({"outcome": "Failed", "completionTime": stamp(at())}, spec(ttlAfterFinished="0s"), Seen(check=bad), at(minutes=1)).job
        is None
    )
