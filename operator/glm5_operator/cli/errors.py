"""How a command ends: exit codes, and the one error class that commands raise.

Raised everywhere in `cli`; printed in one place (`app`). An error is one line: where, what, and what to do.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `glm5`; scripts may rely on them."""

    OK = 0
    BUG = 1  # an exception nobody foresaw: a traceback follows
    USAGE = 2  # wrong options
    INPUT = 3  # a file or value that was given is wrong
    STALLED = 4  # understood, but it can't work on these cards until something changes
    UNREACHABLE = 5  # no credentials, no connection, or the operator isn't installed
    REFUSED = 6  # the API server refused the object
    TIMEOUT = 7  # it may still become ready later
    ENGINE = 8  # the engine on this machine didn't start or died
    INTERRUPTED = 130


class CliError(Exception):
    """Ends the command. `where` is a file, field or object; `remedy` says what to do."""

    def __init__(self, code: ExitCode, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return " ".join(f"error: {place}{self.what}{remedy}".split())


class FaultsError(CliError):
    """Several faults of one input, a line each."""

    def __init__(self, code: ExitCode, errors: list[CliError]) -> None:
        super().__init__(code, "; ".join(error.what for error in errors))
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)
