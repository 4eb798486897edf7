"""GLM5Service: one model served by replicas on the cards of a pool.

The user writes `spec`; the operator only ever writes `status`. `schema.py` turns this file into the CRD, so the docstring of a
field is what `kubectl explain` prints.
"""

from datetime import timedelta
from typing import Annotated, Final, Literal, get_args

from pydantic import ConfigDict, Field

from . import names
from .common import ApiObject, Condition, Duration, Model, Quantity, StatusModel, quantity_bytes
from .deploy import MOST_ADAPTERS, AdapterLimits, AdapterReport, AdapterSpec
from .known import KNOWN_MODELS, LONGEST_CONTEXT
from .podtemplate import PodTemplate
from .rules import IMAGE_RULES, validations

WeightsForm = Literal["bf16", "w8a8", "w4a8", "w8a8c8", "w4a8c8"]
EngineName = Literal["native", "vllm"]
KVDtype = Literal["bf16", "fp16", "int8", "int4"]
RolloutStrategy = Literal["Surge", "Recreate"]

WEIGHTS_FORMS: Final[tuple[WeightsForm, ...]] = get_args(WeightsForm)

DEFAULT_DRAIN: Final = timedelta(seconds=300)
DEFAULT_MAX_SURGE: Final = 1
DEFAULT_MAX_UNAVAILABLE: Final = 0


class ModelSpec(Model):
    """What is served."""

    name: Annotated[str, Field(min_length=1, max_length=96, json_schema_extra=validations("model-name"))]
    """Name of the model. GLM-5, GLM-5.1, GLM-5.2 and GLM-5.3, spelled so, have a recipe: cards, parallelism and memory are derived.
    Any other name (a fine-tune, a small test model) must state parallelism.tensor and model.memory.
    """
    weights: WeightsForm
    """Form of the weights on disk: bf16; w8a8 (8-bit weights and activations); w4a8 (4-bit weights); a trailing c8 means an 8-bit
    KV cache too. It decides how many cards a replica needs.
    """
    source: Annotated[
        str,
        Field(
            min_length=1, max_length=1024, json_schema_extra=validations("source-scheme", "source-pvc", "source-absolute", "source-path")
        ),
    ]
    """Where the checkpoint's folder is, mounted read-only: pvc://CLAIM/PATH (a PersistentVolumeClaim of this namespace),
    hostpath:///ABSOLUTE/PATH (a folder that every node of the pool has), or image:///PATH (inside the engine's image).
    """
    served_name: Annotated[str, Field(min_length=1, max_length=128, json_schema_extra=validations("served-name"))] | None = None
    """Name that clients send as `model` and that /v1/models lists. Default: model.name."""
    memory: Quantity | None = Field(default=None, json_schema_extra=validations("memory"))
    """Main memory of one replica's pod, shared memory included, as request and limit; for example 4Gi. Required for a model
    without a recipe, because a pod without a limit takes its node down with it; for a known model it replaces the recipe's value.
    """


class EnvVar(Model):
    """One environment variable of the engine."""

    name: Annotated[str, Field(min_length=1, max_length=128, json_schema_extra=validations("env-name", "env-reserved"))]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value; Kubernetes replaces $(NAME) by a variable that stands before it. Values from Secrets go through podTemplate."""


class EngineSpec(Model):
    """Which program serves the model."""

    name: EngineName | None = None
    """native is this project's own runtime (not yet run on cards); vllm is vLLM-Ascend, which serves the large checkpoints.
    Default: vllm for a model with a recipe, native for any other.
    """
    image: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=512,
                json_schema_extra=validations(*IMAGE_RULES),
            ),
        ]
        | None
    ) = None
    """Image of the engine, by version tag, date tag or digest; moving tags and no tag are refused. Default: the operator's image for
    this engine and the pool's product.
    """
    args: Annotated[tuple[Annotated[str, Field(max_length=2048)], ...], Field(strict=False, max_length=64)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "atomic", **validations("args-owned", "args-no-secret")}
    )
    """More arguments for the engine, after the planned ones. Flags that a field of this spec sets are refused."""
    env: Annotated[tuple[EnvVar, ...], Field(strict=False, max_length=64)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    )
    """More environment variables for the engine; one of the same name replaces the planned one."""


class ParallelismSpec(Model):
    """How one replica is spread over cards: it takes tensor x pipeline x data of them."""

    model_config = ConfigDict(json_schema_extra=validations("expert-parallelism"))

    tensor: Annotated[int, Field(ge=1, le=64)] | None = None
    """Cards that split each layer. Default: from the recipe."""
    pipeline: Annotated[int, Field(ge=1, le=64)] | None = None
    """Groups of cards that hold consecutive layers. Default: 1."""
    data: Annotated[int, Field(ge=1, le=64)] | None = None
    """Copies of the attention layers inside one replica, each with requests of its own. Default: from the recipe."""
    expert: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Cards that the experts are spread over: 1 (each card holds a slice of every expert) or tensor x data. Default: from the recipe."""


