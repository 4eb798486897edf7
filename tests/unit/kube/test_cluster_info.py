"""ClusterD's ConfigMaps, which are of all nodes, in the cache: each node has its own part, and only news of it wakes it. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_operator.controllers.wake import woken_by
from glm5_operator.health.sources import mindcluster
from glm5_operator.kube.cache import Cache
from glm5_operator.kube.cluster_info import part_of
from tests.support.mindcluster import card_fault, cluster_map, device_list

Json = dict[str, Any]
NAME = "cluster-info-device-0"


def entry(*faults: Json, updated: int = 1790000000) -> Json:
    return {"DeviceList": device_list(*faults), "UpdateTime": updated, "SuperPodID": -2}


def a_map(entries: Json | str, version: int = 1) -> Json:
    found = cluster_map({} if isinstance(entries, str) else entries)
    found["metadata"] |= {"resourceVersion": str(version), "uid": "uid-map", "labels": {"mx-consumer-volcano": "true"}}
    if isinstance(entries, str):
        found["data"] = {NAME: entries}
    return found | {"kind": "ClusterInfo"}


def nodes(**entries: Json) -> Json:
    return {f"mindx-dl-deviceinfo-{node}": found for node, found in entries.items()}


def fed(cache: Cache, entries: Json | str, version: int = 1) -> set[str] | None:
    """The nodes that are woken by a version of the map; None where it is no news."""
    found = a_map(entries, version)
    return {key.name for key, _ in woken_by(cache, found, 0.2)} if cache.put(found) else None


def codes(cache: Cache, node: str) -> list[str]:
    read = [mindcluster.devices_in_cluster(found, node) for found in cache.maps(node)]
    return [code.code for found in read if isinstance(found, mindcluster.Devices) for one in found.entries for code in one.codes]


def test_a_node_is_shown_its_own_part_of_the_map_of_all_nodes() -> None:
    cache = Cache()

    fed(cache, nodes(n1=entry(), n2=entry(card_fault(3, "RestartNPU"))))

    assert (codes(cache, "n1"), codes(cache, "n2"), cache.maps("n3")) == ([], ["80E18404"], [])
    assert list(json.loads(cache.maps("n2")[0]["data"][NAME])) == ["mindx-dl-deviceinfo-n2"]


def test_of_a_new_version_only_the_nodes_are_woken_of_which_it_says_something_else() -> None:
    cache = Cache()
    assert fed(cache, nodes(n1=entry(), n2=entry(), n3=entry())) == {"n1", "n2", "n3"}

    assert fed(cache, nodes(n1=entry(), n2=entry(card_fault(1, "RestartNPU")), n4=entry()), version=2) == {"n2", "n3", "n4"}


def test_an_entry_that_is_only_written_again_wakes_nobody_and_has_its_new_time() -> None:
    """With a public fault ClusterD writes the time anew each few seconds."""
    cache = Cache()
    fed(cache, nodes(n1=entry()))

    assert fed(cache, nodes(n1=entry(updated=1790000005)), version=2) is None

    found = mindcluster.devices_in_cluster(cache.maps("n1")[0], "n1")
    assert isinstance(found, mindcluster.Devices)
    assert found.updated is not None
    assert found.updated.timestamp() == 1790000005


def test_when_the_map_goes_all_its_nodes_are_woken_and_have_no_part_any_more() -> None:
    cache = Cache()
    fed(cache, nodes(n1=entry(), n2=entry()))
    fed(cache, nodes(n1=entry(card_fault(1, "RestartNPU")), n2=entry()), version=2)
    gone = a_map({}, version=3)

    assert cache.drop(gone)
    assert {key.name for key, _ in woken_by(cache, gone, 0.2)} == {"n1", "n2"}
    assert cache.maps("n1") == []


@pytest.mark.parametrize("text", ["{", "[1]", "null", "[" * 30_000], ids=["cut", "a list", "null", "deep"])
def test_a_map_that_cannot_be_read_says_so_to_each_node_until_it_can(text: str) -> None:
    cache = Cache()
    fed(cache, nodes(n1=entry()))

    assert fed(cache, text, version=2) == {"n1"}
    assert isinstance(mindcluster.devices_in_cluster(cache.maps("n1")[0], "n1"), mindcluster.Unreadable)
    assert fed(cache, nodes(n1=entry()), version=3) == {"n1"}


def test_an_empty_map_is_how_clusterd_says_that_all_is_well() -> None:
    cache = Cache()
    fed(cache, "")

    assert cache.maps("n1") == []
    assert mindcluster.host_in_cluster({"metadata": {"name": "cluster-info-node-cm"}, "data": {"cluster-info-node-cm": ""}}, "n1") is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(["mindx-dl-deviceinfo-n1", "mindx-dl-deviceinfo-n2", "x"]), _JSON | st.just(entry())))
def test_a_part_says_of_its_node_what_the_whole_map_says(entries: Json) -> None:
    whole = cluster_map(entries)
    part = part_of(whole, "n1")

    assert (mindcluster.devices_in_cluster(part, "n1") if part else None) == mindcluster.devices_in_cluster(whole, "n1")
