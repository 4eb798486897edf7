"""Training runs of the e2e tests: short jobs on two nodes with two ranks each, what their status says, and what is done to them."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import yaml

from demo import steps, training
from tests.cluster.shell import wait_for
from tests.e2e.looks import get, signal_container

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.site import Site

STEPS = 80
EVERY = 10
_STEP_LINE = re.compile(r"^(\S+)Z INFO .* step (\d+)/\d+ ", re.MULTILINE)


def a_job(name: str, **spec: object) -> dict[str, Any]:
    """The demo's job under another name: 2 pods x 2 ranks, a run of a few seconds, nothing deployed; with fields of its spec replaced."""
    job: dict[str, Any] = yaml.safe_load((steps.MANIFESTS / "finetune.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"] |= {
        "parallelism": {"nodes": 2, "npusPerNode": 2},
        "training": {"steps": STEPS, "batchSize": 16, "learningRate": 4e-3, "dtype": "fp32"},
        "checkpoint": {"everySteps": EVERY, "keep": 2, "storage": "pvc://shared/checkpoints"},
        "output": f"pvc://shared/adapters/{name}",
    }
    del job["spec"]["deploy"]
    job["spec"] |= spec
    return job


def status(place: Site, name: str) -> dict[str, Any]:
    """The job's status."""
    found: dict[str, Any] = get(place, "glm5finetunejob", name).get("status", {})
    return found


def has_ended(status: dict[str, Any]) -> bool:
    """Whether the run has an outcome."""
    return "outcome" in status


def wait_status(
    place: Site,
    name: str,
    what: str,
    good: Callable[[dict[str, Any]], bool],
    *,
    lost: Callable[[dict[str, Any]], bool] = has_ended,
    timeout: float = 400,
) -> dict[str, Any]:
    """Wait for a status, and fail at once when it is `lost`: by itself it won't become good any more. Returns it."""
    seen: dict[str, Any] = {}

    def told() -> bool:
        nonlocal seen
        seen = status(place, name)
        return good(seen) or lost(seen)

    try:
        wait_for(f"{name}: {what}", told, timeout=timeout, every=0.5)
        assert good(seen), f"{name}: {what}: it went another way"
    except Exception as error:
        said = [f"{pod['metadata']['name']}:\n{logs(place, pod, 15)}" for pod in pods(place, name)]
        raise AssertionError(f"{error}; it says {json.dumps(seen, indent=1)}\n" + "\n".join(said)) from error
    return seen


def pods(place: Site, name: str, attempt: int | None = None) -> list[dict[str, Any]]:
    """The run's trainer pods, or those of one attempt, by their number."""
    chosen = f"glm5.dev/finetune={name}" + (f",glm5.dev/attempt={attempt}" if attempt else "")
    found = [pod for pod in get(place, "pods", selector=chosen) if _index(pod) is not None]
    return sorted(found, key=lambda pod: _index(pod) or 0)


def _index(pod: dict[str, Any]) -> int | None:
    text = pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index")
    return None if text is None else int(text)


def logs(place: Site, pod: dict[str, Any], lines: int = -1) -> str:
    """What the pod's trainer said."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    return place.kubectl("logs", "-n", namespace, name, "-c", "trainer", f"--tail={lines}", "--ignore-errors")


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first step that an attempt trained: when its container started, when that step was done, and its number."""

    started: datetime
    trained: datetime
    step: int


def first_step(place: Site, name: str, attempt: int) -> FirstStep:
    """The beginning of an attempt that has ended."""
    (rank_0, *_) = pods(place, name, attempt)
    found = _STEP_LINE.search(logs(place, rank_0))
    assert found, logs(place, rank_0, 30)
    (state,) = [each["state"] for each in rank_0["status"]["containerStatuses"] if each["name"] == "trainer"]
    started = datetime.fromisoformat(state["terminated"]["startedAt"])
    return FirstStep(started, datetime.fromisoformat(found[1] + "+00:00"), int(found[2]))


def kill_rank(place: Site, name: str, *, of: int = 1) -> None:
    """Kill -9 of one rank process of the second pod, or another; its launcher lives."""
    assert place.kind is not None
    pod = pods(place, name)[of]
    node = pod["spec"]["nodeName"]
    ranks = place.kind.engine.docker("exec", node, "pgrep", "-P", str(main_pid(place, pod))).split()
    assert len(ranks) == 2, f"the launcher has {len(ranks)} children"
    place.kind.engine.docker("exec", node, "kill", "-9", ranks[of])


def main_pid(place: Site, pod: dict[str, Any]) -> int:
    """The pid on its node of the main process of the pod's trainer."""
    assert place.kind is not None
    container = next(each for each in pod["status"]["containerStatuses"] if each["name"] == "trainer")["containerID"]
    told = place.kind.engine.docker("exec", pod["spec"]["nodeName"], "crictl", "inspect", "-o", "json", container.partition("://")[2])
    return int(json.loads(told)["info"]["pid"])


def kill_first_rank(place: Site, name: str) -> None:
    """Kill -9 of rank 0, which commits checkpoints and serves progress."""
    kill_rank(place, name, of=0)


def kill_launcher(place: Site, name: str, *, of: int = 1) -> None:
    """Kill -9 of the main process of the container of the second pod, or another."""
    signal_container(place, pods(place, name)[of], signal.SIGKILL)


def kill_first_launcher(place: Site, name: str) -> None:
    """Kill -9 of the launcher that holds the store where all ranks met."""
    kill_launcher(place, name, of=0)


def kill_pod(place: Site, name: str) -> None:
    """Delete the second pod without any grace."""
    victim = pods(place, name)[1]["metadata"]["name"]
    place.kubectl("delete", "pod", "-n", steps.NAMESPACE, victim, "--grace-period=0", "--force")


def kill_operator(place: Site, name: str) -> None:
    """Kill -9 of the operator."""
    del name
    (operator,) = get(place, "pods", namespace=steps.OPERATOR_NAMESPACE, selector="app.kubernetes.io/component=operator")
    signal_container(place, operator, signal.SIGKILL)


def kill_kubelet(place: Site, name: str) -> None:
    """Kill -9 of the kubelet under the second pod; systemd starts it again."""
    assert place.kind is not None
    node = pods(place, name)[1]["spec"]["nodeName"]
    docker = place.kind.engine.docker

    def pid() -> str:
        return docker("exec", node, "systemctl", "show", "--property=MainPID", "--value", "kubelet").strip()

    killed = pid()
    docker("exec", node, "systemctl", "kill", "--signal=KILL", "kubelet")
    wait_for(f"another kubelet on {node}", lambda: pid() not in {"0", killed}, timeout=60)


def write_data(place: Site, file: str, text: str) -> str:
    """Put a file beside the demo's data; returns its source for a job."""
    assert place.kind is not None
    (place.kind.shared / "demo" / "data" / file).write_text(text)
    return f"pvc://shared/data/{file}"


def delete(place: Site, name: str) -> None:
    """Delete a job and wait until none of its pods is left."""
    place.kubectl("delete", "glm5finetunejob", name, "-n", steps.NAMESPACE, "--ignore-not-found")
    wait_for(f"pods of {name} to go", lambda: not get(place, "pods", selector=f"glm5.dev/finetune={name}"), timeout=60, every=0.5)


def prepare(place: Site) -> None:
    """What jobs need beside the service: the shared storage and the training pool."""
    training.apply_storage(place)
    steps.apply_training_pool(place)

    def counted() -> bool:
        return get(place, "npupool", steps.TRAINING_POOL).get("status", {}).get("cards", {}).get("total", 0) == 16

    wait_for("the training pool to count its cards", counted, timeout=60, every=0.5)
