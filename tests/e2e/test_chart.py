"""The chart's own test, on real kubelets."""

from __future__ import annotations

from demo import steps
from demo.site import Site


def test_helm_test_reaches_a_ready_operator(demo: Site) -> None:
    said = demo.helm("test", steps.RELEASE, "--namespace", steps.OPERATOR_NAMESPACE)

    assert "Succeeded" in said
