"""Priority, user and context tier on their way from a body or header to the engine, and what is said when they are wrong (A10)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from glm5_runtime.config import parse_tiers
from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.request import Request
from tests.support import serving
from tests.support.serving import MODEL

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
TEXT = {"model": MODEL, "prompt": [60] * 30, "max_tokens": 2}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = serving.tiny_engine(max_sequences=4, max_queue=8, context_tiers=parse_tiers("128,512:0.25"))
    yield engine
    engine.stop()


@pytest.fixture
def seen(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Requests as the engine got them."""
    requests: list[Request] = []
    submit = engine.submit

    def noting(request: Request, sink: Any) -> None:  # noqa: ANN401 - passed on
        requests.append(request)
        submit(request, sink)

    monkeypatch.setattr(engine, "submit", noting)
    return requests


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with serving.asgi_client(serving.make_service(engine)) as client:
        yield client


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT), ("/generate", {"prompt": "Hello"})])
async def test_priority_tier_and_user_reach_the_engine(
    path: str, body: dict[str, Any], client: httpx.AsyncClient, seen: list[Request]
) -> None:
    reply = await client.post(path, json=body | {"max_tokens": 2, "priority": -3, "context_tier": "512", "user": "ann"})

    assert reply.status_code == 200
    assert [(request.priority, request.tier, request.client) for request in seen] == [(-3, "512", "user ann")]


async def test_without_a_user_the_address_takes_turns(client: httpx.AsyncClient, seen: list[Request]) -> None:
    await client.post("/v1/completions", json=TEXT)

    assert [(request.priority, request.tier, request.client) for request in seen] == [(0, None, "127.0.0.1")]


async def test_the_header_chooses_a_tier_and_the_field_wins_over_it(client: httpx.AsyncClient, seen: list[Request]) -> None:
    for body in (TEXT, TEXT | {"context_tier": "512"}):
        await client.post("/v1/completions", json=body, headers={"X-Context-Tier": "128"})

    assert [request.tier for request in seen] == ["128", "512"]


async def test_a_chat_without_a_limit_goes_by_its_prompt_and_its_answer_is_not_cut_for_it(
    client: httpx.AsyncClient, seen: list[Request]
) -> None:
    await client.post("/v1/chat/completions", json=CHAT)

    (request,) = seen
    assert request.tier == "128"
    assert len(request.prompt) + request.params.max_tokens == 2048


async def test_the_answer_of_a_chosen_tier_ends_with_it(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/chat/completions", json=CHAT | {"context_tier": "128", "ignore_eos": True})

    assert reply.json()["usage"]["total_tokens"] == 128
    assert reply.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"context_tier": "4k"}, "context_tier is '4k'; this server has 128, 512, 2k"),
        (
            {"context_tier": "128", "max_tokens": 99},
            "the context tier 128 is 128 tokens; the prompt has 30 and max_tokens asks for 99 more",
        ),
        ({"context_tier": "128", "prompt": [60] * 129}, "the context tier 128 is 128 tokens, the prompt has 129"),
        ({"priority": 1 << 40}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"context_tier": 128}, "context_tier"),
    ],
)
async def test_what_cannot_be_chosen_is_refused_by_name(change: dict[str, Any], said: str, client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/completions", json=TEXT | change)

    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]
    assert (await client.post("/v1/completions", json=TEXT)).status_code == 200


async def test_a_server_without_tiers_says_so(client: httpx.AsyncClient) -> None:
    engine = serving.tiny_engine(start=False)
    async with serving.asgi_client(serving.make_service(engine)) as plain:
        reply = await plain.post("/v1/completions", json=TEXT, headers={"X-Context-Tier": "4k"})
    engine.stop()

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "context_tier"
    assert "this server has none (--context-tiers)" in reply.json()["error"]["message"]
