"""LoRA adapters in running services: what a GLM5Service lists, and how a GLM5FinetuneJob brings its own there.

Read by `service` and `finetune`, whose objects these are parts of. The docstring of a field is what `kubectl explain` prints.
"""

from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from .common import Duration, Model, StatusModel
from .rules import validations

DEFAULT_ADAPTERS: Final = 4
DEFAULT_RANK: Final = 16
MOST_ADAPTERS: Final = 64
DEFAULT_CANARY_SHARE: Final = 0.1
DEFAULT_CANARY_TIME: Final = timedelta(minutes=5)
DEFAULT_MOST_FAILURES: Final = 0.02
DEFAULT_LEAST_REQUESTS: Final = 1

AdapterName = Annotated[str, Field(min_length=1, max_length=64, json_schema_extra=validations("adapter-name"))]

Phase = Literal["Waiting", "Loading", "Evaluating", "Canary", "Deployed", "RolledBack"]
AdapterState = Literal["Waiting", "Loading", "Loaded", "Failed"]


class AdapterSpec(Model):
    """A LoRA adapter that is served beside the model, under a name of its own."""

    name: AdapterName
    """Name that clients send as `model`."""
    source: Annotated[
        str, Field(min_length=1, max_length=1024, json_schema_extra=validations("adapter-scheme", "adapter-source", "adapter-path"))
    ]
    """Where the adapter is: job://NAME, the result of a GLM5FinetuneJob of this namespace (it stays loaded when that job is deleted), or
    pvc://CLAIM/FOLDER within adapterStorage.
    """


class AdapterLimits(Model):
    """How many adapters, and how large: the engine sets aside memory of its cards for them."""

    count: Annotated[int, Field(ge=1, le=MOST_ADAPTERS)] | None = None
    """Adapters loaded at the same time, those that jobs deploy included. Default: 4."""
    rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Largest rank of an adapter. Default: 16, as of jobs."""


class EvaluateSpec(Model):
    """What an adapter must show, before clients get it, on rows that it has not learned from."""

    source: Annotated[str, Field(min_length=1, max_length=1024, json_schema_extra=validations("data-scheme", "data-file", "data-path"))]
    """A JSON-lines file in a format that training takes: pvc://CLAIM/FILE or hostpath:///ABSOLUTE/FILE. At most 200 rows count."""
    tolerance: Annotated[float, Field(ge=0, le=100)] | None = None
    """What the adapter's mean loss may be above that of the model without it. Default: 0."""
    least_exact_match: Annotated[float, Field(ge=0, le=1)] | None = None
    """Least share of the rows whose greedy answer must be exactly the expected one. Default: none; never less than without the adapter."""


class CanarySpec(Model):
    """How much of the model's own traffic the adapter answers at first, and what ends that."""

    share: Annotated[float, Field(ge=0, le=1, json_schema_extra=validations("canary-share"))] | None = None
    """Part of the requests for the model's own name. Default: 0.1."""
    time: Duration | None = Field(default=None, json_schema_extra=validations("canary-time"))
    """How long, between 1s and 168h. Default: 5m."""
    most_failures: Annotated[float, Field(ge=0, le=1)] | None = None
    """What the share of the adapter's requests that fail may be above that of the others. Default: 0.02."""
    least_requests: Annotated[int, Field(ge=0, le=1000000000)] | None = None
    """Requests that the adapter must have answered before it gets all traffic, however long that takes. Default: 1."""


class DeploySpec(Model):
    """Where the adapter goes once it is published: loaded, evaluated, tried on a part of the traffic, then on all."""

    service: Annotated[str, Field(min_length=1, max_length=63, json_schema_extra=validations("deploy-service"))]
    """Name of a GLM5Service of this namespace with adapterStorage; output must be a folder in it."""
    adapter: AdapterName
    """Name that clients send to be answered by this adapter alone."""
    evaluate: EvaluateSpec | None = None
    """What it must show first. Default: it isn't evaluated."""
    canary: CanarySpec | None = None
    """A try on a part of the traffic. Default: none; all of the model's own traffic goes to it at once."""


class AdapterReport(StatusModel):
    """An adapter of a service."""

    name: str
    """Its name."""
    source: str | None = None
    """Where it comes from: as listed in spec.adapters, or job://NAME of the job that deploys it."""
    path: str | None = None
    """Its folder, pvc://CLAIM/FOLDER; a job's adapter stays where it was when the job has gone."""
    sha256: str | None = None
    """Checksum of its weights."""
    state: AdapterState
    """Waiting: not published yet. Loading: not in every pod yet. Loaded: in every pod. Failed: a pod refuses it."""
    share: float | None = None
    """Part of the requests for the model's own name that it answers."""
    pods: int | None = None
    """Ready pods that have it."""
    of: int | None = None
    """Ready pods."""
    message: str | None = None
    """Why it isn't loaded, or that pods have yet to take up its share."""


class EvaluationReport(StatusModel):
    """What the evaluation found."""

    rows: int | None = None
    """Rows that were evaluated."""
    loss: float | None = None
    """Mean loss over the answers' tokens with the adapter."""
    base_loss: float | None = None
    """The same of the model without it."""
    exact_match: float | None = None
    """Share of greedy answers that are exactly the expected one, with the adapter."""
    base_exact_match: float | None = None
    """The same of the model without it."""


class PodCounts(StatusModel):
    """Counters of one pod as they were read last; its process counts from zero when it starts."""

    pod: str
    """UID of the pod."""
    requests: int
    """Of the adapter."""
    failures: int
    """Of these, failed."""
    other_requests: int
    """Of what else answers for the model's own name."""
    other_failures: int
    """Of these, failed."""


class CanaryReport(StatusModel):
    """What was counted since the canary began."""

    requests: int
    """Requests that the adapter answered."""
    failures: int
    """Of these, failed: status 5xx or an error of the engine."""
    other_requests: int
    """Requests that were answered without it."""
    other_failures: int
    """Of these, failed."""
    pods: Annotated[tuple[PodCounts, ...], Field(strict=False, max_length=1024)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """What each pod had counted when it was asked last."""


class DeploymentReport(StatusModel):
    """How far the adapter has come on its way into the service."""

    phase: Phase
    """Waiting, Loading, Evaluating, Canary, Deployed or RolledBack."""
    since: str
    """When this phase began."""
    began: str | None = None
    """When it was begun to be loaded: of all traffic the newest deployment gets its share first."""
    service: str
    """The service."""
    adapter: str
    """The adapter's name there."""
    digest: str | None = None
    """Hash of the spec.deploy that this is of; another one begins anew."""
    share: float
    """Part of the requests for the model's own name that it is to answer, where no newer deployment takes it."""
    reason: str | None = None
    """Why it waits or was rolled back, in one CamelCase word."""
    message: str | None = None
    """The same in words."""
    evaluation: EvaluationReport | None = None
    """What the evaluation found."""
    canary: CanaryReport | None = None
    """What the canary counted."""
