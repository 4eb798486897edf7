"""Where a service's adapters have arrived, from what its pods answer. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.plan.adapters import AdaptersPlan, PlannedAdapter
from glm5_operator.status.adapters import Counts, PodAnswer, adapter_reports, is_settled, read_answer

Json = dict[str, Any]
SHA, OTHER = "a" * 64, "b" * 64


def entry(state: str = "Loaded", sha256: str | None = SHA, **more: object) -> Json:
    return {"name": "support", "sha256": sha256, "state": state, "message": "", "share": 0.1, "requests": 0, "failures": 0, **more}


def pod(name: str, *entries: Json) -> PodAnswer:
    return read_answer(name, f"uid-{name}", {"model": "chat", "adapters": list(entries), "base": {"requests": 0, "failures": 0}})


def report(*pods: PodAnswer, sha256: str = SHA, left_out: str = "") -> Json:
    planned = PlannedAdapter("support", "job://tune", "pvc://adapters/support", sha256, 0.1, left_out)
    (found,) = adapter_reports(AdaptersPlan((planned,), "{}"), pods)
    return found


@pytest.mark.parametrize(
    ("pods", "state", "having", "says"),
    [
        ((pod("a", entry()), pod("b", entry())), "Loaded", 2, ""),
        ((pod("a", entry()), pod("b", entry("Loading", None))), "Loading", 1, ""),
        ((pod("a", entry()), pod("b")), "Loading", 1, ""),
        ((pod("a", entry()), PodAnswer("b", "uid-b")), "Loading", 1, "1 pods don't answer"),
        ((pod("a", entry()), pod("b", entry(sha256=OTHER))), "Loading", 1, ""),
        ((pod("a", entry()), pod("b", entry("Failed", message="rank 64 is above 16"))), "Failed", 1, "pod b: rank 64 is above 16"),
        ((), "Loading", 0, "no pod is ready"),
    ],
    ids=["all", "one loads", "one has not seen the file", "one is silent", "one has another", "one refuses", "no pod"],
)
def test_an_adapter_is_loaded_when_every_ready_pod_has_these_very_weights(
    pods: tuple[PodAnswer, ...], state: str, having: int, says: str
) -> None:
    found = report(*pods)

    assert (found["state"], found["pods"], found["of"], found.get("message", "")) == (state, having, len(pods), says)
    assert is_settled([found]) is (state == "Loaded")


def test_a_share_that_pods_have_yet_to_take_up_is_told_and_waited_for() -> None:
    found = report(pod("a", entry()), pod("b", entry(share=0.0)))

    assert (found["state"], found["message"]) == ("Loaded", "waits for 1 of 2 pods to take up the share")
    assert not is_settled([found])


def test_a_checksum_that_nobody_stated_is_learned_from_the_pods_when_they_agree() -> None:
    assert report(pod("a", entry()), pod("b", entry()), sha256="")["sha256"] == SHA
    assert "sha256" not in report(pod("a", entry()), pod("b", entry(sha256=OTHER)), sha256="")


def test_what_is_left_out_waits_and_is_looked_for_no_more() -> None:
    found = report(pod("a"), left_out="there is no GLM5FinetuneJob tune")

    assert (found["state"], found["message"]) == ("Waiting", "there is no GLM5FinetuneJob tune")
    assert is_settled([found])


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"adapters": "support"},
        {"adapters": [None, 1, [], {"name": None, "state": "Loaded"}]},
        {"adapters": [{"name": "support"}], "base": 7},
        {"adapters": [entry(state=True, sha256=7, share="all", requests=-1, failures=1.5, message={})], "base": {"requests": True}},
        {"adapters": [entry("Loaded", share=float("nan"), requests=2**70)]},
    ],
)
def test_nothing_that_a_pod_answers_breaks_the_reading(answer: Json) -> None:
    found = read_answer("a", "uid", answer)

    assert found.base == Counts()
    for held in (found.held or {}).values():
        assert (held.counts, held.share) == (Counts(), 0.0)


def test_a_pods_words_are_one_line_of_bounded_length() -> None:
    message = report(pod("a", entry("Failed", message="no\n" + "x" * 5000)))["message"]

    assert "\n" not in message
    assert len(message) <= 300
