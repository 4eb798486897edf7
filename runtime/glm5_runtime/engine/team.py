"""The ranks of one engine: this process is rank 0, the others are its children on this machine, each with a part of the model.

Rank 0 schedules, samples and serves. For each step it tells every rank the chunks and computes its own part; when all have said that theirs
is done, the step is. Chunks go through a pipe to each child, not through a collective: a child waits there for as long as nobody asks
anything, and hears at once when its parent ends. Tensors go through torch.distributed.

When a rank fails:
- out of memory: the step fails, its requests with it, and all go on (`engine.steps.RankSteps`);
- it ends, by its own mistake or killed: a watching thread tells the engine, idle or not, and the engine fails;
- it hangs: no exchange and no answer takes longer than `exchange_timeout`, then the engine fails;
- rank 0 ends: the children read the end of their standard input and end too, wherever they are.
An engine that fails answers everybody and ends its children; the server then ends the process with code 1.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path  # noqa: TC003 - pydantic reads RankSpec's types at run time
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict

from glm5_runtime.config import ConfigError, EngineConfig
from glm5_runtime.engine.adapter_parts import AllParts
from glm5_runtime.engine.own_folder import OwnFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from torch import Tensor

    from glm5_runtime.engine.adapter_parts import AdapterPart, Taken
    from glm5_runtime.engine.steps import RankSteps
    from glm5_runtime.model.batch import Chunk

log = logging.getLogger(__name__)

READY = "ready"
_LOADING = 3600.0  # seconds for a rank to read its part of the checkpoint
_LAST_STEP = 5.0  # seconds for a child to end by itself
_OBITUARY = 2.0  # seconds until the system tells that a child has ended whose connection is closed


class RankLost(RuntimeError):  # noqa: N818 - names what happened
    """A rank has ended or gives no answer. The others can't go on without its part."""


class RankSpec(BaseModel):
    """What a child is told."""

    model_config = ConfigDict(frozen=True)

    rank: int
    model_dir: Path
    config: EngineConfig
    rendezvous: Path  # a file that all ranks of this team use and nobody else
    log_level: int


class ChildProcess(Protocol):
    """What `Team` needs of a process."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code; subprocess.TimeoutExpired when it runs on."""

    def kill(self) -> None:
        """End it at once."""


@dataclass(frozen=True, slots=True)
class Member:
    """Another rank. `channel` is for steps, `adapters` for loading and dropping those meanwhile."""

    rank: int
    process: ChildProcess
    channel: Connection
    adapters: Connection


