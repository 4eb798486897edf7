"""What can go wrong at the API server, as classes of our own, and as the values that controllers get.

Raised by `client`; turned into `ApiFailure` in one place here. Chained from what the HTTP library raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from glm5_operator.kube.types import ApiFailure

if TYPE_CHECKING:
    from glm5_operator.kube.types import Key


class KubeError(Exception):
    """Any refused or failed request. `reason` is fit for a condition; `retryable` says whether trying again may heal it."""

    reason = "ApiError"
    retryable = True

    def __init__(self, message: str, *, code: int = 0, causes: tuple[str, ...] = (), retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.causes = causes
        self.retry_after = retry_after


class UnavailableError(KubeError):
    """No answer in time, no connection, or a 5xx."""

    reason = "Unavailable"


class TooManyRequestsError(KubeError):
    """429; `retry_after` says when."""

    reason = "TooManyRequests"


class NotKubernetesError(UnavailableError):
    """Success, but in no words of an API server: a web page of a proxy, or another server altogether."""


class UnauthorizedError(KubeError):
    """401: the credentials aren't valid (any more)."""

    reason = "Unauthorized"


class ForbiddenError(KubeError):
    """403 from RBAC or an admission policy."""

    reason = "Forbidden"


class QuotaExceededError(ForbiddenError):
    """403 because a ResourceQuota is used up."""

    reason = "QuotaExceeded"


class NamespaceTerminatingError(ForbiddenError):
    """403 because the namespace is being deleted."""

    reason = "NamespaceTerminating"
    retryable = False


class NotFoundError(KubeError):
    """404."""

    reason = "NotFound"


class GoneError(KubeError):
    """410: a resourceVersion or a page token is too old."""

    reason = "Expired"


class ConflictError(KubeError):
    """409: somebody else was faster."""

    reason = "Conflict"


class FieldConflictError(ConflictError):
    """409 of a server-side apply without force: another manager owns a field; `causes` name them."""

    reason = "FieldConflict"


class AlreadyExistsError(ConflictError):
    """409 of a create."""

    reason = "AlreadyExists"


class InvalidError(KubeError):
    """400 or 422: the object itself is wrong."""

    reason = "Invalid"
    retryable = False


class NotLeaderError(KubeError):
    """A write was held back because this process may not be the leader any more."""

    reason = "NotLeader"


def failure(error: KubeError, target: Key) -> ApiFailure:
    """The error as a value, with the server's own words."""
    return ApiFailure(error.reason, error.message, target, error.retryable, error.retry_after)


def from_response(code: int, body: object, retry_after: str | None) -> KubeError:
    """The most specific error for a response that isn't a success; `body` is the decoded JSON, a Status if all is well."""
    status: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    message = str(status.get("message") or f"HTTP {code}")
    raw_details = status.get("details")
    details: Mapping[str, Any] = raw_details if isinstance(raw_details, Mapping) else {}
    raw_causes = details.get("causes")
    causes = [cause for cause in raw_causes if isinstance(cause, Mapping)] if isinstance(raw_causes, list) else []
    kinds = {str(cause.get("reason", "")) for cause in causes}
    texts = tuple(f"{cause.get('field', '')}: {cause.get('message', '')}" for cause in causes)
    wait = _seconds(retry_after) or _seconds(details.get("retryAfterSeconds"))
    kind = _class_of(code, str(status.get("reason", "")), message, kinds)
    return kind(message, code=code, causes=texts, retry_after=wait)


_BY_CODE: Mapping[int, type[KubeError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


def _class_of(code: int, reason: str, message: str, causes: set[str]) -> type[KubeError]:
    if code == 403 and "NamespaceTerminating" in causes:
        return NamespaceTerminatingError
    if code == 403 and "exceeded quota" in message:  # the quota admission plugin has no reason of its own
        return QuotaExceededError
    if code == 409 and "FieldManagerConflict" in causes:
        return FieldConflictError
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExistsError
    if code == 500 and "failed to create typed patch object" in message:  # what an apply against its schema is answered with
        return InvalidError
    if code >= 500:
        return UnavailableError
    return _BY_CODE.get(code, KubeError)


def _seconds(value: object) -> timedelta | None:
    """Retry-After as seconds; its date form isn't used by the API server."""
    text = str(value or "")
    return timedelta(seconds=int(text)) if text.isdigit() and int(text) > 0 else None
