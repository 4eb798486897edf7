"""What is believed of a trainer's answers and last words, and what the status makes of it. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.status.progress import Heard, progress_fields, reached
from tests.support.clock import at

Json = dict[str, Any]
DIGEST = "a" * 64
ANSWER: Json = {
    "attempt": 1,
    "step": 40,
    "total": 90,
    "epoch": 1.25,
    "loss": 2.51234567,
    "learning_rate": 2e-4,
    "tokens_per_second": 1234.5678,
    "eta_seconds": 30.4,
    "evaluation_loss": 2.6,
    "overflows": 2,
    "checkpoint": {"step": 30, "time": "2026-11-30T10:00:00Z", "sha256": DIGEST},
    "gradient_norm": 3.0,
}


def fields(answer: Json | None = None, *words: Json, previous: Json | None = None, trains: bool = True, attempt: int = 1) -> Json:
    heard = None if answer is None else Heard(1, answer, at())
    return progress_fields(previous or {}, "pvc://adapters/support", words, heard, attempt=attempt, trains=trains)


def test_an_answer_becomes_the_fields_of_the_status() -> None:
    assert fields(ANSWER) == {
        "step": 40,
        "totalSteps": 90,
        "epoch": 1.25,
        "loss": 2.512,
        "learningRate": 0.0002,
        "tokensPerSecond": 1234.57,
        "evaluationLoss": 2.6,
        "overflows": 2,
        "checkpoint": {"step": 30, "time": "2026-11-30T10:00:00Z", "sha256": DIGEST},
        "eta": "2026-11-29T12:00:30Z",
    }


def test_what_nobody_tells_any_more_stays_but_the_time_of_the_end() -> None:
    told = fields(ANSWER)

    assert fields(None, previous=told) == {name: value for name, value in told.items() if name != "eta"}
    assert "eta" not in fields(ANSWER, trains=False)


WORD: Json = {"step": 52, "loss": 2.2, "checkpoint_step": 50}


@pytest.mark.parametrize("trains", [True, False], ids=["seen as running yet", "ended"])
@pytest.mark.parametrize("history", [[], [{"attempt": 1, "step": 31}]], ids=["first attempt", "second"])
def test_what_was_heard_before_the_last_word_sets_nothing_back_when_the_pods_are_gone(history: list[Json], trains: bool) -> None:
    attempt = len(history) + 1
    before = {"attempt": attempt, "history": history}
    ended = before | fields(ANSWER, WORD, previous=before, attempt=attempt)

    found = fields(ANSWER, previous=ended, attempt=attempt, trains=trains)

    assert (found["step"], found["loss"], found["checkpoint"]) == (52, 2.2, {"step": 50})


def test_an_older_checkpoint_of_the_same_attempt_sets_nothing_back() -> None:
    before = {"attempt": 1, "step": 40, "checkpoint": {"step": 40}}

    assert fields(ANSWER, previous=before)["checkpoint"] == {"step": 40}


def test_an_attempt_that_goes_on_from_a_checkpoint_tells_its_own_step_once_it_has_one() -> None:
    before = {"attempt": 2, "history": [{"attempt": 1, "step": 52}], **fields(ANSWER, WORD)}
    looking, going = {"step": 0, "total": 90, "checkpoint": None}, {"step": 51, "total": 90, "checkpoint": None}

    assert fields(looking, previous=before, attempt=2) == {name: before[name] for name in fields(ANSWER, WORD) if name != "eta"}
    assert fields({**looking, "checkpoint": {"step": 30}}, previous=before, attempt=2)["step"] == 0
    later = before | fields(going, previous=before, attempt=2)
    assert later["step"] == 51
    assert fields({"step": 53}, previous=later, attempt=2)["step"] == 53


def test_the_mean_reward_is_told_and_stays() -> None:
    told = fields({**ANSWER, "rl": {"reward": 0.123456789, "kl": 0.01}})

    assert told["reward"] == 0.123457
    assert fields(ANSWER, previous=told)["reward"] == 0.123457


@pytest.mark.parametrize("rl", [None, [], "7", {"reward": True}, {"reward": "7"}, {"reward": float("nan")}, {}])
def test_a_reward_that_is_none_is_not_taken(rl: object) -> None:
    assert "reward" not in fields({**ANSWER, "rl": rl})


def test_a_last_word_comes_after_what_was_heard() -> None:
    found = fields(ANSWER, {"outcome": "NotFinite", "step": 52, "total": 90, "loss": 9.0})

    assert (found["step"], found["loss"], found["epoch"], found["checkpoint"]["step"]) == (52, 9.0, 1.25, 30)


def test_the_last_word_of_a_good_run_has_its_last_checkpoint_and_not_the_folder_of_its_result() -> None:
    word = {"step": 90, "checkpoint_step": 90, "checkpoint": "/output/x", "last_checkpoint": {"step": 90, "sha256": DIGEST}}

    assert fields(ANSWER, word)["checkpoint"] == {"step": 90, "sha256": DIGEST}
    assert fields(ANSWER, {"step": 90, "checkpoint_step": 30})["checkpoint"] == fields(ANSWER)["checkpoint"]
    assert fields(ANSWER, {"step": 90, "checkpoint_step": 90})["checkpoint"] == {"step": 90}


@pytest.mark.parametrize("value", [-1, True, "7", 2**60, 10**400, 1.5, [], {}, None])
def test_a_step_that_is_none_is_not_taken(value: object) -> None:
    assert "step" not in fields({**ANSWER, "step": value})


@pytest.mark.parametrize("value", [True, "7", 10**400, -(10**400), float("nan"), float("inf"), [], {}])
def test_a_number_that_is_none_is_not_taken(value: object) -> None:
    found = fields({**ANSWER, "loss": value, "eta_seconds": value, "learning_rate": value})

    assert {"loss", "eta", "learningRate"}.isdisjoint(found)


@pytest.mark.parametrize("eta", [-1.0, 1e12])
def test_an_end_in_the_past_or_in_centuries_is_not_told(eta: float) -> None:
    assert "eta" not in fields({**ANSWER, "eta_seconds": eta})


@pytest.mark.parametrize("checkpoint", ["/output/x", [], {"step": -1}, {"sha256": DIGEST}, None])
def test_a_checkpoint_without_a_step_is_none(checkpoint: object) -> None:
    assert "checkpoint" not in fields({**ANSWER, "checkpoint": checkpoint})


def test_a_checkpoint_that_was_set_aside_is_told_no_more() -> None:
    told = fields(ANSWER)

    assert "checkpoint" not in fields({"attempt": 2, "step": 1, "checkpoint": None}, previous=told)


@pytest.mark.parametrize("answer", [{"step": 0, "checkpoint": None}, {"checkpoint": None}, {"step": 1}])
def test_a_trainer_that_has_yet_to_look_or_says_nothing_leaves_the_checkpoint_as_it_was(answer: Json) -> None:
    assert fields({"attempt": 2, **answer}, previous=fields(ANSWER))["checkpoint"] == ANSWER["checkpoint"]


def test_a_checksum_or_time_that_is_none_is_left_out() -> None:
    assert fields({**ANSWER, "checkpoint": {"step": 3, "sha256": "x" * 10_000, "time": "soon"}})["checkpoint"] == {"step": 3}


def test_an_ended_attempt_came_as_far_as_it_told_last_in_whatever_way() -> None:
    heard = Heard(1, ANSWER, at())

    assert reached([], heard) == {"step": 40, "loss": 2.512}
    assert reached([{"step": 52, "loss": 9.0}, {"step": 51}], heard) == {"step": 52, "loss": 9.0}
    assert reached([{"message": "boom"}], None) == {}
