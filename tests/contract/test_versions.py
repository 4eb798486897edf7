"""The operator's table of versions and the runtime speak of one stack (docs/decisions/0007)."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from glm5_operator.plan.compat import Versions, check, mismatches, table
from glm5_operator.status.containers import container_cause
from glm5_operator.status.ends import pod_end
from glm5_runtime import device, versions
from tests.support.runs import failed

ROOT = Path(__file__).parents[2]


def test_the_runtimes_set_in_the_table_is_what_it_pins_and_compares_with() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    known = table().runtime
    assert f"torch=={known.torch}" in extras["runtime"]
    assert f"torch_npu=={known.torch_npu}" in extras["npu"]
    assert known.cann == versions.MADE_FOR_CANN
    assert table().drivers.cann[known.cann][0] == versions.LEAST_DRIVER
    pinned = (ROOT / "requirements" / "npu.txt").read_text()
    assert re.search(rf"^torch-npu=={re.escape(known.torch_npu)}\s*$", pinned, re.MULTILINE)


def test_that_set_fits_itself() -> None:
    known = table().runtime
    verdicts = {one.verdict for one in check(Versions(cann=known.cann, torch=known.torch, torch_npu=known.torch_npu, python="3.11.9"))}
    assert verdicts == {"Fits"}


@pytest.mark.parametrize("driver", ["23.0.5", "24.1.rc1", "25.0.1", "25.2.0", "25.7.RC1", "26.1.0", "", "unreadable", "99.1"])
@pytest.mark.parametrize("cann", ["9.1.0", "9.1.1", ""])
def test_planner_and_runtime_refuse_the_same_drivers(driver: str, cann: str) -> None:
    assert bool(mismatches(Versions(driver=driver, cann=cann))) is bool(versions.misfits(versions.Stack(driver=driver, cann=cann)))


@pytest.mark.parametrize("torch_npu", ["2.12.0", "2.11.0", "2.10.0.post4"])
def test_planner_and_runtime_refuse_the_same_torch_npu(torch_npu: str) -> None:
    stack = versions.Stack(torch="2.12.0+cpu", torch_npu=torch_npu)
    assert bool(mismatches(Versions(torch="2.12.0+cpu", torch_npu=torch_npu))) is bool(versions.misfits(stack))


def test_a_start_that_ends_for_the_versions_is_told_so_by_service_and_job() -> None:
    error = device.VersionsDoNotFit(
        "--device npu can't be used here:\n  - versions: found driver 23.0.5, need 25.2 or later for CANN 9.1.0; x"
    )
    ended = {"exitCode": error.exit_code, "message": f"glm5-runtime serve can't start:\n{error}\n", "finishedAt": "2026-11-30T12:00:00Z"}
    state = {"name": "engine", "restartCount": 1, "state": {"terminated": ended}}
    cause = container_cause(state, {"metadata": {}, "spec": {"nodeName": "npu-1"}}, None, timedelta(minutes=5))
    assert cause is not None
    assert cause.reason == "VersionsDoNotFit"
    assert cause.message == "container engine doesn't run on node npu-1: found driver 23.0.5, need 25.2 or later for CANN 9.1.0; x"
    end = pod_end(failed(code=error.exit_code), node_is_lost=False)
    assert end is not None
    assert end.cause == "Configuration"
