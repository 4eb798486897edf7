"""When a node is let go of, and when not: what is remembered of it is lost then. The same real parts and the same edge as in test_node."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.health.remedy.policy import MIND_CLUSTER_TAKES, RESET_TAKES
from glm5_operator.kube import OutcomeKind
from tests.support.clock import at, stamp
from tests.unit.controllers.test_node import Bed, Json, a_node, a_pool, facts

TAKES = RESET_TAKES.total_seconds()


def remembering(state: str, **changes: object) -> Json:
    """A remedy in that state since the beginning."""
    return {"state": state, "since": stamp(at()), "reason": "CardIsolated", "cordoned": True, "id": "r-1", **changes}


def tainted(value: str) -> Json:
    node = a_node()
    return {**node, "spec": {"taints": [{"key": "glm5.dev/health", "value": value, "effect": "NoSchedule"}]}}


def a_bed(status: Json, node: Json | None = None) -> Bed:
    """A node of a pool with that status."""
    bed = Bed(node=node)
    metadata = {"name": "npu-0", "uid": "uid-ascend", "generation": 1, "resourceVersion": "1"}
    bed.cache.put({"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": metadata, "spec": {}, "status": status})
    return bed


def later(resource: Json, version: str, **metadata: object) -> Json:
    return {**resource, "metadata": {**resource["metadata"], "resourceVersion": version, **metadata}}


def quarantined() -> Bed:
    return a_bed({"remedy": remembering("Quarantined"), "facts": facts()}, tainted("quarantined"))


@pytest.mark.parametrize(
    "spec",
    [{}, {"role": "Dancing", "nodeSelector": {}}, {**a_pool()["spec"], "ofAnotherVersion": 1}],
    ids=["half-written", "of a role that isn't known", "of a newer CRD"],
)
async def test_a_pool_that_can_not_be_read_takes_nothing_from_its_nodes(spec: Json) -> None:
    bed = quarantined()
    before = bed.cache.get("AscendNode", "", "npu-0")
    bed.cache.put({**later(a_pool(), "2"), "spec": spec})

    outcome = await bed.look(1)

    assert outcome.kind is OutcomeKind.AGAIN
    assert bed.edge.did == []
    assert bed.cache.get("AscendNode", "", "npu-0") == before


async def test_a_pool_that_is_read_again_goes_on_where_it_was() -> None:
    bed = quarantined()
    bed.cache.put(later(a_pool(colour="blue"), "2"))
    await bed.look(1)
    bed.cache.put(later(a_pool(), "3"))

    await bed.look(2)

    found = bed.cache.get("AscendNode", "", "npu-0")
    assert found is not None
    assert found["status"]["remedy"]["state"] == "Quarantined"
    assert not any(done.startswith(("taint", "delete")) for done in bed.edge.did), bed.edge.did


async def test_a_pool_that_is_on_its_way_out_still_has_its_nodes_until_the_label_is_off() -> None:
    bed = quarantined()
    bed.cache.put(later(a_pool(), "2", deletionTimestamp=stamp(at())))

    await bed.look(1)
    assert bed.edge.did == []

    bed.cache.put(later(a_node(pool=None), "2"))
    await bed.look(2)
    assert "delete" in bed.edge.did


async def test_a_node_without_its_label_or_whose_pool_is_gone_is_let_go_of() -> None:
    unlabelled = quarantined()
    unlabelled.cache.put(later({**tainted("quarantined"), "metadata": a_node(pool=None)["metadata"]}, "2"))
    await unlabelled.look(1)
    assert unlabelled.edge.did == ["taint []", "delete"]

    orphan = quarantined()
    orphan.cache.drop(later(a_pool(), "2"))
    await orphan.look(1)
    assert orphan.edge.did == ["taint []", "delete"]


RUNNING: Json = {"id": "r-1", "state": "Running", "started": stamp(at())}
MOVE: Json = {
    "origin": "inference",
    "target": "training",
    "state": "Resetting",
    "since": stamp(at()),
    "started": stamp(at()),
    "reset": {"id": "m-1", "radius": "Node", "cards": [0], "deadline": stamp(at(minutes=2))},
}


@pytest.mark.parametrize(
    ("status", "takes"),
    [
        ({"remedy": remembering("Resetting")}, TAKES),
        ({"remedy": remembering("Resetting"), "resets": [RUNNING]}, TAKES),
        ({"remedy": remembering("Verifying"), "resets": [{**RUNNING, "id": "r-0"}]}, TAKES),
        ({"remedy": remembering("WaitingMindCluster")}, MIND_CLUSTER_TAKES.total_seconds()),
        ({"remedy": remembering("Healthy", cordoned=False), "move": MOVE}, TAKES),
    ],
    ids=["asked for", "running", "running on, unanswered", "MindCluster's", "of a move"],
)
async def test_a_node_is_not_let_go_of_in_the_middle_of_a_reset(status: Json, takes: float) -> None:
    bed = a_bed(status)
    bed.cache.drop(later(a_pool(), "2"))

    outcome = await bed.look(1)
    assert bed.edge.did == []
    assert outcome.kind is OutcomeKind.AGAIN
    assert outcome.after is not None
    assert outcome.after.total_seconds() <= takes - 1

    await bed.look(takes + 1)  # the agent may have gone with the label, and gives no answer any more
    assert bed.edge.did[-1] == "delete"


@pytest.mark.parametrize("state", ["Succeeded", "Failed", "Refused", "Unknown"])
async def test_a_node_is_let_go_of_as_soon_as_the_agent_has_said_what_became_of_the_reset(state: str) -> None:
    bed = a_bed({"remedy": remembering("Resetting"), "resets": [{**RUNNING, "state": state}]})
    bed.cache.drop(later(a_pool(), "2"))

    await bed.look(1)

    assert bed.edge.did[-1] == "delete"


@pytest.mark.parametrize("lost", [{}, {"remedy": {"state": "Dancing"}}], ids=["deleted", "unreadable"])
async def test_a_quarantine_whose_memory_is_lost_holds_until_a_person_releases_it(lost: Json) -> None:
    bed = a_bed({**lost, "facts": facts()}, tainted("quarantined"))

    await bed.look(1)

    found: Any = bed.cache.get("AscendNode", "", "npu-0")
    assert (found["status"]["remedy"]["state"], found["status"]["remedy"]["reason"]) == ("Quarantined", "MemoryLost")
    assert "glm5 node release" in found["status"]["remedy"]["message"]
    assert bed.edge.did == ["remember Quarantined"]

    bed.cache.put(later(found, "500", annotations={"glm5.dev/release": "true"}))
    await bed.look(2)
    assert bed.edge.did[:2] == ["remember Verifying", "taint ['remedy']"]


async def test_another_taint_of_a_remedy_is_no_quarantine() -> None:
    bed = a_bed({"facts": facts()}, tainted("remedy"))

    await bed.look(1)

    assert bed.edge.did == ["remember Healthy", "taint []"]
