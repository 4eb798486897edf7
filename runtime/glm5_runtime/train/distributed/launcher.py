"""The launcher of a node: starts a rank for each card, ends all when one ends, and ends as the rank that explains it.

Called by the `train` command where a run has several ranks. Not torchrun, which turns every rank's exit code into 1 and doesn't say which
rank never came (docs/decisions/0015). Launchers of several nodes tell each other through the store of node rank 0 when they end, and a sign
of life each second: so a node that is lost is known within seconds also where no exchange would fail before its time-out.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm5_runtime.config import ConfigError
from glm5_runtime.train.distributed.placement import CORES, LAUNCHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_runtime.train.distributed.placement import Placement

log = logging.getLogger(__name__)

RANK_LOST, STOPPED = 6, 143
_LOOK = 0.1
_LAST_WORDS = 2.0
"""Seconds for ranks to end by themselves after one has: the cause may be a moment behind those that only lost a rank."""
_BEAT = 1.0
_SILENCE = 15.0
"""Seconds without a sign of life after which another node's launcher is lost."""
_LINGER = 2.0
"""Seconds for which node rank 0 keeps the store for others to read why it ends."""
_FAREWELL = 12.0
"""The same when all went well."""


@dataclass(frozen=True, slots=True)
class End:
    """How a rank ended: exit code, 128 + n for signal n; `by_us`: ended by the launcher."""

    rank: int
    code: int
    by_us: bool = False


def explaining(ends: Sequence[End]) -> End:
    """The end that explains the others, of ends in their order: an error before a wish to stop before a lost rank, then the first.

    Where all ended well it is the lowest rank's.
    """
    gravity = {0: 3, RANK_LOST: 2, STOPPED: 1}
    return min(ends, key=lambda end: (end.by_us, gravity.get(end.code, 0), end.rank if end.code == 0 else 0))


