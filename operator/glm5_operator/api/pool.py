"""NPUPool: nodes whose cards are for one role, and who may use them.

The user writes `spec`; the operator labels the nodes and writes `status`. `schema.py` turns this file into the CRD, so the docstring of a
field is what `kubectl explain` prints.
"""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from . import names
from .common import ApiObject, Duration, Model
from .health_policy import HealthPolicy
from .podtemplate import PodTemplate
from .pool_status import NPUPoolStatus
from .rules import validations

Role = Literal["Inference", "Training"]
ProductName = Literal["A2", "A3", "310P", "950"]
Enforcement = Literal["Warn", "Deny", "Evict"]

_SET = {"x-kubernetes-list-type": "set"}
_Name = Annotated[str, Field(min_length=1, max_length=253)]
_NamespaceName = Annotated[str, Field(min_length=1, max_length=63)]
_LabelValue = Annotated[str, Field(max_length=63)]


class Loan(Model):
    """Nodes of this pool that another one has for a while."""

    pool: Annotated[str, Field(min_length=1, max_length=63)]
    """The pool that gets them."""
    nodes: Annotated[int, Field(ge=0, le=1024)]
    """How many. Idle ones go first, one at a time, each by the way of every move: drained, reset, verified. With a smaller number, or
    without the entry, they come back the same way.
    """
    keep: Annotated[Duration, Field(json_schema_extra=validations("loan-keep"))] = timedelta(minutes=10)
    """How long a node stays lent at least, whatever the number says meanwhile. Default: 10m."""


class NPUPoolSpec(Model):
    """Which nodes, for what, for whom. Exactly one of nodeSelector and nodeNames is set."""

    model_config = ConfigDict(json_schema_extra=validations("pool-selects-one-way"))

    role: Annotated[Role, Field(json_schema_extra=validations("pool-role-fixed"))]
    """What the cards are for: Inference or Training. The two never share a card, so a node belongs to at most one pool. It can't change."""
    node_selector: Annotated[dict[str, _LabelValue], Field(min_length=1, max_length=32)] | None = Field(
        default=None, json_schema_extra=validations("pool-selector-own-label", "pool-selector-values")
    )
    """Labels of the nodes, all of which must match; nodes that get them later join by themselves."""
    node_names: Annotated[tuple[_Name, ...], Field(strict=False, min_length=1, max_length=1024)] | None = Field(
        default=None, json_schema_extra={**_SET, **validations("pool-node-names")}
    )
    """Names of the nodes, instead of a selector."""
    resource_name: Annotated[str, Field(min_length=3, max_length=317, json_schema_extra=validations("pool-resource"))] | None = None
    """Extended resource that counts the cards, for example huawei.com/Ascend910. Default: the one that the nodes offer."""
    product: ProductName | None = None
    """Ascend product of the nodes, where their labels don't say it: A2 (Atlas 800 A2, 910B), A3 (Atlas 800 A3, one unit is a die),
    310P (Atlas 300I), 950. Default: from the nodes' labels.
    """
    namespaces: Annotated[tuple[_NamespaceName, ...], Field(strict=False, min_length=1, max_length=256)] | None = Field(
        default=None, json_schema_extra={**_SET, **validations("pool-namespaces")}
    )
    """Namespaces whose services may use the pool. Default: all."""
    taint: bool | None = None
    """Whether the nodes get the taint glm5.dev/role=<role>:NoSchedule, which keeps every other pod away. It is set only when all
    DaemonSets of those nodes tolerate it, or the next device-plugin update would take the cards away. Default: false.
    """
    enforcement: Enforcement | None = None
    """What is done about pods that take cards outside the pool's rules. Warn: people are told, at admission and in the status. Deny: a new
    pod that asks for cards without naming a pool that is open to its namespace, or that names a node, is refused. Evict: the same, and a
    pod that holds cards of this pool against its rules is evicted. What runs is never touched otherwise. One pool with Deny is enough to
    refuse every pod of the cluster that asks for cards and names no pool. Default: Warn.
    """
    lend: Annotated[tuple[Loan, ...], Field(strict=False, max_length=8)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pool"]}
    )
    """Nodes that other pools have for a while: training at night, say. Default: none."""
    health: HealthPolicy | None = None
    """How sick cards are treated, and how much of it is done at most. Default: DryRun, which says what would be done."""
    pod_template: PodTemplate | None = None
    """Part of a PodTemplateSpec that every pod on this pool gets, below the service's own podTemplate: driver mounts, proxies,
    pull secrets, a runtime class. What belongs to the site goes here, so that services stay short.
    """


class NPUPool(ApiObject):
    """Nodes with Ascend cards, set apart for inference or training.

    Services name a pool; the operator labels its nodes and counts its cards.
    """

    model_config = ConfigDict(json_schema_extra=validations("pool-name"))

    api_version: Literal["glm5.dev/v1alpha1"] = names.API_VERSION
    kind: Literal["NPUPool"] = names.POOL_KIND
    spec: NPUPoolSpec
    """Which nodes, for what, for whom."""
    status: NPUPoolStatus | None = None
    """What is; written by the operator."""
