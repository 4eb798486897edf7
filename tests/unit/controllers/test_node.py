"""What a reconcile of a node writes, and in which order. Real: cache, facts, view, remedy, status. Faked: the edge that writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from glm5_operator.controllers.facts import Facts
from glm5_operator.controllers.node import EVICT_AGAIN, NodeController
from glm5_operator.controllers.plugins import Plugins
from glm5_operator.controllers.remedies import Remedies
from glm5_operator.controllers.traffic import Traffic
from glm5_operator.health.types import CardHealth, Fault, Grade, NodeHealth, Product
from glm5_operator.kube import ApiFailure, Applier, Cache, Events, Key, Outcome, OutcomeKind
from glm5_operator.kube.types import key_of
from glm5_operator.metrics import Metrics
from glm5_operator.plan.facts import Site
from tests.support.clock import at, stamp
from tests.support.objects import a_service
from tests.support.pods import CARD, a_pod

Json = dict[str, Any]
RESYNC = timedelta(minutes=10)
KEY = Key("AscendNode", "", "npu-0")


@dataclass
class Edge:
    """Stands in for Applier and Events: does to the cache what the server would, and remembers it in order."""

    cache: Cache
    failing: dict[str, ApiFailure] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    version: int = 100

    def _write(self, what: str, resource: Json) -> ApiFailure | None:
        self.did.append(what)
        if (failure := self.failing.get(what, self.failing.get(what.split(maxsplit=1)[0]))) is not None:
            return failure
        self.version += 1
        self.cache.put({**resource, "metadata": {**resource["metadata"], "resourceVersion": str(self.version)}})
        return None

    async def put_ascend_node(self, manifest: Json, live: Json | None) -> ApiFailure | None:
        spec = manifest["spec"]
        if live is not None and (live.get("spec") or {}) == spec:
            return None
        old = live or {**manifest, "metadata": {**manifest["metadata"], "uid": "uid-ascend", "generation": 1}}
        current = self.cache.get("AscendNode", "", manifest["metadata"]["name"]) or old
        return self._write(f"reset {bool(spec.get('reset'))}", {**current, "spec": spec})

    async def write_status(self, resource: Json, status: Json, *, tell: bool = False) -> ApiFailure | None:
        if resource.get("status") == status:
            return None
        current = self.cache.get("AscendNode", "", resource["metadata"]["name"]) or resource
        kept = {name: value for name, value in (current.get("status") or {}).items() if name not in (resource.get("status") or {})}
        return self._write(f"remember {status['remedy']['state']}", {**current, "status": {**kept, **status}})

    async def label_pod(self, pod: Json, name: str, value: str | None) -> ApiFailure | None:
        labels = {**pod["metadata"]["labels"], name: value}
        return self._write(f"label {pod['metadata']['name']} {value}", {**pod, "metadata": {**pod["metadata"], "labels": labels}})

    async def evict(self, pod: Json, grace: int | None = None) -> ApiFailure | None:
        return self._write(f"evict {pod['metadata']['name']}" + ("" if grace is None else f" within {grace} s"), pod)

    async def patch_node(
        self, node: Json, *, labels: Json, taints: list[Json] | None = None, annotations: Json | None = None
    ) -> ApiFailure | None:
        if annotations:
            kept = {name: value for name, value in {**node["metadata"]["annotations"], **annotations}.items() if value is not None}
            return self._write(f"note {kept}", {**node, "metadata": {**node["metadata"], "annotations": kept}})
        if taints is None:
            return None
        return self._write(f"taint {[taint['value'] for taint in taints]}", {**node, "spec": {**node["spec"], "taints": taints}})

    async def take_off(self, resource: Json, annotation: str) -> ApiFailure | None:
        self.did.append(f"take off {annotation}")
        return None

    async def delete(self, resource: Json) -> ApiFailure | None:
        self.did.append("delete")
        self.cache.drop({**resource, "metadata": {**resource["metadata"], "resourceVersion": "9999"}})
        return None

    def warning(self, resource: Json, reason: str, message: str) -> None:
        """Events aren't looked at here."""

    def normal(self, resource: Json, reason: str, message: str) -> None:
        """As above."""


def a_pool(**health: object) -> Json:
    metadata = {"name": "inference", "resourceVersion": "1", "uid": "uid-pool", "generation": 1, "creationTimestamp": stamp(at())}
    spec = {"role": "Inference", "nodeSelector": {"rack": "a"}, "health": {"mode": "Auto", "debounce": "1s", **health}}
    return {"apiVersion": "glm5.dev/v1alpha1", "kind": "NPUPool", "metadata": metadata, "spec": spec}


