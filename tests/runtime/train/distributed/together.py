"""Several ranks on this machine, as forks of a process that has torch already: each runs the same function and sends back what it returns.

They meet as in a cluster, through `rendezvous.Meeting`, and exchange by gloo. One that stands still fails the test with where it stands.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import socket
import time
import traceback
from typing import TYPE_CHECKING, Any

import torch

from glm5_runtime.train.distributed import rendezvous
from glm5_runtime.train.distributed.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

LIMIT = 100.0
"""Seconds until ranks that stand still are ended."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.runtime.train.distributed.together", "tests.runtime.train.runs"])


def together(
    size: int,
    folder: Path,
    work: Callable[..., Any],
    *arguments: Any,  # noqa: ANN401 - what the function takes
    meet: bool = True,
    killed: int | None = None,
) -> list[Any]:
    """What `work(ranks, *arguments)` returns on each of so many ranks; fails where one raises, ends or stands still.

    Without `meet` the function is given its `Placement` instead. `killed` is a rank that ends without a word, None in the answer.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    placement = Placement(nodes=1, per_node=size, port=listener.getsockname()[1])
    store = rendezvous.serve(listener)
    pipes, processes = [], []
    for rank in range(size):
        told, telling = _context.Pipe(duplex=False)
        said = folder / f"rank-{rank}.txt"
        process = _context.Process(
            target=_rank, args=(placement.as_rank(rank, placement.port), said, telling, (work, arguments), meet), daemon=True
        )
        process.start()
        telling.close()
        pipes.append(told)
        processes.append(process)
    try:
        return _collect(pipes, folder, killed)
    finally:
        del store
        for process in processes:
            process.kill()
            process.join()


def _collect(pipes: list[Connection], folder: Path, killed: int | None) -> list[Any]:
    end = time.monotonic() + LIMIT
    results = []
    for rank, pipe in enumerate(pipes):
        try:
            assert pipe.poll(max(0.0, end - time.monotonic())), "stood still"
            result, failure = pipe.recv()
            assert failure is None, f"rank {rank}: {failure}"
        except (AssertionError, EOFError) as error:
            if rank == killed and isinstance(error, EOFError):
                results.append(None)
                continue
            said = "\n".join(f"rank {each}: {(folder / f'rank-{each}.txt').read_text()}" for each in range(len(pipes)))
            raise AssertionError(f"rank {rank}: {error or 'ended'}\n{said}") from error
        results.append(result)
    return results


def _rank(placement: Placement, said: Path, telling: Connection, work: tuple[Callable[..., Any], tuple[Any, ...]], meet: bool) -> None:
    function, arguments = work
    torch.set_num_threads(1)
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        faulthandler.dump_traceback_later(LIMIT - 10, file=file)
        try:
            if meet:
                meeting = rendezvous.Meeting(placement, LIMIT / 2)
                telling.send((function(meeting.ranks(torch.device("cpu"), LIMIT / 2), *arguments), None))
                meeting.leave()
            else:
                telling.send((function(placement, *arguments), None))
        except BaseException:  # noqa: BLE001 - told to the test
            telling.send((None, traceback.format_exc()))
        file.flush()
    os._exit(0)
