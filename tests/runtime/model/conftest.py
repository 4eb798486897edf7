"""Real parts only: the decoder, the operators, the trained two-million-parameter checkpoint, and transformers as the oracle."""

import os

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-glm5"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two busy cores: more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def tiny_dir() -> Path:
    return TINY
