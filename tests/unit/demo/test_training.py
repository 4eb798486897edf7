"""The demo's second act: what is shown of a job's status, and when it gives up. The cluster is a function here."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo import show, training
from demo.site import Site

RUNNING: dict[str, Any] = {"attempt": 1, "step": 40, "totalSteps": 80, "loss": 0.5, "tokensPerSecond": 2000.0}
ENDED: dict[str, Any] = {**RUNNING, "step": 80, "outcome": "Succeeded"}


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
    deployed = {**ENDED, "deployment": {"phase": "Deployed"}}

    end = training.follow(Scripted({}, RUNNING, ENDED, deployed), seen.append, lambda now: now.is_deployed, pause=0)

    assert [course.step for course in seen] == [None, 40, 80, 80]
    assert [course.is_deployed for course in seen] == [False, False, False, True]
    assert end == seen[-1]


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
    with show.bar(Console(file=out)) as shown:
        for step in range(81):
            status = {**RUNNING, "step": step}
            shown(training.course(Scripted(status)))

    lines = out.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[-1] == "  step 80/80 loss 0.500  2,000 tokens/s"
