"""The real engine on the trained two-million-parameter checkpoint. Faked only where a test says so: the device that faults."""

import os

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from glm5_runtime.config import EngineConfig
from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.load import load_engine
from tests.runtime.engine.client import Client

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-glm5"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two busy cores: more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_dir() -> Path:
    return TINY


@pytest.fixture(scope="session")
def _shared_engine(tiny_dir: Path) -> Iterator[Engine]:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=8, max_batched_tokens=256, max_queue=200, cache_tokens=8192))
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture
def client(_shared_engine: Engine) -> Iterator[Client]:
    """A client of the engine that all tests share; afterwards the engine lives and holds nothing."""
    client = Client(_shared_engine)
    yield client
    client.wait_until_idle()
    stats = _shared_engine.stats()
    assert stats.alive
    assert stats.kv_usage == 0.0
