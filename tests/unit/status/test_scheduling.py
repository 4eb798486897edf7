"""The scheduler's sentences, as Kubernetes 1.35 writes them. Pure: nothing is faked."""

from __future__ import annotations

import pytest

from glm5_operator.status.causes import Reason
from glm5_operator.status.scheduling import read_unschedulable
from tests.support.pods import a_pod

TAIL = " preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("message", "reason", "says"),
    [
        (
            "0/3 nodes are available: 1 Insufficient huawei.com/Ascend910, 2 node(s) didn't match Pod's node affinity/selector." + TAIL,
            Reason.INSUFFICIENT_CARDS,
            "8 huawei.com/Ascend910",
        ),
        (
            "0/2 nodes are available: 1 Insufficient memory, 2 Insufficient huawei.com/Ascend910.",
            Reason.INSUFFICIENT_CARDS,
            "8 huawei.com/Ascend910",
        ),
        ("0/1 nodes are available: 1 Insufficient memory.", Reason.INSUFFICIENT_RESOURCES, "memory 64Gi"),
        (
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector." + TAIL,
            Reason.NO_MATCHING_NODE,
            "glm5.dev/pool=inference",
        ),
        ("no nodes available to schedule pods", Reason.NO_MATCHING_NODE, "glm5.dev/pool=inference"),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {glm5.dev/role: training}.", Reason.NO_MATCHING_NODE, "glm5.dev/role"),
        ("0/2 nodes are available: 2 node(s) were unschedulable.", Reason.NO_MATCHING_NODE, "uncordon"),
        (
            '0/1 nodes are available: persistentvolumeclaim "weights" not found. not found',
            Reason.VOLUME_MISSING,
            "create PersistentVolumeClaim weights",
        ),
        (
            "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            Reason.VOLUME_UNBOUND,
            "spec.model.source",
        ),
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", Reason.UNSCHEDULABLE, "spec.model.source"),
        ("0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints.", Reason.UNSCHEDULABLE, "topology spread"),
    ],
)
def test_what_is_short_is_named(message: str, reason: Reason, says: str) -> None:
    found, sentence = read_unschedulable(message, a_pod(scheduled=message))

    assert (found, says in sentence) == (reason, True)
    assert "preemption" not in sentence
    assert ". not found" not in sentence
