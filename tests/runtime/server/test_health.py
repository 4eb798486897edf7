"""Liveness and readiness from facts. Pure: ages are numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_runtime.server.health import Facts, Patience, judge

PATIENCE = Patience(stuck_unready=10, stuck_dead=60)
SERVING = Facts(loaded=True)


@pytest.mark.parametrize(
    ("facts", "live", "ready", "reason"),
    [
        (Facts(loaded=False), True, False, "Loading"),
        (SERVING, True, True, "Serving"),
        (replace(SERVING, since_progress=10_000), True, True, "Serving"),  # idle for hours
        (replace(SERVING, has_work=True, since_progress=9), True, True, "Serving"),
        (replace(SERVING, has_work=True, since_progress=11), True, False, "Stuck"),
        (replace(SERVING, has_work=True, since_progress=61), False, False, "Stuck"),
        (replace(SERVING, produced=False), True, False, "WarmingUp"),
        (replace(SERVING, alive=False), False, False, "EngineDead"),
        (replace(SERVING, draining=True), True, False, "Draining"),
        (replace(SERVING, draining=True, alive=False), False, False, "EngineDead"),
        (replace(SERVING, draining=True, has_work=True, since_progress=61), False, False, "Stuck"),
        (replace(SERVING, failing_for=0.0), True, False, "Failing"),
        (replace(SERVING, failing_for=61.0), False, False, "Failing"),
    ],
)
def test_facts_decide(facts: Facts, live: bool, ready: bool, reason: str) -> None:
    verdict = judge(facts, PATIENCE)

    assert (verdict.live, verdict.ready, verdict.reason) == (live, ready, reason)
    assert verdict.message
