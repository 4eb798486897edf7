"""One real engine for all server tests; each test gets a server of its own around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
import uvloop

from glm5_runtime.engine.engine import Engine
from glm5_runtime.text.tokens import TextTokenizer
from tests.runtime.engine.client import poll
from tests.support import serving


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that serves in the real process."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    loaded = serving.tiny_engine()
    poll(lambda: loaded.stats().tokens_since_start > 0, "the engine is warm")  # until then nothing is ready, whatever a test asks
    yield loaded
    loaded.stop()


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.from_dir(serving.TINY)


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with serving.asgi_client(serving.make_service(engine)) as client:
        yield client
