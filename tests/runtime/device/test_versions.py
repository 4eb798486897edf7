"""Case C18 where the engine starts: a driver and an image that aren't of one set end the start in seconds, in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from glm5_runtime import device
from glm5_runtime.cli import app
from glm5_runtime.device import DeviceUnusable, HostFacts, VersionsDoNotFit, choose, read_host
from glm5_runtime.versions import Stack, misfits
from tests.runtime.device.test_device import NPU

MODEL = Path(__file__).parents[2] / "fixtures" / "tiny-glm5"
WELL = Stack("25.5.1", "9.1.0", "2.12.0+cpu", "2.12.0", ("ascend910b",), ("Ascend 910B3",))


def with_stack(**changes: object) -> HostFacts:
    return replace(NPU, stack=replace(WELL, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"driver": "23.0.5"}, "found driver 23.0.5, need 25.2 or later for CANN 9.1.0"),
        ({"driver": "25.0.RC1.1", "cann": "9.1.1"}, "found driver 25.0.RC1.1, need 25.2 or later for CANN 9.1.1"),
        ({"torch_npu": "2.11.0"}, "found torch_npu 2.11.0, need 2.12.0 for torch 2.12.0"),
        ({"cann": "8.2.RC1"}, "found CANN 8.2.RC1, need 9.1.0 for torch_npu 2.12.0"),
        ({"chips": ("310P3",)}, "found kernels of ascend910b in CANN, need ascend310p for 310P3"),
    ],
)
def test_what_is_not_of_one_set_is_told_as_found_and_needed_and_has_an_exit_code_of_its_own(changes: dict[str, object], found: str) -> None:
    for requested in ("npu", "auto"):
        with pytest.raises(VersionsDoNotFit) as caught:
            choose(requested, with_stack(**changes))
        assert f"  - versions: {found}; " in str(caught.value)
        assert caught.value.exit_code == 9
    assert choose("cpu", with_stack(**changes)).device == "cpu"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"driver": None},
        {"driver": "unreadable"},
        {"driver": "26.1.0"},
        {"cann": None, "driver": "23.0.5"},
        {"chips": ("Ascend910",)},
        {"kernels": ()},
        {"kernels": ("ascend310p", "ascend910b")},
        {"chips": ("Ascend 910B2C", "Ascend 910B2C")},
        {"torch": None},
        {"torch_npu": "2.12.0.post1"},
    ],
)
def test_what_fits_or_cannot_be_read_does_not_stop_the_start(changes: dict[str, object]) -> None:
    assert choose("npu", with_stack(**changes)).device == "npu"


def test_beside_something_missing_it_is_one_line_of_several_and_no_matter_of_versions_alone() -> None:
    with pytest.raises(DeviceUnusable) as caught:
        choose("npu", replace(with_stack(driver="23.0.5"), ascendcl=False))
    assert caught.value.exit_code == 2
    assert "versions: found driver 23.0.5" in str(caught.value)


def test_version_files_and_kernels_of_a_machine_are_read(tmp_path: Path) -> None:
    (tmp_path / "usr/local/Ascend/driver").mkdir(parents=True)
    (tmp_path / "usr/local/Ascend/driver/version.info").write_text("Version=23.0.5\nascendhal_version=7.35.19\n")
    home = tmp_path / "cann"
    for unit in ("ascend910b", "config"):
        (home / "opp/built-in/op_impl/ai_core/tbe/kernel" / unit).mkdir(parents=True)
    (home / "ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=9.1.0\n")
    stack = read_host({"ASCEND_HOME_PATH": str(home)}, tmp_path).stack
    assert (stack.driver, stack.cann, stack.kernels) == ("23.0.5", "9.1.0", ("ascend910b",))
    assert read_host({}, tmp_path / "absent").stack.driver is None


def test_the_engine_ends_at_once_with_its_code_and_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "read_host", lambda *_: with_stack(driver="23.0.5"))
    run = CliRunner().invoke(app, ["serve", "--model", str(MODEL), "--device", "npu"])
    assert run.exit_code == 9
    assert "versions: found driver 23.0.5, need 25.2 or later for CANN 9.1.0" in run.output + str(run.stderr)


@given(st.builds(Stack, *[st.text(max_size=12)] * 4, st.tuples(st.text()), st.tuples(st.text())))
def test_any_text_is_judged_without_an_error(stack: Stack) -> None:
    misfits(stack)
