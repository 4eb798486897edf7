"""Runs `glm5-runtime serve` on this machine for one session: a child process on a loopback port, with a key that only we know.

Used by `inference`. The operator's package doesn't import the runtime; the contract is the command line and HTTP.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import httpx

from glm5_operator.api.names import API_KEY_ENV
from glm5_operator.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

PROGRAM: Final = "glm5-runtime"
PROGRAM_ENV: Final = "GLM5_RUNTIME"
MODELS_ENV: Final = "GLM5_MODELS"
STOP_SECONDS: Final = 10.0
_TAIL: Final = 5


@dataclass(frozen=True)
class EngineOptions:
    """How the engine is started."""

    model: Path
    device: str
    max_model_len: int | None
    start_timeout: float


def find_model(name: str) -> Path:
    """The checkpoint's folder: `name` itself, or a folder of that name below one of $GLM5_MODELS (separated by colons)."""
    roots = [Path(root).expanduser() for root in os.environ.get(MODELS_ENV, "").split(os.pathsep) if root]
    tried = [Path(name).expanduser(), *(root / name for root in roots)]
    found = next((path for path in tried if path.is_dir()), None)
    if found is None:
        looked = ", ".join(str(path) for path in tried)
        remedy = f"give the checkpoint's folder, or set {MODELS_ENV} to the folder that holds it"
        raise CliError(ExitCode.INPUT, f"no folder {looked}", where="--model", remedy=remedy)
    if not (found / "config.json").is_file():
        raise CliError(ExitCode.INPUT, f"{found} has no config.json", where="--model", remedy="give the folder of a checkpoint")
    return found


def find_program() -> str:
    """The runtime's program: $GLM5_RUNTIME, else the one of the same Python environment, else the one on the PATH."""
    if stated := os.environ.get(PROGRAM_ENV):
        return stated
    beside = Path(sys.executable).parent / PROGRAM
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which(PROGRAM)
    if program is None:
        raise CliError(
            ExitCode.ENGINE, f"{PROGRAM} isn't installed", remedy="in a clone: pip install '.[runtime]' ('.[runtime,npu]' on Ascend)"
        )
    return program


@contextmanager
def running(options: EngineOptions, say: Callable[[str], None]) -> Iterator[httpx.Client]:
    """A client of a started engine; the engine ends with the block."""
    port, key = _free_port(), secrets.token_urlsafe(24)
    with tempfile.TemporaryFile() as log, _ending_on_signals():
        process = _start(_command(options, port), key, log)
        engine = _Engine(process, lambda: _tail(log.fileno()))
        try:
            # No proxy and no redirects: this is a process of ours on loopback, whatever the environment says.
            timeout = httpx.Timeout(10.0, read=None)
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}, timeout=timeout, trust_env=False
            ) as client:
                _wait_ready(client, engine, options.start_timeout, say)
                with _explaining(engine):
                    yield client
        finally:
            _stop(process)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """A signal that would end us at once ends us through `finally`: the engine is in a session of its own and would live on."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class _Engine:
    process: subprocess.Popen[bytes]
    tail: Callable[[], str]

    def ended(self) -> CliError:
        code, said = self.process.wait(), self.tail()
        if said.startswith(f"{PROGRAM} serve"):  # it says itself what is wrong and what to do
            return CliError(ExitCode.ENGINE, said)
        return CliError(ExitCode.ENGINE, f"the engine ended with code {code}: {said}", remedy="its last lines say why")


def _start(command: list[str], key: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env={**os.environ, API_KEY_ENV: key},  # not in the arguments, which everyone on the machine can list
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us: it ends an answer, and the engine only at the end
        )
    except OSError as error:
        raise CliError(ExitCode.ENGINE, f"{command[0]} can't be started: {error.strerror}", remedy=f"check {PROGRAM_ENV}") from error


def _command(options: EngineOptions, port: int) -> list[str]:
    command = [find_program(), "serve", "--model", str(options.model), "--served-model-name", options.model.resolve().name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", options.device, "--log-level", "warning"]
    return command if options.max_model_len is None else [*command, "--max-model-len", str(options.max_model_len)]


def _wait_ready(client: httpx.Client, engine: _Engine, timeout: float, say: Callable[[str], None]) -> None:
    deadline = time.monotonic() + timeout
    while True:
        if engine.process.poll() is not None:
            raise engine.ended()
        try:
            answer = client.get("/health/ready", timeout=5.0)
            if answer.is_success:
                return
            say(_reason(answer))
        except httpx.TransportError:
            say("starting")
        if time.monotonic() >= deadline:
            remedy = "give a longer --start-timeout"
            raise CliError(ExitCode.TIMEOUT, f"the engine wasn't ready after {timeout:g} s: {engine.tail()}", remedy=remedy)
        time.sleep(0.1)


def _reason(answer: httpx.Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        return "loading"
    return str(body.get("message") or body.get("reason") or "loading") if isinstance(body, dict) else "loading"


@contextmanager
def _explaining(engine: _Engine) -> Iterator[None]:
    """A connection that breaks because the engine died is told as that."""
    try:
        yield
    except httpx.TransportError as error:
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.process.wait(timeout=2.0)
        if engine.process.poll() is not None:
            raise engine.ended() from error
        raise CliError(ExitCode.ENGINE, f"the engine doesn't answer: {error}") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, 8192, max(0, size - 8192)).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-_TAIL:]) or "it wrote nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
