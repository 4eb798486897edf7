"""What is counted of the model and its adapters, and who may read it."""

from __future__ import annotations

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server.account import Account
from glm5_runtime.server.counts import Count, Counts
from tests.support import serving
from tests.support.serving import MODEL

HEALTH = "/health/adapters"


def test_an_answer_of_500_or_more_is_a_failure_of_the_model_that_was_chosen_and_else_of_none() -> None:
    counts = Counts()
    for status, request_id in ((200, "a"), (429, "b"), (503, "c"), (500, "d"), (503, None)):
        counts.ended(Account("", "POST", "/v1/chat/completions", "one", 0.0, status=status, request_id=request_id))
    assert counts.by_name == {"one": Count(4, 2)}


async def test_health_of_adapters_is_open_and_tells_of_a_server_without_any(engine: Engine) -> None:
    service = serving.make_service(engine, api_key="secret")
    async with serving.asgi_client(service) as client:
        reply = await client.get(HEALTH)
        assert reply.json() == {"model": MODEL, "adapters": [], "base": {"requests": 0, "failures": 0}}
        service.loaded = None
        assert (await client.get(HEALTH)).status_code == 200
