"""How ranks of several processes meet: a store at node rank 0's launcher, where each says that it is there before anything waits for it.

Called by the `train` command in each rank, and by the launcher for what its node has to tell. torch.distributed itself would wait for its
time-out and say that some rank is missing; here the error names which ranks on which nodes.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # `torch.distributed` has them, its stubs don't say so

from glm5_runtime.config import ConfigError
from glm5_runtime.engine.team import RankLost
from glm5_runtime.train.distributed.ranks import Ranks, loss_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from glm5_runtime.train.distributed.placement import Placement

log = logging.getLogger(__name__)

_AGAIN = 0.5
"""Seconds between two tries to reach the store: pods get their names in DNS, and begin, one after the other."""
_OBITUARY = 2.0
"""Seconds until a launcher has told that its rank has ended whose connection is closed."""
_LEAVING = 10.0
"""Seconds to wait at the end for ranks that are a moment behind."""
_ASIDE = timedelta(seconds=30)
"""For one question to the store."""


def connect(placement: Placement, seconds: float) -> TCPStore:
    """The store; tries until the time is over, also while its name isn't known yet. Raises RankLost."""
    end = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((placement.address, placement.port), timeout=5):
                pass
            return TCPStore(placement.address, placement.port, is_master=False, timeout=_ASIDE)
        except (OSError, dist.DistError) as error:
            if time.monotonic() > end:
                raise RankLost(
                    f"node rank 0 is missing: nothing answers at {placement.address}:{placement.port} within {seconds:g} s"
                    f" ({' '.join(str(error).split())[:200]})"
                ) from error
        time.sleep(_AGAIN)


class Meeting:
    """One rank's connection to the store, and what is known through it about the others."""

    def __init__(self, placement: Placement, seconds: float) -> None:
        """`seconds`: how long the others may take to come."""
        started = time.monotonic()
        self._placement, self._seconds = placement, seconds
        self._store = connect(placement, seconds)
        self._check_in(max(1.0, seconds - (time.monotonic() - started)))

    def ranks(self, device: torch.device, exchange: float) -> Ranks:
        """torch.distributed between all ranks: HCCL between NPUs, NCCL between GPUs, gloo between CPUs. `exchange`: seconds for one."""
        placement, timeout = self._placement, timedelta(seconds=exchange)
        assert placement.rank is not None, "the launcher is no rank"
        if device.type != "cpu":
            torch.accelerator.set_device_index(placement.local)
        backend = {"npu": "hccl", "cuda": "nccl"}.get(device.type, "gloo")
        store = PrefixStore("ranks", self._store)
        dist.init_process_group(backend, store=store, rank=placement.rank, world_size=placement.size, timeout=timeout)
        return Ranks(placement.rank, placement.size, dist.new_group(backend="gloo", timeout=timeout), timeout)

    def lost(self, error: BaseException) -> RankLost | None:
        """The rank that this error is about, by name where its launcher has told; None when the error is about something else."""
        said = loss_in(error)
        if said is None:
            return None
        end = time.monotonic() + _OBITUARY
        while time.monotonic() < end:
            try:
                for ending in endings(self._store, range(self._placement.nodes)).values():
                    if ending["code"]:
                        return RankLost(str(ending["message"]))
            except dist.DistError:
                return RankLost(f"the launcher of node rank 0 is gone ({said})")
            time.sleep(0.1)
        return RankLost(f"a rank can't be reached: {said}")

    def leave(self) -> None:
        """Wait a moment for those whose last exchange isn't over: a process that ends closes its connections to all."""
        try:
            self._store.set(f"left/{self._placement.rank}", "")
            self._store.wait([f"left/{rank}" for rank in range(self._placement.size)], timedelta(seconds=_LEAVING))
        except dist.DistError as error:
            log.debug("not all ranks are known to have ended: %s", error)

    def _check_in(self, seconds: float) -> None:
        """Wait until all are there; raises RankLost, which names those that are not."""
        size, store, placement = self._placement.size, self._store, self._placement
        keys = [f"here/{rank}" for rank in range(size)]
        end = time.monotonic() + seconds
        mine = f"NNODES={placement.nodes}, NPROC_PER_NODE={placement.per_node}"
        try:
            if (first := store.compare_set("sizes", "", mine).decode()) != mine:
                raise ConfigError(f"node rank {placement.node} has {mine}, and the first rank that came {first}; give all nodes the same")
            store.set(f"here/{placement.rank}", "")
            while missing := [rank for rank, key in enumerate(keys) if not store.check([key])]:
                for ending in endings(store, range(placement.nodes)).values():
                    if ending["code"]:
                        raise RankLost(str(ending["message"]))
                if time.monotonic() > end:
                    raise RankLost(f"{_say(placement, missing)} missing: not there within {self._seconds:g} s")
                time.sleep(0.1)
        except dist.DistError as error:
            raise RankLost(f"the launcher of node rank 0 is gone ({' '.join(str(error).split())[:200]})") from error


def _say(placement: Placement, missing: list[int]) -> str:
    """`rank 3 (node rank 1) is`, `ranks 2, 3 (node rank 1) are`."""
    by_node: dict[int, list[int]] = {}
    for rank in missing:
        by_node.setdefault(placement.node_of(rank), []).append(rank)
    told = [f"{', '.join(map(str, ranks))} (node rank {node})" for node, ranks in by_node.items()]
    return f"rank{'s' if len(missing) > 1 else ''} {' and '.join(told)} {'are' if len(missing) > 1 else 'is'}"


def tell_ending(store: Store, node: int, code: int, message: str) -> None:
    """A node's last word: the exit code of its launcher, and which rank explains it."""
    store.set(f"ended/{node}", json.dumps({"code": code, "message": message}))


def endings(store: Store, nodes: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Last words of nodes that have ended."""
    return {node: json.loads(store.get(f"ended/{node}")) for node in nodes if store.check([f"ended/{node}"])}


def serve(listener: socket.socket) -> TCPStore:
    """The store itself, on a port that is already taken; it lives as long as this object."""
    port = listener.getsockname()[1]
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=_ASIDE, master_listen_fd=listener.detach())


class Signs:
    """Signs of life and last words between launchers."""

    def __init__(self, store: Store, node: int, others: list[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._node, self._others, self._clock = store, node, others, clock
        self._heard: dict[int, tuple[bytes, float]] = {}

    def give(self) -> None:
        """A sign of life."""
        if self._others:
            self._store.add(f"alive/{self._node}", 1)

    def lost(self, silence: float) -> str | None:
        """Who has ended badly, or was there and has been silent for so many seconds."""
        ended = endings(self._store, self._others)
        for ending in ended.values():
            if ending["code"]:
                return str(ending["message"])
        now = self._clock()
        for node in self._others:
            if node in ended or not self._store.check([f"alive/{node}"]):
                continue
            count = self._store.get(f"alive/{node}")
            if node not in self._heard or self._heard[node][0] != count:
                self._heard[node] = count, now
            elif now - self._heard[node][1] > silence:
                return f"node rank {node} has given no sign of life for {silence:g} s"
        return None

    def end(self, code: int, message: str) -> None:
        """The last word."""
        tell_ending(self._store, self._node, code, message)

    def all_ended(self) -> bool:
        """Whether every other node has said its last word."""
        return len(endings(self._store, self._others)) == len(self._others)
