"""How replicas are replaced: the Deployment's strategy from the spec and the pool's spare cards.

Called by `plan_service`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5_operator.api.service import DEFAULT_MAX_SURGE, DEFAULT_MAX_UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.api.service import RolloutSpec
    from glm5_operator.plan.facts import Manifest
    from glm5_operator.plan.offer import Offer


@dataclass(frozen=True, slots=True)
class Rollout:
    """The chosen strategy."""

    strategy: Manifest
    paused: bool


def choose_rollout(stated: RolloutSpec | None, offer: Offer, replicas: int, cards: int, own_held: Mapping[str, int]) -> Rollout:
    """Surge while the pool has cards for one more replica, else replace in place.

    With Kubernetes' own defaults a service that fills its pool can never roll: the new pod waits for the cards that the old one holds.
    Numbers that the user states are kept.
    """
    paused = bool(stated and stated.paused)
    if stated is not None and stated.strategy == "Recreate":
        return Rollout({"type": "Recreate"}, paused)
    surge, unavailable = (stated.max_surge, stated.max_unavailable) if stated else (None, None)
    if surge is None:
        # A stated maxUnavailable 0 means that nothing may be lost: then the rollout waits for cards, and the status says so.
        surge = DEFAULT_MAX_SURGE if unavailable == 0 or offer.room(cards, own_held) > replicas else 0
    if surge == 0:
        unavailable = unavailable or 1  # both 0 would never move
    elif unavailable is None:
        unavailable = DEFAULT_MAX_UNAVAILABLE
    return Rollout({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}, paused)