def launch(
    placement: Placement, command: Sequence[str], first: Sequence[str], cores: Sequence[set[int]], *, result: Path | None, seconds: float
) -> int:
    """Run the ranks of this node to their end; returns the exit code. Raises ConfigError when the port is taken.

    `command` starts a rank, which gets `--result FILE` of its own and, if it is rank 0 of all, what `first` holds. `cores` are those of
    each local rank. `seconds`: how long other nodes may take to come.
    """
    listener = _listen(placement) if placement.node == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="glm5-ranks-"))
    port = placement.port if listener is None else listener.getsockname()[1]
    node = _Node(placement, folder)
    try:
        node.start(command, first, port, cores)
        news = _News(placement.as_rank(placement.ranks[0], port), listener, seconds)
        code, message = node.attend(news)
        if result is not None:
            try:
                result.write_bytes(
                    json.dumps(node.word(code, message), ensure_ascii=False).encode(errors="replace")
                )  # as short as a rank's
            except OSError as error:  # the exit code still says how it ended
                log.error("%s can't be written: %s", result, error.strerror)
        news.farewell(code, message)
        return code
    finally:
        node.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _listen(placement: Placement) -> socket.socket:
    """The store's port, taken before ranks begin to look for it."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        # Port 0 is a run on this machine alone, which nobody else has to reach.
        listener.bind(("" if placement.port else "::ffff:127.0.0.1" if family == socket.AF_INET6 else "127.0.0.1", placement.port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"MASTER_PORT {placement.port}: {error.strerror}; another run on this machine may have it") from error
    listener.listen(1024)
    return listener


class _Node:
    """The ranks of this node."""

    def __init__(self, placement: Placement, folder: Path) -> None:
        self._placement, self._folder = placement, folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ends: list[End] = []
        self._stop = False

    def start(self, command: Sequence[str], first: Sequence[str], port: int, cores: Sequence[set[int]]) -> None:
        """A process a rank; SIGTERM is handed on from here on."""
        signal.signal(signal.SIGTERM, self._hand_on)
        for rank, own in zip(self._placement.ranks, cores, strict=True):
            environment = {"OMP_NUM_THREADS": str(max(1, len(own))), **os.environ, **self._placement.as_rank(rank, port).variables()}
            environment |= {LAUNCHER: str(os.getpid()), CORES: ",".join(map(str, sorted(own)))}
            arguments = [*command, "--result", str(self._file(rank)), *(first if rank == 0 else ())]
            self._running[rank] = subprocess.Popen(arguments, env=environment)

    def _hand_on(self, *_: object) -> None:
        self._stop = True
        for process in self._running.values():
            process.terminate()

    def attend(self, news: _News) -> tuple[int, str]:
        """Wait for the end; the exit code, and the sentence that explains it to other nodes."""
        elsewhere: str | None = None
        while self._running and elsewhere is None and all(end.code == 0 for end in self._ends):
            time.sleep(_LOOK)
            self._reap()
            elsewhere = news.loss
        if (first := explaining(self._ends) if self._ends else None) and first.code not in {0, RANK_LOST}:
            news.tell(first.code, self._say(first))  # at once: ranks elsewhere have lost it and ask for its name
        patience = time.monotonic() + _LAST_WORDS
        while self._running and time.monotonic() < patience:
            time.sleep(_LOOK)
            self._reap()
        self.kill()
        return self._judge(elsewhere)

    def _judge(self, elsewhere: str | None) -> tuple[int, str]:
        end = explaining(self._ends)
        if end.code == 0:
            return 0, ""
        if end.by_us and elsewhere is not None:
            return RANK_LOST, elsewhere
        if end.code == RANK_LOST and self._stop:
            return STOPPED, f"node rank {self._placement.node} was asked to stop"
        return end.code, self._say(end)

    def _say(self, end: End) -> str:
        return f"rank {end.rank} (node rank {self._placement.node}) has ended with {_say(end.code)}"

    def kill(self) -> None:
        """End what still runs."""
        for rank, process in list(self._running.items()):
            process.kill()
            process.wait()
            self._ends.append(End(rank, 128 + signal.SIGKILL, by_us=True))
            del self._running[rank]

    def word(self, code: int, message: str) -> dict[str, Any]:
        """How the run ended, as the explaining rank has it, or as it looks from here where it could say nothing."""
        end = explaining(self._ends)
        with suppress(OSError, ValueError):
            said: dict[str, Any] = json.loads(self._file(end.rank).read_text())
            if end.code == code:
                return said
        return {"outcome": "RankLost" if code == RANK_LOST else "RankKilled", "message": message}

    def _file(self, rank: int) -> Path:
        return self._folder / f"{rank}.json"

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                del self._running[rank]
                self._ends.append(End(rank, code if code >= 0 else 128 - code))
                if code:
                    log.error("rank %d has ended with %s", rank, _say(self._ends[-1].code))


def _say(code: int) -> str:
    if code > 128:
        with suppress(ValueError):
            return f"{signal.Signals(code - 128).name}"
    return f"exit code {code}"


class _News:
    """What other nodes' launchers tell, in a thread: the store's calls wait. With one node it only keeps the store."""

    def __init__(self, placement: Placement, listener: socket.socket | None, seconds: float) -> None:
        self._placement, self._listener, self._seconds = placement, listener, seconds
        self.loss: str | None = None
        """The sentence that says which node has ended badly or can't be reached."""
        self._last_word: tuple[int, str] | None = None
        self._is_told, self._ending = True, False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="news", daemon=True)
        self._thread.start()

    def tell(self, code: int, message: str) -> None:
        """How this node ends, for the others."""
        self._last_word, self._is_told = (code, message), False
        self._woken.set()

    def farewell(self, code: int, message: str) -> None:
        """Tell the others, and wait a little for those that must still hear it."""
        self._ending = True
        self.tell(code, message)
        self._thread.join(_LINGER if code else _FAREWELL)

    def _follow(self) -> None:
        from glm5_runtime.train.distributed import rendezvous  # noqa: PLC0415 - brings torch: here, while ranks already start

        try:
            store = rendezvous.serve(self._listener) if self._listener else rendezvous.connect(self._placement, self._seconds)
            others = [node for node in range(self._placement.nodes) if node != self._placement.node]
            self._beat(rendezvous.Signs(store, self._placement.node, others))
        except RuntimeError as error:  # what a store raises, and RankLost
            if not self._ending:
                self.loss = f"the launcher of node rank 0 can't be reached ({' '.join(str(error).split())[:200]})"

    def _beat(self, signs: Any) -> None:  # noqa: ANN401 - its module needs torch
        while not self._ending:
            signs.give()
            self.loss = self.loss or signs.lost(_SILENCE)
            self._woken.wait(_BEAT)
            self._woken.clear()
            self._say_last_word(signs)
        self._say_last_word(signs)
        while self._listener is not None and not signs.all_ended():
            time.sleep(_LOOK)

    def _say_last_word(self, signs: Any) -> None:  # noqa: ANN401 - as above
        if not self._is_told and self._last_word is not None:
            self._is_told = True
            signs.end(*self._last_word)
