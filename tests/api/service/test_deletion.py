"""Cases B03 and B13: deleting at the worst moment leaves nothing, and the garbage collector never takes the wrong thing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.api.conftest import Operated
from tests.support.documents import tiny
from tests.support.kube import CHILD_KINDS, Kube, stays, until

NOWHERE = {"spec": {"nodeSelector": {"example.com/no": "such-node"}}}
OWNERS = {"GLM5Service", "Deployment", "ReplicaSet", "Service"}


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
@pytest.mark.parametrize("age", [0, 1, 5])
def test_a_service_that_never_became_healthy_goes_at_once(operated: Operated, kube: Kube, home: str, age: int, propagation: str) -> None:
    kube.create(tiny(home, podTemplate=NOWHERE))
    time.sleep(age)  # the case is about the age at deletion

    kube.delete("GLM5Service", home, "chat", propagation)

    until("nothing to be left", lambda: kube.find("GLM5Service", home, "chat") is None and kube.leftovers(home) == [], 30)
    assert _complaints(operated) == []


def test_fifty_services_that_live_less_than_a_second_leave_nothing(operated: Operated, kube: Kube, home: str) -> None:
    for number in range(50):
        kube.create(tiny(home, f"chat-{number % 5}"))
        kube.delete("GLM5Service", home, f"chat-{number % 5}", "Foreground" if number % 2 else "Background")
        until("the name to be free", lambda n=number: kube.find("GLM5Service", home, f"chat-{n % 5}") is None, 30)  # type: ignore[misc]

    until("nothing to be left", lambda: kube.leftovers(home) == [], 40, lambda: str(kube.leftovers(home)))
    stays("nothing left", lambda: kube.leftovers(home) == [], 3, lambda: str(kube.leftovers(home)))
    assert _complaints(operated) == []


def test_a_service_that_is_deleted_and_made_again_at_once_gets_children_of_its_own(kube: Kube, home: str) -> None:
    kube.create(tiny(home))
    kube.wait_ready(home, "chat")

    kube.delete("GLM5Service", home, "chat")
    again = kube.create(tiny(home))

    kube.wait_ready(home, "chat")

    def owned() -> bool:
        found = kube.find("Deployment", home, "chat-engine")
        return found is not None and found["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]

    until("a Deployment of the new service", owned, 30)
    kube.wait_ready(home, "chat")


def test_restarting_the_controller_manager_removes_nothing(operated: Operated, kube: Kube, home: str) -> None:
    kube.create(tiny(home, replicas=2))
    kube.wait_ready(home, "chat")
    assert _bad_owners(kube) == []
    before = {item: _uid(kube, home, item) for item in kube.leftovers(home)}

    _restart(operated, "kube-controller-manager")

    stays("everything", lambda: {item: _uid(kube, home, item) for item in kube.leftovers(home)} == before, 8)
    reasons = {event["reason"] for event in kube.list("Event", home)}
    assert "OwnerRefInvalidNamespace" not in reasons


def _bad_owners(kube: Kube) -> list[str]:
    """Objects whose owner isn't in their own namespace."""
    bad = []
    for kind in (*CHILD_KINDS, "ReplicaSet", "Pod"):
        for item in kube.list(kind):
            for reference in item["metadata"].get("ownerReferences", ()):
                if reference["kind"] not in OWNERS:
                    continue
                owner = kube.find(reference["kind"], item["metadata"]["namespace"], reference["name"])
                if owner is None or owner["metadata"]["uid"] != reference["uid"]:
                    gone = kube.find(kind, item["metadata"]["namespace"], item["metadata"]["name"]) is None
                    bad += [] if gone else [f"{kind}/{item['metadata']['name']}"]
    return bad


def _restart(operated: Operated, name: str) -> None:
    """kill and start again with the same arguments."""
    processes = operated.cluster.processes
    identity = processes.identity(name)
    assert identity is not None
    argv = [word.decode() for word in Path(f"/proc/{identity.pid}/cmdline").read_bytes().split(b"\0") if word]
    processes.stop(name, grace=0.5)
    begin = processes.log(name).stat().st_size
    processes.start(name, argv)

    def collected() -> bool:
        return "resource monitors have synced" in processes.log(name).read_text(errors="replace")[begin:]

    until("the garbage collector to work", collected, 60, lambda: processes.tail(name))


def _uid(kube: Kube, namespace: str, item: str) -> str:
    kind, name = item.split("/")
    found = kube.find(kind, namespace, name)
    return found["metadata"]["uid"] if found else ""


def _complaints(operated: Operated) -> list[str]:
    """What the operator's log may not hold after a deletion."""
    bad = ("ERROR", "CRITICAL", "Traceback", "no new finalizers")
    return [line for line in operated.operator.said().splitlines() if any(word in line for word in bad)]
