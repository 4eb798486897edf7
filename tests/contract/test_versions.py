"""The operator's table of versions and the runtime speak of one stack (docs/decisions/0007)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from glm5_operator.plan.compat import Versions, check, table
from glm5_runtime import doctor

ROOT = Path(__file__).parents[2]


def test_the_runtimes_set_in_the_table_is_what_it_pins_and_what_its_doctor_compares_with() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    known = table().runtime
    assert f"torch=={known.torch}" in extras["runtime"]
    assert f"torch_npu=={known.torch_npu}" in extras["npu"]
    assert known.cann == doctor.MADE_FOR_CANN
    pinned = (ROOT / "requirements" / "npu.txt").read_text()
    assert re.search(rf"^torch-npu=={re.escape(known.torch_npu)}\s*$", pinned, re.MULTILINE)


def test_that_set_fits_itself() -> None:
    known = table().runtime
    verdicts = {one.verdict for one in check(Versions(cann=known.cann, torch=known.torch, torch_npu=known.torch_npu, python="3.11.9"))}
    assert verdicts == {"Fits"}
