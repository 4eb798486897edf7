"""Pods of compute checks as the node controller makes and removes them. Real: cache, facts, plan, status; faked: the edge that writes."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.api.pool import NPUPool
from glm5_operator.controllers.compute_check import ComputeChecks
from glm5_operator.controllers.facts import Facts
from glm5_operator.health.remedy.memory import Checked, Memory
from glm5_operator.kube import ApiFailure, Cache, Key
from glm5_operator.plan.facts import Site
from tests.support.clock import at
from tests.unit.controllers.test_node import a_node, a_pool, served

Json = dict[str, Any]
ASKED = Memory(state="Verifying", since=at(), check=Checked("Asked", at()))
OWNER = {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": "npu-0", "uid": "uid-ascend"}}


class Edge:
    """Stands in for Applier."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.failure: ApiFailure | None = None
        self.did: list[str] = []

    async def create_pod(self, manifest: Json, owner: Json) -> ApiFailure | None:
        self.did.append("create")
        if self.failure is None:
            metadata = {**manifest["metadata"], "uid": "uid-check", "resourceVersion": "50"}
            self.cache.put({**manifest, "kind": "Pod", "metadata": metadata, "status": {"phase": "Pending"}})
        return self.failure

    async def delete(self, resource: Json) -> ApiFailure | None:
        self.did.append("delete")
        self.cache.drop({**resource, "metadata": {**resource["metadata"], "resourceVersion": "99"}})
        return None


class Bed:
    def __init__(self, *pods: Json, namespace: str | None = "glm5-system", site: Site | None = None) -> None:
        self.cache = Cache()
        for resource in (a_pool(), a_node(), *pods):
            self.cache.put(resource)
        self.edge = Edge(self.cache)
        self.pool = NPUPool.parse(a_pool())
        self.checks = ComputeChecks(self.cache, self.edge, Facts(self.cache, site or Site()), namespace)  # type: ignore[arg-type]

    async def settle(self, check: str) -> list[ApiFailure]:
        self.edge.did.clear()
        return await self.checks.settle(a_node(), OWNER, self.pool, check)

    def ends(self, message: str, version: str = "60") -> None:
        (pod,) = self.cache.compute_checks("npu-0")
        state = {"terminated": {"exitCode": 0, "message": message}}
        status = {"phase": "Succeeded", "containerStatuses": [{"name": "compute-check", "state": state}]}
        metadata = {**pod["metadata"], "resourceVersion": version}
        self.cache.put({**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": "npu-0"}, "status": status})


ID = f"{at():%Y%m%dt%H%M%S}"


async def test_the_pod_is_made_once_read_to_its_end_and_taken_away() -> None:
    bed = Bed()
    assert bed.checks.known("npu-0", bed.pool, ASKED).state == "Waiting"

    await bed.settle(ID)
    assert bed.edge.did == ["create"]
    assert [pod["metadata"]["name"] for pod in bed.checks.waiting("npu-0")] == [f"npu-0-check-{ID}"], "it may get cards in the next moment"
    await bed.settle(ID)
    assert bed.edge.did == []

    bed.ends('{"outcome": "Passed", "message": "8 x npu"}')
    found = bed.checks.known("npu-0", bed.pool, ASKED)
    assert (found.id, found.state, found.message) == (ID, "Passed", "8 x npu")
    assert bed.checks.waiting("npu-0") == []

    await bed.settle("")
    assert bed.edge.did == ["delete"]
    assert bed.cache.compute_checks("npu-0") == []


async def test_it_asks_for_the_cards_that_nobody_holds_and_for_none_where_all_are_held() -> None:
    bed = Bed(served(cards=6))
    await bed.settle(ID)
    (pod,) = bed.cache.compute_checks("npu-0")
    assert pod["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] == "2"

    full = Bed(served(cards=8))
    assert "no card" in full.checks.known("npu-0", full.pool, Memory()).unavailable
    await full.settle(ID)
    assert full.edge.did == []
    assert full.checks.known("npu-0", full.pool, ASKED).state == "CouldNotRun"


@pytest.mark.parametrize(("reason", "state"), [("Forbidden", "CouldNotRun"), ("QuotaExceeded", "CouldNotRun"), ("Unavailable", "Waiting")])
async def test_a_pod_that_is_refused_is_not_asked_for_again_and_one_that_only_failed_is(reason: str, state: str) -> None:
    bed = Bed()
    bed.edge.failure = ApiFailure(reason, "no", Key("Pod", "glm5-system", "x"), retryable=True)

    failures = await bed.settle(ID)
    await bed.settle(ID)

    assert bed.edge.did == (["create"] if state == "Waiting" else [])
    assert bool(failures) == (state == "Waiting")
    assert bed.checks.known("npu-0", bed.pool, ASKED).state == state
    await bed.settle("")
    assert bed.checks.refused == {}


def test_without_an_image_or_a_namespace_of_its_own_it_says_why_there_is_none() -> None:
    for bed, word in ((Bed(site=Site(images={"native": ""})), "image"), (Bed(namespace=None), "namespace")):
        assert word in bed.checks.known("npu-0", bed.pool, Memory()).unavailable


async def test_a_pod_of_an_earlier_check_goes_before_its_cards_are_anybodys() -> None:
    bed = Bed()
    await bed.settle("20200101t000000")
    await bed.settle(ID)

    assert bed.edge.did == ["delete", "create"]
    assert [pod["metadata"]["name"] for pod in bed.cache.compute_checks("npu-0")] == [f"npu-0-check-{ID}"]
