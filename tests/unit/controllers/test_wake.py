"""Which event wakes which object. Real: the cache. Nothing is faked."""

from __future__ import annotations

from typing import Any

from glm5_operator.controllers.wake import CARDS_SETTLE, NODE_SETTLE, woken_by
from glm5_operator.kube import Cache, Key
from tests.support.objects import a_service
from tests.support.pods import a_pod

Json = dict[str, Any]

CHAT = Key("GLM5Service", "prod", "chat")
OTHER = Key("GLM5Service", "prod", "other")
INFERENCE, TRAINING = Key("NPUPool", "", "inference"), Key("NPUPool", "", "training")
CARDS = Key("AscendNode", "", "npu-0")
SETTLE = 0.1


def pool(name: str) -> Json:
    return {"apiVersion": "glm5.dev/v1alpha1", "kind": "NPUPool", "metadata": {"name": name, "resourceVersion": "1"}, "spec": {}}


def node(pool_name: str | None) -> Json:
    labels = {"glm5.dev/pool": pool_name} if pool_name else {}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "npu-0", "labels": labels, "resourceVersion": "1"}}


def cache() -> Cache:
    filled = Cache()
    for resource in (a_service("chat"), a_service("other", pool="training"), pool("inference"), pool("training")):
        filled.put(resource)
    return filled


def woken(resource: Json) -> dict[Key, float]:
    return dict(woken_by(cache(), resource, SETTLE))


def test_a_service_wakes_itself_at_once() -> None:
    assert woken(a_service("chat")) == {CHAT: 0.0}


def test_a_pool_wakes_itself_at_once_its_services_and_the_other_pools_soon() -> None:
    assert woken(pool("inference")) == {INFERENCE: 0.0, TRAINING: SETTLE, CHAT: SETTLE}


def test_a_pool_that_is_gone_wakes_its_own_name_so_that_its_nodes_are_let_go() -> None:
    assert woken(pool("deleted")) == {Key("NPUPool", "", "deleted"): 0.0, INFERENCE: SETTLE, TRAINING: SETTLE}


def test_a_node_wakes_every_pool_and_the_services_of_the_one_it_is_in() -> None:
    found = woken(node("training"))

    assert set(found) == {INFERENCE, TRAINING, OTHER, CARDS}


def test_a_node_of_a_pool_that_was_deleted_unseen_wakes_that_pools_name() -> None:
    assert Key("NPUPool", "", "forgotten") in woken(node("forgotten"))


def test_a_node_of_no_pool_wakes_no_service() -> None:
    assert set(woken(node(None))) == {INFERENCE, TRAINING, CARDS}


def test_a_pod_wakes_its_service_soon_and_the_counting_of_its_pools_cards_later() -> None:
    """And no other pool: each audit reads what is known of all nodes of a pool, and a rollout changes pods all the time."""
    filled = cache()
    filled.put(node("inference"))

    found = dict(woken_by(filled, {**a_pod(), "kind": "Pod"}, SETTLE))
    assert found == {CHAT: SETTLE, INFERENCE: CARDS_SETTLE, CARDS: SETTLE}


def test_a_pod_that_has_no_node_yet_wakes_the_pool_that_it_names() -> None:
    assert woken({**a_pod(node=None), "kind": "Pod"}) == {CHAT: SETTLE, INFERENCE: CARDS_SETTLE}


def test_a_pod_on_a_node_of_another_pool_than_it_names_wakes_both() -> None:
    filled = cache()
    filled.put(node("training"))

    found = dict(woken_by(filled, {**a_pod(), "kind": "Pod"}, SETTLE))
    assert found == {CHAT: SETTLE, INFERENCE: CARDS_SETTLE, TRAINING: CARDS_SETTLE, CARDS: SETTLE}


def test_a_pod_that_names_no_pool_wakes_its_nodes_alone() -> None:
    pod = {**a_pod(), "kind": "Pod"}
    pod["spec"] = {name: value for name, value in pod["spec"].items() if name != "nodeSelector"}
    filled = cache()
    filled.put(node("training"))

    assert dict(woken_by(filled, pod, SETTLE)) == {CHAT: SETTLE, TRAINING: CARDS_SETTLE, CARDS: SETTLE}


def a_strangers_pod(on: str | None = "npu-0") -> Json:
    pod = a_pod(node=on)
    pod["metadata"]["labels"] = {"app": "notebook"}
    return pod


