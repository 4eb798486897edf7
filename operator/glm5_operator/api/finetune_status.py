"""The status of a GLM5FinetuneJob: what the operator tells of a run. `finetune` has the spec and the whole object.

Written by the operator only; `schema.py` turns it into the CRD.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from .common import Condition, StatusModel
from .deploy import DeploymentReport

Outcome = Literal["Succeeded", "Failed"]

MOST_HISTORY: Final = 20
"""Ended attempts that the status keeps; `failures` counts all."""


class FinetuneResolved(StatusModel):
    """What the operator derived for an attempt; the spec stays as the user wrote it."""

    image: str
    """Image of the trainer."""
    product: str | None = None
    """Ascend product of the pool's nodes: A2, A3, 310P or 950."""
    resource_name: str
    """Extended resource that the pods request, for example huawei.com/Ascend910."""
    nodes: int
    """Pods, one a node."""
    cards: int
    """Cards of all pods together."""
    memory: str
    """Memory of one pod."""
    shm: str
    """Size of /dev/shm, part of memory."""


class CheckpointStatus(StatusModel):
    """The newest complete checkpoint."""

    step: int
    """Step it was taken after."""
    time: str | None = None
    """When it was complete."""
    sha256: str | None = None
    """Checksum of its manifest, which has the checksums of all its files."""


class DataCheckStatus(StatusModel):
    """What the check of settings, model and data found, before the first attempt."""

    digest: str
    """Hash of what was checked."""
    time: str
    """When it was found good."""
    read: int | None = None
    """Rows that were read."""
    kept: int | None = None
    """Rows that can be used."""
    skipped: int | None = None
    """Rows that are left out."""


class AdapterStatus(StatusModel):
    """The result."""

    path: str
    """Folder, as in spec.output."""
    sha256: str | None = None
    """Checksum of its weights."""
    size: int | None = None
    """Bytes."""


class EndedAttempt(StatusModel):
    """How an attempt ended that was not the last."""

    attempt: int
    """Its number."""
    cause: str
    """Why, in one CamelCase word: Configuration, Data, NumericalError, OutOfMemory, CardFault, Storage, Reward, NodeLost, Preempted,
    Superseded, Unknown, PodDeleted, RankLost, Suspended.
    """
    message: str | None = None
    """Why, in words."""
    time: str
    """When it ended, or the operator saw it."""
    node: str | None = None
    """Node of the pod that failed."""
    exit_code: int | None = None
    """Exit code of its trainer."""
    step: int | None = None
    """Last step that it told."""
    loss: float | None = None
    """Training loss at that step."""


class GLM5FinetuneJobStatus(StatusModel):
    """What is. Written by the operator only."""

    observed_generation: int | None = None
    """The metadata.generation this status was computed from."""
    attempt: int | None = None
    """Number of the newest attempt."""
    failures: int | None = None
    """Ended attempts that count against policy.maxAttempts."""
    start_time: str | None = None
    """When the first attempt was created."""
    completion_time: str | None = None
    """When the job ended, well or not."""
    outcome: Outcome | None = None
    """How the job ended; absent while it hasn't. With an outcome nothing runs again."""
    step: int | None = None
    """Optimiser steps done."""
    total_steps: int | None = None
    """Optimiser steps of the whole run."""
    epoch: float | None = None
    """Passes over the data done."""
    loss: float | None = None
    """Training loss at that step."""
    learning_rate: float | None = None
    """Learning rate at that step."""
    tokens_per_second: float | None = None
    """Tokens that all cards together learn from in a second."""
    eta: str | None = None
    """When the run will have ended at its present pace; only while it trains."""
    evaluation_loss: float | None = None
    """Loss of the rows that are held back, at the last evaluation."""
    reward: float | None = None
    """Mean reward of the answers at that step, with grpo and ppo."""
    overflows: int | None = None
    """Steps that were left out because gradients in fp16 overflowed; some are to be expected."""
    data_check: DataCheckStatus | None = None
    """What was checked before any card was taken."""
    checkpoint: CheckpointStatus | None = None
    """The newest complete checkpoint that the trainer told of."""
    adapter: AdapterStatus | None = None
    """The result."""
    deployment: DeploymentReport | None = None
    """How far the adapter has come on its way into the service of spec.deploy."""
    cards_held: int | None = None
    """Cards that the pods of this job hold now, ending pods included."""
    retry_time: str | None = None
    """When the next attempt may begin, after one that failed."""
    ending: EndedAttempt | None = None
    """What explains best so far why the newest attempt is ending; pods that were evicted are gone before it has ended."""
    history: Annotated[tuple[EndedAttempt, ...], Field(strict=False, max_length=MOST_HISTORY)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Attempts that ended before the job did, newest last."""
    resolved: FinetuneResolved | None = None
    """What the operator derived for an attempt."""
    conditions: Annotated[tuple[Condition, ...], Field(strict=False, max_length=32)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    )
    """Ready: the run has ended well. Reconciling: work is going on. Stalled: nothing will happen until the named thing changes.
    Planned, Advised, DataValid, Scheduled, Training, CheckpointVerified, Published and Finished explain these. Advised is False when
    something about the spec is allowed and unwise. Deployed, with spec.deploy only: the adapter answers in the service.
    """
