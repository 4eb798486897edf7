"""Which nodes of a pool can't run an image: driver too old for its CANN, or built for other cards.

Called by service and attempt planning before anything starts: ten minutes of loading would end in an import error. A node whose driver
nobody has read is let through; the runtime looks again when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from glm5_operator.plan.compat import of_image, unfit
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.reading import object_at

if TYPE_CHECKING:
    from glm5_operator.plan.compat import Check
    from glm5_operator.plan.offer import Offer


VERSIONS_DO_NOT_FIT: Final = "VersionsDoNotFit"
"""Reason of the finding."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found.

    Attributes:
        unfit: nodes that can't run the image.
        why: the finding that names them; None when all can, as far as is known.
        none_fits: no node of the pool can.
    """

    unfit: frozenset[str] = frozenset()
    why: Finding | None = None
    none_fits: bool = False


def preflight(image: str, engine: str, offer: Offer) -> Preflight:
    """Compare an image with the nodes of a pool.

    Args:
        image: the reference that pods would run.
        engine: `native` or `vllm`: whose image it is.
        offer: the pool.
    """
    if _on_cpu(offer):
        return Preflight()
    versions = of_image(image, engine)
    # A thousand nodes have two or three drivers, and a thousand services ask of the same nodes.
    by_driver = {driver: unfit(versions, driver, offer.product) for driver in {node.driver for node in offer.nodes}}
    if not any(by_driver.values()):
        return Preflight()
    faults = [(node.name, fault) for node in offer.nodes if (fault := by_driver[node.driver])]
    return Preflight(frozenset(name for name, _ in faults), _finding(image, offer, faults), len(faults) == len(offer.nodes))


def _on_cpu(offer: Offer) -> bool:
    """The pool says that its pods compute on the CPU (GLM5_DEVICE=cpu): then no driver is asked for anything."""
    containers = object_at(dict(offer.pool.spec.pod_template or {}), "spec").get("containers")
    listed = [item for item in containers if isinstance(item, dict)] if isinstance(containers, list) else []
    lists = [env for item in listed if isinstance(env := item.get("env"), list)]
    return any({"name": "GLM5_DEVICE", "value": "cpu"} in env for env in lists)


def _finding(image: str, offer: Offer, faults: list[tuple[str, Check]]) -> Finding:
    first = faults[0][1]
    names = [name for name, fault in faults if fault == first]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    remedy = "update the driver there" if first.found.startswith("driver") else "set the image for these cards"
    return Finding(
        VERSIONS_DO_NOT_FIT,
        f"{first.sentence} in {image}, on {shown} of NPUPool {offer.pool.metadata.name}: {remedy}, or take an image that `glm5 compat`"
        " lists for them",
    )
