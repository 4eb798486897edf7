"""Ranks as forks of a process that has torch already, so a team is there within a second. Everything else is the real thing.

Not forks of the test's own process: that has threads, whose locks a fork would find taken for ever.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

import torch

from glm5_runtime.engine import adapter_parts, worker
from glm5_runtime.engine.team import Member

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from glm5_runtime.engine.steps import Steps
    from glm5_runtime.engine.team import RankSpec

MARK = 2000  # a token that no known prompt or answer holds

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.runtime.parallel.forked", "glm5_runtime.engine.worker"])


@dataclass
class Fork:
    """A fork behind the methods of subprocess.Popen that `Team` uses."""

    process: BaseProcess
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def wait(self, timeout: float | None = None) -> int:
        if wait([self.process.sentinel], timeout):
            with self.lock:  # the exit code is told once, and whoever asks beside gets none
                self.process.join()
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("fork", timeout or 0)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


class Forks:
    """Starts ranks and remembers them; `sabotage`, a function of a module, is done to the model of each."""

    def __init__(self, sabotage: Callable[[Steps], None] | None = None) -> None:
        self.processes: list[Fork] = []
        self._sabotage = sabotage

    def __call__(self, spec: RankSpec) -> Member:
        pairs = [socket.socketpair() for _ in range(2)]
        ends = [Connection(os.dup(theirs.fileno())) for _, theirs in pairs]
        process = _context.Process(target=_child, args=(spec, *ends, self._sabotage), daemon=True)
        process.start()
        for _, theirs in pairs:
            theirs.close()
        self.processes.append(Fork(process))
        return Member(spec.rank, self.processes[-1], *(Connection(ours.detach()) for ours, _ in pairs))


def _child(spec: RankSpec, channel: Connection, adapters: Connection, sabotage: Callable[[Steps], None] | None) -> None:
    torch.set_num_threads(1)
    if sabotage is not None:
        load = worker.load_steps

        def load_and_sabotage(*args: object) -> Steps:
            steps = load(*args)  # type: ignore[arg-type]  # what it was called with
            sabotage(steps)
            return steps

        worker.load_steps = load_and_sabotage  # type: ignore[assignment]  # in this process only
    os._exit(worker.follow(spec, channel, adapters))


def out_of_memory_at_the_mark(steps: Steps) -> None:
    """The last layer's feed-forward is out of memory whenever the step has the token MARK: after most exchanges, before the last."""
    marked = [False]

    def see(_module: object, arguments: tuple[torch.Tensor, ...]) -> None:
        marked[0] = bool((arguments[0] == MARK).any())

    def fail(_module: object, _arguments: object) -> None:
        if marked[0]:
            raise torch.OutOfMemoryError("NPU out of memory. Tried to allocate 2.00 GiB")

    steps.decoder.embed_tokens.register_forward_pre_hook(see)
    steps.decoder.layers[-1].mlp.register_forward_pre_hook(fail)


def slow_and_broken_adapters(_steps: Steps) -> None:
    """Of folders named `slow` nothing comes until a file `go` is beside the tensors, those named `broken` are not readable here."""
    read = adapter_parts.read_adapter

    def read_late_or_never(folder: Path, *args: object, **kwargs: object) -> object:
        while folder.name == "slow" and not (folder / "go").exists():
            time.sleep(0.01)
        if folder.name == "broken":
            raise OSError(errno.EIO, "Input/output error")
        return read(folder, *args, **kwargs)  # type: ignore[arg-type]  # what it was called with

    adapter_parts.read_adapter = read_late_or_never  # type: ignore[assignment]  # in this process only
