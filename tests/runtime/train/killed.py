"""A process that writes checkpoints until somebody kills it. A fork of one that has torch already, so it is there at once."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import torch

from glm5_runtime.train.checkpoint import Checkpoints

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from torch import Tensor

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.runtime.train.killed"])


def start(directory: Path) -> tuple[BaseProcess, Connection]:
    """The process, and where it tells which checkpoints are complete: first the one it goes on from."""
    told, telling = _context.Pipe(duplex=False)
    process = _context.Process(target=write_for_ever, args=(directory, telling), daemon=True)
    process.start()
    telling.close()
    return process, told


def write_for_ever(directory: Path, told: Connection) -> None:
    found = Checkpoints(directory, keep=2)
    step = 0
    if (saved := found.newest()) is not None:
        step, loaded = saved.step, tensors(0)
        found.load(saved, loaded)
        assert saved.state == {"step": step}
        assert all(bool((tensor == step).all()) for tensor in loaded.values())
    told.send(step)
    while True:
        step += 1
        found.save(step, tensors(step), {"step": step})
        if found.newest_step is not None:
            told.send(found.newest_step)


def tensors(step: int) -> dict[str, Tensor]:
    return {f"layer.{index}": torch.full((64, 1 + 300 * index), float(step)) for index in range(12)}
