"""Runs the vendor's tools so that nothing they do can hurt the agent. Called by `collect`, `rare` and `reset`.

A tool that hangs is killed with all it started; one that can't be killed (it waits inside the driver) is left alone, and no second one is
started for the same question. How a call ended is a fact that is returned; nothing here raises for a tool's sake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from glm5_operator.agent.settings import Node, Tool

MOST_OUTPUT: Final = 1 << 20
"""Bytes kept of what a call prints; a table of 64 cards has 20 KB."""
REAP: Final = 1.0
"""Seconds that a killed process gets to vanish."""
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # of chroot, env and shells

_CHROOT: Final = shutil.which("chroot", path=os.defpath + ":/usr/sbin:/sbin") or "/usr/sbin/chroot"
"""Our image's own, found before the host's PATH is given to it."""

log = logging.getLogger(__name__)


class End(StrEnum):
    """How a call ended."""

    EXITED = "Exited"
    TIMED_OUT = "TimedOut"
    """Killed after its time; what it had printed until then is there."""
    BUSY = "Busy"
    """Not started: an earlier call of the same question can't be killed."""
    MISSING = "Missing"
    """There is no such program on the host, or it may not be executed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave.

    Attributes:
        end: how it ended.
        text: standard output; bytes that aren't UTF-8 are replaced.
        error: standard error.
        exit_code: negative for a signal; None when it didn't exit by itself.
        why: for people, where `end` isn't EXITED.
    """

    end: End
    text: str = ""
    error: str = ""
    exit_code: int | None = None
    why: str = ""

    @property
    def said(self) -> str:
        """What it printed, standard error behind the output."""
        return "\n".join(part for part in (self.text.strip(), self.error.strip()) if part)


@dataclass
class Runner:
    """Starts tools on the host whose root is mounted at `node.root`."""

    node: Node
    tool: Tool
    _stuck: dict[str, Process] = field(default_factory=dict, init=False)

    @property
    def prefix(self) -> tuple[str, ...]:
        """What stands before each command."""
        return () if self.node.root == "/" else (_CHROOT, self.node.root)

    @property
    def environ(self) -> dict[str, str]:
        """Of each command: nothing of the agent's own but the variables that make a fake tool."""
        extra = {name: value for name, value in os.environ.items() if name.startswith("GLM5_FAKE_")}
        return {"PATH": self.tool.path, "LD_LIBRARY_PATH": self.tool.libraries, "LC_ALL": "C", **extra}

    def command(self, name: str) -> tuple[str, ...]:
        """The words that start a tool for somebody who starts it himself: root and environment are among them."""
        environ = [f"{key}={value}" for key, value in self.environ.items()]
        return (*self.prefix, "env", *environ, name)

    async def run(self, *argv: str, limit: float, key: str | None = None) -> Answer:
        """Run a tool for at most `limit` seconds; calls with the same key (the command, when not given) never run side by side."""
        key = key or " ".join(argv)
        stuck = self._stuck.get(key)
        if stuck is not None and stuck.returncode is None:
            return Answer(End.BUSY, why=f"`{key}` has hung since an earlier call and can't be killed")
        self._stuck.pop(key, None)
        program = argv if self.prefix else (_find(argv[0], self.tool.path), *argv[1:])
        try:
            process = await asyncio.create_subprocess_exec(
                *self.prefix, *program, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=self.environ, start_new_session=True
            )
        except OSError as problem:
            return Answer(End.MISSING, why=f"{argv[0]}: {problem.strerror or problem}")
        self._stuck[key] = process
        answer = await self._finish(process, " ".join(argv), limit)
        if process.returncode is not None:
            self._stuck.pop(key, None)
        return answer

    async def _finish(self, process: Process, command: str, limit: float) -> Answer:
        output, error = bytearray(), bytearray()
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.gather(_read(process.stdout, output), _read(process.stderr, error), process.wait())
        try:
            async with asyncio.timeout(limit):  # wait_for of Python 3.11 loses a cancellation that comes as the tool ends
                await reading
        except TimeoutError:
            await _kill(process)
            return Answer(End.TIMED_OUT, _text(output), _text(error), why=f"`{command}` gave no answer within {limit:g} s")
        except asyncio.CancelledError:
            await _kill(process)
            raise
        log.debug("%s: exit %s, %d bytes", command, process.returncode, len(output))
        if process.returncode in (_NOT_FOUND, _NOT_EXECUTABLE) and not output:
            return Answer(
                End.MISSING, error=_text(error), exit_code=process.returncode, why=_text(error).strip() or f"{command}: not found"
            )
        return Answer(End.EXITED, _text(output), _text(error), process.returncode)


def _find(name: str, path: str) -> str:
    """The program in those folders: without a chroot, PATH of the agent's own environment would be searched."""
    candidates = [os.path.join(folder, name) for folder in path.split(":")]
    return next((file for file in candidates if os.access(file, os.X_OK)), candidates[0])


async def _read(stream: asyncio.StreamReader, kept: bytearray) -> None:
    """Read to the end and keep the beginning: a tool that prints without end must neither block nor fill the memory."""
    while chunk := await stream.read(65536):
        kept += chunk[: MOST_OUTPUT - len(kept)]


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP):
            await process.wait()


def _text(raw: bytearray) -> str:
    return raw.decode(errors="replace")
