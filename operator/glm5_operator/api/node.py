"""AscendNode: what is known of one node's cards, and what is being done about them.

Two hands write it. The node agent writes `status.facts` and `status.resets`, of its own node only; the operator makes the object, asks for
resets in `spec`, and writes `status.remedy`. People read it, and set one annotation: `glm5.dev/release` takes a node out of quarantine.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from . import names
from .common import ApiObject, Condition, Model, StatusModel
from .node_facts import NodeFactsReport

RemedyState = Literal[
    "Healthy", "Suspect", "Quiescing", "Draining", "WaitingMindCluster", "Resetting", "Verifying", "Returning", "Quarantined"
]
Radius = Literal["Device", "Card", "Node"]
MoveState = Literal["Waiting", "Draining", "Resetting", "Verifying", "Blocked"]
CheckState = Literal["Asked", "Passed", "Failed", "Skipped"]
ResetState = Literal["Running", "Succeeded", "Failed", "Refused", "Unknown"]

MOST_REMEDIES: Final = 20
"""Steps that the status keeps."""
MOST_RESETS: Final = 5
"""Resets that the agent's report keeps."""

_Cards = Annotated[tuple[Annotated[int, Field(ge=0, le=1023)], ...], Field(strict=False, max_length=64)]
_Text = Annotated[str, Field(max_length=1024)]
_Time = Annotated[str, Field(max_length=40)]


class ResetRequest(Model):
    """One reset that the agent is to do. The same id is never done twice."""

    id: Annotated[str, Field(min_length=1, max_length=63)]
    """Which one; a new request has a new id."""
    radius: Radius
    """What is reset: a device (chip), a card with all its chips, or all cards of the node."""
    cards: _Cards
    """Physical ids of all cards that the reset takes, also those that are well."""
    deadline: _Time
    """Not begun after this time (RFC 3339)."""


class AscendNodeSpec(Model):
    """What the operator asks of the agent. Nobody else writes it."""

    reset: ResetRequest | None = None
    """The reset that is asked for; absent when there is none."""


class RemedyEntry(StatusModel):
    """One step of a remedy."""

    time: _Time
    """When it was taken."""
    state: Annotated[str, Field(max_length=32)]
    """The state from then on."""
    reason: Annotated[str, Field(max_length=128)]
    """Why, in one CamelCase word."""
    message: _Text = ""
    """Why, in words."""


class HotCard(StatusModel):
    """A card above a thermal rule of the pool."""

    card: int
    """Physical id."""
    rule: Annotated[str, Field(max_length=32)]
    """Which rule, as °C/percent."""
    since: _Time
    """Above it without a break since then."""


class ComputeCheckReport(StatusModel):
    """How the compute check after a reset stands."""

    state: CheckState
    """Asked: its pod is to run. Failed: the cards compute wrongly. Skipped: it couldn't be run, which says nothing of the cards."""
    since: _Time
    """When it was asked for."""
    message: _Text = ""
    """What was found, or why it was skipped."""


