"""What e2e tests look at in the cluster, and the few things they do to it by force."""

from __future__ import annotations

import json
import signal
from typing import Any

import yaml

from demo import steps
from demo.site import Site
from tests.cluster.shell import wait_for

SELECTOR = f"glm5.dev/service={steps.SERVICE}"


def get(place: Site, kind: str, name: str = "", namespace: str = steps.NAMESPACE, selector: str = "") -> Any:  # noqa: ANN401 - JSON
    """An object (with a name) or the items of a list."""
    words = ["get", kind, *([name] if name else []), "-n", namespace, "-o", "json", *(["-l", selector] if selector else [])]
    found = json.loads(place.kubectl(*words))
    return found if name else found["items"]


def engine_pod(place: Site, service: str = steps.SERVICE) -> dict[str, Any]:
    """The one running, not ending pod of a service."""

    def one() -> dict[str, Any] | None:
        pods = [p for p in get(place, "pods", selector=f"glm5.dev/service={service}") if "deletionTimestamp" not in p["metadata"]]
        return pods[0] if len(pods) == 1 else None

    return wait_for(f"one pod of {service}", one, timeout=60)


def serving_workers(place: Site) -> list[str]:
    """Names of the workers whose cards are the demo service's pool."""
    assert place.kind is not None
    return place.kubectl("get", "nodes", "-l", "example.com/cards-for=inference", "-o", "jsonpath={.items[*].metadata.name}").split()


def uid(item: dict[str, Any]) -> str:
    """The object's uid."""
    return str(item["metadata"]["uid"])


def wait_reason(place: Site, service: str, reason: str, timeout: float = 90) -> dict[str, Any]:
    """Wait until the service's Ready condition is False with that reason; returns the condition."""

    def told() -> dict[str, Any] | None:
        ready = steps.conditions(place, service).get("Ready", {})
        return ready if ready.get("status") == "False" and ready.get("reason") == reason else None

    try:
        return wait_for(f"{service} to say {reason}", told, timeout=timeout, every=0.5)
    except Exception as error:
        raise AssertionError(f"{error}; it says {json.dumps(steps.conditions(place, service), indent=1)}") from error


def wait_ready(place: Site, service: str, timeout: float = 120) -> None:
    """Wait until the service is Ready."""

    def ready() -> bool:
        return steps.conditions(place, service).get("Ready", {}).get("status") == "True"

    try:
        wait_for(f"{service} to be Ready", ready, timeout=timeout, every=0.5)
    except Exception as error:
        raise AssertionError(f"{error}; it says {json.dumps(steps.conditions(place, service), indent=1)}") from error


def a_service(name: str, **spec: object) -> dict[str, Any]:
    """The demo's service under another name, with fields of its spec replaced."""
    service: dict[str, Any] = yaml.safe_load((steps.MANIFESTS / "service.yaml").read_text())
    service["metadata"]["name"] = name
    service["spec"] |= spec
    return service


def apply(place: Site, *items: dict[str, Any]) -> None:
    """Apply objects as a user would."""
    for item in items:
        place.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(item))


def delete_service(place: Site, name: str) -> None:
    """Delete a service and wait until nothing of it is left."""
    place.kubectl("delete", "glm5service", name, "-n", steps.NAMESPACE, "--ignore-not-found")
    wait_for(f"nothing to be left of {name}", lambda: not leftovers(place, name), timeout=90, every=0.5)


def leftovers(place: Site, service: str) -> list[str]:
    """Everything in the namespace that carries the service's label."""
    kinds = "deployments,replicasets,pods,services,endpointslices,configmaps,poddisruptionbudgets,networkpolicies"
    return place.kubectl("get", kinds, "-n", steps.NAMESPACE, "-l", f"glm5.dev/service={service}", "-o", "name").split()


def signal_container(place: Site, pod: dict[str, Any], number: signal.Signals) -> None:
    """Send a signal to the main process of the pod's only container, from its node, as the kernel would."""
    assert place.kind is not None
    node = pod["spec"]["nodeName"]
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    told = place.kind.engine.docker("exec", node, "crictl", "inspect", "-o", "json", container)
    pid = int(json.loads(told)["info"]["pid"])
    place.kind.engine.docker("exec", node, "kill", f"-{number.value}", str(pid))


def in_pod(place: Site, pod: dict[str, Any], *argv: str) -> str:
    """Run a program in the engine's container."""
    return place.kubectl("exec", "-n", steps.NAMESPACE, pod["metadata"]["name"], "-c", "engine", "--", *argv)


def exists(place: Site, kind: str, name: str, namespace: str = steps.NAMESPACE) -> bool:
    """Whether the object exists."""
    return bool(place.kubectl("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "name"))
