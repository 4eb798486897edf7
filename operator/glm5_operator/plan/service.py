"""A GLM5Service and facts become its desired objects.

Called by the service controller and by `glm5 plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm5_operator.api.service import GLM5Service, Resolved
    from glm5_operator.plan.facts import Finding, Manifest, ServiceFacts


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """The whole answer for one service.

    Attributes:
        objects: desired children; empty when stalled, which means "keep what is there, change nothing".
        resolved: the numbers for `status.resolved` (the model of the API); None when stalled before sizing.
        stalled: why nothing can be planned until spec or facts change.
        warnings: worth an event or a condition, never a stop.
        revision: hash of the pod template, as on the pods' label `glm5.dev/revision`; empty when stalled.
        endpoint: base URL inside the cluster, ending in /v1.
        startup: time a replica may take to produce its first token; zero when stalled before sizing.
    """

    objects: tuple[Manifest, ...]
    resolved: Resolved | None
    stalled: Finding | None
    warnings: tuple[Finding, ...]
    revision: str
    endpoint: str = ""
    startup: timedelta = timedelta(0)


def plan_service(service: GLM5Service, facts: ServiceFacts) -> ServicePlan:
    """Plan the children of `service`. Raises nothing for user faults: they end in `stalled`."""
    raise NotImplementedError
