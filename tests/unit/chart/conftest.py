"""The chart, rendered offline by a real helm. No cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.tools import tool
from tests.support.chart import Chart


@pytest.fixture(scope="session")
def helm() -> Path:
    """Built once into the cache folder."""
    return tool("helm")


@pytest.fixture
def chart(helm: Path, tmp_path: Path) -> Chart:
    return Chart(helm, tmp_path)
