"""Which watch gave a sign of life. Faked: the API server behind HTTP."""

from __future__ import annotations

from typing import Any

from kubernetes.aio.client.configuration import Configuration

from glm5_operator.kube import kinds
from glm5_operator.kube.watching import WatchSession
from glm5_operator.metrics import Metrics
from tests.unit.kube.fake_api import FakeApi


async def test_a_watch_that_is_opened_is_told_with_its_kind_and_namespace(api: FakeApi, metrics: Metrics) -> None:
    api.answers["GET"] = (200, {"items": []}, {})
    opened: list[tuple[str, str]] = []
    listed: list[str] = []
    session = WatchSession(Configuration(host=api.url), metrics, kinds.WATCHED, lambda *watch: opened.append(watch), listed.append)
    http: Any = session.login().aiohttp_session

    for path in ("/api/v1/namespaces/team/pods?watch=true", "/api/v1/pods?watch=true", "/api/v1/nodes", "/api/v1/namespaces"):
        async with http.get(api.url + path) as answer:
            assert answer.status == 200
    await session.close()

    assert opened == [("Pod", "team"), ("Pod", ""), ("Node", "")]
    assert listed == ["Node"]


async def test_a_refused_watch_is_no_sign_of_life(api: FakeApi, metrics: Metrics) -> None:
    api.answers["GET"] = (403, {}, {})
    opened: list[tuple[str, str]] = []
    session = WatchSession(Configuration(host=api.url), metrics, kinds.WATCHED, lambda *watch: opened.append(watch), lambda _kind: None)
    http: Any = session.login().aiohttp_session

    async with http.get(f"{api.url}/api/v1/namespaces/team/pods?watch=true") as answer:
        assert answer.status == 403
    await session.close()

    assert opened == []


async def test_two_kinds_that_are_config_maps_are_told_apart_by_their_selectors(api: FakeApi, metrics: Metrics) -> None:
    api.answers["GET"] = (200, {"items": []}, {})
    opened: list[tuple[str, str]] = []
    session = WatchSession(Configuration(host=api.url), metrics, kinds.WATCHED, lambda *watch: opened.append(watch), lambda _kind: None)
    http: Any = session.login().aiohttp_session

    for kind in (kinds.MIND_CLUSTER_MAP, kinds.CLUSTER_INFO):
        async with http.get(api.url + kind.path(kind.only_in), params={"labelSelector": kind.selector, "watch": "true"}) as answer:
            assert answer.status == 200
    await session.close()

    assert opened == [("MindClusterMap", ""), ("ClusterInfo", "mindx-dl")]
