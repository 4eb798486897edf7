"""What may be done about a node's cards, and how much of it: a pool's `spec.health` with everything it left out filled in.

Made by the node controller from the pool and the node's product; read by `machine`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from glm5_operator.api.health_policy import HealthPolicy, Mode, ThermalAction
from glm5_operator.health.types import Product

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTLE: Final = timedelta(seconds=2)
"""Between taking a pod out of traffic and asking it to end: endpoints and proxies take that long to stop sending."""
CODES_TAKE: Final = timedelta(seconds=6)
"""The agent tells a card's health first and its fault codes when npu-smi has answered, for which it has 5 s (`tool.call_timeout`)."""
RESET_BEGINS: Final = timedelta(minutes=2)
"""A reset that the agent hasn't begun by then isn't begun any more: what was seen before it is too old."""
RESET_TAKES: Final = timedelta(minutes=18)
"""From the request to the agent's last word: 2 min to begin; commands, one after the other, of which none is begun after 400 s; 400 s of
the last one (facts/ascend.md §5.3: up to 360 s); and some for the looks between them."""
BOOT_TAKES: Final = timedelta(minutes=5)
"""After a reset, before a fault that is still there counts: MindCluster gives the boot 180 s."""
VERIFY_TAKES: Final = timedelta(minutes=15)
"""After a reset or a release, until everything must have been good for `verify`; facts that don't change come every 10 min."""
COMPUTE_CHECK_TAKES: Final = timedelta(minutes=5)
"""From asking for a compute check to its result; without one by then it is skipped. Its pod has 3 min, the pull of its image among them."""
MIND_CLUSTER_BEGINS: Final = timedelta(minutes=15)
"""MindCluster waits for 60 s of idleness, then resets; after this it won't any more."""
MIND_CLUSTER_TAKES: Final = timedelta(minutes=45)
"""Three tries of 600 s at most, and the waiting before them."""
UNSURE_TOLD_AFTER: Final = timedelta(minutes=2)
"""Without facts that can be believed, before anybody is told: an update of the agent or the device plugin takes that long on each node."""
UNSURE_FOR: Final = timedelta(hours=1)
"""A remedy under way without facts that can be believed, before a person is asked."""
RETURN_TAKES: Final = timedelta(minutes=5)
"""Until the pods' labels are back; a pod that can't be changed doesn't hold the node back."""
REMEDIES_BESIDE_RESETS: Final = 3
"""Times a node may leave and come back in `window` beyond its resets: faults that went away by themselves, engine restarts."""


@dataclass(frozen=True, slots=True)
class Thermal:
    """A card above both for `sustain` is hot.

    Attributes:
        temperature: °C.
        utilisation: percent of AI cores in use; 0 counts always.
        sustain: for how long both must hold.
        action: Alert tells; Reset treats it as a fault that asks for a reset.
    """

    temperature: int
    utilisation: int = 0
    sustain: timedelta = timedelta(minutes=5)
    action: ThermalAction = "Alert"

    @property
    def key(self) -> str:
        """Names the rule in the status, where its hot cards are remembered."""
        return f"{self.temperature}C/{self.utilisation}%"


THERMAL: Final[Mapping[Product, tuple[Thermal, ...]]] = MappingProxyType(
    {
        Product.A2: (Thermal(85, 95),),
        Product.A3: (Thermal(85, 95),),
        Product.A5: (Thermal(85, 95),),
        # A 310P Duo idles at 78 to 86 °C (../npu-smi/info_310p3_duo): no number that isn't the vendor's own alarm says anything there.
        Product.ATLAS_310P: (),
    }
)
"""Where the pool names no rule. There is no public table of limits; the vendor's advice is to trust its alarms (facts/ascend.md §6)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`HealthPolicy` with all values there; `api.health_policy` says what each means."""

    mode: Mode = "DryRun"
    resets: int = 2
    window: timedelta = timedelta(hours=24)
    nodes_in_remedy: int = 1
    debounce: timedelta = timedelta(seconds=60)
    verify: timedelta = timedelta(seconds=60)
    drain: timedelta = timedelta(minutes=15)
    compute_check: bool = False
    idle_memory: int = 6144
    thermal: tuple[Thermal, ...] = field(default=THERMAL[Product.A2])

    @property
    def remedies(self) -> int:
        """Times in `window` that a node may be taken out of service; the next time it stays out."""
        return self.resets + REMEDIES_BESIDE_RESETS

    @classmethod
    def of(cls, stated: HealthPolicy | None, product: Product | None) -> Policy:
        """The pool's policy for a node of this product. An unknown product has no thermal rule of its own."""
        stated = stated or HealthPolicy()
        default = cls(thermal=THERMAL.get(product, ()) if product else ())
        rules = stated.thermal
        return cls(
            mode=default.mode if stated.mode is None else stated.mode,
            resets=default.resets if stated.resets is None else stated.resets,
            window=default.window if stated.window is None else stated.window,
            nodes_in_remedy=default.nodes_in_remedy if stated.nodes_in_remedy is None else stated.nodes_in_remedy,
            debounce=default.debounce if stated.debounce is None else stated.debounce,
            verify=default.verify if stated.verify is None else stated.verify,
            drain=default.drain if stated.drain is None else stated.drain,
            compute_check=default.compute_check if stated.compute_check is None else stated.compute_check,
            idle_memory=default.idle_memory if stated.idle_memory is None else stated.idle_memory,
            thermal=default.thermal
            if rules is None
            else tuple(Thermal(rule.temperature, rule.utilisation, rule.sustain, rule.action) for rule in rules),
        )
