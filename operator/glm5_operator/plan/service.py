"""A GLM5Service and facts become its desired objects.

Called by the service controller and by `glm5 plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm5_operator.api.service import GLM5Service
    from glm5_operator.plan.facts import Finding, Manifest, ServiceFacts


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the planner decided, for `status.resolved` and the CLI (`as_status` gives the camelCase JSON)."""

    product: str | None
    resource_name: str
    cards: int
    nodes: int
    tensor: int
    data: int
    pipeline: int
    expert: bool
    engine: str
    image: str
    max_tokens: int
    max_sequences: int
    max_batched_tokens: int
    weights_bytes: int
    startup_seconds: int
    strategy: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """The whole answer for one service.

    Attributes:
        objects: desired children; empty when stalled, which means "keep what is there, change nothing".
        resolved: None when stalled before sizing.
        stalled: why nothing can be planned until spec or facts change.
        warnings: worth an event or a condition, never a stop.
        revision: hash of the pod template, as on the pods' label `glm5.dev/revision`; empty when stalled.
    """

    objects: tuple[Manifest, ...]
    resolved: Resolved | None
    stalled: Finding | None
    warnings: tuple[Finding, ...]
    revision: str


def plan_service(service: GLM5Service, facts: ServiceFacts) -> ServicePlan:
    """Plan the children of `service`. Raises nothing for user faults: they end in `stalled`."""
    raise NotImplementedError
