"""What is told of a request after it has ended: to the audit log and to hooks. Counts, times and names; never content.

The guard in front of the endpoints opens an account for each request and closes it; `generation` writes the model's part in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from starlette.types import Scope

_KEY = "glm5.account"
_LONGEST_PATH = 200  # characters


@dataclass(slots=True)
class Account:
    """One request. Times in seconds; `client` is the address of the connection, or what a trusted proxy in front says."""

    client: str
    method: str
    path: str
    model: str
    started: float  # Unix time
    status: int = 0  # of the HTTP reply; 0 when the client had gone before there was one
    seconds: float = 0.0
    request_id: str | None = None  # None and no reasons: the request never reached the engine
    failed: bool = False  # by the engine, whatever the status
    finish_reasons: list[str] = field(default_factory=list)  # one for each choice
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float | None = None  # of the first choice
    first_token_seconds: float | None = None

    @classmethod
    def opened(cls, scope: Scope, model: str, now: float) -> Account:
        """The account of a request that has just arrived, kept with it."""
        client = scope.get("client")
        account = cls(client[0] if client else "", scope["method"], scope["path"][:_LONGEST_PATH], model, now)
        scope[_KEY] = account
        return account

    @staticmethod
    def of(scope: MutableMapping[str, Any]) -> Account:
        """The account that was opened for a request."""
        account: Account = scope[_KEY]
        return account

    def record(self) -> dict[str, Any]:
        """As it is told, one JSON object."""
        time = datetime.fromtimestamp(self.started, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "time": time,
            "client": self.client,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "seconds": round(self.seconds, 6),
            "model": self.model,
            "request_id": self.request_id,
            "finish_reasons": self.finish_reasons,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "queue_seconds": self.queue_seconds,
            "first_token_seconds": self.first_token_seconds,
        }


class Listener(Protocol):
    """Who is told of requests. `tell` never waits and never raises."""

    def tell(self, account: Account) -> None:
        """A request has ended."""

    async def close(self, seconds: float) -> None:
        """Nothing more comes: finish what is queued, for at most so long."""