class RemedyReport(StatusModel):
    """What is being done about the node's cards. Written by the operator."""

    state: RemedyState
    """Where the remedy is: docs/health.md has the table of all transitions."""
    since: _Time
    """When that state began."""
    reason: Annotated[str, Field(max_length=128)]
    """Why, in one CamelCase word."""
    message: _Text = ""
    """Why, in words, with what to do where a person is needed."""
    dry_run: bool | None = None
    """The state says what would be done; nothing is."""
    id: Annotated[str, Field(max_length=63)] | None = None
    """The reset that was asked for last."""
    radius: Radius | None = None
    """What the remedy takes: a device, a card, or the node."""
    cards: _Cards | None = None
    """Physical ids of the cards in that radius."""
    faulty: _Cards | None = None
    """Physical ids of the cards with the faults that it is about."""
    resets: Annotated[tuple[_Time, ...], Field(strict=False, max_length=64)] | None = None
    """When resets were asked for, oldest first, as far as the budget looks back."""
    remedies: Annotated[tuple[_Time, ...], Field(strict=False, max_length=64)] | None = None
    """When the node was taken out of service or its engines were restarted, as far as the budget looks back."""
    restarted: _Cards | None = None
    """Physical ids of the cards whose pods were started anew for a fault that is still there."""
    restarting: Annotated[tuple[Annotated[str, Field(max_length=360)], ...], Field(strict=False, max_length=128)] | None = None
    """Pods (namespace/name/uid) that are asked to end so that they start anew, and haven't ended yet."""
    linked: _Cards | None = None
    """Physical ids of the cards whose RoCE link was up before the reset, and must be again."""
    healthy_since: _Time | None = None
    """Since when everything that matters in this state reads well; absent while something doesn't."""
    hot: Annotated[tuple[HotCard, ...], Field(strict=False, max_length=64)] | None = None
    """Cards above a thermal rule."""
    check: ComputeCheckReport | None = None
    """The compute check of this remedy, while it counts."""
    quieted: Annotated[tuple[Annotated[str, Field(max_length=320)], ...], Field(strict=False, max_length=128)] | None = None
    """Pods (namespace/name) that were taken out of traffic for it."""
    cordoned: bool | None = None
    """The node carries our taint for it."""
    history: Annotated[tuple[RemedyEntry, ...], Field(strict=False, max_length=MOST_REMEDIES)] | None = None
    """The newest steps, oldest first."""


class ResetReport(StatusModel):
    """How far a reset is. Written by the agent."""

    id: Annotated[str, Field(max_length=63)]
    """The request's."""
    state: ResetState
    """Unknown: the agent ended while it ran, and what became of it shows only in the cards' health."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """Why it failed or was refused, in one CamelCase word: CardsBusy, NeedsHost, HccsOn, VirtualNPU, NotRoot, AnotherReset, TooLate, …"""
    message: _Text = ""
    """In words, with what to do."""
    started: _Time | None = None
    """When the command was started."""
    ended: _Time | None = None
    """When it ended."""
    exit_code: int | None = None
    """Of the command; it alone proves nothing."""
    output: Annotated[str, Field(max_length=4096)] = ""
    """The end of what the command printed."""


class MoveReport(StatusModel):
    """How far the node is on its way to another pool. Written by the operator."""

    origin: Annotated[str, Field(max_length=253)]
    """The pool that has it until it arrives."""
    target: Annotated[str, Field(max_length=253)]
    """The pool that is to have it."""
    state: MoveState
    """Waiting for its turn; Draining: new pods stay away and those with cards are ending; Resetting the cards; Verifying that they are idle
    and well; Blocked until somebody does what the message says.
    """
    since: _Time
    """When that state, or the reason in it, began."""
    started: _Time
    """When the move began."""
    drained: _Time | None = None
    """When draining began."""
    quiet: _Time | None = None
    """Since when no pod that is asked to end is in traffic; absent while one is."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """Why, in one CamelCase word."""
    message: _Text = ""
    """Why, in words, with what to do where a person is needed."""
    reset: ResetRequest | None = None
    """The reset that was asked for last."""


class AscendNodeStatus(StatusModel):
    """What is."""

    facts: NodeFactsReport | None = None
    """What the node agent has read. Written by the agent."""
    resets: Annotated[tuple[ResetReport, ...], Field(strict=False, max_length=MOST_RESETS)] | None = None
    """The newest resets, oldest first. Written by the agent."""
    remedy: RemedyReport | None = None
    """What is being done about it. Written by the operator."""
    move: MoveReport | None = None
    """Its way to another pool, while it is on one. Written by the operator."""
    conditions: Annotated[tuple[Condition, ...], Field(strict=False, max_length=32)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    )
    """CardsHealthy; FactsFresh: the source can be believed; Quarantined; WatchOnly: the pool says Auto, and the operator only tells what it
    would do. Written by the operator.
    """


class AscendNode(ApiObject):
    """The cards of one node: their health, who holds them, and the remedy under way. Bears the node's name."""

    api_version: Literal["glm5.dev/v1alpha1"] = names.API_VERSION
    kind: Literal["AscendNode"] = names.NODE_KIND
    spec: AscendNodeSpec = Field(default_factory=AscendNodeSpec)
    """What the operator asks of the agent."""
    status: AscendNodeStatus | None = None
    """What is."""
