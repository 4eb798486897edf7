"""`cache_salt` on its way from the body to the engine, and how much of a prompt the prefix cache had. The engine is real."""

from __future__ import annotations

import uuid

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from tests.support.serving import MODEL


def body(path: str, text: str, salt: str) -> dict[str, object]:
    common: dict[str, object] = {"model": MODEL, "max_tokens": 1, "cache_salt": salt}
    if path == "/v1/chat/completions":
        return common | {"messages": [{"role": "user", "content": text}]}
    return common | {"prompt": text}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
async def test_only_requests_of_the_same_salt_share_what_they_begin_with(client: httpx.AsyncClient, engine: Engine, path: str) -> None:
    text, mine, others = f"{uuid.uuid4()} " * 6, uuid.uuid4().hex, uuid.uuid4().hex

    async def hits_of(salt: str) -> int:
        before = engine.stats().prefix_hits
        assert (await client.post(path, json=body(path, text, salt))).status_code == 200
        return engine.stats().prefix_hits - before

    assert await hits_of(mine) == 0
    assert await hits_of(others) == 0
    assert await hits_of(mine) > 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("fields", [{}, {"n": 2}], ids=["one choice", "two choices"])
async def test_usage_tells_how_much_of_the_prompt_was_cached_each_prompt_once(
    client: httpx.AsyncClient, path: str, fields: dict[str, object]
) -> None:
    request = body(path, f"{uuid.uuid4()} " * 6, uuid.uuid4().hex) | fields

    first, second = [(await client.post(path, json=request)).json()["usage"] for _ in range(2)]

    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert 16 <= second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] % 16 == 0
