"""What the API server says when it refuses a pod reaches the service as reason and sentence. Pure: nothing is faked."""

from __future__ import annotations

import pytest

from glm5_operator.status.causes import Reason
from glm5_operator.status.refusals import deadline_exceeded, refusal
from tests.support.clock import at
from tests.support.objects import a_deployment, no_progress, refused_creation

POD = 'pods "chat-engine-6d4cf56db6-x2k4p" is forbidden: '


@pytest.mark.parametrize(
    ("message", "reason", "says"),
    [
        (
            POD + "exceeded quota: team-a, requested: requests.huawei.com/Ascend910=8, used: requests.huawei.com/Ascend910=0, "
            "limited: requests.huawei.com/Ascend910=4",
            Reason.QUOTA_EXCEEDED,
            [
                "ResourceQuota team-a",
                "asked requests.huawei.com/Ascend910=8",
                "used requests.huawei.com/Ascend910=0",
                "limit requests.huawei.com/Ascend910=4",
            ],
        ),
        (
            POD + "failed quota: team-a: must specify limits.cpu for: engine; limits.memory for: engine",
            Reason.QUOTA_NEEDS_LIMITS,
            ["team-a", "limits.cpu for: engine"],
        ),
        (
            POD
            + 'violates PodSecurity "restricted:latest": restricted volume types (volume "model" uses restricted volume type "hostPath")',
            Reason.POD_SECURITY,
            ["restricted:latest", "hostPath"],
        ),
        (
            POD + "ValidatingAdmissionPolicy 'npu-pods' with binding 'npu-pods' denied request: name a pool that is open to this namespace",
            Reason.ADMISSION_DENIED,
            ["npu-pods", "name a pool"],
        ),
        ('admission webhook "check.example" denied the request: no', Reason.ADMISSION_DENIED, ["check.example", "no"]),
        (
            POD + 'error looking up service account prod/runner: serviceaccount "runner" not found',
            Reason.SERVICE_ACCOUNT_MISSING,
            ["create ServiceAccount runner"],
        ),
        (POD + "maximum memory usage per Container is 1Gi, but limit is 64Gi", Reason.LIMIT_RANGE, ["maximum memory usage", "LimitRange"]),
        (POD + "something new", Reason.PODS_REFUSED, ["something new"]),
    ],
)
def test_a_refused_pod_names_who_refused_and_the_numbers(message: str, reason: Reason, says: list[str]) -> None:
    cause = refusal(a_deployment(conditions=[refused_creation(message)]))

    assert cause is not None
    assert cause.reason is reason
    assert [part for part in says if part not in cause.message] == []
    # Each retry makes another pod name; a message with it would be rewritten for ever.
    assert "x2k4p" not in cause.message


def test_a_deployment_without_trouble_has_none() -> None:
    assert refusal(a_deployment()) is None
    assert deadline_exceeded(a_deployment()) is None


def test_a_deadline_names_its_seconds() -> None:
    cause = deadline_exceeded(a_deployment(conditions=[no_progress()]))

    assert cause is not None
    assert "900 s" in cause.message
    assert cause.is_stalled(at())
