"""How many requests the model and each adapter have answered, and how many of these failed, since the process started.

Filled by the guard in `app`, read by /health/adapters and /metrics, all on the event loop. Only requests that a model was chosen for are
counted: one that is refused before (key, body, draining) says nothing about a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_runtime.server.account import Account


@dataclass(slots=True)
class Count:
    """Of one model. `failures`: answers with a status of 500 or more, and streams that the engine broke off; in `requests` too."""

    requests: int = 0
    failures: int = 0


class Counts:
    """By the name of what answered. Numbers never fall, also when an adapter of the same name comes again."""

    def __init__(self) -> None:
        self._by_name: dict[str, Count] = {}

    @property
    def by_name(self) -> Mapping[str, Count]:
        """Those that there are so far."""
        return self._by_name

    def begin(self, name: str) -> Count:
        """The count of a model or an adapter; from now on there is one."""
        return self._by_name.setdefault(name, Count())

    def ended(self, account: Account) -> None:
        """A request has ended."""
        if account.request_id is None:
            return
        count = self.begin(account.model)
        count.requests += 1
        count.failures += account.failed or account.status >= 500
