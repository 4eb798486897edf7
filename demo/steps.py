"""What the demo does in a cluster, one function a step. Used by __main__.py and by the e2e fixtures; each may be run again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from demo.site import Site
from tests.cluster.errors import ClusterError, CommandFailedError

ROOT = Path(__file__).parents[1]
OPERATOR_NAMESPACE = "glm5-system"
NAMESPACE = "glm5-demo"
RELEASE = "glm5"
SERVICE = "chat"
MANIFESTS = ROOT / "manifests" / "demo"


class NotServingError(ClusterError):
    """The service did not become Ready in time; the message holds its conditions."""


def install_operator(site: Site, **values: str) -> None:
    """Install or upgrade the chart and wait until the operator is ready."""
    given = {**site.values, **values}
    sets = [word for key, value in given.items() for word in ("--set-string", f"{key}={value}")]
    chart = str(ROOT / "charts" / "glm5-operator")
    site.helm("upgrade", "--install", RELEASE, chart, "--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--wait", *sets)


def apply_pool(site: Site) -> None:
    """Apply the demo's namespace and pool, with what this place needs in the pool's pod template."""
    site.kubectl(
        "apply", "--server-side", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    )
    pool = yaml.safe_load((MANIFESTS / "pool.yaml").read_text())
    if site.pod_template is not None:
        pool["spec"]["podTemplate"] = site.pod_template
    site.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(pool))


def apply_service(site: Site) -> None:
    """Apply the demo's service."""
    site.kubectl("apply", "--server-side", "-f", str(MANIFESTS / "service.yaml"))


def conditions(site: Site, name: str = SERVICE) -> dict[str, dict[str, Any]]:
    """The service's conditions by type; empty until there is a status."""
    try:
        found = json.loads(site.kubectl("get", "glm5service", name, "-n", NAMESPACE, "-o", "json"))
    except CommandFailedError:
        return {}
    if found.get("status", {}).get("observedGeneration") != found["metadata"]["generation"]:
        return {}
    return {condition["type"]: condition for condition in found["status"].get("conditions", [])}


def wait_serving(site: Site, say: Callable[[str], None] = lambda _: None, timeout: float = 600) -> None:
    """Wait until the service is Ready, telling why not whenever that changes.

    Raises:
        NotServingError: It took longer than `timeout` seconds, or it waits for somebody to change something.
    """
    for reason in _reasons(site, time.monotonic() + timeout):
        say(reason)


def _reasons(site: Site, deadline: float) -> Iterator[str]:
    said = ""
    while True:
        now = conditions(site)
        ready = now.get("Ready", {})
        if ready.get("status") == "True":
            return
        if time.monotonic() > deadline or now.get("Stalled", {}).get("status") == "True":
            raise NotServingError(f"service {SERVICE} does not serve: {json.dumps(now, indent=1)}")
        reason = f"{ready.get('reason', 'Waiting')}: {ready.get('message', 'for the operator')}"
        if reason != said:
            said = reason
            yield reason
        time.sleep(0.5)


def remove(site: Site) -> None:
    """Take service, pool, operator and namespaces away again, in the order in which nothing gets stuck."""
    site.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
    if "npupools" in site.kubectl("api-resources", "--api-group=glm5.dev", "-o", "name"):
        site.kubectl("delete", "npupool", "inference", "--ignore-not-found")
    if RELEASE in site.helm("list", "--namespace", OPERATOR_NAMESPACE, "--short").split():
        site.helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait")
    site.kubectl("delete", "namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "--wait=true")