def a_node(pool: str | None = "inference") -> Json:
    labels = {"rack": "a", "accelerator-type": "module-910b-8", **({"glm5.dev/pool": pool} if pool else {})}
    status = {"allocatable": {CARD: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": "npu-0", "uid": "uid-node", "resourceVersion": "1", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def an_agent() -> Json:
    labels = {"app.kubernetes.io/component": "node-agent"}
    metadata = {"name": "agent", "namespace": "glm5-system", "uid": "uid-agent", "resourceVersion": "1", "labels": labels}
    conditions = [{"type": "Ready", "status": "True"}]
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "npu-0", "containers": []}, "status": {"conditions": conditions}}


def facts(health: str = "OK", holder: str = "chat-engine-5d9f-aaaaa", now: int = 0) -> Json:
    held = {"holder": {"namespace": "prod", "pod": holder}} if holder else {}
    cards = [{"physical": 0, "npu": 0, "health": health, "pids": [], **held}]
    cards += [{"physical": number, "npu": number, "health": "OK", "pids": []} for number in range(1, 8)]
    return {"observedAt": stamp(at(seconds=now)), "tool": {"state": "Working"}, "cards": cards, "allocationsKnown": True, "product": "A2"}


class Bed:
    """A pool of one node with an agent, and what the operator did so far."""

    def __init__(self, *resources: Json, pool: Json | None = None, node: Json | None = None, whole_cluster: bool = True) -> None:
        self.cache = Cache()
        for resource in (pool or a_pool(), node or a_node(), an_agent(), *resources):
            self.cache.put(resource)
        self.edge = Edge(self.cache)
        self.woken: list[str] = []

        async def nobody(_: Json) -> bool:
            return False

        self.controller = NodeController(
            self.cache,
            cast(Applier, self.edge),
            cast(Events, self.edge),
            Facts(self.cache, Site()),
            nobody,
            Remedies(Metrics()),
            RESYNC,
            "glm5-system",
            whole_cluster,
            wake=lambda key: self.woken.append(key.name),
        )

    def told(self, report: Json) -> None:
        found = self.cache.get("AscendNode", "", "npu-0")
        assert found is not None
        self.edge.version += 1
        status = {**(found.get("status") or {}), "facts": report}
        self.cache.put({**found, "status": status, "metadata": {**found["metadata"], "resourceVersion": str(self.edge.version)}})

    async def look(self, seconds: float = 0) -> Outcome:
        self.edge.did.clear()
        return await self.controller.reconcile(KEY, at(seconds=seconds))


def served(name: str = "chat-engine-5d9f-aaaaa", node: str = "npu-0", **changes: Any) -> Json:  # noqa: ANN401 - fields of a_pod
    pod = a_pod(name, node=node, **changes)
    return {**pod, "metadata": {**pod["metadata"], "uid": f"uid-{name}", "resourceVersion": "1"}}


async def test_a_node_of_a_pool_gets_its_ascend_node_and_one_of_none_gets_nothing() -> None:
    bed = Bed()
    await bed.look()
    assert bed.edge.did[0] == "reset False"
    found = bed.cache.get("AscendNode", "", "npu-0")
    assert found is not None
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == ["uid-node"]

    other = Bed(node=a_node(pool=None))
    assert (await other.look()).kind is OutcomeKind.DONE
    assert other.edge.did == []


async def test_a_decision_is_remembered_before_anything_is_done() -> None:
    bed = Bed(a_service("chat"), served(), served("chat-engine-5d9f-bbbbb", node="npu-1"))
    await bed.look()
    bed.told(facts())
    await bed.look(1)

    bed.told(facts("Critical", now=2))
    await bed.look(2)
    assert bed.edge.did == ["remember Quiescing", "label chat-engine-5d9f-aaaaa remedy"]

    await bed.look(5)
    assert bed.edge.did == ["remember Draining", "taint ['remedy']", "evict chat-engine-5d9f-aaaaa"]


async def test_a_rank_on_a_sick_card_has_half_of_the_drain_to_save_and_a_replica_beside_it_its_own_grace() -> None:
    rank = served("tune-attempt-1-0", cards=4)
    rank["metadata"]["labels"] = {"glm5.dev/finetune": "tune", "glm5.dev/attempt": "1"}
    bed = Bed(a_service("chat"), rank, served(cards=4), served("chat-engine-5d9f-bbbbb", node="npu-1"), pool=a_pool(drain="10m"))
    await bed.look()
    bed.told(facts("Critical", holder="tune-attempt-1-0"))
    await bed.look(2)
    await bed.look(3)

    await bed.look(6)

    assert sorted(done for done in bed.edge.did if done.startswith("evict")) == [
        "evict chat-engine-5d9f-aaaaa",
        "evict tune-attempt-1-0 within 300 s",
    ]