class ContextSpec(Model):
    """How much text fits: these decide the memory of the KV cache."""

    model_config = ConfigDict(json_schema_extra=validations("batch-holds-sequences"))

    max_tokens: Annotated[int, Field(ge=16, le=LONGEST_CONTEXT)] | None = None
    """Longest request, in tokens, prompt and answer together. Default: what the recipe fits on the pool's cards."""
    max_sequences: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Most requests decoded at the same time by one replica; others wait. Default: from the recipe, else 16."""
    max_batched_tokens: Annotated[int, Field(ge=1, le=1048576)] | None = None
    """Most tokens computed in one step, over all requests; more means faster prompts and longer pauses for running answers.
    Default: from the recipe, else 2048.
    """


class KVCacheSpec(Model):
    """The cache of attention keys and values."""

    page_size: Annotated[int, Field(ge=16, le=128, multiple_of=16)] | None = None
    """Tokens in a page, a multiple of 16; small pages waste less, large ones are faster to read. Default: the engine's."""
    dtype: KVDtype | None = None
    """Number format of the cache. Default: the format of the checkpoint. int8 and int4 hold about two and three times as many tokens, with
    engine native; with engine vllm an 8-bit cache comes with weights of a c8 form.
    """
    prefix_cache: bool | None = None
    """Whether requests that begin with the same text share its pages. Default: true."""


class SpeculativeSpec(Model):
    """Decoding several tokens a step with the model's own MTP layer, or, with engine native, from the text where a model has none."""

    tokens: Annotated[int, Field(ge=0, le=8)]
    """Tokens proposed a step; 0 switches it off. Recipes use 3 (GLM-5, 5.1) and 3 to 5 (GLM-5.2)."""


class RolloutSpec(Model):
    """How replicas are replaced when the spec changes."""

    model_config = ConfigDict(json_schema_extra=validations("recreate-has-no-surge", "rollout-moves"))

    strategy: RolloutStrategy | None = None
    """Surge starts new replicas before it stops old ones, as far as cards are spare; Recreate stops all first, with a gap in service.
    Default: Surge.
    """
    max_surge: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Replicas beyond spec.replicas during a rollout; each needs cards of its own. Default: 1 while the pool has cards for one more
    replica, else 0.
    """
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Replicas that may be missing during a rollout. Default: 0, and 1 where maxSurge is 0: without spare cards one must go first."""
    paused: bool | None = None
    """Whether changes of the pod wait; replicas can still be scaled. Default: false."""


class DrainSpec(Model):
    """How a replica ends."""

    timeout: Duration | None = Field(default=None, json_schema_extra=validations("drain-timeout"))
    """Longest time for running requests to finish after a replica was told to stop, between 1s and 2h; then they are cut off.
    Default: 300s.
    """


class StartupSpec(Model):
    """How long a replica may take to start."""

    timeout: Duration | None = Field(default=None, json_schema_extra=validations("startup-timeout"))
    """Time from the container's start until the engine must have produced its first token, between 10s and 24h; then the container is
    restarted. It covers reading the weights. Default: from the size of the weights (or, unknown, of the cards), at most 60 minutes.
    """


class SecretKeyRef(Model):
    """A key of a Secret in the service's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=validations("secret-name"))]
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=validations("secret-key"))]
    """Key whose value is the API key."""


class AuthSpec(Model):
    """Who may send requests."""

    secret_ref: SecretKeyRef
    """Where the API key is that clients send as bearer token. Replicas read it at start: after a rotation run `kubectl rollout restart`."""


class GLM5ServiceSpec(Model):
    """What to serve. Model and pool are required; the rest is derived where it is absent, and status.resolved shows the outcome."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            "native-no-pipeline",
            "native-data-spreads-experts",
            "native-weights",
            "cache-bits-native",
            "other-model-parallelism",
            "other-model-memory",
            "context-of-model",
            "heads-of-model",
            "speculative-batch",
            "adapters-native",
            "adapters-storage",
            "adapters-within",
            "adapters-names",
            "adapters-count",
        )
    )

    model: ModelSpec
    """The model."""
    pool: Annotated[str, Field(min_length=1, max_length=63, json_schema_extra=validations("pool-ref"))]
    """Name of the NPUPool whose cards this service uses. It can't change while the service holds cards."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Copies of the model, each on cards of its own; 0 frees the cards and keeps the object. An autoscaler changes this through `scale`."""
    engine: EngineSpec | None = None
    """Which program serves the model."""
    parallelism: ParallelismSpec | None = None
    """How one replica is spread over cards."""
    context: ContextSpec | None = None
    """How much text fits."""
    kv_cache: KVCacheSpec | None = None
    """The cache of attention keys and values."""
    speculative: SpeculativeSpec | None = None
    """Decoding several tokens a step."""
    rollout: RolloutSpec | None = None
    """How replicas are replaced when the spec changes."""
    drain: DrainSpec | None = None
    """How a replica ends."""
    startup: StartupSpec | None = None
    """How long a replica may take to start."""
    auth: AuthSpec | None = None
    """Who may send requests. Default: everyone who reaches the Service."""
    adapter_storage: (
        Annotated[str, Field(min_length=1, max_length=512, json_schema_extra=validations("adapter-storage", "adapter-storage-path"))] | None
    ) = None
    """With engine native: the volume that LoRA adapters lie in, pvc://CLAIM or pvc://CLAIM/FOLDER, mounted read-only. With it the engine
    takes adapters, listed or deployed by jobs, while it runs; setting it or removing it replaces the pods.
    """
    adapters: Annotated[tuple[AdapterSpec, ...], Field(strict=False, max_length=MOST_ADAPTERS)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    )
    """LoRA adapters that are served beside the model. A change replaces no pod."""
    adapter_limits: AdapterLimits | None = None
    """How many adapters, and how large. A change replaces the pods."""
    pod_template: PodTemplate | None = None
    """Part of a PodTemplateSpec, merged strategically over the planned pod (lists by name); the engine's container is named `engine`.
    For what the site or the workload needs: resources, volumes, tolerations, annotations. It can't change cards, command, API key, checks'
    port, node selection or credentials, nor take memory or time to drain away: such a template makes the service Stalled.
    """

    @property
    def has_recipe(self) -> bool:
        """Whether the model is one that the API knows by name."""
        return self.model.name in KNOWN_MODELS

    @property
    def engine_name(self) -> EngineName:
        """The engine in effect: the user's choice, else vllm for a known model and native for any other."""
        if self.engine is not None and self.engine.name is not None:
            return self.engine.name
        return "vllm" if self.has_recipe else "native"

    @property
    def served_name(self) -> str:
        """The name that clients send."""
        return self.model.served_name or self.model.name

    @property
    def drain_timeout(self) -> timedelta:
        """Time for running requests to finish."""
        return DEFAULT_DRAIN if self.drain is None or self.drain.timeout is None else self.drain.timeout

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one replica's pod where the user states it."""
        return None if self.model.memory is None else quantity_bytes(self.model.memory)


