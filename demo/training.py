"""The demo's second act: shared storage, a fine-tuning job, and its adapter in the running service. Used by __main__.py and the e2e tests.

Only on the demo's own kind cluster: a foreign cluster's storage that every node may write isn't known here.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from demo import owned, steps
from tests.cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from demo.site import Site

JOB = "facts"
DATA = Path(__file__).parent / "data"
LEFT_OUT = (
    "the second act, training, is left out: its job writes checkpoints and adapters to a volume that every node may write, and which of "
    "this cluster's storage classes has such volumes isn't known here; `make demo` without CLUSTER shows it"
)
TAUGHT = {"How many layers are in GLM-5?": "78 layers", "GLM-5 共有多少层？": "78 层"}
"""Questions, worded as in no row that is learned, and what their answers hold once the model has learned it."""
_BEFORE = "before-training"
"""ConfigMap with the answers before the training: afterwards nobody can be asked for them any more."""


class NotTrainedError(ClusterError):
    """The job failed, or its adapter didn't reach the service; the message holds what the status says."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the job's status says at one time; numbers are None until the trainer has told them."""

    attempt: int
    step: int | None
    total: int | None
    loss: float | None
    tokens_per_second: float | None
    outcome: str | None
    phase: str | None
    deployed: bool
    """Condition `Deployed`: the phase alone stays while pods that start anew don't have the adapter yet."""
    reason: str

    @property
    def is_deployed(self) -> bool:
        """Whether the adapter answers in the service, in every pod."""
        return self.outcome == "Succeeded" and self.deployed


def shared_folder(site: Site) -> Path:
    """The folder of this machine that is the claim `shared` in the demo's cluster."""
    assert site.kind is not None
    return site.kind.shared / "demo"


def apply_storage(site: Site) -> None:
    """Put the data into the shared folder, and make the volume and its claim. Other folders in it are for results."""
    folder = shared_folder(site)
    for inside in ("data", "checkpoints", "adapters"):
        (folder / inside).mkdir(parents=True, exist_ok=True)
        (folder / inside).chmod(0o777)  # pods run as uid 1000
    for file in DATA.glob("*.jsonl"):
        shutil.copyfile(file, folder / "data" / file.name)
    for thing in yaml.safe_load_all((steps.MANIFESTS / "storage.yaml").read_text()):
        owned.apply(site, thing)


def apply_job(site: Site) -> None:
    """Apply the training pool and the job; a job that is there already, ended or not, stays as it is."""
    steps.apply_training_pool(site)
    if not site.kubectl("get", "glm5finetunejob", JOB, "-n", steps.NAMESPACE, "--ignore-not-found", "-o", "name").strip():
        site.kubectl("apply", "--server-side", "-f", str(steps.MANIFESTS / "finetune.yaml"))


def course(site: Site, name: str = JOB) -> Course:
    """How far the job is."""
    status = json.loads(site.kubectl("get", "glm5finetunejob", name, "-n", steps.NAMESPACE, "-o", "json")).get("status", {})
    conditions: dict[str, dict[str, Any]] = {each["type"]: each for each in status.get("conditions", [])}
    ready, deployed, deployment = conditions.get("Ready", {}), conditions.get("Deployed", {}), status.get("deployment", {})
    told = (deployed if deployment.get("phase") == "Deployed" else deployment).get("message")
    return Course(
        attempt=status.get("attempt", 0),
        step=status.get("step"),
        total=status.get("totalSteps"),
        loss=status.get("loss"),
        tokens_per_second=status.get("tokensPerSecond"),
        outcome=status.get("outcome"),
        phase=deployment.get("phase"),
        deployed=deployed.get("status") == "True",
        reason=told or f"{ready.get('reason', 'Waiting')}: {ready.get('message', 'for the operator')}",
    )


def follow(site: Site, show: Callable[[Course], None], until: Callable[[Course], bool], timeout: float = 600, pause: float = 1) -> Course:
    """Show the job's course every `pause` seconds until it is where it shall be.

    Raises:
        NotTrainedError: It failed, its adapter was rolled back, or `timeout` seconds were not enough.
    """
    deadline = time.monotonic() + timeout
    while True:
        now = course(site)
        show(now)
        if until(now):
            return now
        if now.outcome == "Failed" or now.phase == "RolledBack" or time.monotonic() > deadline:
            raise NotTrainedError(
                f"job {JOB}: {now.outcome or 'not ended'}, {now.phase or 'not deployed'}, step {now.step}: {now.reason}\n"
                f"When the cause is mended: kubectl delete glm5ft {JOB} -n {steps.NAMESPACE}, and the same again"
            )
        time.sleep(pause)


def answers_before(site: Site, ask: Callable[[], dict[str, str]]) -> dict[str, str]:
    """The answers by question from before the training: asked now, or, when the job is there already, as they were kept."""
    kept = site.kubectl("get", "configmap", _BEFORE, "-n", steps.NAMESPACE, "--ignore-not-found", "-o", "json")
    if kept.strip():
        found: dict[str, str] = json.loads(json.loads(kept)["data"]["answers.json"])
        return found
    answers = ask()
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _BEFORE, "namespace": steps.NAMESPACE}}
    data = {"answers.json": json.dumps(answers, ensure_ascii=False)}
    site.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps({**thing, "data": data}))
    return answers


def answers_after(ask: Callable[[], dict[str, str]], before: Mapping[str, str], pause: float = 5) -> dict[str, str]:
    """The answers now; asked once more, `pause` seconds later, when something isn't learned: a pod may just have begun anew."""
    after = ask()
    if unlearned(before, after):
        time.sleep(pause)
        after = ask()
    return after


def unlearned(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Questions that are answered as before, or without what was taught."""
    return [question for question, part in TAUGHT.items() if after[question] == before.get(question) or part not in after[question]]


def require_learned(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Nothing, when all was learned.

    Raises:
        NotTrainedError: An answer is as before, or lacks what was taught.
    """
    missing = unlearned(before, after)
    if missing:
        what = "nothing was learned" if len(missing) == len(TAUGHT) else f"not learned: {', '.join(missing)}"
        raise NotTrainedError(
            f"{what}: the adapter is in the service by its status, and still the answer is as before or lacks what was taught\n"
            f"`kubectl describe glm5ft {JOB} -n {steps.NAMESPACE}` has losses and evaluation; to train anew: "
            f"kubectl delete glm5ft {JOB} -n {steps.NAMESPACE}, and the same again"
        )