@pytest.mark.parametrize("health", ["Critical", "Alarm"])
async def test_an_agent_that_names_a_pod_of_another_node_as_its_cards_holder_gets_nothing_done_to_that_pod(health: str) -> None:
    """Else whoever has one node could have any pod with cards sent away."""
    elsewhere = served("chat-engine-5d9f-bbbbb", node="npu-1")
    bed = Bed(a_service("chat"), served(), elsewhere, served("chat-engine-5d9f-ccccc", node="npu-2"))
    await bed.look()
    bed.told(facts(health, holder="chat-engine-5d9f-bbbbb"))
    done = []
    for seconds in (2, 5, 8):
        await bed.look(seconds)
        done += bed.edge.did

    assert "remember Draining" in done
    assert [what for what in done if "bbbbb" in what] == []


async def test_what_could_not_be_remembered_is_not_done() -> None:
    bed = Bed(a_service("chat"), served(), served("chat-engine-5d9f-bbbbb", node="npu-1"))
    await bed.look()
    bed.told(facts())
    await bed.look(1)
    bed.told(facts("Critical", now=2))
    bed.edge.failing["remember"] = ApiFailure("Unavailable", "no answer", KEY, retryable=True)

    outcome = await bed.look(2)

    assert outcome.kind is OutcomeKind.RETRY
    assert bed.edge.did == ["remember Quiescing"]


@pytest.mark.parametrize(("reason", "retryable"), [("Conflict", True), ("Forbidden", False)])
async def test_a_pod_whose_label_can_not_be_written_keeps_neither_the_taint_nor_other_pods_from_what_is_due(
    reason: str, retryable: bool
) -> None:
    stuck = served()
    bed = Bed(a_service("chat"), stuck, served("chat-engine-5d9f-bbbbb", node="npu-1"), served("job-0"))
    await bed.look()
    bed.edge.failing[f"label {stuck['metadata']['name']} remedy"] = ApiFailure(reason, "no", key_of(stuck), retryable=retryable)
    done = []
    bed.told(facts("Critical", now=2))
    for second in (2, 5, 8):
        outcome = await bed.look(second)
        done += bed.edge.did

    assert outcome.kind is OutcomeKind.RETRY
    assert "taint ['remedy']" in done
    assert "evict job-0" in done
    assert (f"evict {stuck['metadata']['name']}" in done) is not retryable


async def test_a_pod_that_its_disruption_budget_holds_is_asked_again_soon_and_counts_as_no_failure() -> None:
    pod = served()
    bed = Bed(a_service("chat"), pod, served("chat-engine-5d9f-bbbbb", node="npu-1"))
    bed.edge.failing["evict"] = ApiFailure("TooManyRequests", "Cannot evict pod", key_of(pod), retryable=True)
    await bed.look()
    bed.told(facts())
    bed.told(facts("Critical", now=2))
    outcomes = [await bed.look(second) for second in range(2, 9)]

    assert any(done.startswith("evict") for done in bed.edge.did)
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.AGAIN}
    after = outcomes[-1].after
    assert after is not None
    assert after <= EVICT_AGAIN


async def test_an_operator_of_some_namespaces_only_says_what_it_would_do() -> None:
    bed = Bed(a_service("chat"), served(), served("chat-engine-5d9f-bbbbb", node="npu-1"), whole_cluster=False)
    await bed.look()
    bed.told(facts("Critical", now=2))

    for second in range(2, 9):
        await bed.look(second)
        assert all(done.startswith("remember") for done in bed.edge.did), bed.edge.did
    found = bed.cache.get("AscendNode", "", "npu-0")
    assert found is not None
    assert found["status"]["remedy"]["dryRun"] is True
    said = {condition["type"]: condition for condition in found["status"]["conditions"]}
    assert (said["WatchOnly"]["status"], said["WatchOnly"]["reason"]) == ("True", "LimitedToNamespaces")
    assert "spec.health.mode of its pool is Auto" in said["WatchOnly"]["message"]


@pytest.mark.parametrize(("mode", "whole_cluster"), [("Auto", True), ("DryRun", False), ("Off", False)])
async def test_only_where_a_pool_says_auto_and_the_operator_does_not_is_that_told(mode: str, whole_cluster: bool) -> None:
    bed = Bed(pool=a_pool(mode=mode), whole_cluster=whole_cluster)
    await bed.look()

    found = bed.cache.get("AscendNode", "", "npu-0")

    assert found is not None
    assert "WatchOnly" not in {condition["type"] for condition in found["status"]["conditions"]}


async def test_a_remedy_that_can_not_be_read_is_as_good_as_lost() -> None:
    bed = Bed()
    await bed.look()
    found = bed.cache.get("AscendNode", "", "npu-0")
    assert found is not None
    metadata = {**found["metadata"], "resourceVersion": "500"}
    bed.cache.put({**found, "metadata": metadata, "status": {"remedy": {"state": "Dancing"}, "facts": facts()}})

    await bed.look(1)

    assert bed.edge.did == ["remember Healthy"]


