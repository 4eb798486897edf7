"""`glm5 compat`: the table, and a verdict on versions from options, an image's name and a report of the runtime's doctor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.support import glm5


def test_a_mismatch_ends_with_4_and_says_what_was_found_and_what_is_needed() -> None:
    run = glm5("compat", "--driver", "24.1.rc1", "--image", "quay.io/ascend/vllm-ascend:v0.23.0-a3")
    assert run.exit_code == 4
    assert run.stderr == "error: found driver 24.1.rc1, need 25.2 or later for CANN 9.1.0; take the versions named\n"
    assert run.stdout.splitlines()[1].split() == ["Mismatch", "driver", "24.1.rc1", "CANN", "9.1.0", "25.2", "or", "later"]
    assert "source: github.com/Ascend/pytorch COMPATIBILITY.en.md" in run.stdout


def test_what_fits_and_what_nobody_knows_end_well() -> None:
    assert glm5("compat", "--driver", "25.5.1", "--cann", "9.1.0").exit_code == 0
    run = glm5("compat", "--driver", "99.1", "--cann", "9.1.0")
    assert (run.exit_code, run.stdout.splitlines()[1].split()[0]) == (0, "Unknown")
    assert "state a second one" in glm5("compat", "--cann", "9.1.0").stderr


def test_one_version_alone_shows_no_empty_table() -> None:
    run = glm5("compat", "--driver", "25.5.1")
    assert (run.exit_code, run.stdout, run.stderr) == (0, "", "one version alone fits everything: state a second one\n")


def test_a_report_of_the_runtimes_doctor_is_judged_and_options_count_more(tmp_path: Path) -> None:
    report = {
        "npu_usable": True,
        "driver": {"present": True, "version": "23.0.5"},
        "cann": {"home": "/x", "version": "9.1.0", "made_for": "9.1.0"},
        "python": "3.11.9",
        "torch": {"version": "2.12.0+cpu", "made_for": "2.12.0"},
        "torch_npu": {"version": None, "made_for": "2.12.0", "error": "not installed"},
    }
    path = tmp_path / "doctor.json"
    path.write_text(json.dumps(report))
    run = glm5("compat", "--report", str(path), "-o", "json")
    assert run.exit_code == 4
    data = json.loads(run.stdout)
    assert data["versions"] == {"driver": "23.0.5", "cann": "9.1.0", "torch": "2.12.0+cpu", "python": "3.11.9"}
    assert [check["verdict"] for check in data["checks"]] == ["Mismatch", "Fits"]
    assert glm5("compat", "--report", str(path), "--driver", "25.5.0").exit_code == 0


def test_a_file_that_is_no_such_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    run = glm5("compat", "--report", str(path))
    assert (run.exit_code, run.stderr) == (3, f"error: {path}: is no report of `glm5-runtime doctor --output json`\n")


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_table_is_data_with_its_sources(form: str) -> None:
    data = yaml.safe_load(glm5("compat", "-o", form).stdout)
    assert data["drivers"]["cann"]["9.1.0"][0] == "25.2"
    assert all(data[part]["source"] for part in ("drivers", "torchNpu", "python", "mindcluster", "vllmAscend"))


def test_the_table_shows_the_newest_first_and_a_row_for_each_release_with_what_its_family_was_tested_with() -> None:
    lines = glm5("compat").stdout.splitlines()
    assert lines[1].split()[0] == "9.1.1"
    row = next(line for line in lines if line.startswith("9.0.0 "))
    assert "25.0, 25.2" in row
    assert "2.9.0.post2" in row
