"""Holds one thread of a running engine still, from the host, so that everything else of the process goes on.

A signal can't do that: SIGSTOP stops all threads. ptrace stops one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17  # linux/ptrace.h
_WALL = 0x40000000  # linux/wait.h: wait for threads too


def host_pid(pod: dict[str, Any]) -> int:
    """The pid that the main process of the pod's only container has on this host."""
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            inside = (folder / "status").read_text().partition("NSpid:")[2].splitlines()[0].split()
            if inside[-1] == "1" and container in (folder / "cgroup").read_text():
                return int(folder.name)
    raise ProcessLookupError(f"no process of container {container} on this host")


def busiest_thread(pid: int, work: Callable[[], object]) -> int:
    """The thread of a process that used the most CPU while `work` ran."""

    def used() -> dict[int, int]:
        stats = {int(task.name): (task / "stat").read_text().rpartition(")")[2].split() for task in Path(f"/proc/{pid}/task").iterdir()}
        return {thread: int(fields[11]) + int(fields[12]) for thread, fields in stats.items()}

    before = used()
    work()
    after = used()
    return max(after, key=lambda thread: after[thread] - before.get(thread, 0))


@contextlib.contextmanager
def held_still(thread: int) -> Iterator[None]:
    """Stop one thread; the others run on."""
    _ptrace(_SEIZE, thread)
    try:
        _ptrace(_INTERRUPT, thread)
        os.waitpid(thread, _WALL)
        yield
    finally:
        _ptrace(_DETACH, thread)


def _ptrace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, thread, None, None) == -1:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of thread {thread}: {os.strerror(ctypes.get_errno())}")