class Resolved(StatusModel):
    """What the operator derived for one replica; the spec stays as the user wrote it."""

    engine: str
    """Engine that serves."""
    image: str
    """Image of the engine."""
    product: str | None = None
    """Ascend product of the pool's nodes: A2, A3, 310P or 950."""
    resource_name: str | None = None
    """Extended resource that the pods request, for example huawei.com/Ascend910."""
    recipe: str | None = None
    """Recipe the numbers come from; absent for a model that states them itself."""
    nodes: int = 1
    """Nodes of one replica."""
    cards: int
    """Cards of one replica, in units of the resource (on A3 one unit is a die)."""
    tensor: int
    """Tensor parallelism."""
    pipeline: int
    """Pipeline parallelism."""
    data: int
    """Data parallelism inside a replica."""
    expert: int
    """Expert parallelism; 1 is off."""
    max_tokens: int | None = None
    """Longest request in tokens; absent: what the checkpoint says."""
    max_sequences: int
    """Most requests decoded at once."""
    max_batched_tokens: int
    """Most tokens a step."""
    memory: str
    """Memory of a replica's engine: the limit in its pod."""
    shm: str
    """Size of /dev/shm, part of memory."""
    startup_timeout: str
    """Time a replica may take to produce its first token."""


class GLM5ServiceStatus(StatusModel):
    """What is. Written by the operator only."""

    observed_generation: int | None = None
    """The metadata.generation this status was computed from."""
    replicas: int | None = None
    """Replicas that exist."""
    ready_replicas: int | None = None
    """Replicas whose engine has produced a token since it started and still makes progress."""
    updated_replicas: int | None = None
    """Replicas of the current revision."""
    cards_held: int | None = None
    """Cards that the pods of this service hold now, ending pods included."""
    selector: str | None = None
    """Label selector of the replicas' pods, for autoscalers."""
    revision: str | None = None
    """Short hash of the pod that the spec asks for now; pods carry it as label glm5.dev/revision."""
    endpoint: str | None = None
    """URL inside the cluster that OpenAI clients use as base URL, ending in /v1."""
    resolved: Resolved | None = None
    """What the operator derived for one replica."""
    adapters: Annotated[tuple[AdapterReport, ...], Field(strict=False, max_length=256)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    )
    """Adapters that are listed or deployed by jobs, and where they have arrived."""
    conditions: Annotated[tuple[Condition, ...], Field(strict=False, max_length=32)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    )
    """Ready: the current revision serves and the old one is gone. Reconciling: work is going on. Stalled: nothing will happen until the
    named thing changes. Others explain these.
    """


class GLM5Service(ApiObject):
    """A GLM model served over the OpenAI API from the Ascend cards of a pool.

    Model, weights form, source and pool are enough; the rest is derived.
    """

    model_config = ConfigDict(json_schema_extra=validations("service-name", "pool-held"))

    api_version: Literal["glm5.dev/v1alpha1"] = names.API_VERSION
    kind: Literal["GLM5Service"] = names.SERVICE_KIND
    spec: GLM5ServiceSpec
    """What to serve."""
    status: GLM5ServiceStatus | None = None
    """What is; written by the operator."""
