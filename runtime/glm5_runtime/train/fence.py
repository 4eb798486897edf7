"""Two attempts of a run never write the same folders: the later one says so in a file, and the earlier one finds it and ends.

A node that the cluster has given up may still run its pod. The attempt's number lies in the checkpoint directory; it is looked at before
every rename that makes something appear. Without a number (`GLM5_ATTEMPT`) nothing is fenced.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from glm5_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VARIABLE = "GLM5_ATTEMPT"
FILE = "attempt"


class Superseded(Exception):  # noqa: N818 - what happened
    """A later attempt has taken the folders over. Nothing of this one may appear in them any more."""


def attempt_of(environ: Mapping[str, str]) -> int | None:
    """The number of this attempt; raises ConfigError."""
    text = environ.get(VARIABLE, "").strip()
    if text and not (text.isdecimal() and len(text) < 10):
        raise ConfigError(f"{VARIABLE}={text!r} is no number")
    return int(text) if text else None


class Fence:
    """One attempt's claim to a directory."""

    def __init__(self, directory: Path, attempt: int | None) -> None:
        self._file, self._attempt = directory / FILE, attempt

    def claim(self) -> None:
        """Write the number down; raises Superseded when a higher one is there, OSError."""
        self.check()
        if self._attempt is not None:
            temporary = self._file.with_name(f".{FILE}-{self._attempt}")
            with temporary.open("w") as file:
                file.write(f"{self._attempt}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self._file)

    def check(self) -> None:
        """Raise Superseded when the file names a later attempt. A file that isn't there, or holds no number, names none."""
        if self._attempt is None:
            return
        try:
            text = self._file.read_text().strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return
        if text.isdecimal() and int(text) > self._attempt:
            raise Superseded(f"attempt {int(text)} has taken over {self._file.parent}; this one is attempt {self._attempt}")
