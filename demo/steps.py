"""What the demo does in a cluster, one function a step. Used by __main__.py and by the e2e fixtures; each may be run again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from demo import owned
from demo.owned import DEPLOYMENT, OPERATOR_NAMESPACE, RELEASE, Operator
from demo.site import Site
from glm5_operator.plan.merge import merge
from tests.cluster.errors import ClusterError, CommandFailedError

ROOT = Path(__file__).parents[1]
NAMESPACE = "glm5-demo"
POOL = "glm5-demo"
SERVICE = "chat"
TRAINING_POOL = "glm5-demo-training"
VOLUME = "glm5-demo-shared"
MANIFESTS = ROOT / "manifests" / "demo"
ADAPTERS = {"adapterStorage": "pvc://shared/adapters", "adapterLimits": {"count": 2, "rank": 64}}


class NotServingError(ClusterError):
    """The service did not become Ready in time; the message holds its conditions."""


def install_operator(site: Site, **values: str) -> Operator:
    """Install or upgrade the chart and wait until the operator is ready; where another one works already, that one is used as it is."""
    other = owned.other_operator(site)
    if other is not None:
        return other
    owned.namespace(site, OPERATOR_NAMESPACE)
    given = {**site.values, **values}
    words = [word for key, value in given.items() for word in ("--set-string", f"{key}={value}")]
    if not all(owned.crds(site).values()):  # somebody else's CRDs: Helm would refuse to take them over
        words += ["--set", "crds.install=false"]
    chart = str(ROOT / "charts" / "glm5-operator")
    _forget_interrupted(site)
    try:
        site.helm("upgrade", "--install", RELEASE, chart, "--namespace", OPERATOR_NAMESPACE, "--wait", *words)
    except CommandFailedError as error:
        look = f"`kubectl get pods -n {OPERATOR_NAMESPACE}` and `kubectl logs -n {OPERATOR_NAMESPACE} deploy/{DEPLOYMENT} --previous`"
        raise ClusterError(f"{error}\nIf a pod doesn't become ready, {look} say why") from error
    return Operator(OPERATOR_NAMESPACE, DEPLOYMENT)


def _forget_interrupted(site: Site) -> None:
    """Helm refuses a release for ever whose install or upgrade was interrupted; without that revision it goes on from what is there."""
    pending = "owner=helm,status in (pending-install,pending-upgrade,pending-rollback)"
    site.kubectl("delete", "secrets", "--namespace", OPERATOR_NAMESPACE, "--selector", f"name={RELEASE},{pending}")


def apply_pool(site: Site) -> None:
    """Apply the demo's namespace and the pool for services, with what this place needs in its pod template."""
    owned.namespace(site, NAMESPACE)
    pool = _pool(site, "pool.yaml", "engine")
    pool["spec"]["nodeSelector"] |= site.serving_nodes
    owned.apply(site, pool)


def apply_training_pool(site: Site) -> None:
    """Apply the pool whose cards training uses."""
    owned.apply(site, _pool(site, "pool-training.yaml", "trainer"))


def _pool(site: Site, file: str, container: str) -> dict[str, Any]:
    """A pool's manifest with what pods need here."""
    pool: dict[str, Any] = yaml.safe_load((MANIFESTS / file).read_text())
    pool["spec"]["podTemplate"] = merge(pool["spec"]["podTemplate"], site.pod_template(container))
    return pool


def apply_service(site: Site) -> None:
    """Apply the demo's service; where there is shared storage, one that takes adapters from it while it runs."""
    service = yaml.safe_load((MANIFESTS / "service.yaml").read_text())
    if site.kind is not None:
        service["spec"] |= ADAPTERS
    site.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(service))


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


def remove(site: Site) -> list[str]:
    """Take away what the demo made, in the order in which nothing gets stuck; returns what it left, in words."""
    owned.delete(site, "namespace", NAMESPACE)
    owned.delete(site, "persistentvolume", VOLUME)
    if owned.crds(site):
        for pool in (POOL, TRAINING_POOL):
            owned.delete(site, "npupools", pool)
    if owned.present(site, "namespace", OPERATOR_NAMESPACE):
        site.helm("uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait", "--ignore-not-found")
    left = _remove_crds(site)
    owned.delete(site, "namespace", OPERATOR_NAMESPACE)
    return left


def _remove_crds(site: Site) -> list[str]:
    """Delete the CRDs that the demo brought, unless somebody uses them by now: with a CRD all its objects would go."""
    own = [name for name, ours in owned.crds(site).items() if ours]
    if not own:
        return []
    users = [line for name in own for line in site.kubectl("get", name, "-A", "-o", "name").split()]
    other = owned.other_operator(site)
    if users or other is not None:
        why = ", ".join(users) or f"the operator in {other.namespace if other else ''}"
        return [f"the CRDs {', '.join(own)} stay: {why} needs them"]
    site.kubectl("delete", "customresourcedefinitions", *own, "--wait=true")
    return []
