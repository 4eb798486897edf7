"""Wiring: routes, the guard in front of them, errors in one shape. Built by `process` and by tests; decides nothing else."""

from __future__ import annotations

import hmac
import logging
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from glm5_runtime.server import adapters, anthropic, openapi
from glm5_runtime.server.account import Account
from glm5_runtime.server.body import discard
from glm5_runtime.server.chat import chat
from glm5_runtime.server.completions import completions
from glm5_runtime.server.errors import ApiError, ClientGone, draining
from glm5_runtime.server.generate import generate, generate_stream
from glm5_runtime.server.sse import JsonReply
from glm5_runtime.server.tokenize import detokenize, tokenize

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from glm5_runtime.server.service import Service

logger = logging.getLogger(__name__)
OPEN_PATHS = frozenset({"/health", "/health/ready", "/health/adapters", "/metrics"})  # probes and Prometheus carry no key
_WITHOUT_MODEL = frozenset({"/version", "/openapi.json"})
_ANTHROPIC = "/v1/messages"
_STARTED = int(time.time())
_LOADING_RETRY = 10  # seconds


def build_app(service: Service) -> Starlette:
    """The ASGI application around one service."""
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/generate", generate, methods=["POST"]),
            Route("/generate_stream", generate_stream, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            Route(_ANTHROPIC, anthropic.messages, methods=["POST"]),
            Route(f"{_ANTHROPIC}/count_tokens", anthropic.count_tokens, methods=["POST"]),
            Route("/v1/load_lora_adapter", adapters.load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", adapters.unload, methods=["POST"]),
            Route("/v1/models", _models),
            Route("/v1/models/{model:path}", _model),
            Route("/version", _version),
            Route("/load", _load),
            Route("/openapi.json", _openapi),
            Route("/health", _health),
            Route("/health/ready", _ready),
            Route("/health/adapters", adapters.health),
            Route("/metrics", _metrics),
        ],
        middleware=[Middleware(_Guard, service=service)],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, ClientGone: _client_gone, Exception: _unexpected},
    )
    app.state.service = service
    return app


class _Guard:
    """In front of every path that isn't open: key, state of the server, count of active requests, one log line."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        key = service.settings.api_key
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        started, account = time.monotonic(), Account.opened(scope, self._service.settings.model_name, time.time())

        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                account.status = message["status"]
            await send(message)

        refusal = self._refusal(scope)
        service = self._service
        service.active += 1
        service.idle.clear()
        try:
            if refusal is not None:
                await discard(scope, receive, service.settings.max_request_bytes)
                await refusal(scope, receive, send_noting_status)
            else:
                await self._app(scope, receive, send_noting_status)
        finally:
            service.active -= 1
            if service.active == 0:
                service.idle.set()
            account.seconds = time.monotonic() - started
            milliseconds = account.seconds * 1000
            logger.info("request method=%s path=%r status=%d ms=%d", account.method, account.path[:80], account.status, milliseconds)
            service.counts.ended(account)
            for listener in service.listeners:
                listener.tell(account)

    def _refusal(self, scope: Scope) -> Response | None:
        if self._key is not None and not hmac.compare_digest(_sent_key(scope), self._key):
            self._service.metrics.rejected("unauthorized")
            error = ApiError(401, "the API key is missing or wrong; send it as `Authorization: Bearer KEY`", code="invalid_api_key")
            return _reply(error, scope["path"], {"www-authenticate": "Bearer"})
        if self._service.draining:
            self._service.metrics.rejected("draining")
            return _reply(draining(), scope["path"], {"connection": "close"})
        if self._service.loaded is None and scope["path"] not in _WITHOUT_MODEL:
            self._service.metrics.rejected("loading")
            return _reply(ApiError(503, "the model is being loaded", code="loading", retry_after=_LOADING_RETRY), scope["path"])
        return None


def _sent_key(scope: Scope) -> bytes:
    """The key that a request brings; Anthropic's clients have a header of their own for it."""
    headers = dict(scope["headers"])
    if scope["path"].startswith(_ANTHROPIC) and b"x-api-key" in headers:
        return bytes(headers[b"x-api-key"])
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return bytes(key) if scheme.lower() == b"bearer" else b""


def _reply(error: ApiError, path: str, headers: dict[str, str] | None = None) -> Response:
    extra = dict(headers or {})
    if error.retry_after is not None:
        extra["retry-after"] = str(error.retry_after)
    body = anthropic.error_body(error.status, error.message) if path.startswith(_ANTHROPIC) else error.body()
    return JsonReply(body, error.status, headers=extra)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    service: Service = request.app.state.service
    if error.status < 429:
        service.metrics.rejected("too_large" if error.status == 413 else "invalid")
    elif error.code == "draining":
        service.metrics.rejected("draining")
    gives_up = error.status == 408 or error.code == "draining"  # on a body that may yet come
    return _reply(error, request.url.path, {"connection": "close"} if gives_up else None)


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown path or method."""
    assert isinstance(error, HTTPException)
    return _reply(ApiError(error.status_code, str(error.detail)), request.url.path, dict(error.headers or {}))


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nginx's word for it; only the log sees it


async def _unexpected(request: Request, _: Exception) -> Response:
    """A mistake of ours: the traceback is in the log, the client learns nothing of it."""
    return _reply(ApiError(500, "internal error; the server's log has the details"), request.url.path)


async def _models(request: Request) -> Response:
    service: Service = request.app.state.service
    return JsonReply({"object": "list", "data": [_card(service), *adapters.cards(service)]})


async def _model(request: Request) -> Response:
    service: Service = request.app.state.service
    name = request.path_params["model"]
    card = next((card for card in (_card(service), *adapters.cards(service)) if card["id"] == name), None)
    if card is None:
        raise service.no_such_model(name)
    return JsonReply(card)


def _card(service: Service) -> dict[str, object]:
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "glm5",
        "root": service.settings.model_name,
        "parent": None,
        "max_model_len": service.model.limits.max_model_len,
    }


async def _version(_: Request) -> Response:
    return JsonReply({"version": version("glm5-ascend")})


async def _openapi(_: Request) -> Response:
    return JsonReply(openapi.document())


async def _load(request: Request) -> Response:
    """Requests under way, this one left out; vLLM's word for it."""
    service: Service = request.app.state.service
    return JsonReply({"server_load": service.active - 1})


async def _health(request: Request) -> Response:
    """Liveness. Healthy while loading, too: the start-up probe asks /health/ready, and a failed load ends the process."""
    service: Service = request.app.state.service
    verdict = service.watch.verdict(draining=service.draining)
    if verdict.live:
        return JsonReply({"status": "healthy"})
    return JsonReply({"status": "unhealthy", "reason": verdict.reason, "message": verdict.message}, 503)


async def _ready(request: Request) -> Response:
    """Readiness: whether a request sent now would be answered."""
    service: Service = request.app.state.service
    verdict = service.watch.verdict(draining=service.draining)
    if verdict.ready:
        return JsonReply({"status": "ready"})
    return JsonReply({"status": "not ready", "reason": verdict.reason, "message": verdict.message}, 503)


async def _metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
