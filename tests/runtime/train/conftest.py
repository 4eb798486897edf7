"""Real parts only: the decoder, the trained two-million-parameter checkpoint, torch's optimiser, files on a disk; transformers and PEFT
as the oracle."""

import os

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from pathlib import Path

import pytest
import torch

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-glm5"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two busy cores: more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_dir() -> Path:
    return TINY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """torch says that it saves for one process; the command keeps that from people (`train.command`)."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"))
