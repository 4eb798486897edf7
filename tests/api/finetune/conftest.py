"""A training pool of nodes without a kubelet: pods are bound there and end as a test says. KWOK would call every Job done at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import kubelet
from tests.support.documents import bare_node, pool
from tests.support.kube import Kube, until
from tests.support.trainers import a_volume, answer_checks, finetune, let_go_of_deleted

Json = dict[str, Any]
NODES = 2


@dataclass(frozen=True)
class Training:
    """A pool of two nodes with eight cards each, and the jobs on it."""

    kube: Kube
    home: str

    @property
    def pool(self) -> str:
        return self.home

    def node(self, number: int) -> str:
        return f"train-{self.home}-{number}"

    def create(self, name: str = "tune", **spec: object) -> Json:
        return self.kube.create(finetune(self.home, name, pool=self.pool, **spec))  # type: ignore[arg-type]

    def patch(self, spec: Json, name: str = "tune") -> None:
        self.kube.patch("GLM5FinetuneJob", self.home, name, {"spec": spec})

    def status(self, name: str = "tune") -> Json:
        found: Json = self.kube.get("GLM5FinetuneJob", self.home, name).get("status") or {}
        return found

    def condition(self, kind: str = "Ready", name: str = "tune") -> Json:
        return next((item for item in self.status(name).get("conditions") or () if item["type"] == kind), {})

    def wait(self, reason: str, kind: str = "Ready", name: str = "tune", timeout: float = 40, *, good_data: bool = True) -> Json:
        """Wait until a condition has that reason; play kubelet for pods that are being deleted meanwhile, and for checks (`good_data`)."""

        def there() -> bool:
            let_go_of_deleted(self.kube, self.home)
            if good_data:
                answer_checks(self.kube, self.home)
            return self.condition(kind, name).get("reason") == reason

        until(f"{kind} of {name} to be {reason}", there, timeout, lambda: str(self.status(name)))
        return self.condition(kind, name)

    def jobs(self) -> list[str]:
        return [job["metadata"]["name"] for job in self.kube.list("Job", self.home)]


@pytest.fixture
def training(kube: Kube, home: str) -> Iterator[Training]:
    made = Training(kube, home)
    with contextlib.ExitStack() as stack:
        for number in range(NODES):
            kube.create(bare_node(made.node(number), home))
            stack.enter_context(kubelet.heartbeat(kube, made.node(number)))
        for claim in ("ckpt", "adapters"):
            for _, document in a_volume(home, claim):
                kube.create(document)
        kube.create(pool(home, role="Training"))
        until("the pool to be ready", lambda: kube.pool_condition(home).get("status") == "True", 20, lambda: str(kube.pool_condition(home)))
        yield made
        for job in kube.list("GLM5FinetuneJob", home):
            kube.delete("GLM5FinetuneJob", home, job["metadata"]["name"])
        kube.delete("NPUPool", "", home)
        for claim in ("ckpt", "adapters"):
            kube.delete("PersistentVolumeClaim", home, claim)
            kube.delete("PersistentVolume", "", f"{home}-{claim}")
    for number in range(NODES):
        kube.delete("Node", "", made.node(number))  # its pods go with it: nobody else would end them
