"""Fixtures that every test may use."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["tests.cluster.plugin"]


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Commands that run in the test process set up the log of the whole process; what one leaves must not hide a warning from the next."""
    root = logging.getLogger()
    level, handlers, disabled = root.level, list(root.handlers), logging.root.manager.disable
    yield
    root.setLevel(level)
    # Only what was added is taken off: pytest itself puts handlers of its own on and off around each phase.
    for handler in [each for each in root.handlers if each not in handlers and not type(each).__module__.startswith("_pytest")]:
        root.removeHandler(handler)
    logging.disable(disabled)


@pytest.fixture(autouse=True)
def _recursion_as_it_was() -> Iterator[None]:
    """Commands raise Python's limit for the whole process, with which what nests too deeply takes a minute to be refused."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)
