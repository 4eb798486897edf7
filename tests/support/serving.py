"""A server around a real engine on the tiny model, for tests: as an ASGI application, or on a real socket.

What is faked: nothing but, in fault tests, the device under the engine (`Device`), which is the edge.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch
import uvicorn

from glm5_runtime.config import EngineConfig
from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.runner import Chosen
from glm5_runtime.engine.scheduler import Step
from glm5_runtime.server.app import build_app
from glm5_runtime.server.connections import Connection, Server
from glm5_runtime.server.generation import EnginePort
from glm5_runtime.server.health import Patience
from glm5_runtime.server.params import Limits, SamplingDefaults
from glm5_runtime.server.service import Loaded, ServerSettings, Service
from glm5_runtime.text.template import built_in
from glm5_runtime.text.tokens import TextTokenizer

TINY = Path(__file__).parents[1] / "fixtures" / "tiny-glm5"
MODEL = "glm-5"
CONTEXT = 2048
EXPECTED: list[dict[str, Any]] = json.loads((TINY / "expected.json").read_text(encoding="utf-8"))
PING = {"model": MODEL, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 4}
QUICK = Patience(stuck_unready=0.4, stuck_dead=1.5, probe_every=0.05, probe_answer=0.5)


class Device:
    """Stands between the engine and the device: passes steps on, or does what a broken device does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._run = engine._runner.run
        engine._runner.run = self._step  # type: ignore[method-assign, assignment]
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    def _step(self, plan: list[Step]) -> list[Chosen]:
        self.go_on.wait()
        if self.error is not None:
            raise self.error
        return self._run(plan)


def tiny_engine(*, start: bool = True, **settings: object) -> Engine:
    """An engine on the tiny model, started unless told otherwise; small limits, so that tests reach them."""
    torch.set_num_threads(1)
    engine = load_engine(TINY, EngineConfig.model_validate({"device": "cpu", "max_sequences": 4, "max_queue": 8} | settings))
    if start:
        engine.start()
    return engine


def make_service(
    engine: EnginePort,
    *,
    api_key: str | None = None,
    patience: Patience | None = None,
    max_request_bytes: int = 1_000_000,
    lora_dir: Path | None = None,
    adapters_file: Path | None = None,
) -> Service:
    """A service with its model loaded."""
    settings = ServerSettings(
        MODEL,
        TINY,
        max_request_bytes=max_request_bytes,
        api_key=api_key,
        patience=patience or Patience(),
        lora_dir=lora_dir,
        adapters_file=adapters_file,
    )
    service = Service(settings)
    tiers = engine.tiers if isinstance(engine, Engine) else {}
    limits = Limits(CONTEXT, vocab_size=2048, max_choices=12, tiers=tiers, eos_token_ids=frozenset({0, 7, 9}))
    adapters = getattr(engine, "adapters", None)
    service.attach(Loaded(engine, TextTokenizer.from_dir(TINY), built_in("5"), limits, SamplingDefaults(), adapters))
    return service


def asgi_client(service: Service) -> httpx.AsyncClient:
    """A client that calls the application without a socket."""
    transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://server", timeout=60)


@asynccontextmanager
async def on_a_socket(service: Service, most: int = 100) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the same application behind uvicorn on a free port: for everything that has to do with connections."""
    config = uvicorn.Config(
        build_app(service),
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
        http=partial(Connection, most=most),  # type: ignore[arg-type]  # it is only called
        ws="none",
    )
    server, door = Server(config), socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = door.getsockname()[1]
    serving = asyncio.create_task(server.serve(sockets=[door]))
    await until(lambda: server.started)
    watching = asyncio.create_task(service.watch.run())
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        watching.cancel()
        server.should_exit = True
        await serving


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll until `condition` holds; fails the test when it doesn't in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is the server's state, which signals nobody
            await asyncio.sleep(0.01)


def events_of(body: str) -> list[dict[str, Any]]:
    """The JSON payloads of a stream; checks its framing and that it ends with [DONE], once."""
    blocks = body.split("\n\n")
    assert blocks[-1] == ""
    assert all(block.startswith("data: ") for block in blocks[:-1])
    payloads = [block.removeprefix("data: ") for block in blocks[:-1]]
    assert payloads[-1] == "[DONE]"
    assert "[DONE]" not in payloads[:-1]
    return [json.loads(payload) for payload in payloads[:-1]]


def joined(events: Sequence[dict[str, Any]], field: str = "content", index: int = 0) -> str:
    """One field of all deltas of a choice, joined."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get(field) or "" if "delta" in choice else choice["text"] for choice in choices)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object of a reply; checks that its shape is OpenAI's."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


def ask(question: str, **fields: object) -> dict[str, Any]:
    """A greedy chat request without thinking."""
    return {"model": MODEL, "messages": [{"role": "user", "content": question}], "temperature": 0, "enable_thinking": False} | fields
