"""What a node's move does to the services on it, and who is woken for it. The same real parts and the same edge as in test_node."""

from __future__ import annotations

from glm5_operator.kube import Key
from tests.support.clock import at, stamp
from tests.support.objects import a_service
from tests.unit.controllers.test_node import Bed, Json, a_node, a_pool, facts, remembering, served

MOVE, LENT = "glm5.dev/move-to", "glm5.dev/lent-by"
HERE, ELSEWHERE = "chat-engine-5d9f-aaaaa", "chat-engine-5d9f-bbbbb"


def noted(version: int = 1, **notes: str) -> Json:
    node = a_node()
    annotations = {{"move": MOVE, "lent": LENT}[name]: value for name, value in notes.items()}
    return {**node, "metadata": {**node["metadata"], "resourceVersion": str(version), "annotations": annotations}}


def training() -> Json:
    pool = a_pool()
    return {
        **pool,
        "metadata": {**pool["metadata"], "name": "training", "uid": "uid-training"},
        "spec": {"role": "Training", "nodeSelector": {"rack": "t"}},
    }


async def a_bed(*resources: Json, **notes: str) -> Bed:
    """A node that is to move to pool training, with a replica of a service."""
    bed = Bed(a_service("chat"), training(), served(HERE), *resources, node=noted(**notes))
    await bed.look()
    bed.told(facts())
    return bed


def move(bed: Bed) -> Json:
    found = bed.cache.get("AscendNode", "", "npu-0")
    assert found is not None
    told: Json = found["status"].get("move") or {}
    return told


def is_replica_served(bed: Bed, name: str = HERE) -> bool:
    pod = bed.cache.get("Pod", "prod", name)
    assert pod is not None
    return bool(pod["metadata"]["labels"]["glm5.dev/serving"] == "true")


async def test_a_move_waits_with_the_last_replica_and_goes_on_when_another_node_serves() -> None:
    bed = await a_bed(*remembering("npu-1", "Healthy"), move="training")
    assert bed.edge.did[-1] == "taint ['training']"
    await bed.look(1)
    assert (move(bed)["state"], move(bed)["reason"]) == ("Draining", "LastReplica")
    assert "service prod/chat" in move(bed)["message"]
    await bed.look(60)
    assert bed.edge.did == []

    other = Key("AscendNode", "", "npu-1")
    await bed.controller.reconcile(other, at(seconds=61))
    assert bed.woken == [], "it serves nothing yet"
    bed.cache.put(served(ELSEWHERE, node="npu-1"))
    await bed.controller.reconcile(other, at(seconds=62))
    assert bed.woken == ["npu-0"]

    await bed.look(62)
    assert bed.edge.did[-1] == f"label {HERE} remedy"
    await bed.look(63)
    assert not any(done.startswith("evict") for done in bed.edge.did)
    await bed.look(65)
    assert bed.edge.did[-1] == f"evict {HERE}"
    bed.woken.clear()
    await bed.controller.reconcile(other, at(seconds=66))
    assert bed.woken == [], "nobody waits any more"


async def test_a_stopped_move_puts_its_pods_back_and_is_remembered_until_they_are() -> None:
    bed = await a_bed(served(ELSEWHERE, node="npu-1"), move="training")
    await bed.look(1)
    assert not is_replica_served(bed)

    node = bed.cache.get("Node", "", "npu-0")
    assert node is not None
    bed.cache.put({**node, "metadata": {**node["metadata"], "annotations": {}, "resourceVersion": "700"}})
    await bed.look(2)
    assert is_replica_served(bed)
    assert move(bed)["reason"] == "Stopped"
    await bed.look(3)
    assert move(bed) == {}
    assert "taint []" in bed.edge.did


async def test_a_loan_is_given_up_where_it_would_take_a_last_replica_and_the_node_stays_in_its_pool() -> None:
    bed = await a_bed(move="training", lent=f"inference training {stamp(at())}")

    assert bed.edge.did[-2:] == ["remember Healthy", f"note {{'{MOVE}': 'inference'}}"]
    assert (move(bed)["state"], move(bed)["reason"]) == ("Waiting", "GivenUp")
    await bed.look(2)
    assert move(bed) == {}
    assert is_replica_served(bed)


async def test_a_person_who_sends_a_lent_node_somewhere_else_asks_for_a_move_and_no_loan() -> None:
    bed = await a_bed(move="training", lent=f"inference lab {stamp(at())}")

    await bed.look(1)

    assert move(bed)["reason"] == "LastReplica"
