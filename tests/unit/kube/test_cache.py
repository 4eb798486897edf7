"""The cache. Pure: objects go in as a watch or a list would bring them, in any order."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_operator.api import names
from glm5_operator.kube.cache import Cache
from glm5_operator.kube.types import Key, key_of
from tests.unit.kube.objects import a_pod, an_object


def test_what_goes_in_comes_out_with_its_resource_version() -> None:
    cache = Cache()
    service = an_object("GLM5Service", "chat", version=7, spec={"pool": "inference", "model": {"name": "模型"}})

    assert cache.put(service)

    assert cache.get("GLM5Service", "ns", "chat") == service
    assert cache.get("GLM5Service", "other", "chat") is None


def test_the_same_object_again_is_no_news() -> None:
    cache = Cache()
    cache.put(an_object("GLM5Service", "chat", version=7, spec={}))

    assert not cache.put(an_object("GLM5Service", "chat", version=7, spec={}))


def test_the_same_object_with_its_fields_in_another_order_is_no_news() -> None:
    """A list's items get kind and apiVersion afterwards, a watch's begin with them."""
    cache = Cache()
    node = an_object("Node", "n", namespace="", version=1, status={"allocatable": {"cpu": "1", "memory": "1Gi"}})
    cache.put(dict(reversed(node.items())))

    assert not cache.put({**node, "metadata": {**node["metadata"], "resourceVersion": "2"}})


def test_older_news_does_not_overwrite_newer() -> None:
    cache = Cache()
    cache.put(an_object("Deployment", "d", version=9, spec={"replicas": 2}))

    assert not cache.put(an_object("Deployment", "d", version=10 - 2, spec={"replicas": 1}))
    assert cache.list("Deployment")[0]["spec"]["replicas"] == 2


def test_versions_are_compared_as_numbers_not_as_text() -> None:
    cache = Cache()
    cache.put(an_object("Deployment", "d", version=9, spec={"replicas": 1}))

    assert cache.put(an_object("Deployment", "d", version=10, spec={"replicas": 2}))


def test_a_nodes_heartbeat_is_no_news_but_a_cordon_is() -> None:
    cache = Cache()

    def node(version: int, beat: str, *, cordoned: bool = False) -> dict[str, object]:
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": beat}
        return an_object("Node", "n", namespace="", version=version, spec={"unschedulable": cordoned}, status={"conditions": [condition]})

    cache.put(node(1, "10:00"))

    assert not cache.put(node(2, "10:05"))
    assert cache.put(node(3, "10:10", cordoned=True))


def test_a_patch_of_a_node_after_heartbeats_uses_the_newest_version() -> None:
    cache = Cache()
    cache.put(an_object("Node", "n", namespace="", version=1, spec={}, status={}))
    cache.put(an_object("Node", "n", namespace="", version=5, spec={}, status={"images": []}))

    node = cache.get("Node", "", "n")
    assert node is not None
    assert node["metadata"]["resourceVersion"] == "5"


def test_children_are_found_by_their_owners_uid_and_no_longer_after_it_changed() -> None:
    cache = Cache()
    cache.put(an_object("Deployment", "b", owner="u1"))
    cache.put(an_object("Service", "a", owner="u1"))
    cache.put(an_object("Service", "c", owner="u2"))

    assert [child["metadata"]["name"] for child in cache.children("u1")] == ["b", "a"]

    cache.put(an_object("Service", "a", owner="u2", version=2))
    assert [child["metadata"]["name"] for child in cache.children("u1")] == ["b"]
    cache.drop(an_object("Deployment", "b", owner="u1", version=3))
    assert cache.children("u1") == []


def test_pods_are_found_by_service_also_when_its_name_is_hashed_in_the_label() -> None:
    cache = Cache()
    long = "x" * 70
    cache.put(an_object("GLM5Service", long))
    cache.put(a_pod("p", service=names.fit(long)))

    assert [pod["metadata"]["name"] for pod in cache.pods(Key("GLM5Service", "ns", long))] == ["p"]
    assert cache.owner_of_label(names.SERVICE_LABEL, "ns", names.fit(long)) == Key("GLM5Service", "ns", long)
    assert cache.pods(Key("GLM5Service", "other", long)) == []


def test_a_pod_keeps_what_explains_it_and_loses_the_rest() -> None:
    cache = Cache()
    cache.put(a_pod("p", node="n1", cards=2))

    pod = cache.pods(Key("GLM5Service", "ns", "chat"))[0]
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] == "2"
    assert "volumes" not in pod["spec"]
    assert pod["status"] == {"phase": "Running"}


def test_cards_are_held_until_the_pod_ends_moves_or_goes() -> None:
    cache = Cache()
    key = Key("Pod", "ns", "p")
    cache.put(a_pod("p", node="n1", cards=2))
    assert cache.held("n1") == {key: {"huawei.com/Ascend910": 2}}

    cache.put(a_pod("p", node="n1", cards=2, phase="Succeeded", version=2))
    assert cache.held("n1") == {}

    cache.put(a_pod("q", node="n1", cards=1))
    cache.drop(a_pod("q", node="n1", cards=1, version=3))
    assert cache.held("n1") == {}


def test_what_is_not_ready_comes_first_among_the_keys() -> None:
    cache = Cache()
    for name, ready in (("fine", "True"), ("broken", "False"), ("good", "True")):
        cache.put(an_object("GLM5Service", name, spec={"pool": "p"}, status={"conditions": [{"type": "Ready", "status": ready}]}))
    cache.put(an_object("GLM5Service", "new", spec={"pool": "p"}))

    assert [key.name for key in cache.keys("GLM5Service")] == ["broken", "new", "fine", "good"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "drop", "sweep"]),
            st.sampled_from("pqr"),
            st.sampled_from([None, "chat"]),
            st.sampled_from(["", "n1", "n2"]),
            st.integers(0, 8),
            st.sampled_from(["Running", "Failed"]),
        ),
        max_size=30,
    )
)
def test_what_a_node_holds_together_is_always_the_sum_of_its_pods(history: list[tuple[str, str, str | None, str, int, str]]) -> None:
    cache = Cache()

    for version, (what, name, service, node, cards, phase) in enumerate(history, 1):
        pod = a_pod(name, service=service, node=node, cards=cards, phase=phase, version=version)
        if what == "sweep":
            cache.sweep("Pod", None, {key_of(pod)}, version)
        elif what == "put":
            cache.put(pod)
        else:
            cache.drop(pod)
        for place in ("n1", "n2"):
            held: Counter[str] = Counter()
            for devices in cache.held(place).values():
                held.update(devices)
            assert +Counter(cache.held_together(place)) == +held


def test_a_pod_of_others_counts_while_it_holds_cards_and_is_nothing_else() -> None:
    cache = Cache()
    key = Key("Pod", "ns", "p")

    assert not cache.put(a_pod("p", service=None, cards=7, phase="Pending")), "not scheduled: holds nothing"
    assert cache.put(a_pod("p", service=None, node="n1", cards=7, phase="Pending", version=2))
    assert cache.held("n1") == {key: {"huawei.com/Ascend910": 7}}
    assert cache.get("Pod", "ns", "p") == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p", "resourceVersion": "2"},
        "spec": {"nodeName": "n1"},
    }
    assert not cache.put(a_pod("p", service=None, node="n1", cards=7, version=3)), "it runs, on the same cards"
    assert cache.put(a_pod("p", service=None, node="n1", cards=7, phase="Failed", version=4)), "it ended and freed them"
    assert cache.held("n1") == {}
    assert not cache.put(a_pod("p", service=None, node="n1", cards=7, version=3)), "a list from before its end comes late"
    assert not cache.drop(a_pod("p", service=None, node="n1", cards=7, phase="Failed", version=5))
    assert (list(cache.keys("Pod")), dict(cache.held("n1"))) == ([], {})


def test_a_pod_of_others_that_was_missed_ending_is_swept() -> None:
    cache = Cache()
    cache.put(a_pod("p", service=None, node="n1", cards=7))

    assert [gone["metadata"]["name"] for gone in cache.sweep("Pod", None, set(), 9)] == ["p"]
    assert cache.held("n1") == {}


def test_pods_without_devices_leave_nothing_behind_not_even_their_deletion() -> None:
    cache = Cache()
    cache.put(a_pod("ours", node="n1", cards=1))
    web = a_pod("web", service=None, node="n1")
    assert not cache.put(web)
    for number in range(21_000):
        web["metadata"]["name"] = f"web-{number}"
        assert not cache.drop(web)

    cache.drop(a_pod("ours", node="n1", cards=1, version=2))
    assert not cache.put(a_pod("ours", node="n1", cards=1)), "its deletion is still remembered"


def test_a_pod_that_loses_our_label_belongs_to_no_service_and_still_holds_its_cards() -> None:
    cache = Cache()
    cache.put(a_pod("p", node="n1", cards=2))

    assert cache.put(a_pod("p", service=None, node="n1", cards=2, version=2))
    assert cache.pods(Key("GLM5Service", "ns", "chat")) == []
    assert cache.held("n1") == {Key("Pod", "ns", "p"): {"huawei.com/Ascend910": 2}}


def test_devices_are_counted_as_the_scheduler_does_with_init_containers_and_sidecars() -> None:
    def asks(cards: int, **fields: object) -> dict[str, object]:
        return {"name": "c", "resources": {"limits": {"huawei.com/Ascend910": cards}}, **fields}

    pod = a_pod("p", service=None, node="n1", cards=2)
    pod["spec"]["initContainers"] = [asks(3), asks(1, restartPolicy="Always"), asks(6)]
    cache = Cache()
    cache.put(pod)

    assert cache.held("n1") == {Key("Pod", "ns", "p"): {"huawei.com/Ascend910": 7}}


def test_nodes_and_services_are_found_by_pool() -> None:
    cache = Cache()
    cache.put(an_object("Node", "n1", namespace="", labels={names.POOL_LABEL: "inference"}))
    cache.put(an_object("Node", "n2", namespace="", labels={}))
    cache.put(an_object("GLM5Service", "chat", spec={"pool": "inference"}))

    assert [node["metadata"]["name"] for node in cache.nodes("inference")] == ["n1"]
    assert cache.users_of("inference") == (Key("GLM5Service", "ns", "chat"),)

    cache.put(an_object("Node", "n1", namespace="", version=2, labels={}))
    cache.put(an_object("GLM5Service", "chat", version=2, spec={"pool": "other"}))
    assert cache.nodes("inference") == []
    assert cache.users_of("inference") == ()


def test_a_deleted_object_is_not_brought_back_by_a_list_taken_before_its_deletion() -> None:
    cache = Cache()
    cache.put(an_object("Deployment", "d", version=5))
    cache.drop(an_object("Deployment", "d", version=8))

    assert not cache.put(an_object("Deployment", "d", version=5))
    assert cache.list("Deployment") == []
    assert cache.put(an_object("Deployment", "d", version=9)), "a new one of the same name is welcome"


def test_late_news_of_a_predecessors_deletion_does_not_remove_its_successor() -> None:
    cache = Cache()
    cache.put(an_object("Deployment", "d", version=9))

    assert not cache.drop(an_object("Deployment", "d", version=8))
    assert len(cache.list("Deployment")) == 1


def test_a_sweep_drops_what_the_list_lacks_but_nothing_newer_than_the_list() -> None:
    cache = Cache()
    cache.put(an_object("Deployment", "gone", version=3))
    cache.put(an_object("Deployment", "there", version=3))
    cache.put(an_object("Deployment", "new", version=12))
    cache.put(an_object("Deployment", "elsewhere", version=3, namespace="other"))

    gone = cache.sweep("Deployment", "ns", {Key("Deployment", "ns", "there")}, version=10)

    assert [item["metadata"]["name"] for item in gone] == ["gone"]
    assert {key.name for key in cache.keys("Deployment")} == {"there", "new", "elsewhere"}


def test_conditions_are_counted_by_kind_type_and_status() -> None:
    cache = Cache()
    for name, state in (("a", "True"), ("b", "True"), ("c", "False")):
        cache.put(
            an_object("GLM5Service", name, status={"conditions": [{"type": "Ready", "status": state}, {"type": "Other", "status": "True"}]})
        )

    assert cache.condition_counts() == {("GLM5Service", "Ready", "True"): 2.0, ("GLM5Service", "Ready", "False"): 1.0}


@pytest.mark.parametrize("kind", ["GLM5Service", "Deployment", "Pod", "Node"])
def test_the_version_of_a_kind_grows_with_each_news_only(kind: str) -> None:
    cache = Cache()
    before = cache.version(kind)
    cache.put(an_object(kind, "a", version=1, labels={names.SERVICE_LABEL: "chat"}))
    after = cache.version(kind)
    cache.put(an_object(kind, "a", version=1, labels={names.SERVICE_LABEL: "chat"}))

    assert after > before
    assert cache.version(kind) == after


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "drop"])), max_size=30), st.randoms(use_true_random=False))
def test_whatever_the_order_of_arrival_the_newest_state_wins(history: list[tuple[str, str]], rng: random.Random) -> None:
    """Watch, relist and answers to our own writes race; each object ends as its last event says."""
    events = [(an_object("Deployment", name, version=number + 1, spec={"n": number}), what) for number, (name, what) in enumerate(history)]
    last = {key_of(resource): (resource, what) for resource, what in events}
    shuffled = list(events)
    rng.shuffle(shuffled)

    cache = Cache()
    for resource, what in shuffled:
        if what == "put":
            cache.put(resource)
        else:
            cache.drop(resource)

    assert {key_of(item): item for item in cache.list("Deployment")} == {key: item for key, (item, what) in last.items() if what == "put"}


def test_a_trainers_pod_that_ended_and_went_is_still_there_to_say_why_and_others_are_not() -> None:
    cache = Cache()
    job = Key("GLM5FinetuneJob", "ns", "tune")
    cache.put(an_object("GLM5FinetuneJob", "tune", spec={"pool": "training"}))
    ours, servers = {names.FINETUNE_LABEL: "tune"}, {names.SERVICE_LABEL: "tune"}
    said = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": {"exitCode": 137, "message": "SIGKILL"}}}]}
    pods = {
        "a": an_object("Pod", "a", version=2, labels=ours, spec={"nodeName": "n"}, status=said),
        "b": an_object("Pod", "b", version=2, labels=ours, spec={"nodeName": "n"}, status={"phase": "Running"}),
        "c": an_object("Pod", "c", version=2, labels=servers, spec={"nodeName": "n"}, status=said),
    }
    for pod in pods.values():
        cache.put({**pod, "status": {"phase": "Running"}})

    for pod in pods.values():
        cache.drop({**pod, "metadata": {**pod["metadata"], "resourceVersion": "3"}})

    assert cache.pods(job) == []
    assert [(pod["metadata"]["name"], pod["status"]) for pod in cache.ended_pods(job)] == [("a", said)]
    assert cache.ended_pods(Key("GLM5FinetuneJob", "ns", "other")) == []
