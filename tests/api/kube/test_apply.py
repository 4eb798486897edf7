"""Server-side apply against a real API server: when it writes, when it doesn't, what it leaves alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from glm5_operator.api import names
from glm5_operator.kube import Applied, Applier, Cache, Key, errors, kinds
from glm5_operator.kube.client import Client
from glm5_operator.metrics import Metrics
from tests.api.kube.conftest import a_service
from tests.api.kube.small import client_service, engine
from tests.support.kube import Kube, until

Json = dict[str, Any]
JSON_PATCH = {"Content-Type": "application/json-patch+json"}


@dataclass
class Io:
    """A service that no operator looks at, and the parts that would reconcile it."""

    applier: Applier
    client: Client
    cache: Cache
    metrics: Metrics
    kube: Kube
    namespace: str
    service: Json

    async def converge(self, desired: list[Json] | None = None) -> Applied:
        wanted = [engine(self.service), client_service(self.service)] if desired is None else desired
        return await self.applier.converge(self.service, wanted, self.cache.children(self.service["metadata"]["uid"]))

    async def look(self) -> None:
        """What the watch does in the operator: bring the cache up to date."""
        for kind in (kinds.DEPLOYMENT, kinds.CLIENT_SERVICE):
            async for items, _ in self.client.pages(kind, self.namespace):
                for item in items:
                    self.cache.put(item)

    @property
    def engine_key(self) -> Key:
        return Key("Deployment", self.namespace, "chat-engine")

    def requests(self) -> float:
        family = next(family for family in self.metrics.registry.collect() if family.name == "glm5_operator_api_requests")
        return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))


@pytest.fixture
async def io(client: Client, kube: Kube, namespace: str) -> Io:
    cache, metrics = Cache(), Metrics()
    client._metrics = metrics
    return Io(Applier(client, cache, metrics), client, cache, metrics, kube, namespace, kube.create(a_service(namespace)))


async def test_children_are_created_once_with_owner_and_hash(io: Io) -> None:
    applied = await io.converge()

    assert applied.errors == ()
    assert set(applied.changed) == {io.engine_key, Key("Service", io.namespace, "chat-api")}
    metadata = io.kube.get("Deployment", io.namespace, "chat-engine")["metadata"]
    owner = metadata["ownerReferences"][0]
    assert (owner["uid"], owner["controller"], owner["kind"]) == (io.service["metadata"]["uid"], True, "GLM5Service")
    assert names.DESIRED_HASH_ANNOTATION in metadata["annotations"]
    assert [entry["manager"] for entry in metadata["managedFields"] if entry["operation"] == "Apply"] == [names.FIELD_MANAGER]


async def test_a_second_pass_sends_nothing(io: Io) -> None:
    """Also after the server has put in its defaults and rewritten 1024Mi as 1Gi."""
    await io.converge()
    await io.look()
    before = io.requests()

    assert (await io.converge()).clean
    assert io.requests() == before


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "replace", "path": "/spec/replicas", "value": 7}],
        [{"op": "remove", "path": "/spec/template/spec/containers/0/env"}],
        [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": ["serve"]}],
        [{"op": "remove", "path": "/metadata/labels/app.kubernetes.io~1component"}],
        [{"op": "remove", "path": "/metadata/annotations"}],
        [{"op": "remove", "path": "/metadata/ownerReferences"}],
    ],
    ids=["value", "removed list", "args", "label", "all annotations", "owner"],
)
async def test_drift_by_a_foreign_json_patch_is_mended(io: Io, patch: list[Json]) -> None:
    """A removal leaves our hash and our managedFields entry as they were: only looking at the fields finds it."""
    await io.converge()
    path = io.kube.path("Deployment", io.namespace, "chat-engine")
    io.kube.http.patch(path, json=patch, headers=JSON_PATCH, params={"fieldManager": "someone"}).raise_for_status()
    await io.look()

    applied = await io.converge()

    assert applied.changed == (io.engine_key,)
    live = io.kube.get("Deployment", io.namespace, "chat-engine")
    container = live["spec"]["template"]["spec"]["containers"][0]
    assert live["spec"]["replicas"] == 1
    assert container["env"] == [{"name": "OMP_NUM_THREADS", "value": "1"}]
    assert container["args"] == ["serve", "--max-model-len", "4096"]
    assert live["metadata"]["labels"]["app.kubernetes.io/component"] == "inference"
    assert live["metadata"]["ownerReferences"][0]["uid"] == io.service["metadata"]["uid"]
    await io.look()
    assert (await io.converge()).clean, "mended once, not for ever"


async def test_a_foreign_manager_that_forces_our_field_is_a_conflict_and_loses(io: Io) -> None:
    await io.converge()
    io.kube.patch("Deployment", io.namespace, "chat-engine", {"spec": {"replicas": 9}})
    await io.look()

    applied = await io.converge()

    assert applied.conflicts == (io.engine_key,)
    assert io.kube.get("Deployment", io.namespace, "chat-engine")["spec"]["replicas"] == 1
    assert io.metrics.registry.get_sample_value("glm5_operator_apply_conflicts_total", {"kind": "Deployment"}) == 1


async def test_fields_that_others_add_stay_and_cost_no_write(io: Io) -> None:
    await io.converge()
    io.kube.patch("Deployment", io.namespace, "chat-engine", {"metadata": {"annotations": {"team": "x"}}, "spec": {"paused": True}})
    await io.look()

    assert (await io.converge()).clean
    live = io.kube.get("Deployment", io.namespace, "chat-engine")
    assert live["metadata"]["annotations"]["team"] == "x"
    assert live["spec"]["paused"] is True


async def test_a_co_owner_of_the_same_value_causes_no_write(io: Io) -> None:
    await io.converge()
    twin = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat-engine"}, "spec": {"replicas": 1}}
    path, query = io.kube.path("Deployment", io.namespace, "chat-engine"), {"fieldManager": "gitops", "force": "true"}
    io.kube.http.patch(path, json=twin, headers={"Content-Type": "application/apply-patch+yaml"}, params=query).raise_for_status()
    await io.look()

    assert (await io.converge()).clean


async def test_a_field_that_is_no_longer_desired_goes(io: Io) -> None:
    await io.converge()
    await io.look()
    slimmer = engine(io.service)
    del slimmer["spec"]["template"]["spec"]["containers"][0]["env"]

    await io.converge([slimmer, client_service(io.service)])

    assert "env" not in io.kube.get("Deployment", io.namespace, "chat-engine")["spec"]["template"]["spec"]["containers"][0]


async def test_a_child_without_a_place_in_the_plan_is_removed(io: Io) -> None:
    await io.converge()

    applied = await io.converge([engine(io.service)])

    assert applied.removed == (Key("Service", io.namespace, "chat-api"),)
    until("the Service to be gone", lambda: io.kube.find("Service", io.namespace, "chat-api") is None)
    assert io.kube.find("Deployment", io.namespace, "chat-engine") is not None


async def test_an_object_that_is_not_ours_is_a_name_conflict_and_stays_as_it_is(io: Io) -> None:
    foreign = io.kube.create(
        {"kind": "Service", "metadata": {"name": "chat-api", "namespace": io.namespace}, "spec": {"ports": [{"port": 1}]}}
    )

    applied = await io.converge()

    assert [(failure.reason, failure.retryable) for failure in applied.errors] == [("NameConflict", False)]
    assert "chat-api" in applied.errors[0].message
    assert io.kube.get("Service", io.namespace, "chat-api")["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
    assert applied.changed == (io.engine_key,), "one failure must not keep the rest from being made"


async def test_a_child_whose_label_was_taken_off_is_adopted_again_by_its_owners_uid(io: Io) -> None:
    """The watch shows its deletion then, for its selector no longer matches."""
    await io.converge()
    io.kube.patch("Deployment", io.namespace, "chat-engine", {"metadata": {"labels": {names.SERVICE_LABEL: None}}})
    io.cache.drop(io.kube.get("Deployment", io.namespace, "chat-engine") | {"kind": "Deployment"})

    applied = await io.converge()

    assert applied.errors == ()
    assert io.kube.get("Deployment", io.namespace, "chat-engine")["metadata"]["labels"][names.SERVICE_LABEL] == "chat"


async def test_what_an_earlier_owner_of_the_same_name_left_is_waited_for(io: Io) -> None:
    """The garbage collector is about to remove it; taking it over would lose that race."""
    await io.converge()
    child = io.kube.get("Deployment", io.namespace, "chat-engine")
    successor = {**io.service, "metadata": {**io.service["metadata"], "uid": "another"}}

    applied = await Applier(io.client, Cache(), io.metrics).converge(successor, [engine(successor)], [])

    assert [(failure.reason, failure.retryable) for failure in applied.errors] == [("BeingDeleted", True)]
    after = io.kube.get("Deployment", io.namespace, "chat-engine")
    assert after["metadata"]["ownerReferences"] == child["metadata"]["ownerReferences"]


async def test_children_that_a_user_orphaned_are_adopted_by_the_next_service_of_that_name(io: Io) -> None:
    await io.converge()
    before = io.kube.get("Deployment", io.namespace, "chat-engine")["metadata"]["uid"]
    io.kube.delete("GLM5Service", io.namespace, "chat", propagation="Orphan")
    until("the first one to be gone", lambda: io.kube.find("GLM5Service", io.namespace, "chat") is None)
    until("its child to be let go", lambda: not io.kube.get("Deployment", io.namespace, "chat-engine")["metadata"].get("ownerReferences"))
    io.service = io.kube.create(a_service(io.namespace))
    io.cache, io.applier = (fresh := Cache()), Applier(io.client, fresh, io.metrics)

    applied = await io.converge()

    assert applied.errors == ()
    metadata = io.kube.get("Deployment", io.namespace, "chat-engine")["metadata"]
    assert metadata["uid"] == before, "its pods went on serving"
    assert [owner["uid"] for owner in metadata["ownerReferences"]] == [io.service["metadata"]["uid"]]


async def test_an_owner_that_is_being_deleted_gets_no_children(io: Io) -> None:
    leaving = {**io.service, "metadata": {**io.service["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}

    assert (await io.applier.converge(leaving, [engine(leaving)], [])).clean
    assert io.kube.find("Deployment", io.namespace, "chat-engine") is None


async def test_a_used_up_quota_is_told_in_the_servers_words_and_the_rest_is_made(io: Io) -> None:
    io.kube.create(
        {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": io.namespace}, "spec": {"hard": {"count/deployments.apps": "0"}}}
    )
    until("the quota to be in force", lambda: bool(io.kube.get("ResourceQuota", io.namespace, "q").get("status", {}).get("hard")))

    applied = await io.converge()

    assert [failure.reason for failure in applied.errors] == ["QuotaExceeded"]
    assert "exceeded quota: q" in applied.errors[0].message
    assert applied.changed == (Key("Service", io.namespace, "chat-api"),)


async def test_an_object_that_the_server_refuses_is_invalid_and_not_worth_a_retry(io: Io) -> None:
    broken = engine(io.service)
    broken["spec"]["template"]["metadata"]["labels"] = {"other": "labels"}

    applied = await io.converge([broken])

    assert [(failure.reason, failure.retryable) for failure in applied.errors] == [("Invalid", False)]
    assert "selector" in applied.errors[0].message


async def test_a_child_in_another_namespace_than_its_owner_is_our_own_mistake(io: Io) -> None:
    """The garbage collector would delete it when it next starts; case B13."""
    elsewhere = engine(io.service)
    elsewhere["metadata"]["namespace"] = "default"

    with pytest.raises(AssertionError, match="isn't in the namespace"):
        await io.converge([elsewhere])


STATUS: Json = {"observedGeneration": 1, "replicas": 1}


async def test_a_status_is_written_when_it_differs_and_only_then(io: Io) -> None:
    assert await io.applier.write_status(io.service, {**STATUS, "endpoint": None}) is None
    written = io.kube.get("GLM5Service", io.namespace, "chat")
    assert written["status"] == STATUS

    seen = io.cache.get("GLM5Service", io.namespace, "chat")
    assert seen is not None, "the answer of the write is in the cache, so its watch event is no news"
    before = io.requests()
    await io.applier.write_status(seen, {**STATUS, "endpoint": None})
    assert io.requests() == before


async def test_a_status_field_that_is_no_longer_reported_goes(io: Io) -> None:
    await io.applier.write_status(io.service, {**STATUS, "endpoint": "http://x"})
    seen = io.cache.get("GLM5Service", io.namespace, "chat")
    assert seen is not None

    await io.applier.write_status(seen, STATUS)

    assert io.kube.get("GLM5Service", io.namespace, "chat")["status"] == STATUS


async def test_the_status_of_a_gone_object_or_of_its_successor_is_not_written(io: Io) -> None:
    io.kube.delete("GLM5Service", io.namespace, "chat")
    until("it to be gone", lambda: io.kube.find("GLM5Service", io.namespace, "chat") is None)
    assert await io.applier.write_status(io.service, STATUS) is None

    io.cache.put(io.kube.create(a_service(io.namespace)))
    assert await io.applier.write_status(io.service, STATUS) is None
    assert "status" not in io.kube.get("GLM5Service", io.namespace, "chat")


async def test_a_status_that_the_schema_refuses_is_a_failure_not_an_exception(io: Io) -> None:
    failure = await io.applier.write_status(io.service, {"replicas": "many"})

    assert failure is not None
    assert failure.reason == "Invalid"


async def test_nothing_is_written_once_the_lease_is_lost(io: Io) -> None:
    def guard() -> None:
        raise errors.NotLeaderError("lost")

    io.client.guard_writes(guard)

    applied = await io.converge()

    assert {failure.reason for failure in applied.errors} == {"NotLeader"}
    assert io.kube.find("Deployment", io.namespace, "chat-engine") is None
