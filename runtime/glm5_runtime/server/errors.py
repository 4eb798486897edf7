"""What a client is told when a request can't be served: one exception, OpenAI's error body.

Raised by every module of the server at its own boundary and turned into a response in one place (`app`). Messages name the field
and what to change; they never repeat the request's text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

_SHOWN_FAULTS = 3  # enough to fix a request in one go, short enough for a log line


class ApiError(Exception):
    """A request that ends with an error status; `param` is the dotted path of the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON body in OpenAI's shape."""
        return {"error": {"message": self.message, "type": _type_of(self.status), "param": self.param, "code": self.code}}


class ClientGone(Exception):  # noqa: N818 - an event, not a fault
    """The client closed the connection; whatever it waited for has been stopped."""


def _type_of(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 404:
            return "not_found_error"
        case 429:
            return "rate_limit_error"
        case 503:
            return "service_unavailable_error"
        case _:
            return "invalid_request_error" if status < 500 else "server_error"


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400: the client must change `param`."""
    return ApiError(400, message, param=param)


def unsupported(param: str, why: str) -> ApiError:
    """400: a field we know and can't honour; it is never ignored."""
    return ApiError(400, f"{param} is not supported: {why}", param=param, code="unsupported_parameter")


def draining() -> ApiError:
    """503: another replica takes the retry at once."""
    return ApiError(503, "the server is shutting down; retry, another replica will answer", code="draining", retry_after=1)


def from_validation(error: ValidationError) -> ApiError:
    """400 from pydantic's findings, without the values that were sent."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    named = [(_path(fault["loc"]), fault["msg"].removeprefix("Value error, ")) for fault in faults]
    text = "; ".join(f"{path}: {message}" if path else message for path, message in named[:_SHOWN_FAULTS])
    if len(named) > _SHOWN_FAULTS:
        text += f"; and {len(named) - _SHOWN_FAULTS} more"
    return bad_request(text, named[0][0] or None)


def _path(loc: tuple[int | str, ...]) -> str:
    """`('tools', 0, 'function', 'name')` → `tools[0].function.name`; what pydantic adds for unions is left out."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() or step.isdigit():
            path += f".{step}" if path else step
    return path
