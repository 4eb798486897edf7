"""What the operator writes about adapters is what the runtime reads, and what the runtime answers is what the operator reads.

The two packages don't know each other: this test stands between them. Nothing is faked; nothing is started.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from glm5_operator.api.deploy import DeploySpec
from glm5_operator.controllers.adapters import PATH
from glm5_operator.plan.adapters import plan_adapters
from glm5_operator.plan.evaluation import HOPELESS
from glm5_operator.plan.facts import AdapterFacts
from glm5_operator.status.adapters import LOADED, has, read_answer
from glm5_operator.status.deployment import Evaluated, Seen, advance
from glm5_runtime.cli import app, parse_serve
from glm5_runtime.server.adapter_entries import NAME, Contents, State, read_contents
from glm5_runtime.server.app import OPEN_PATHS
from glm5_runtime.tools.evaluate import EXIT_CODES, Score
from tests.support.clock import at
from tests.unit.plan.builders import engine_of, pod_of
from tests.unit.plan.test_adapters import DEPLOYING, SHA, TUNE, taking, whole
from tests.unit.plan.test_deployment import container_of, evaluated


@pytest.mark.parametrize(("limits", "count", "rank"), [({}, 4, 16), ({"count": 64, "rank": 1024}, 64, 1024)])
def test_the_flags_of_a_service_that_takes_adapters_are_the_runtimes(limits: dict[str, int], count: int, rank: int) -> None:
    container = engine_of(whole(taking(**({"adapterLimits": limits} if limits else {}))))

    found = parse_serve([*container["command"][1:], *container["args"]])

    assert found.enable_lora
    assert (found.max_loras, found.max_lora_rank) == (count, rank)
    assert found.lora_dir == Path("/adapters")
    assert found.adapters_file == Path("/etc/glm5/adapters/adapters.json")
    assert {str(found.lora_dir), str(found.adapters_file.parent)} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_pod_mounts_the_folder_and_no_file_of_it() -> None:
    """Kubelet renews what is mounted as a folder; a file mounted by subPath stays as it was."""
    planned = whole(taking())

    (mount,) = [item for item in engine_of(planned)["volumeMounts"] if item["name"] == "adapters-file"]
    assert "subPath" not in mount
    assert any(volume["name"] == "adapters-file" for volume in pod_of(planned)["volumes"])


def read(text: str) -> Contents:
    return read_contents(text.encode(), "tiny-glm5")


def test_the_file_is_read_entry_by_entry_without_a_fault() -> None:
    service = taking(("other", "pvc://adapters/other"), ("A.b_c-1", "job://tune"))
    plan = plan_adapters(service, AdapterFacts((TUNE, DEPLOYING)))
    assert plan is not None

    found = read(plan.text)

    assert (found.faults, found.nameless) == ({}, ())
    assert [(entry.name, entry.path, entry.sha256) for entry in found.entries.values()][:2] == [
        ("other", "/adapters/other", None),
        ("A.b_c-1", "/adapters/support", SHA),
    ]
    empty = plan_adapters(taking(), AdapterFacts())
    assert empty is not None
    assert read(empty.text) == Contents()


def test_every_name_that_admission_takes_is_one_that_the_runtime_takes() -> None:
    for name in ("a", "A9", "support-v1.2_x", "a" * 64):
        assert re.fullmatch(NAME, name)


def test_an_answer_of_the_runtime_says_the_same_to_the_operator() -> None:
    told = State("support", SHA, LOADED, "", 0.25).as_json() | {"requests": 7, "failures": 2}

    pod = read_answer("p", "uid", {"model": "chat", "adapters": [told], "base": {"requests": 9, "failures": 1}})

    assert has(pod, "support", SHA)
    assert pod.held is not None
    held = pod.held["support"]
    assert (held.share, held.counts.requests, held.counts.failures) == (0.25, 7, 2)
    assert (pod.base.requests, pod.base.failures) == (9, 1)


def test_the_path_is_answered_without_a_key() -> None:
    assert PATH in OPEN_PATHS


def test_an_evaluation_is_a_command_of_the_runtime_and_its_exit_codes_mean_the_same_to_both() -> None:
    container = container_of(evaluated())
    command: Any = get_command(app)

    name, arguments = container["command"][1], container["args"]
    found = command.commands[name].make_context(name, list(arguments), resilient_parsing=False)

    assert found.params["url"] == "http://chat-api.prod.svc.cluster.local:8000"
    assert (found.params["model"], found.params["base"], found.params["most_rows"]) == ("support", "tiny-glm5", 200)
    assert {str(found.params[one]) for one in ("checkpoint", "data", "result")} == {
        "/models/tiny",
        "/data/held.jsonl",
        "/dev/termination-log",
    }
    assert set(HOPELESS) == set(EXIT_CODES.values())


def test_what_the_evaluator_found_is_what_the_status_tells() -> None:
    score = Score(loss_sum=6.0, tokens=4, matches=1, questions=2)
    ending = {"outcome": "Succeeded", "rows": 2, "base": Score(8.0, 4).as_json(), "adapter": score.as_json()}

    seen = Seen(ready=True, evaluated=Evaluated("Succeeded", ending))
    wanted = DeploySpec.model_validate({"service": "chat", "adapter": "support", "evaluate": {"source": "pvc://data/held.jsonl"}})
    before = {"phase": "Evaluating", "since": "2026-01-01T00:00:00Z", "service": "chat", "adapter": "support", "share": 0.0}
    found = advance(wanted, SHA, before, seen, at())

    assert (found.report["phase"], found.report["message"]) == ("Evaluating", "waits for a ready pod to take up the share")
    assert found.report["evaluation"] == {"rows": 2, "loss": 1.5, "exactMatch": 0.5, "baseLoss": 2.0}
