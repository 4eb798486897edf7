"""The command line against a real API server with our CRDs; a thread of the test plays the operator where one is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.api.crd.conftest import installed  # the fixture, for this folder too
from tests.api.crd.documents import Json
from tests.cluster.api import ApiCluster
from tests.unit.cli.support import glm5

if TYPE_CHECKING:
    from click.testing import Result

__all__ = ["installed"]


@dataclass(frozen=True)
class Site:
    """A namespace, a cluster file for it, and the command line with the cluster's credentials."""

    cluster: ApiCluster
    namespace: str
    folder: Path

    @property
    def pool(self) -> str:
        return f"pool-{self.namespace}"

    def cluster_file(self, **entry: object) -> str:
        path = self.folder / "cluster.yaml"
        file = {
            "namespace": self.namespace,
            "pool": {"name": self.pool, "spec": {"role": "Inference", "nodeSelector": {"npu": self.namespace}}},
            "models": {"GLM-5.1": {"service": "chat", "weights": "w8a8", "source": "pvc://weights/GLM-5.1-w8a8", **entry}},
        }
        path.write_text(yaml.safe_dump(file))
        return str(path)

    def glm5(self, *words: str) -> Result:
        return glm5(*words, "--kubeconfig", str(self.cluster.kubeconfig))

    def deploy(self, *words: str, **entry: object) -> Result:
        return self.glm5("deploy", "--cluster-config", self.cluster_file(**entry), "--model", "glm-5.1", *words)

    @property
    def path(self) -> str:
        return f"/apis/glm5.dev/v1alpha1/namespaces/{self.namespace}/glm5services/chat"

    def service(self) -> Json:
        found: Json = self.cluster.http.get(self.path).raise_for_status().json()
        return found

    def report(self, *conditions: tuple[str, str, str, str], **status: object) -> None:
        """Write a status for the service's present generation, as the operator would."""
        service = self.service()
        generation = service["metadata"]["generation"]
        written = [
            {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": message,
                "observedGeneration": generation,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind, value, reason, message in conditions
        ]
        answer = self.cluster.http.put(f"{self.path}/status", json={**service, "status": {**status, "conditions": written}})
        answer.raise_for_status()

    def when_applied(self, *acts: Callable[[], object]) -> threading.Thread:
        """Run the acts, in a thread, a second apart, as soon as the service exists."""

        def play() -> None:
            stop = threading.Event()
            while not self.cluster.http.get(self.path).is_success:
                stop.wait(0.05)
            for act in acts:
                act()
                stop.wait(1.2)

        thread = threading.Thread(target=play, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def site(installed: ApiCluster, namespace: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(installed, namespace, tmp_path)
    yield site
    installed.http.delete(f"/apis/glm5.dev/v1alpha1/npupools/{site.pool}")
