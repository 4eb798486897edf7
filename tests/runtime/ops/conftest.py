"""The report of one process that has torch_npu on a stand-in for CANN; made once, since importing it takes seconds."""

import sys

import pytest
from rich.console import Console

from tests.support.cann import bed


@pytest.fixture(scope="session")
def npu_report() -> dict[str, str | None]:
    """Each check of `on_npu` with its traceback, or None where it held."""
    bed.prepare(Console(file=sys.__stderr__))
    report = bed.run_module("tests.runtime.ops.on_npu")
    assert isinstance(report, dict)
    return report
