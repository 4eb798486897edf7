"""One command on a terminal of its own: its questions are answered, what it prints is kept, and nothing waits for ever.

Used by `reset`. A terminal and not a pipe: through a pipe the C library keeps a question back until the program ends, so answers would have
to be given before anybody knows what is asked. The terminal isn't the command's controlling one, and the command isn't ended with the
agent: an agent that dies in the middle of a reset must not take the reset with it.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import pty
import re
import signal
import subprocess
import termios
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

QUESTION: Final = re.compile(r"[(\[{<（【]\s*y(?:es)?\s*[/|]\s*no?\s*[)\]}>）】]\s*[:：?？>]*\s*\Z", re.IGNORECASE)
"""A text that ends with (Y/N), [y/n], （y/n）: whatever language the words before it are in."""
MOST_KEPT: Final = 64 * 1024
MOST_ANSWERS: Final = 8
"""Answers to one command at most; one that asks on and on gets the end of input."""
_END_OF_INPUT: Final = b"\x04"
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited for what, seconds.

    Attributes:
        limit: for the command. The longest reset that npu-smi announces takes 360 s.
        settle: between a question and its answer, so that it was the command's last word and not a mention of (Y/N) in a text.
        quiet: of silence before the command has begun its work, after which it is taken to wait for an answer to a question that isn't
            known as one: it gets the end of input. npu-smi itself waits 40 s for another's reset.
        ending: for a killed command to be gone; one that hangs in the driver can't be killed.
        poll: between two looks whether it has ended.
    """

    limit: float = 400.0
    settle: float = 0.2
    quiet: float = 60.0
    ending: float = 5.0
    poll: float = 0.05


@dataclass(frozen=True, slots=True)
class Spoken:
    """What became of a command.

    Attributes:
        output: what it printed, standard error included, without control characters; the end of it where it is long.
        exit_code: negative: ended by that signal; None: it couldn't be killed.
        timed_out: it was still running at the limit.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False


async def converse(
    command: Sequence[str],
    answer: Callable[[str], str],
    under_way: re.Pattern[str],
    *,
    keeps: Sequence[int] = (),
    patience: Patience | None = None,
) -> Spoken:
    """Run a command and answer its questions.

    Args:
        command: program and arguments.
        answer: given the text since the last answer, which ends with a question, says what to type.
        under_way: found in what it prints once its work has begun; from then on silence is no question.
        keeps: file descriptors that stay open in the command.
        patience: how long is waited for what.

    Raises:
        OSError: the command can't be started.
    """
    waits = patience or Patience()
    master, slave = pty.openpty()
    try:
        _set_quiet(slave)
        process = subprocess.Popen(  # noqa: ASYNC220  asyncio's own kills the command when the loop is closed
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, pass_fds=tuple(keeps)
        )
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    dialogue = _Dialogue(master, answer, under_way, waits)
    try:
        timed_out = not await _ended(process, waits.limit, waits.poll)
        if timed_out:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await _ended(process, waits.ending, waits.poll)
    finally:
        dialogue.close()
    return Spoken(dialogue.said, process.returncode, timed_out)


async def _ended(process: subprocess.Popen[bytes], limit: float, poll: float) -> bool:
    # Polled: pidfd is missing in the 4.19 kernels that many Ascend hosts run, and a thread would hold up the agent's end.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            while process.poll() is None:  # noqa: ASYNC110  nobody could set an event: see above
                await asyncio.sleep(poll)
    return process.returncode is not None


def _set_quiet(slave: int) -> None:
    """No echo and no carriage returns: what is kept is what the command printed."""
    settings = termios.tcgetattr(slave)
    settings[1] &= ~termios.OPOST
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, settings)


class _Dialogue:
    """The terminal's other end: listens, and speaks when the command has fallen silent."""

    def __init__(self, master: int, answer: Callable[[str], str], under_way: re.Pattern[str], patience: Patience) -> None:
        self.said = ""
        self._master, self._answer, self._under_way, self._patience = master, answer, under_way, patience
        self._since, self._answers = "", 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._loop = asyncio.get_running_loop()
        os.set_blocking(master, False)
        self._loop.add_reader(master, self._listen)
        self._timer = self._loop.call_later(patience.quiet, self._speak)

    def close(self) -> None:
        """Hear what is left, and hang up."""
        for _ in range(MOST_KEPT // 1024):  # bounded: a process that the command has left behind may print for ever
            if not self._listen():
                break
        self._timer.cancel()
        self._loop.remove_reader(self._master)
        os.close(self._master)

    def _listen(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except BlockingIOError:
            return False
        except OSError:  # how Linux tells that nobody has the other end open any more
            data = b""
        if not data:
            self._loop.remove_reader(self._master)
            return False
        text = _CONTROL.sub("", self._decode.decode(data))
        self.said = (self.said + text)[-MOST_KEPT:]
        self._since = (self._since + text)[-MOST_KEPT:]
        self._timer.cancel()
        asked = QUESTION.search(self._since[-256:])
        self._timer = self._loop.call_later(self._patience.settle if asked else self._patience.quiet, self._speak)
        return True

    def _speak(self) -> None:
        if QUESTION.search(self._since[-256:]) and self._answers < MOST_ANSWERS:
            self._answers += 1
            self._type(f"{self._answer(self._since)}\n".encode())
            self._since = ""
        elif not self._under_way.search(self.said):
            self._type(_END_OF_INPUT)
        self._timer = self._loop.call_later(self._patience.quiet, self._speak)

    def _type(self, keys: bytes) -> None:
        with contextlib.suppress(OSError):  # it has just ended, or reads nothing
            os.write(self._master, keys)
