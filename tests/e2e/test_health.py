"""A card fails while a service is in use: the whole way from npu-smi to the endpoints, the reset and back, and into quarantine.

Nothing is played but the card itself: the agent reads the fake npu-smi on its node and resets by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from demo import steps
from demo.site import Site
from tests.cluster.devices import NodeDevices
from tests.cluster.shell import wait_for
from tests.e2e.looks import SELECTOR, apply, get, in_pod, serving_workers, wait_ready

POLICY = {"mode": "Auto", "resets": 1, "debounce": "2s", "verify": "3s", "drain": "2m"}
CLIENT = "traffic"
ASK = """
import itertools, sys, threading, time, httpx
def ask(who):
    for number in itertools.count():
        body = {"prompt": f"Once upon a time {who} {number}", "max_new_tokens": 24, "temperature": 0}
        try:
            answer = httpx.post(sys.argv[1] + "/generate", json=body, timeout=60, trust_env=False)
            good = answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] > 0
            said = "ok" if good else f"FAILED {answer.status_code} {answer.text[:200]!r}"
        except httpx.HTTPError as error:
            said = f"FAILED {error!r}"
        sys.stdout.write(said + "\\n")
        sys.stdout.flush()
        time.sleep(0.2)
for who in range(2):
    threading.Thread(target=ask, args=(who,)).start()
"""


@pytest.fixture
def two_replicas(demo: Site) -> Iterator[Site]:
    """The service with a replica on each of its two workers, a policy that acts, and somebody who asks all the time."""
    demo.kubectl("patch", "npupool", steps.POOL, "--type=merge", "-p", json.dumps({"spec": {"health": POLICY}}))
    apart = {"labelSelector": {"matchLabels": {"glm5.dev/service": steps.SERVICE}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]}}
    wanted = {"spec": {"replicas": 2, "podTemplate": {"spec": {"affinity": affinity}}}}
    demo.kubectl("patch", "glm5", steps.SERVICE, "-n", steps.NAMESPACE, "--type=merge", "-p", json.dumps(wanted))
    wait_ready(demo, steps.SERVICE, timeout=180)
    workers = serving_workers(demo)
    for worker in workers:
        wait_for(f"facts of {worker}", lambda worker=worker: remedy(demo, worker).get("state") == "Healthy", timeout=90, every=0.5)
    apply(demo, client(demo))
    demo.kubectl("wait", "--for=condition=Ready", f"pod/{CLIENT}", "-n", steps.OPERATOR_NAMESPACE, "--timeout=60s")
    wait_for("traffic", lambda: answers(demo).count("ok") > 5, timeout=60, every=0.5)
    yield demo
    demo.kubectl("delete", "pod", CLIENT, "-n", steps.OPERATOR_NAMESPACE, "--grace-period=1")
    for worker in workers:
        file = demo.kind.cards(worker)  # type: ignore[union-attr]
        NodeDevices.read(file).change(*range(8), health="OK", codes=(), information=()).write(file)
    demo.kubectl("patch", "npupool", steps.POOL, "--type=merge", "-p", json.dumps({"spec": {"health": None}}))
    calm = {"spec": {"replicas": 1, "podTemplate": None}}
    demo.kubectl("patch", "glm5", steps.SERVICE, "-n", steps.NAMESPACE, "--type=merge", "-p", json.dumps(calm))


def client(place: Site) -> dict[str, Any]:
    """A pod that asks through the Service, a new connection each time; it runs where the operator may."""
    (operator,) = get(place, "pods", namespace=steps.OPERATOR_NAMESPACE, selector="app.kubernetes.io/component=operator")
    container = {
        "name": "ask",
        "image": operator["spec"]["containers"][0]["image"],
        "command": ["python", "-c", ASK, f"http://{steps.SERVICE}-api.{steps.NAMESPACE}.svc.cluster.local:8000"],
    }
    metadata = {"name": CLIENT, "namespace": steps.OPERATOR_NAMESPACE}
    spec = {"containers": [container], "nodeName": operator["spec"]["nodeName"], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def answers(place: Site) -> list[str]:
    """What the client got so far."""
    return place.kubectl("logs", CLIENT, "-n", steps.OPERATOR_NAMESPACE).splitlines()


def remedy(place: Site, node: str) -> dict[str, Any]:
    """How the node's remedy stands."""
    found = json.loads(place.kubectl("get", "ascendnodes", "-o", "json"))["items"]
    status = next((item.get("status") or {} for item in found if item["metadata"]["name"] == node), {})
    told: dict[str, Any] = status.get("remedy") or {}
    return told