async def test_what_a_new_leader_finds_counts_against_the_pools_limit_from_its_first_look_on() -> None:
    other = {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "AscendNode",
        "metadata": {"name": "npu-1", "uid": "u", "resourceVersion": "1"},
        "status": {"remedy": {"state": "Draining"}},
    }
    node = a_node()
    node["metadata"] = {**node["metadata"], "name": "npu-1"}
    bed = Bed(other, node)
    bed.controller.remedies.learn(bed.cache)

    assert bed.controller.remedies.out_of_service("inference", besides="npu-0") == 1
    assert bed.controller.remedies.out_of_service("inference", besides="npu-1") == 0
    assert bed.controller.remedies.out_of_service("training", besides="npu-0") == 0


def remembering(name: str, state: str, pool: str = "inference") -> tuple[Json, Json]:
    """Another node, and its AscendNode with a remedy in that state."""
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "generation": 1}
    node = a_node(pool)
    status = {"remedy": {"state": state, "since": stamp(at()), "reason": "Verified"}, "facts": facts(holder="")}
    ascend_node = {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": metadata, "spec": {}, "status": status}
    return {**node, "metadata": {**node["metadata"], **metadata}}, ascend_node


WAITING = (
    *remembering("npu-1", "Quiescing"),
    *remembering("npu-2", "Healthy"),
    *remembering("npu-3", "Quiescing", pool="training"),
    *remembering("npu-4", "Draining"),
)


async def test_who_waits_for_room_in_the_pool_is_woken_when_a_node_leaves_its_remedy() -> None:
    bed = Bed(*remembering("npu-0", "Returning"), *WAITING)

    await bed.look(1)

    assert bed.edge.did == ["remember Healthy"]
    assert bed.woken == ["npu-1"]


async def test_who_waits_for_room_is_left_alone_while_nothing_of_it_comes_free() -> None:
    bed = Bed(*remembering("npu-0", "Draining"), *WAITING)

    await bed.look(1)
    await bed.look(2)

    assert bed.woken == []


@pytest.mark.parametrize("how", ["deleted", "let go"])
async def test_who_waits_for_room_is_woken_when_a_node_goes_in_the_middle_of_its_remedy(how: str) -> None:
    bed = Bed(*remembering("npu-0", "Draining"), *WAITING)
    await bed.look(1)
    gone = a_node(pool=None)
    gone["metadata"]["resourceVersion"] = "50"
    (bed.cache.drop if how == "deleted" else bed.cache.put)(gone)

    await bed.look(2)

    assert bed.woken == ["npu-1"]


def health(*sick: str) -> NodeHealth:
    fault = (Fault("80E01801", "Critical", Grade.RESET),)
    cards = [CardHealth(number, number, faults=fault, holder=holder) for number, holder in enumerate(sick)]
    return NodeHealth("npu-0", Product.A2, tuple(cards))


def last(*pods: Json, sick: tuple[str, ...] = ()) -> frozenset[str]:
    cache = Cache()
    for resource in (a_service("chat"), *pods):
        cache.put(resource)
    return Traffic(cache, cast(Applier, None)).room(health(*sick), 0).last


def test_the_last_replica_in_traffic_is_told_and_one_with_others_elsewhere_is_not() -> None:
    assert last(served()) == {"prod/chat-engine-5d9f-aaaaa"}
    assert last(served(), served("b", node="npu-1")) == set()


def test_a_replica_elsewhere_that_gets_no_requests_does_not_count() -> None:
    assert last(served(), served("b", node="npu-1", serving=False)) == {"prod/chat-engine-5d9f-aaaaa"}
    assert last(served(), served("b", node="npu-1", ready=False)) == {"prod/chat-engine-5d9f-aaaaa"}
    assert last(served(), served("b", node="npu-1", deleted=True)) == {"prod/chat-engine-5d9f-aaaaa"}


def test_of_two_replicas_on_the_node_the_one_on_cards_that_are_well_is_kept() -> None:
    assert last(served("a"), served("b"), sick=("prod/a",)) == {"prod/b"}
    assert last(served("a"), served("b"), sick=("prod/b",)) == {"prod/a"}


async def test_a_plugin_that_resets_by_itself_counts_on_the_nodes_that_it_runs_on() -> None:
    container = {"name": "plugin", "args": ["device-plugin", "-hotReset=2"]}
    template = {"spec": {"nodeSelector": {"rack": "a"}, "containers": [container]}}

    async def daemon_sets() -> list[Json]:
        return [{"metadata": {"name": "plugin"}, "spec": {"template": template}}]

    plugins = Plugins(daemon_sets, 60.0, lambda: None)
    elsewhere = a_node()
    elsewhere["metadata"] = {**elsewhere["metadata"], "labels": {"rack": "b"}}

    assert await plugins.resets(a_node())
    assert not await plugins.resets(elsewhere)
