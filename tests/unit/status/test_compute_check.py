"""What a compute check's pod says: only the runtime's own verdict speaks against a card."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.status.compute_check import check_of, is_compute_check


def pod(phase: str = "Running", state: dict[str, Any] | None = None, **status: object) -> dict[str, Any]:
    return {"status": {"phase": phase, **({"containerStatuses": [{"name": "c", "state": state}]} if state else {}), **status}}


def ended(message: str, **more: object) -> dict[str, Any]:
    return {"terminated": {"message": message, **more}}


@pytest.mark.parametrize(
    ("seen", "state", "words"),
    [
        (pod("Succeeded", ended('{"outcome": "Passed", "message": "8 x npu"}')), "Passed", "8 x npu"),
        (pod("Failed", ended('{"outcome": "Failed", "message": "npu:3: off"}', exitCode=1)), "Failed", "npu:3: off"),
        (pod("Failed", ended('{"outcome": "Skipped", "message": "no driver"}', exitCode=3)), "CouldNotRun", "no driver"),
        (pod("Running", ended('[WARN] a log line\n{"outcome": "Passed", "message": "x"}')), "Passed", "x"),
        (pod("Failed", reason="DeadlineExceeded", message="Pod was active too long"), "CouldNotRun", "DeadlineExceeded"),
        (pod("Failed", reason="UnexpectedAdmissionError", message="no healthy devices"), "CouldNotRun", "no healthy devices"),
        (pod("Failed", ended("", reason="OOMKilled", exitCode=137)), "CouldNotRun", "OOMKilled"),
        (pod("Failed", ended("Traceback", reason="Error", exitCode=1)), "CouldNotRun", "Traceback"),
        (pod("Failed", ended('{"outcome": "Broken"}', reason="Error")), "CouldNotRun", "Error"),
        (pod("Failed", ended("[1]", reason="Error")), "CouldNotRun", "Error"),
        (pod("Succeeded"), "CouldNotRun", "no verdict"),
        (pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}), "CouldNotRun", "not found"),
        (pod("Pending", {"waiting": {"reason": "ErrImagePull"}}), "Waiting", "ErrImagePull"),
        (pod("Running", {"running": {}}), "Waiting", ""),
        (
            pod("Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cards"}]),
            "Waiting",
            "Insufficient",
        ),
        ({}, "Waiting", ""),
    ],
)
def test_a_verdict_counts_and_any_other_end_is_a_check_that_could_not_run(seen: dict[str, Any], state: str, words: str) -> None:
    found = check_of(seen, "id")

    assert (found.id, found.state) == ("id", state)
    assert words in found.message


def test_a_pod_of_that_label_in_another_namespace_is_none_of_ours() -> None:
    labels = {"glm5.dev/compute-check": "npu-0"}

    assert is_compute_check({"metadata": {"namespace": "glm5-system", "labels": labels}}, "glm5-system")
    assert not is_compute_check({"metadata": {"namespace": "team", "labels": labels}}, "glm5-system")
    assert not is_compute_check({"metadata": {"namespace": "glm5-system"}}, "glm5-system")
