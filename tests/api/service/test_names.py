"""Case B08: names that only overflow after a suffix. Each works completely or is refused at once with the limit; no half-made set."""

from __future__ import annotations

import secrets

import pytest

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import Kube, until


@pytest.mark.parametrize("length", [1, 40, 52, 53, 58, 62, 63])
def test_a_name_that_is_accepted_works_completely(kube: Kube, home: str, length: int) -> None:
    name = ("glm" + "x" * 60)[:length]

    kube.create(tiny(home, name))

    kube.wait_ready(home, name)
    children = [item for item in kube.leftovers(home) if item.split("/")[0] in {"Deployment", "Service"}]
    assert len(children) == 2


@pytest.mark.parametrize(
    "name",
    ["x" * 64, "x" * 253, "x" * 254, "glm.5.prod", "x" * 62 + "-", "-x", "Glm", "1" + "x" * 70],
    ids=["64", "253", "254", "with dots", "63rd is a dash", "leading dash", "upper case", "digit and long"],
)
def test_a_name_that_could_not_work_is_refused_at_once_and_leaves_nothing(kube: Kube, home: str, name: str) -> None:
    document = {"apiVersion": "glm5.dev/v1alpha1", **tiny(home, name)}

    answer = kube.http.post(kube.path("GLM5Service", home), json=document)

    assert answer.status_code == 422, answer.text
    assert "name" in answer.json()["message"]
    assert kube.leftovers(home) == []


def test_two_long_names_that_begin_alike_get_children_of_their_own(kube: Kube, home: str) -> None:
    first, second = "x" * 60 + "-a", "x" * 60 + "-b"
    kube.create(tiny(home, first))
    kube.create(tiny(home, second))

    kube.wait_ready(home, first)
    kube.wait_ready(home, second)

    assert len(kube.list("Deployment", home)) == len(kube.list("Service", home)) == len(kube.list("Pod", home)) == 2
    for name in (first, second):
        service = kube.get("GLM5Service", home, name)
        (pod,) = kube.list("Pod", home, service["status"]["selector"])
        (reference,) = kube.get("Deployment", home, _deployment_of(kube, home, pod))["metadata"]["ownerReferences"]
        assert reference["uid"] == service["metadata"]["uid"]


def test_a_namespace_of_63_characters_works(operated: Operated, kube: Kube) -> None:
    name = ("n" * 55 + secrets.token_hex(4))[:63]
    kube.create({"kind": "Namespace", "metadata": {"name": name}})
    until("the namespace's ServiceAccount", lambda: kube.find("ServiceAccount", name, "default") is not None)

    kube.create(tiny(name, "y" * 63))

    kube.wait_ready(name, "y" * 63)
    kube.delete("GLM5Service", name, "y" * 63)
    kube.delete("Namespace", "", name)


def test_a_name_that_somebody_else_uses_is_a_conflict_and_is_left_alone_until_it_is_free(kube: Kube, home: str) -> None:
    theirs = kube.create(
        {"kind": "Service", "metadata": {"name": "chat-api", "namespace": home}, "spec": {"ports": [{"port": 1}], "selector": {"a": "b"}}}
    )

    kube.create(tiny(home))

    conflict = kube.wait_condition(home, "chat", "NameConflict")
    assert "Service chat-api exists already" in conflict["message"]
    assert kube.condition(home, "chat", "Stalled")["status"] == "True"
    assert kube.get("Service", home, "chat-api")["spec"] == theirs["spec"]

    kube.delete("Service", home, "chat-api")
    kube.patch("GLM5Service", home, "chat", {"metadata": {"annotations": {"example.com/poke": "1"}}})

    kube.wait_ready(home, "chat")


def _deployment_of(kube: Kube, namespace: str, pod: dict[str, object]) -> str:
    owners = pod["metadata"]["ownerReferences"]  # type: ignore[index]
    owner = kube.get("ReplicaSet", namespace, owners[0]["name"])
    return str(owner["metadata"]["ownerReferences"][0]["name"])
