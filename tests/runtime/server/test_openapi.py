"""The OpenAPI document, and the server fuzzed by it over real HTTP: nothing sent makes it fail, and its replies are as described.

`GLM5_FUZZ_EXAMPLES=1000` hunts for longer than the default.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from starlette.routing import Route

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server.app import build_app
from glm5_runtime.server.openapi import document
from glm5_runtime.server.params import Limits
from tests.support import serving
from tests.support.serving import PING, until

EXAMPLES = int(os.environ.get("GLM5_FUZZ_EXAMPLES", "20"))
IS_SHORT = EXAMPLES <= 20
SECONDS = 1.5 if IS_SHORT else 3600.0  # for each operation; most of it goes into making bodies up
NAMES = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


def document_to_fuzz() -> dict[str, Any]:
    """Without what is another path's body, too: making it up twice takes seconds."""
    fuzzed = document()
    fuzzed["paths"].pop("/v1/messages/count_tokens")
    fuzzed["paths"]["/tokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"].pop()
    return fuzzed


OPERATIONS = [result.ok() for result in schemathesis.openapi.from_dict(document_to_fuzz()).get_all_operations()]


def test_the_document_names_every_path_and_method_of_the_server_and_no_other(engine: Engine) -> None:
    app = build_app(serving.make_service(engine))
    routes = [route for route in app.routes if isinstance(route, Route)]
    served = {(route.path.replace(":path", ""), method.lower()) for route in routes for method in (route.methods or set()) - {"HEAD"}}

    assert served == {(path, method) for path, methods in document()["paths"].items() for method in methods}


async def test_the_document_is_served_before_the_model_is_there(engine: Engine) -> None:
    service = serving.make_service(engine)
    service.loaded = None
    async with serving.asgi_client(service) as client:
        reply = await client.get("/openapi.json")

    assert reply.json() == document()


def test_it_names_the_limits_of_the_models() -> None:
    chat: dict[str, Any] = document()["components"]["schemas"]["ChatRequest"]

    assert chat["required"] == ["messages"]
    assert chat["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert chat["properties"]["messages"]["items"]["required"] == ["role", "content"]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as described", "not as described"])
async def test_nothing_sent_makes_the_server_fail_and_the_next_request_is_served(engine: Engine, mode: GenerationMode) -> None:
    service = serving.make_service(engine)
    service.loaded = replace(service.model, limits=Limits(max_model_len=96, vocab_size=2048, max_choices=4))  # short answers
    checks = CHECKS.get_by_names(NAMES)
    async with serving.on_a_socket(service) as client:
        operations = [operation for operation in OPERATIONS if mode is GenerationMode.POSITIVE or operation.method == "post"]
        for operation in operations:
            await asyncio.to_thread(fuzz, operation, mode, str(client.base_url), checks)
            assert (await client.post("/v1/chat/completions", json=PING)).status_code == 200
        await until(lambda: service.active == 0 and engine.stats().running == 0)
        assert (await client.get("/health/ready")).json() == {"status": "ready"}


class TimeIsOverError(Exception):
    """Ends the fuzz of one operation."""


def fuzz(operation: Any, mode: GenerationMode, base_url: str, checks: Any) -> None:  # noqa: ANN401 - schemathesis' own types
    """Send made-up requests of one operation and check the replies, until the examples or the time are over."""
    end = time.monotonic() + SECONDS

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=IS_SHORT,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        if time.monotonic() > end:
            raise TimeIsOverError
        case.call_and_validate(base_url=base_url, checks=checks, timeout=30)

    with suppress(TimeIsOverError):
        send()


async def test_a_fault_that_the_fuzz_must_find_is_found(engine: Engine) -> None:
    service = serving.make_service(engine)
    service.loaded = replace(service.model, tokenizer=None)  # type: ignore[arg-type]  # every use of it is a fault of ours
    checks = CHECKS.get_by_names(NAMES)
    operation = next(operation for operation in OPERATIONS if operation.path == "/detokenize")
    async with serving.on_a_socket(service) as client:
        with pytest.raises(BaseExceptionGroup):
            await asyncio.to_thread(fuzz, operation, GenerationMode.POSITIVE, str(client.base_url), checks)
