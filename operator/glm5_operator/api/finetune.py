"""GLM5FinetuneJob: one training run on the cards of a training pool, through faults, to an adapter or a checkpoint.

The user writes `spec`; the operator only ever writes `status`. `schema.py` turns this file into the CRD, so the docstring of a
field is what `kubectl explain` prints. What the runtime's training file (`glm5-runtime train --config`) calls snake_case is camelCase here.
"""

from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from . import names
from .common import ApiObject, Duration, Model, Quantity, quantity_bytes
from .deploy import DeploySpec
from .finetune_rl import RlSpec
from .finetune_status import GLM5FinetuneJobStatus
from .known import KNOWN_MODELS, LONGEST_CONTEXT
from .podtemplate import TrainerPodTemplate
from .rules import validations

Method = Literal["lora", "full", "grpo", "ppo"]
LongRows = Literal["refuse", "cut"]
DataFormat = Literal["auto", "alpaca", "sharegpt", "openai", "text"]
Schedule = Literal["cosine", "linear", "constant"]
Dtype = Literal["bf16", "fp16", "fp32"]
Sharding = Literal["fsdp", "ddp"]

DEFAULT_MAX_ATTEMPTS: Final = 3
DEFAULT_TTL: Final = timedelta(hours=168)


class FinetuneModelSpec(Model):
    """What is fine-tuned."""

    name: Annotated[str, Field(min_length=1, max_length=96, json_schema_extra=validations("model-name"))]
    """Name of the base model, for example GLM-5.1. Any other name than those of the GLM-5 family must state memory."""
    source: Annotated[
        str,
        Field(
            min_length=1, max_length=1024, json_schema_extra=validations("source-scheme", "source-pvc", "source-absolute", "source-path")
        ),
    ]
    """Where the checkpoint's folder is, mounted read-only: pvc://CLAIM/PATH (a PersistentVolumeClaim of this namespace),
    hostpath:///ABSOLUTE/PATH (a folder that every node of the pool has), or image:///PATH (inside the trainer's image).
    """
    memory: Quantity | None = Field(default=None, json_schema_extra=validations("memory"))
    """Main memory of one node's pod, shared memory included, as request and limit; for example 64Gi. Default, for a known model: by the
    number of cards.
    """


class DataSpec(Model):
    """What is learned from."""

    source: Annotated[str, Field(min_length=1, max_length=1024, json_schema_extra=validations("data-scheme", "data-file", "data-path"))]
    """A JSON-lines file, its folder mounted read-only: pvc://CLAIM/FILE or hostpath:///ABSOLUTE/FILE (on every node of the pool)."""
    max_length: Annotated[int, Field(ge=16, le=LONGEST_CONTEXT, json_schema_extra=validations("data-length"))] | None = None
    """Longest row, in tokens, a multiple of 16. Default: 2048."""
    long_rows: LongRows | None = None
    """What becomes of longer rows: refuse, or cut the tokens behind maxLength. Default: refuse."""
    format: DataFormat | None = None
    """Format of the rows; with auto each row says its own by its keys, else rows of another format are refused. Default: auto."""
    lenient: bool | None = None
    """Whether rows that can't be used are left out, and told; else one of them ends the job before it begins. Default: false."""


class LoraSpec(Model):
    """Which modules get an adapter, and of what size."""

    model_config = ConfigDict(json_schema_extra=validations("lora-alpha"))

    rank: Annotated[int, Field(ge=16, le=1024, json_schema_extra=validations("lora-rank"))] | None = None
    """Columns of the adapter's thin matrices, a multiple of 16. Default: 16."""
    alpha: Annotated[float, Field(ge=0, le=65536)] | None = None
    """The adapter's output is multiplied by alpha / rank; at least the rank. Default: the rank."""
    dropout: Annotated[float, Field(ge=0, le=1, json_schema_extra=validations("lora-dropout"))] | None = None
    """Share of each adapter's inputs that are dropped while training. Default: 0.1; with grpo and ppo none are."""
    targets: Annotated[tuple[Annotated[str, Field(max_length=32)], ...], Field(strict=False, min_length=1, max_length=16)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "set", **validations("lora-targets")}
    )
    """Modules by their names in the checkpoint; q and v mean q_b_proj and kv_b_proj, experts both matrices of all routed experts.
    Default: q_a_proj, q_b_proj, kv_a_proj_with_mqa and o_proj.
    """


