"""Answers of the API server, verbatim, and the errors and failures they become."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from glm5_operator.kube import errors
from glm5_operator.kube.types import Key

Json = dict[str, Any]

QUOTA = 'deployments.apps "x" is forbidden: exceeded quota: cards, requested: requests.huawei.com/Ascend910=8, used: 0, limited: 4'


@pytest.mark.parametrize(
    ("code", "body", "expected", "reason"),
    [
        (400, {"message": "bad"}, errors.InvalidError, "Invalid"),
        (401, {"reason": "Unauthorized"}, errors.UnauthorizedError, "Unauthorized"),
        (403, {"reason": "Forbidden", "message": "no RBAC"}, errors.ForbiddenError, "Forbidden"),
        (403, {"reason": "Forbidden", "message": QUOTA}, errors.QuotaExceededError, "QuotaExceeded"),
        (403, {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}, errors.NamespaceTerminatingError, "NamespaceTerminating"),
        (404, {"reason": "NotFound"}, errors.NotFoundError, "NotFound"),
        (409, {"reason": "Conflict"}, errors.ConflictError, "Conflict"),
        (
            409,
            {"reason": "Conflict", "details": {"causes": [{"reason": "FieldManagerConflict"}]}},
            errors.FieldConflictError,
            "FieldConflict",
        ),
        (409, {"reason": "AlreadyExists"}, errors.AlreadyExistsError, "AlreadyExists"),
        (410, {"reason": "Expired"}, errors.GoneError, "Expired"),
        (422, {"reason": "Invalid"}, errors.InvalidError, "Invalid"),
        (429, {}, errors.TooManyRequestsError, "TooManyRequests"),
        (500, {"reason": "InternalError"}, errors.UnavailableError, "Unavailable"),
        (
            500,
            {"message": "failed to create typed patch object (ns/x; …): .status.replicas: expected numeric"},
            errors.InvalidError,
            "Invalid",
        ),
        (504, None, errors.UnavailableError, "Unavailable"),
        (418, {}, errors.KubeError, "ApiError"),
        (403, "<html>a proxy's own page</html>", errors.ForbiddenError, "Forbidden"),
        (403, {"details": {"causes": "not a list"}}, errors.ForbiddenError, "Forbidden"),
    ],
)
def test_each_answer_becomes_the_most_specific_error(code: int, body: object, expected: type[errors.KubeError], reason: str) -> None:
    error = errors.from_response(code, body, None)

    assert type(error) is expected
    assert errors.failure(error, Key("Deployment", "ns", "x")).reason == reason


def test_a_failure_keeps_the_servers_words() -> None:
    failure = errors.failure(errors.from_response(403, {"message": QUOTA}, None), Key("Deployment", "ns", "x"))

    assert failure.message == QUOTA
    assert failure.retryable, "a quota may be raised or freed"


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [("7", {}, 7), (None, {"retryAfterSeconds": 3}, 3), ("soon", {}, None), ("0", {}, None), (None, {}, None)],
)
def test_retry_after_is_read_from_header_and_body(header: str | None, details: Json, expected: int | None) -> None:
    error = errors.from_response(429, {"details": details}, header)

    assert error.retry_after == (None if expected is None else timedelta(seconds=expected))


@pytest.mark.parametrize("kind", [errors.InvalidError, errors.NamespaceTerminatingError])
def test_what_time_does_not_heal_is_not_retryable(kind: type[errors.KubeError]) -> None:
    assert not errors.failure(kind("x"), Key("Deployment", "ns", "x")).retryable