def walked(place: Site, node: str) -> list[str]:
    """The states since the agent spoke first, each once in a row."""
    states = [entry["state"] for entry in remedy(place, node).get("history", [])]
    return [state for before, state in zip([None, *states], states, strict=False) if state != before]


def endpoints(place: Site) -> set[str]:
    """Nodes of the replicas that clients reach."""
    slices = get(place, "endpointslices", selector=f"kubernetes.io/service-name={steps.SERVICE}-api")
    found = [endpoint for item in slices for endpoint in item.get("endpoints") or () if endpoint["conditions"].get("ready")]
    return {endpoint["nodeName"] for endpoint in found}


def fail(place: Site, node: str, card: int) -> None:
    """The card says Critical from now on."""
    assert place.kind is not None
    file = place.kind.cards(node)
    NodeDevices.read(file).change(card, health="Critical", codes=("80E01801",), information=("HBM multi-bit ECC error",)).write(file)


def wait_state(place: Site, node: str, state: str, timeout: float) -> None:
    """Wait until the remedy of the node is there."""
    try:
        wait_for(f"{node} to be {state}", lambda: remedy(place, node).get("state") == state, timeout=timeout, every=0.3)
    except Exception as error:
        raise AssertionError(f"{error}; it says {json.dumps(remedy(place, node), indent=1)}") from error


def test_a_failed_card_is_healed_under_traffic_and_failing_again_is_quarantined(two_replicas: Site) -> None:
    place = two_replicas
    pods = [pod for pod in get(place, "pods", selector=SELECTOR) if "deletionTimestamp" not in pod["metadata"]]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(serving_workers(place))
    sick, pod = pods[0]["spec"]["nodeName"], pods[0]
    environment = dict(line.split("=", 1) for line in in_pod(place, pod, "env").splitlines() if "=" in line)
    card = int(environment["ASCEND_VISIBLE_DEVICES"])

    fail(place, sick, card)

    wait_for("the replica to leave the endpoints", lambda: sick not in endpoints(place), timeout=10, every=0.2)
    wait_state(place, sick, "Healthy", timeout=180)
    steps_taken = walked(place, sick)
    assert steps_taken[-6:] == ["Quiescing", "Draining", "Resetting", "Verifying", "Returning", "Healthy"], steps_taken
    assert place.kind is not None
    assert json.loads(place.kind.cards(sick).read_text())["reset"]["done"] != []
    wait_ready(place, steps.SERVICE, timeout=120)
    asked = len(answers(place))
    wait_for("more traffic", lambda: len(answers(place)) > asked + 10, timeout=60, every=0.5)
    assert [line for line in answers(place) if line != "ok"] == []

    fail(place, sick, card)

    wait_state(place, sick, "Quarantined", timeout=120)
    node = get(place, "node", sick)
    assert {taint["key"]: taint.get("value") for taint in node["spec"].get("taints", [])}["glm5.dev/health"] == "quarantined"
    wait_ready(place, steps.SERVICE, timeout=120)
    assert endpoints(place) == set(serving_workers(place)) - {sick}
    assert [line for line in answers(place) if line != "ok"] == []

    file = place.kind.cards(sick)
    NodeDevices.read(file).change(card, health="OK", codes=(), information=()).write(file)
    place.kubectl("annotate", "ascendnode", sick, "glm5.dev/release=the test: the card was replaced")
    wait_state(place, sick, "Healthy", timeout=90)
