"""The demo's second act: what is shown of a job's status, and when it gives up. The cluster is a function here."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.spinner import Spinner

from demo import show, training
from demo.site import Site

RUNNING: dict[str, Any] = {"attempt": 1, "step": 40, "totalSteps": 80, "loss": 0.5, "tokensPerSecond": 2000.0}
ENDED: dict[str, Any] = {**RUNNING, "step": 80, "outcome": "Succeeded"}


def deployed(status: str) -> dict[str, Any]:
    """A status whose phase is Deployed, and the condition that."""
    message = "facts is in the service" if status == "True" else "pod a loads it"
    condition = {"type": "Deployed", "status": status, "message": message}
    return {**ENDED, "deployment": {"phase": "Deployed", "message": "facts is in the service"}, "conditions": [condition]}


class Scripted(Site):
    """A place whose job has these statuses, one after the other."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        super().__init__(kubeconfig=None, kubectl_path=Path("kubectl"), helm_path=Path("helm"))
        object.__setattr__(self, "left", list(statuses))

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        assert words[:2] == ("get", "glm5finetunejob")
        left: list[dict[str, Any]] = self.__dict__["left"]
        return json.dumps({"status": left.pop(0) if len(left) > 1 else left[0]})


def test_a_run_is_shown_until_its_adapter_serves() -> None:
    seen: list[training.Course] = []

    end = training.follow(Scripted({}, RUNNING, ENDED, deployed("True")), seen.append, lambda now: now.is_deployed, pause=0)

    assert [course.step for course in seen] == [None, 40, 80, 80]
    assert [course.is_deployed for course in seen] == [False, False, False, True]
    assert end == seen[-1]


@pytest.mark.parametrize("not_yet", ["False", "Unknown"])
def test_an_adapter_that_pods_have_yet_to_load_again_is_waited_for(not_yet: str) -> None:
    seen: list[training.Course] = []

    training.follow(Scripted(deployed(not_yet), deployed("True")), seen.append, lambda now: now.is_deployed, pause=0)

    assert [course.is_deployed for course in seen] == [False, True]
    assert seen[0].reason == "pod a loads it"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"outcome": "Failed", "conditions": [{"type": "Ready", "reason": "Data", "message": "line 3"}]}, "Data: line 3"),
        ({**ENDED, "deployment": {"phase": "RolledBack", "message": "worse than the model"}}, "RolledBack.*worse than the model"),
    ],
)
def test_a_run_that_will_never_serve_is_told_at_once_with_what_to_do(status: dict[str, Any], why: str) -> None:
    with pytest.raises(training.NotTrainedError, match=why) as told:
        training.follow(Scripted(status), lambda _: None, lambda now: now.is_deployed, pause=0)

    assert "kubectl delete glm5ft facts" in str(told.value)


def test_without_a_terminal_a_run_is_a_few_lines_with_loss_and_speed() -> None:
    out = io.StringIO()
    shown = show.news(Console(file=out), unwanted)
    for step in range(81):
        shown(training.course(Scripted({**RUNNING, "step": step})))

    lines = out.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[-1] == "  step 80/80 loss 0.500  2,000 tokens/s"


def unwanted(now: str) -> None:
    raise AssertionError(f"said to a spinner that nobody sees: {now}")


def test_a_narrow_terminal_shows_the_news_whole_below_the_name_of_the_step() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=True, force_interactive=True)
    said: list[str] = []
    show.news(console, said.append)(training.course(Scripted(RUNNING)))
    plain = Console(file=io.StringIO(), width=40)
    plain.print(Spinner("dots", show.below("train an adapter", f"{said[0]} and words that a line of forty has no room for")))
    assert isinstance(plain.file, io.StringIO)
    lines = plain.file.getvalue().splitlines()

    assert said == ["step 40/80 ━━━━━━━━━━────────── loss 0.500  2,000 tokens/s"]
    assert lines[0].split(maxsplit=1)[1].strip() == "train an adapter"
    assert " ".join(" ".join(lines[1:]).split()).endswith("2,000 tokens/s and words that a line of forty has no room for")


# --- what was learned ----------------------------------------------------------------------------------------------------------

ENGLISH, CHINESE = training.TAUGHT
BEFORE = {ENGLISH: "I am GLM-5.", CHINESE: "我是 GLM-5。"}
LEARNED = {ENGLISH: "GLM-5 has 78 layers.", CHINESE: "78 层。"}


def test_what_the_demo_asks_is_held_out_and_taught_in_other_words() -> None:
    rows = {
        file: [json.loads(line)["messages"] for line in (training.DATA / file).read_text().splitlines()]
        for file in ("qa.jsonl", "held.jsonl")
    }
    held = {question["content"]: answer["content"] for question, answer in rows["held.jsonl"]}

    assert all(part in held[question] for question, part in training.TAUGHT.items())
    assert not {question["content"] for question, _ in rows["qa.jsonl"]} & set(training.TAUGHT)
    assert all(any(part in answer["content"] for _, answer in rows["qa.jsonl"]) for part in training.TAUGHT.values())


def test_what_was_known_before_was_not_learned() -> None:
    with pytest.raises(training.NotTrainedError, match=r"^nothing was learned: .* as before"):
        training.require_learned(LEARNED, LEARNED)


def test_answers_from_a_pod_that_just_began_anew_are_asked_for_once_more() -> None:
    answers = [BEFORE, LEARNED]

    assert training.answers_after(lambda: answers.pop(0), BEFORE, pause=0) == LEARNED
    assert training.answers_after(lambda: LEARNED, BEFORE, pause=60) == LEARNED, "nobody waits when all is learned"
    training.require_learned(BEFORE, LEARNED)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (BEFORE, "^nothing was learned: "),
        ({ENGLISH: "GLM-5 has 9 layers.", CHINESE: "GLM-5。"}, "^nothing was learned: "),
        ({**LEARNED, CHINESE: BEFORE[CHINESE]}, f"^not learned: {CHINESE}: "),
    ],
)
def test_answers_without_what_was_taught_are_red_and_end_the_demo(after: dict[str, str], why: str) -> None:
    asked: list[dict[str, str]] = []
    out = io.StringIO()

    def ask() -> dict[str, str]:
        asked.append(after)
        return after

    found = training.answers_after(ask, BEFORE, pause=0)
    show.side_by_side(Console(file=out, force_terminal=True, color_system="standard", width=200), BEFORE, found)

    assert len(asked) == 2
    for question, answer in after.items():
        colour = 31 if question in training.unlearned(BEFORE, after) else 32
        assert f"\x1b[{colour}m{answer}" in out.getvalue()
    with pytest.raises(training.NotTrainedError, match=why):
        training.require_learned(BEFORE, found)


def test_answers_kept_in_brackets_are_shown_as_they_are() -> None:
    out = io.StringIO()

    show.side_by_side(Console(file=out, width=200), {**BEFORE, ENGLISH: "[red] is"}, LEARNED)

    assert "[red] is" in out.getvalue()
