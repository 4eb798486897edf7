"""Lists against the cache. Faked: the API server behind HTTP."""

from __future__ import annotations

import asyncio

from glm5_operator.kube import kinds
from glm5_operator.kube.cache import Cache
from glm5_operator.kube.client import Client
from glm5_operator.kube.relist import Relist
from glm5_operator.metrics import Metrics
from tests.unit.kube.fake_api import FakeApi
from tests.unit.kube.objects import Json, an_object


async def test_a_server_that_was_set_back_to_a_backup_is_believed(client: Client, api: FakeApi, metrics: Metrics) -> None:
    cache, changed = Cache(), list[tuple[str, bool]]()
    relist = Relist(
        client,
        cache,
        metrics,
        kinds=(kinds.SERVICE,),
        namespaces=(),
        changed=lambda resource, deleted: changed.append((resource["metadata"]["name"], deleted)),
    )

    async def listed(version: int, *items: Json) -> None:
        api.answers["GET"] = (200, {"metadata": {"resourceVersion": str(version)}, "items": list(items), "kind": "GLM5ServiceList"}, {})
        await relist._list(kinds.SERVICE)

    def service(name: str, version: int, replicas: int) -> Json:
        return an_object("GLM5Service", name, version=version, spec={"replicas": replicas})

    await listed(900, service("chat", 800, 2), service("younger", 850, 1), service("same", 10, 1))
    cache.drop(service("deleted", 870, 1))
    changed.clear()

    await listed(500, service("chat", 400, 1), service("deleted", 300, 1), service("same", 10, 1))

    assert sorted(changed) == [("chat", False), ("deleted", False), ("younger", True)]
    found = cache.get("GLM5Service", "ns", "chat")
    assert found is not None
    assert (found["spec"], found["metadata"]["resourceVersion"]) == ({"replicas": 1}, "400")
    assert cache.put(service("chat", 501, 3)), "what the watch brings from then on is news"


async def test_a_kind_of_others_that_is_not_served_is_none_at_all_and_one_of_ours_is_tried_again(
    client: Client, api: FakeApi, metrics: Metrics
) -> None:
    cache, changed = Cache(), list[str]()
    relist = Relist(
        client,
        cache,
        metrics,
        kinds=(kinds.POD_GROUP, kinds.JOB),
        namespaces=(),
        changed=lambda resource, _deleted: changed.append(resource["metadata"]["name"]),
    )
    cache.put(an_object("PodGroup", "left", version=5))
    api.answers["GET"] = (404, {"kind": "Status", "reason": "NotFound", "message": "the server could not find the requested resource"}, {})

    assert await relist._try(kinds.POD_GROUP)
    assert not await relist._try(kinds.JOB)

    assert (changed, cache.get("PodGroup", "ns", "left")) == (["left"], None)


async def test_an_operator_of_some_namespaces_does_not_wait_for_what_it_may_look_for_nowhere(
    client: Client, api: FakeApi, metrics: Metrics
) -> None:
    """No watch is opened for it, so none asks for its list: the operator would lead only with the first regular relist, minutes later."""
    relist = Relist(client, Cache(), metrics, kinds=(kinds.JOB, kinds.CLUSTER_INFO), namespaces=("team",), changed=lambda *_: None)
    api.answers["GET"] = (200, {"metadata": {"resourceVersion": "7"}, "items": [], "kind": "JobList"}, {})
    relist.request(kinds.JOB.name)

    assert await relist._list_pending()

    async with asyncio.timeout(1):
        await relist.warm()