class TrainingSpec(Model):
    """The optimisation itself."""

    model_config = ConfigDict(json_schema_extra=validations("training-end", "training-batch"))

    epochs: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Passes over the data. Default: 3, unless steps are given."""
    steps: Annotated[int, Field(ge=1, le=100000000)] | None = None
    """Optimiser steps, instead of epochs."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Rows of one step, those of all cards together, so that a run is the same on any number of them. Default: 8."""
    batch_tokens: Annotated[int, Field(ge=16, le=1073741824)] | None = None
    """Instead of batchSize: as many rows of about one length as have so many tokens, those that fill them up included."""
    packing: bool | None = None
    """Whether whole rows are laid behind one another up to data.maxLength and count as one row of a batch; tokens see only their own row.
    Else a batch has rows of about one length. Default: false.
    """
    gradient_accumulation: Annotated[int, Field(ge=1, json_schema_extra=validations("training-accumulation"))] | None = None
    """Pieces that a card's rows of a step are computed in, one after the other, at most 4. Default: 1."""
    learning_rate: Annotated[float, Field(ge=0, le=1, json_schema_extra=validations("training-rate"))] | None = None
    """At the end of the warm-up. Default: 2e-4."""
    schedule: Schedule | None = None
    """How the rate goes on after the warm-up: to zero along a cosine or a line, or not at all. Default: cosine."""
    warmup: Annotated[float, Field(ge=0, le=1, json_schema_extra=validations("training-warmup"))] | None = None
    """Share of the steps over which the rate rises from zero. Default: 0.03."""
    weight_decay: Annotated[float, Field(ge=0, le=1, json_schema_extra=validations("training-decay"))] | None = None
    """Of matrices; vectors (norms, biases) are left alone. Default: 0.01."""
    clip: Annotated[float, Field(ge=0, le=1000000, json_schema_extra=validations("training-clip"))] | None = None
    """Longest gradient: a longer one is shortened to it. Default: 1."""
    dtype: Dtype | None = None
    """Type of the computation. What is trained, and what decides choices, stays fp32; fp16 scales the loss. Default: bf16."""
    activation_checkpointing: bool | None = None
    """Whether only each layer's input is kept for the backward pass: a third more time, a fraction of the memory. Default: false."""
    sharding: Sharding | None = None
    """With several cards. fsdp: each holds a part of the model and of the optimiser's state. ddp: each holds all of it. Default: fsdp."""
    seed: Annotated[int, Field(ge=0, le=4294967295)] | None = None
    """Of initial values, order and dropout: the same seed gives the same run. Default: 0."""


class EvaluationSpec(Model):
    """Rows that are held back, and what their loss decides."""

    model_config = ConfigDict(json_schema_extra=validations("evaluation-patience"))

    share: Annotated[float, Field(ge=0, le=0.5)]
    """Share of the rows that are held back, chosen by the seed; 0 holds nothing back."""
    every_steps: Annotated[int, Field(ge=1, le=100000000)] | None = None
    """Steps between two evaluations; one more at the end. Default: 100."""
    patience: Annotated[int, Field(ge=1, le=10000)] | None = None
    """Stop after so many evaluations in a row without a better loss. Default: never."""
    least_gain: Annotated[float, Field(ge=0, le=1000)] | None = None
    """What a loss must be lower by to count as better. Default: 0."""


class FinetuneParallelismSpec(Model):
    """Over how many cards the run is spread: nodes x npusPerNode, all of them or none."""

    nodes: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Nodes, with one pod each. Default: 1."""
    npus_per_node: Annotated[int, Field(ge=1, le=64)]
    """Cards of each node, in units of the pool's resource (on A3 one unit is a die)."""


