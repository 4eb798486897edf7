"""Running other programs to their end, and waiting for a condition. Used by every module of tests/cluster.

Long-lived programs belong to processes.py; nothing here leaves a process behind.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.cluster.errors import ClusterError, CommandFailedError

T = TypeVar("T")


def run(
    *argv: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    log: Path | None = None,
    timeout: float | None = None,
) -> str:
    """Run a program and return what it printed on stdout.

    Args:
        argv: Program and arguments.
        env: Variables added to this process's environment.
        cwd: Folder to run in.
        stdin: Text for its standard input; nothing when None.
        log: File that its stdout and stderr are appended to, for steps whose progress people may want to follow.
        timeout: Seconds after which it is killed.

    Raises:
        CommandFailedError: It ended with an error, could not be started or took too long.
    """
    words = [str(word) for word in argv]
    before = log.stat().st_size if log is not None and log.exists() else 0
    sink = log.open("ab") if log is not None else None
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            input=stdin.encode() if stdin is not None else None,
            stdin=subprocess.DEVNULL if stdin is None else None,
            stdout=sink or subprocess.PIPE,
            stderr=subprocess.STDOUT if sink else subprocess.PIPE,
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        raise CommandFailedError(words, 127, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailedError(words, 124, f"took longer than {timeout} s") from error
    finally:
        if sink is not None:
            sink.close()
    if done.returncode != 0:
        output = log.read_bytes()[before:] if log is not None else (done.stdout or b"") + (done.stderr or b"")
        raise CommandFailedError(words, done.returncode, output.decode(errors="replace"))
    return (done.stdout or b"").decode(errors="replace")


def wait_for(what: str, check: Callable[[], T | None], *, timeout: float, every: float = 0.1) -> T:
    """Call `check` until it returns something true, and return that.

    Raises:
        ClusterError: `check` gave nothing within `timeout` seconds; the message names `what`.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise ClusterError(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(every)
