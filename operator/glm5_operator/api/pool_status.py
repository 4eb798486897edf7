"""What an NPUPool's status says: counts, who holds which card, what is against the rules, moves of nodes. Written by the operator only.

`pool` has the object itself.
"""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.config import JsonDict

from .common import Condition, StatusModel
from .node import MoveState

MOST_HOLDERS = 128
"""Pods that the status lists; each AscendNode has all of its own."""
MOST_VIOLATIONS = 64
MOST_MOVES = 64

MOST_PIDS = 64

Violating = Literal["NoPool", "OtherPool", "NamespaceNotOpen", "NotAllocated"]

_ATOMIC: JsonDict = {"x-kubernetes-list-type": "atomic"}
_Ids = Annotated[tuple[Annotated[int, Field(ge=0, le=1023)], ...], Field(strict=False, max_length=64)]
_Time = Annotated[str, Field(max_length=40)]
_Word = Annotated[str, Field(max_length=253)]


class CardCounts(StatusModel):
    """Cards of the pool, in units of its resource (on A3 one unit is a die)."""

    total: int
    """Cards that the nodes offer."""
    held: int
    """Cards requested by pods that are on the nodes and haven't ended, of whatever owner. An operator that is limited to namespaces
    sees no others, so it counts too few.
    """
    free: int
    """Cards that a new pod could get: total less held, on nodes that are ready and accept pods."""
    quarantined: int | None = None
    """Cards of nodes that are in quarantine; not among the free ones."""


class Fragmentation(StatusModel):
    """How the free cards lie: what a large replica or run could get."""

    free_nodes: int
    """Nodes that are wholly free: the largest block of whole nodes."""
    most_on_one_node: int
    """Free cards of the node that has the most."""
    free_pairs: int | None = None
    """A3: modules of which both dies are free and well, by the node agents' word; absent where one of them doesn't know."""


class CardHolder(StatusModel):
    """A pod that holds cards of the pool."""

    node: _Word
    """On which node."""
    namespace: _Word
    """Of the pod."""
    pod: _Word
    """Its name."""
    count: int
    """Cards that it requests; of a pod that only the node agent sees, those that it was given."""
    cards: _Ids | None = Field(default=None, json_schema_extra=_ATOMIC)
    """Physical ids, from kubelet's PodResources API through the node agent; absent where that isn't known."""
    annotated: Annotated[str, Field(max_length=512)] | None = None
    """The pod's annotation huawei.com/AscendReal: what the device plugin says it mounted."""


class Violation(StatusModel):
    """A pod that holds cards of the pool against its rules, or processes on cards of a node that no pod was given."""

    node: _Word
    """On which node."""
    namespace: _Word | None = None
    """Of the pod; absent with NotAllocated."""
    pod: _Word | None = None
    """Its name; absent with NotAllocated."""
    reason: Violating
    """NoPool: it doesn't name the pool, so it came past admission or before the pool. OtherPool: it names another one.
    NamespaceNotOpen: the pool isn't open to its namespace. NotAllocated: processes are on cards that kubelet has given to nobody.
    """
    count: int
    """Cards that it holds, or that the processes are on."""
    cards: _Ids | None = Field(default=None, json_schema_extra=_ATOMIC)
    """NotAllocated: physical ids of those."""
    pids: Annotated[tuple[int, ...], Field(strict=False, max_length=MOST_PIDS)] | None = Field(default=None, json_schema_extra=_ATOMIC)
    """NotAllocated: the processes, by their ids on the host."""
    since: _Time
    """When the operator saw it first."""


class Move(StatusModel):
    """A node on its way to this pool."""

    node: _Word
    """Which one."""
    origin: _Word
    """The pool that has it until it arrives."""
    state: MoveState
    """Waiting for its turn; Draining: new pods stay away and those with cards are ending; Resetting the cards; Verifying that they are idle
    and well; Blocked until somebody does what the message says. A node that has arrived isn't listed any more.
    """
    since: _Time
    """When that state began."""
    started: _Time
    """When the move began."""
    reason: Annotated[str, Field(max_length=128)]
    """Why, in one CamelCase word."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """Why, in words, with what to do where a person is needed."""


class NodeConflict(StatusModel):
    """A node that this pool selects and doesn't get."""

    node: str
    """Name of the node."""
    pool: str
    """The pool that has it."""


class NPUPoolStatus(StatusModel):
    """What is. Written by the operator only."""

    observed_generation: int | None = None
    """The metadata.generation this status was computed from."""
    product: str | None = None
    """Ascend product of the nodes."""
    resource_name: str | None = None
    """Extended resource that counts the cards."""
    nodes: int | None = None
    """Nodes in the pool."""
    cards: CardCounts | None = None
    """Cards of the pool."""
    fragmentation: Fragmentation | None = None
    """How the free ones lie."""
    holders: Annotated[tuple[CardHolder, ...], Field(strict=False, max_length=MOST_HOLDERS)] | None = Field(
        default=None, json_schema_extra=_ATOMIC
    )
    """Pods that hold cards, by node."""
    more_holders: int | None = None
    """Pods that hold cards and aren't listed for want of room."""
    violations: Annotated[tuple[Violation, ...], Field(strict=False, max_length=MOST_VIOLATIONS)] | None = Field(
        default=None, json_schema_extra=_ATOMIC
    )
    """Pods that hold cards against the pool's rules, and nodes where processes are on cards that no pod was given."""
    moves: Annotated[tuple[Move, ...], Field(strict=False, max_length=MOST_MOVES)] | None = Field(default=None, json_schema_extra=_ATOMIC)
    """Nodes on their way to this pool."""
    conflicts: Annotated[tuple[NodeConflict, ...], Field(strict=False, max_length=1024)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["node"]}
    )
    """Nodes that this pool selects but that belong to another one. The older pool keeps a node."""
    conditions: Annotated[tuple[Condition, ...], Field(strict=False, max_length=32)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    )
    """Ready: the pool has nodes with cards. Reconciling: nodes are being labelled. Stalled: nothing will happen until the named
    thing changes. Conflict: another pool has a node that this one selects. Violated: pods hold cards against the pool's rules.
    """
