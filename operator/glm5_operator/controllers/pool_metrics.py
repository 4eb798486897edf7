"""Metrics of pools, read from their statuses when somebody scrapes: what people are told and what a dashboard shows is the same.

Registered by `controllers.build`. A pool that is deleted takes its metrics with it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, get_args

from glm5_operator.api import names
from glm5_operator.api.pool_status import Violating
from glm5_operator.metrics import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from glm5_operator.kube import Cache
    from glm5_operator.metrics import Metrics

_CARDS: Final = {
    "total": Column("glm5_pool_cards", "Cards that the pool's nodes offer."),
    "held": Column("glm5_pool_cards_held", "Cards that pods hold, of whatever owner."),
    "free": Column("glm5_pool_cards_free", "Cards that a new pod could get."),
    "quarantined": Column("glm5_pool_cards_quarantined", "Cards of nodes in quarantine."),
}


def register(metrics: Metrics, cache: Cache) -> None:
    """Cards by pool, and violations by pool and reason, zeros among them: an alert needs a number before the first one."""
    metrics.live_table(_CARDS.values(), ("pool",), lambda: _cards(cache))
    metrics.live_gauge(
        "glm5_pool_violations",
        "Pods that hold cards of a pool against its rules, by reason (NoPool, OtherPool, NamespaceNotOpen), and nodes where processes are "
        "on cards that no pod was given (NotAllocated).",
        ["pool", "reason"],
        lambda: _violations(cache),
    )


def _cards(cache: Cache) -> Iterator[tuple[tuple[str, ...], Mapping[str, float]]]:
    for pool in cache.list(names.POOL_KIND):
        cards = (pool.get("status") or {}).get("cards")
        if cards:
            yield (pool["metadata"]["name"],), {column.name: float(cards.get(field, 0)) for field, column in _CARDS.items()}


def _violations(cache: Cache) -> Mapping[tuple[str, ...], float]:
    found: Counter[tuple[str, ...]] = Counter()
    for pool in cache.list(names.POOL_KIND):
        name = pool["metadata"]["name"]
        found.update({(name, reason): 0 for reason in get_args(Violating)})
        found.update((name, str(entry["reason"])) for entry in (pool.get("status") or {}).get("violations") or ())
    return {key: float(count) for key, count in found.items()}