class CheckpointSpec(Model):
    """Where a run goes on after a fault."""

    storage: Annotated[str, Field(min_length=1, max_length=1024, json_schema_extra=validations("storage-claim", "storage-path"))]
    """Volume for checkpoints, pvc://CLAIM or pvc://CLAIM/FOLDER; the job writes into a folder of its own in it. With several nodes every
    one of them must be able to write there.
    """
    every_steps: Annotated[int, Field(ge=1, le=100000000)] | None = None
    """Steps between two checkpoints: what a fault costs at most. Default: 100."""
    keep: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Newest checkpoints that stay. Default: 3."""


class PolicySpec(Model):
    """How long and how often the job may try. It can change while the job runs."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    """Attempts that may fail by a passing cause (a card, a node, an unknown end) before the job has failed. Preemption and suspension
    cost nothing; a wrong configuration, bad data, NaN and out of memory end the job at once. Default: 3.
    """
    suspend: bool | None = None
    """Whether the job holds no cards; when it is false again, the run goes on from its last checkpoint. Default: false."""
    deadline: Duration | None = Field(default=None, json_schema_extra=validations("policy-deadline"))
    """Longest time from the first attempt's start to the end, waiting included, between 1m and 8760h; then the job has failed.
    Default: none.
    """
    ttl_after_finished: Duration | None = Field(default=None, json_schema_extra=validations("policy-ttl"))
    """Time that pods and their logs stay after the end. The job itself stays, so that nothing runs it again. Default: 168h."""


class GLM5FinetuneJobSpec(Model):
    """What to train, on what, where, and what to do when something fails."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            "finetune-section",
            "finetune-merge",
            "finetune-rl",
            "finetune-rl-card",
            "finetune-rl-rows",
            "finetune-rl-packing",
            "finetune-rl-dropout",
            "finetune-grpo",
            "finetune-ppo",
            "finetune-memory",
            "finetune-length-of-model",
            "finetune-batch-reaches-cards",
            "finetune-folders",
            "deploy-adapter",
        )
    )

    model: FinetuneModelSpec
    """The base model."""
    method: Method
    """lora: thin matrices beside the frozen model. full: every parameter but the indexer's. grpo, ppo: the same matrices, by rewards."""
    data: DataSpec
    """What is learned from."""
    lora: LoraSpec | None = None
    """Of all methods but full: which modules get an adapter, and of what size."""
    rl: RlSpec | None = None
    """Of methods grpo and ppo, which need it: how answers are made and what they are worth."""
    training: TrainingSpec | None = None
    """The optimisation itself."""
    evaluation: EvaluationSpec | None = None
    """Rows that are held back, and what their loss decides. Default: none are."""
    pool: Annotated[str, Field(min_length=1, max_length=63, json_schema_extra=validations("pool-ref"))]
    """Name of the NPUPool of role Training whose cards the job uses."""
    parallelism: FinetuneParallelismSpec
    """Over how many cards the run is spread."""
    checkpoint: CheckpointSpec
    """Where a run goes on after a fault."""
    output: Annotated[str, Field(min_length=1, max_length=1024, json_schema_extra=validations("output-folder", "output-path"))]
    """Folder of the result, pvc://CLAIM/FOLDER: an adapter in PEFT's format, or a checkpoint."""
    merge: bool | None = None
    """Of all methods but full: write a whole checkpoint with the adapter added to the weights instead of the adapter. Default: false."""
    deploy: DeploySpec | None = None
    """Of all methods but full: the running service that the adapter goes into once it is published. Removing it takes the adapter out
    again. Default: none.
    """
    policy: PolicySpec | None = None
    """How long and how often the job may try."""
    pod_template: TrainerPodTemplate | None = None
    """Part of a PodTemplateSpec, merged strategically over the planned pod (lists by name); the container is named `trainer`. A change
    counts from the next attempt on. It can't change cards, command, node selection, rendezvous or credentials.
    """

    @property
    def has_recipe(self) -> bool:
        """Whether the model is one that the API knows by name."""
        return self.model.name in KNOWN_MODELS

    @property
    def nodes(self) -> int:
        """Pods of an attempt, one a node."""
        return self.parallelism.nodes or 1

    @property
    def cards(self) -> int:
        """Cards of an attempt."""
        return self.nodes * self.parallelism.npus_per_node

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one pod where the user states it."""
        return None if self.model.memory is None else quantity_bytes(self.model.memory)

    @property
    def max_attempts(self) -> int:
        """Attempts that may fail."""
        return (self.policy.max_attempts if self.policy else None) or DEFAULT_MAX_ATTEMPTS

    @property
    def suspended(self) -> bool:
        """Whether the job is to hold no cards."""
        return bool(self.policy and self.policy.suspend)

    @property
    def deadline(self) -> timedelta | None:
        """Longest time from the start to the end."""
        return self.policy.deadline if self.policy else None

    @property
    def ttl(self) -> timedelta:
        """Time that pods stay after the end."""
        stated = self.policy.ttl_after_finished if self.policy else None
        return DEFAULT_TTL if stated is None else stated


class GLM5FinetuneJob(ApiObject):
    """A training run of a GLM model on the Ascend cards of a training pool.

    It takes all its cards or none, starts again from its last checkpoint after a fault, and never runs again once it has ended.
    """

    model_config = ConfigDict(json_schema_extra=validations("finetune-name", "finetune-fixed", "deploy-fixed"))

    api_version: Literal["glm5.dev/v1alpha1"] = names.API_VERSION
    kind: Literal["GLM5FinetuneJob"] = names.FINETUNE_KIND
    spec: GLM5FinetuneJobSpec
    """What to train."""
    status: GLM5FinetuneJobStatus | None = None
    """What is; written by the operator."""