def launch(spec: RankSpec) -> Member:
    """Start a rank as a process of its own; it lives no longer than this one."""
    limit = struct.pack("ll", math.ceil(spec.config.exchange_timeout), 0)  # a child that hangs reads nothing either
    pairs = [socket.socketpair() for _ in range(2)]
    theirs = [pair[1].fileno() for pair in pairs]
    command = [sys.executable, "-m", "glm5_runtime.engine.worker", *map(str, theirs)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=theirs)
    for mine, other in pairs:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        other.close()
    assert process.stdin is not None
    process.stdin.write(spec.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    return Member(spec.rank, process, *(Connection(mine.detach()) for mine, _ in pairs))


class Team:
    """All ranks as one StepRunner. Used by the loading thread, then by the engine's."""

    def __init__(self, model_dir: Path, config: EngineConfig, start: Callable[[RankSpec], Member] = launch) -> None:
        self._patience, self._adapter_patience = config.exchange_timeout, config.adapter_timeout
        self._on_loss: Callable[[str], None] = log.error
        self._closing = False
        self._part: RankSteps | None = None
        self._folder = OwnFolder("glm5-ranks-")
        self.rendezvous = self._folder.path / "rendezvous"
        level = logging.getLogger().getEffectiveLevel()
        self._members = [
            start(RankSpec(rank=rank, model_dir=model_dir, config=config, rendezvous=self.rendezvous, log_level=level))
            for rank in range(1, config.ranks)
        ]
        for member in self._members:
            threading.Thread(target=self._watch, args=(member,), name=f"rank-{member.rank}", daemon=True).start()

    def gather(self) -> None:
        """Wait until all children are there: from then on joining torch.distributed takes no time."""
        for member in self._members:
            self._answer(member, _LOADING)

    def agree(self, tokens: int, taken: list[Taken]) -> int:
        """The least that any rank's cache can hold, told to all. Raises ConfigError with what a rank says that can't load its part.

        `taken`: the adapters that rank 0 has read, which must be every rank's.
        """
        for member in self._members:
            its_tokens, its_taken = self._answer(member, _LOADING)
            if its_taken != taken:
                raise ConfigError(f"--lora-modules: rank {member.rank} has read something else than rank 0; is a folder being written?")
            tokens = min(tokens, its_tokens)
        self._tell(tokens)
        return tokens

    def all_parts(self, own: AdapterPart) -> AllParts:
        """The adapters of all ranks, `own` being rank 0's."""
        return AllParts(own, {member.rank: member.adapters for member in self._members}, self._adapter_patience, self._obituary)

    def begin(self, part: RankSteps, on_loss: Callable[[str], None]) -> None:
        """All ranks are loaded; `on_loss` is called, from any thread, when one ends."""
        self._folder.remove()
        self._part, self._on_loss = part, on_loss

    def forward(self, chunks: Rows[Chunk]) -> Tensor:
        """See StepRunner, as for the others. Each raises RankLost, or OutOfMemoryError when any rank was out of memory."""
        return self._together("forward", list(chunks), None)

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, hidden] → [M, vocabulary] fp32."""
        return self._together("logits", len(hidden), hidden)

    def draft(self, chunks: Rows[Chunk], hidden: Tensor) -> Tensor:
        """[N, hidden] of the draft layer."""
        return self._together("draft", list(chunks), hidden)

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """[M, hidden] → [M, vocabulary]."""
        return self._together("draft_logits", len(hidden), hidden)

    def close(self) -> None:
        """End the children; those that don't end by themselves are killed."""
        self._closing = True
        with suppress(OSError):
            self._tell(None)
        for member in self._members:
            try:
                member.process.wait(_LAST_STEP)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            member.channel.close()
            member.adapters.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._folder.remove()

    def _together(self, name: str, work: list[Chunk] | int, hidden: Tensor | None) -> Tensor:
        assert self._part is not None, "begun after loading"
        try:
            self._tell((name, work))
            result, failure = self._part.run(name, work, hidden)
        except (OSError, RuntimeError) as error:
            raise RankLost(self._obituary() or f"the ranks have lost touch: {str(error)[:300]}") from error
        failures = {0: failure} | {member.rank: self._answer(member, self._patience) for member in self._members}
        if lacking := {rank: text for rank, text in failures.items() if text is not None}:
            rank, text = next(iter(lacking.items()))
            raise torch.OutOfMemoryError(f"rank {rank}: {text}")
        assert result is not None, "nothing failed"
        return result

    def _tell(self, message: object) -> None:
        for member in self._members:
            member.channel.send(message)

    def _answer(self, member: Member, seconds: float) -> Any:  # noqa: ANN401 - what the question asks for
        try:
            if not member.channel.poll(seconds):
                raise RankLost(f"rank {member.rank} has given no answer for {seconds:g} s")
            answer = member.channel.recv()
        except (EOFError, OSError) as error:
            raise RankLost(self._obituary() or f"rank {member.rank} is gone") from error
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    def _obituary(self) -> str | None:
        """Who has ended, if anybody has."""
        for seconds, members in ((0.0, self._members), (_OBITUARY / len(self._members), self._members)):
            for member in members:
                with suppress(subprocess.TimeoutExpired):
                    return f"rank {member.rank} has ended with code {member.process.wait(seconds)}"
        return None

    def _watch(self, member: Member) -> None:
        code = member.process.wait()
        if not self._closing:
            self._on_loss(f"rank {member.rank} has ended with code {code}")


def join(rank: int, config: EngineConfig, rendezvous: Path, device: torch.device) -> None:
    """Meet the other ranks in torch.distributed: HCCL between NPUs, NCCL between GPUs, gloo between CPUs."""
    backend = {"npu": "hccl", "cuda": "nccl"}.get(device.type, "gloo")
    if device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // config.ranks))
    else:
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(
        backend,
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=config.ranks,
        timeout=timedelta(seconds=config.exchange_timeout),
    )
