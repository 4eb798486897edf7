"""The condition Deployed: how far an adapter is on its way into a service, and whether it is still served there. Pure."""

from __future__ import annotations

import pytest

from glm5_operator.status.deployment import deployed_condition
from tests.unit.status.test_deployment import OTHER, PLAIN, SHA, Json, in_phase


def listed(state: str, pods: int, message: str = "") -> Json:
    return {"name": "support", "state": state, "pods": pods, "of": 2, **({"message": message} if message else {})}


@pytest.mark.parametrize(
    ("reports", "status", "reason", "says"),
    [
        ([listed("Failed", 1, "pod q: checksum differs")], "False", "LoadFailed", "1 of 2 ready pods of GLM5Service chat have support now"),
        ([listed("Loading", 1)], "False", "Loading", "1 of 2 ready pods"),
        ([listed("Loading", 1, "1 pods don't answer")], "Unknown", "Loading", "1 pods don't answer"),
        (
            [{"name": "support", "state": "Loading", "pods": 0, "of": 0, "message": "no pod is ready"}],
            "False",
            "Loading",
            "no pod is ready",
        ),
        ([listed("Loaded", 2, "waits for 1 of 2 pods to take up the share")], "False", "Loading", "take up the share"),
        ([{**listed("Loaded", 2), "sha256": OTHER}], "False", "Loading", f"sha256 {OTHER}, published {SHA}"),
        ([{"name": "other", "state": "Loaded", "pods": 2, "of": 2}], "Unknown", "NotListed", "says nothing of support"),
    ],
)
def test_what_was_deployed_and_is_not_served_any_more_is_told(reports: list[Json], status: str, reason: str, says: str) -> None:
    found = deployed_condition(PLAIN, "Succeeded", in_phase("Deployed"), reports, SHA)

    assert (found.status.value, found.reason) == (status, reason)
    assert says in found.message


@pytest.mark.parametrize(
    ("outcome", "report", "status", "reason"),
    [
        ("", {}, "False", "NotYet"),
        ("Failed", {}, "False", "NotPublished"),
        ("Succeeded", {"phase": "Waiting", "reason": "ServiceNotFound", "message": "create it"}, "False", "ServiceNotFound"),
        ("Succeeded", {"phase": "Loading", "message": "1 of 2"}, "False", "Loading"),
        ("Succeeded", {"phase": "Deployed"}, "True", "Deployed"),
        ("Succeeded", {"phase": "RolledBack", "reason": "WorseLoss", "message": "its loss is 3"}, "False", "WorseLoss"),
    ],
)
def test_the_condition_says_how_far_it_is_and_why_not_further(outcome: str, report: Json, status: str, reason: str) -> None:
    found = deployed_condition(PLAIN, outcome, report, [{**listed("Loaded", 2), "sha256": SHA}], SHA)

    assert (found.type, found.status.value, found.reason) == ("Deployed", status, reason)
    if report.get("message"):
        assert report["message"] in found.message
