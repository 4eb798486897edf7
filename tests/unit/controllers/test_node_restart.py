"""A pod that is to start anew while its disruption budget holds it.

Real: cache, facts, view, remedy, status. Faked: the edge that writes.
"""

from __future__ import annotations

from typing import Any

from glm5_operator.kube import ApiFailure, kinds
from glm5_operator.kube.types import key_of
from tests.support.clock import at
from tests.support.mindcluster import card_fault, device_list, device_map
from tests.support.objects import a_service
from tests.unit.controllers.test_node import Bed, facts, served

POD = "chat-engine-5d9f-aaaaa"


def a_map() -> dict[str, Any]:
    found = device_map("npu-0", device_list(card_fault(0, "RestartBusiness")), at())
    return {**found, "kind": kinds.MIND_CLUSTER_MAP.name, "metadata": {**found["metadata"], "resourceVersion": "1", "uid": "uid-map"}}


async def evictions(bed: Bed, *seconds: int) -> list[str]:
    done = []
    for second in seconds:
        await bed.look(second)
        done += [each for each in bed.edge.did if each.startswith("evict")]
    return done


async def test_a_restart_that_a_disruption_budget_refused_is_asked_for_until_the_pod_is_gone() -> None:
    pod = served(POD)
    bed = Bed(a_service("chat"), pod, served("chat-engine-5d9f-bbbbb", node="npu-1"), a_map())
    await bed.look()
    bed.told(facts())
    bed.edge.failing["evict"] = ApiFailure("TooManyRequests", "Cannot evict pod", key_of(pod), retryable=True)
    assert await evictions(bed, 1, 2, 7) == [f"evict {POD}"] * 3

    bed.edge.failing.clear()
    assert await evictions(bed, 12) == [f"evict {POD}"]
    bed.cache.drop({**pod, "metadata": {**pod["metadata"], "resourceVersion": "900"}})
    bed.cache.put({**pod, "metadata": {**pod["metadata"], "uid": "uid-of-the-next-one", "resourceVersion": "901"}})
    assert await evictions(bed, 13, 20, 60) == []
