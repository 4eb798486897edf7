"""Many clients and large or slow ones over real HTTP: each gets an answer, and the next one is served."""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import Message

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server.app import build_app
from tests.support import serving
from tests.support.serving import PING, ask, error_of, events_of, until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CROWD = 1_000
LARGE = 10_000_000


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of a thousand connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3 * CROWD:
        pytest.skip(f"the hard limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * CROWD), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_a_thousand_requests_at_once_are_all_answered_and_the_next_one_too(engine: Engine) -> None:
    body = b'{"prompt": "Hi", "max_tokens": 1}'
    request = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (COMPLETIONS.encode(), len(body)) + body
    async with serving.on_a_socket(serving.make_service(engine), most=2 * CROWD) as client:
        host, port = client.base_url.host, client.base_url.port
        connections = [await asyncio.open_connection(host, port) for _ in range(CROWD)]
        assert (await client.get("/health")).status_code == 200

        for _, writer in connections:
            writer.write(request)
        statuses = Counter([(await asyncio.wait_for(reader.readline(), 30)).split()[1] for reader, _ in connections])

        assert set(statuses) <= {b"200", b"429"}
        assert statuses.total() == CROWD
        assert statuses[b"200"] >= 12  # four side by side, eight in the queue
        assert (await client.post(CHAT, json=PING)).status_code == 200
        for _, writer in connections:
            writer.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, ask("word " * (LARGE // 5))),
        (COMPLETIONS, {"prompt": "word " * (LARGE // 5)}),
        (COMPLETIONS, {"prompt": ["a" * (LARGE // 10)] * 10}),
        ("/generate", {"inputs": "客" * (LARGE // 3)}),
        ("/tokenize", {"prompt": "a" * LARGE}),
        ("/detokenize", {"tokens": [1] * (LARGE // 3)}),
    ],
    ids=["chat", "completions", "ten prompts", "generate", "tokenize", "detokenize"],
)
async def test_ten_megabytes_of_prompt_are_refused_and_the_next_request_is_served(
    engine: Engine, path: str, body: dict[str, object]
) -> None:
    async with serving.on_a_socket(serving.make_service(engine, max_request_bytes=16 * 1024 * 1024)) as client:
        large = asyncio.create_task(client.post(path, json=body))
        small = await client.post(CHAT, json=PING)
        refused = await large

        assert (refused.status_code, error_of(refused)["type"]) == (400, "invalid_request_error")
        assert len(refused.content) < 1_000
        assert small.status_code == 200
        assert (await client.post(CHAT, json=PING)).status_code == 200


async def test_a_client_that_reads_nothing_holds_up_nobody_and_loses_nothing(engine: Engine) -> None:
    tokens, reads, received = 300, asyncio.Event(), b""
    body = json.dumps({"prompt": "Tell", "max_tokens": tokens, "ignore_eos": True, "stream": True, "logprobs": 0}).encode()
    service = serving.make_service(engine)
    app = build_app(service)
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return waiting.pop() if waiting else await asyncio.Future[Message]()

    async def send(message: Message) -> None:
        """As uvicorn's for a socket whose buffers are full."""
        nonlocal received
        await reads.wait()
        received += message.get("body", b"")

    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": [], "query_string": b"", "client": ("10.0.0.1", 1)}
    slow = asyncio.create_task(app(scope, receive, send))
    async with serving.asgi_client(service) as client:
        await until(lambda: engine.stats().running == 1)

        beside = await asyncio.gather(*(client.post(CHAT, json=ask("Count to ten.")) for _ in range(3)))
        await until(lambda: engine.stats().running == 0)  # all its tokens are made, whether anybody reads them or not

        assert {reply.status_code for reply in beside} == {200}
        assert (service.active, received) == (1, b"")
        reads.set()
        await asyncio.wait_for(slow, 30)
    assert sum(len(event["choices"][0]["logprobs"]["tokens"]) for event in events_of(received.decode())) == tokens


async def test_a_slow_client_that_leaves_frees_its_place(engine: Engine) -> None:
    service, produced = serving.make_service(engine), engine.stats().generation_tokens
    async with serving.on_a_socket(service) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(COMPLETIONS, json={"prompt": "Tell", "max_tokens": 1_500, "ignore_eos": True}, timeout=0.2)

        await until(lambda: engine.stats().running == 0 and service.idle.is_set())
    assert engine.stats().generation_tokens - produced < 1_200  # it was not made to its end
