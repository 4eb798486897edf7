"""A small controller, so that the I/O layer can be tested by itself: one Deployment, one Service, a status with Ready.

Run as a process (`python -m tests.api.kube.small`) it is the operator as users run it, with this controller inside.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn

from glm5_operator import app, settings
from glm5_operator.api import names
from glm5_operator.kube import Controllers, Key, Manifest, Outcome, Parts, Resource


def engine(service: Resource) -> Manifest:
    """A Deployment that KWOK nodes can run."""
    meta, spec = service["metadata"], service["spec"]
    labels = names.child_labels(meta["name"])
    max_tokens = (spec.get("context") or {}).get("maxTokens", 4096)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": names.deployment_name(meta["name"]), "namespace": meta["namespace"], "labels": labels},
        "spec": {
            "replicas": spec.get("replicas", 1),
            "selector": {"matchLabels": names.selector_labels(meta["name"])},
            "template": {
                "metadata": {"labels": {**labels, names.SERVING_LABEL: names.SERVING_VALUE}},
                "spec": {
                    "containers": [
                        {
                            "name": names.ENGINE_CONTAINER,
                            "image": "engine:1",
                            "args": ["serve", "--max-model-len", str(max_tokens)],
                            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                            "ports": [{"name": names.ENGINE_PORT_NAME, "containerPort": names.ENGINE_PORT}],
                            "resources": {"limits": {"memory": "1024Mi"}, "requests": {"memory": "1024Mi"}},
                        }
                    ],
                    "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
                },
            },
        },
    }


def client_service(service: Resource) -> Manifest:
    """The Service in front of it."""
    meta = service["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.client_service_name(meta["name"]),
            "namespace": meta["namespace"],
            "labels": names.child_labels(meta["name"]),
        },
        "spec": {
            "selector": {**names.selector_labels(meta["name"]), names.SERVING_LABEL: names.SERVING_VALUE},
            "ports": [{"name": "http", "port": names.ENGINE_PORT, "targetPort": names.ENGINE_PORT_NAME}],
        },
    }


def status_of(service: Resource, pods: list[Resource], now: datetime) -> dict[str, Any]:
    """Ready when as many pods are ready as were asked for; the time of the condition changes only with it."""
    wanted = service["spec"].get("replicas", 1)
    ready = sum(1 for pod in pods if _is_ready(pod))
    state = "True" if ready == wanted else "False"
    old: list[Mapping[str, Any]] = (service.get("status") or {}).get("conditions") or []
    moment = next(
        (item["lastTransitionTime"] for item in old if item["type"] == "Ready" and item["status"] == state),
        now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    generation = service["metadata"]["generation"]
    condition = {
        "type": "Ready", "status": state, "reason": "Serving" if state == "True" else "Starting", "message": f"{ready} of {wanted}",
        "observedGeneration": generation, "lastTransitionTime": moment,
    }  # fmt: skip
    return {"observedGeneration": generation, "replicas": len(pods), "readyReplicas": ready, "conditions": [condition]}


def _is_ready(pod: Resource) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


@dataclass(frozen=True)
class SmallController:
    """Observe, plan, apply, report."""

    parts: Parts

    async def reconcile(self, key: Key, now: datetime) -> Outcome:
        """One pass."""
        service = self.parts.cache.get(key.kind, key.namespace, key.name)
        if service is None:
            return Outcome.done()
        live = self.parts.cache.children(service["metadata"]["uid"])
        applied = await self.parts.applier.converge(service, [engine(service), client_service(service)], live)
        failure = await self.parts.applier.write_status(service, status_of(service, self.parts.cache.pods(key), now))
        if applied.errors or failure:
            return Outcome.retry(str(applied.errors or failure))
        return Outcome.again(timedelta(minutes=10))


@dataclass(frozen=True)
class PoolController:
    """Nothing to do for pools here."""

    async def reconcile(self, _key: Key, _now: datetime) -> Outcome:
        """Nothing."""
        return Outcome.done()


def build(parts: Parts) -> Controllers:
    """What `app.run` asks for."""
    return Controllers({names.SERVICE_KIND: SmallController(parts), names.POOL_KIND: PoolController()})


def leave(error: Exception) -> NoReturn:
    """As `__main__` does."""
    logging.critical("lost: %s", error)
    os._exit(75)


def main() -> None:
    """Run until SIGTERM; settings from the environment as always."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(app.run(settings.load(os.environ), build, leave))


if __name__ == "__main__":
    main()