def test_a_pod_of_others_wakes_the_counting_of_its_nodes_pool_alone() -> None:
    filled = cache()
    filled.put(node("training"))

    assert dict(woken_by(filled, a_strangers_pod(), SETTLE)) == {TRAINING: CARDS_SETTLE, CARDS: SETTLE}
    assert dict(woken_by(filled, a_strangers_pod(on="elsewhere"), SETTLE)) == {}
    assert dict(woken_by(filled, a_strangers_pod(on=None), SETTLE)) == {}


def test_what_the_agent_or_mindcluster_says_wakes_its_node_at_once() -> None:
    metadata = {"name": "npu-0", "resourceVersion": "1"}
    assert woken({"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": metadata}) == {CARDS: 0.0}

    told = {"kind": "MindClusterMap", "metadata": {"name": "mindx-dl-deviceinfo-npu-0", "namespace": "kube-system"}}
    assert woken(told) == {CARDS: 0.0}
    assert woken({**told, "metadata": {**told["metadata"], "name": "mindx-dl-else"}}) == {}


def test_a_pools_own_edit_wakes_its_nodes_for_the_policy_may_be_another() -> None:
    filled = cache()
    filled.put(node("inference"))

    assert dict(woken_by(filled, pool("inference"), SETTLE))[CARDS] == SETTLE


def test_a_child_wakes_the_service_that_controls_it_and_a_stranger_nobody() -> None:
    reference = {"kind": "GLM5Service", "name": "chat", "uid": "uid-chat", "controller": True}
    child = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "prod", "ownerReferences": [reference]}}
    stranger = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "y", "namespace": "prod"}}

    assert woken(child) == {CHAT: SETTLE}
    assert woken(stranger) == {}


def a_job(name: str = "tune", *, status: Json | None = None, **spec: object) -> Json:
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5FinetuneJob",
        "metadata": {"name": name, "namespace": "prod", "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"method": "lora", "pool": "training", **spec},
        **({"status": status} if status else {}),
    }


TUNE, PLAIN = Key("GLM5FinetuneJob", "prod", "tune"), Key("GLM5FinetuneJob", "prod", "plain")
DEPLOY: Json = {"service": "chat", "adapter": "support"}


def test_a_service_that_takes_adapters_wakes_the_jobs_that_deploy_to_it() -> None:
    filled = cache()
    for job in (a_job(deploy=DEPLOY), a_job("plain"), a_job("else", deploy={**DEPLOY, "service": "other"})):
        filled.put(job)

    assert dict(woken_by(filled, a_service("chat", adapterStorage="pvc://adapters"), SETTLE)) == {CHAT: 0.0, TUNE: SETTLE}
    assert dict(woken_by(filled, a_service("chat"), SETTLE)) == {CHAT: 0.0}


def test_a_job_wakes_the_service_that_it_deploys_to_and_the_one_that_it_did() -> None:
    assert woken(a_job(deploy=DEPLOY)) == {TUNE: 0.0, CHAT: SETTLE}
    assert woken(a_job(status={"outcome": "Succeeded", "deployment": DEPLOY})) == {TUNE: 0.0, CHAT: SETTLE}


def test_a_job_that_has_ended_wakes_services_that_list_its_adapter() -> None:
    filled = cache()
    filled.put(a_service("lister", adapterStorage="pvc://adapters", adapters=[{"name": "s", "source": "job://tune"}]))

    assert dict(woken_by(filled, a_job(status={"step": 3}), SETTLE)) == {TUNE: 0.0}, "while it trains nothing of it is in a service"
    ended = dict(woken_by(filled, a_job(status={"outcome": "Succeeded"}), SETTLE))
    assert ended == {TUNE: 0.0, Key("GLM5Service", "prod", "lister"): SETTLE}
    assert dict(woken_by(filled, a_job("plain", status={"outcome": "Succeeded"}), SETTLE)) == {PLAIN: 0.0}


def test_an_agents_word_wakes_what_waits_for_another_driver_in_its_pool_and_nothing_else() -> None:
    filled = cache()
    filled.put(node("inference"))
    ascend_node = {"kind": "AscendNode", "metadata": {"name": "npu-0", "resourceVersion": "1"}}
    assert dict(woken_by(filled, ascend_node, SETTLE)) == {CARDS: 0.0}

    waits = {"type": "Stalled", "status": "True", "reason": "VersionsDoNotFit"}
    for name, pool_name in (("chat", "inference"), ("other", "training")):
        service = a_service(name, pool=pool_name)
        service["metadata"]["resourceVersion"] = "2"
        filled.put({**service, "status": {"conditions": [waits]}})
    assert dict(woken_by(filled, ascend_node, SETTLE)) == {CARDS: 0.0, CHAT: NODE_SETTLE}
