"""What is handed across the border between wiring and controllers: parts in, reconcilers out.

`app` makes Parts; `controllers.build(parts)` answers with Controllers. Holds data only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from datetime import datetime

    from glm5_operator.kube.apply import Applier
    from glm5_operator.kube.cache import Cache
    from glm5_operator.kube.client import Client
    from glm5_operator.kube.events import Events
    from glm5_operator.kube.types import Key, Reconciler
    from glm5_operator.metrics import Metrics
    from glm5_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    """What controllers are built from. `client` is for the rare read of what no cache holds; they write through `applier`.

    `wake` has an object looked at soon, for news that no watch brings.
    """

    cache: Cache
    applier: Applier
    events: Events
    settings: Settings
    client: Client
    metrics: Metrics
    wake: Callable[[Key], None]


@dataclass(frozen=True, slots=True)
class Controllers:
    """Who reconciles which kind (by its name, e.g. `GLM5Service`), and who is told when an object's budget of failures is used up.

    `give_up(key, reason, now)` should say so in the object's status (Stalled), and do nothing where it says so already; the queue looks
    at the object again at once when an event comes, and about once a minute without one.
    `beside`: what runs beside the queue while this operator leads, by name; each runs until it is cancelled.
    """

    reconcilers: Mapping[str, Reconciler]
    give_up: Callable[[Key, str, datetime], Awaitable[None]] | None = None
    beside: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=dict)
