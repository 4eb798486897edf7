"""The count of operators that run in plain torch: where the server shows it, and how often the log tells it."""

from __future__ import annotations

import logging
from unittest import mock

import pytest

from glm5_runtime.ops import kernels
from glm5_runtime.server.counts import Counts
from glm5_runtime.server.metrics import Metrics


def shown(operator: str) -> float:
    line = f'glm5:operator_fallbacks_total{{engine="0",model_name="glm",operator="{operator}"}} '
    text = Metrics("glm", lambda: None, Counts()).render().decode()
    return next(float(row.removeprefix(line)) for row in text.splitlines() if row.startswith(line))


def test_every_operator_has_its_series_from_the_start_and_the_count_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    with mock.patch.dict(kernels.fallbacks), mock.patch.object(kernels, "_told", set()), caplog.at_level(logging.WARNING):
        assert {name: shown(name) for name in kernels.KERNELS} == dict.fromkeys(kernels.KERNELS, 0.0)
        for _ in range(3):
            kernels.count_fallback("attend", "3 heads, no power of two up to 128")
        kernels.count_fallback("attend", "type torch.float32")
        assert (shown("attend"), shown("choose")) == (4.0, 0.0)
    assert len(caplog.messages) == 2  # each reason once
