"""Error codes of the runtime in the end of a log (C15, C16): whose fault each is, and that a code alone condemns no card. Pure."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.health.sources.runtime_errors import MOST_LINE, Evidence, Kind, evidence

PLOG = Path(__file__).parents[3] / "fixtures" / "plog"


def of(text: str) -> Evidence:
    found = evidence(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "code", "kind", "line"),
    [
        ("device_open_507033", "507033", Kind.DRIVER, "NPU function error: c10_npu::SetDevice(device_id_), error code is 507033"),
        ("vector_core_507035", "507035", Kind.UNKNOWN, "RuntimeError: ACL stream synchronize failed, error code:507035"),
        ("hccl_ei0006", "EI0006", Kind.PEER, "Get_Socket_Timeout(EI0006): (invented text) no peer connected"),
    ],
)
def test_each_kind_of_log_gives_its_code_and_one_line_of_context(name: str, code: str, kind: Kind, line: str) -> None:
    found = of((PLOG / f"{name}.txt").read_text())

    assert (found.code, found.kind, found.line, found.known) == (code, kind, line, True)


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        ("RuntimeError: context is not there, error code is 107002", "107002", Kind.USER),
        ("aclrtMalloc failed, error code is 207001", "207001", Kind.RESOURCE),
        ("torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2 GiB", "207001", Kind.RESOURCE),
        ("EL0009: Stream resources are insufficient", "EL0009", Kind.RESOURCE),
        ("[ERROR] rtDeviceMemError: error code is 507053", "507053", Kind.HARDWARE),
        ("HBM fault 80E01801 on device 3", "80E01801", Kind.HARDWARE),
        ("open device 1 failed. runtime result = 507033.[FUNC:Report]", "507033", Kind.DRIVER),
        ("dcmi module initialize failed. ret is -8005", "-8005", Kind.DRIVER),
        ("because the device is used. ret is -8020", "-8020", Kind.DRIVER),
        ("ACL_ERROR_RT_INVALID_DEVICEID, errcode[107001]", "107001", Kind.DRIVER),
        ("hccl fftsplus task timeout, streamId 3, 1836s", "EI0002", Kind.PEER),
        ("EI0015: ranktable detect failed", "EI0015", Kind.PEER),
        ("aicpu exception, ACL error 507018", "507018", Kind.UNKNOWN),
    ],
)
def test_each_code_is_classed_by_the_table(text: str, code: str, kind: Kind) -> None:
    found = of(text)

    assert (found.code, found.kind, found.known) == (code, kind, True)
    assert found.meaning
    assert found.fix


@pytest.mark.parametrize(
    ("text", "code"), [("error code is 507999", "507999"), ("error code: 999999", "999999"), ("EI0099: of tomorrow", "EI0099")]
)
def test_a_code_never_seen_is_told_as_such_and_blames_nobody(text: str, code: str) -> None:
    found = of(text)

    assert (found.code, found.kind, found.known, found.elsewhere) == (code, Kind.UNKNOWN, False, False)
    assert str(found) == f"error code {code} is unknown here"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Killed without a word",
        "loss at token 8507033 is 3.2",
        "step 507033 loss 1.25",
        "step 207001: error 0.25",
        "port 50703 is in use",
        "error code is 5070351",
        "listening on 192.0.2.1:50701, pid 107002",
        "E12345 is a part of the machine",
    ],
)
def test_a_number_that_is_no_code_is_none(text: str) -> None:
    assert evidence(text) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("error code is 507035\nerror code is 507999", "507035"),  # what follows an error follows from it
        ("error code is 507999\nerror code is 507035", "507035"),  # but what is known says more
        ("EE9999: Inner Error!\nerror code is 507015", "507015"),
        ("EZ9999 and nothing else", "EZ9999"),
        ("error code is 507018\nGet_Socket_Timeout(EI0006)", "EI0006"),  # it waited for another, which explains it
        ("Get_Socket_Timeout(EI0006)\nerror code is 507054", "507054"),  # but its own memory is broken
        ("Tried to allocate 2 GiB\nEI0002 notify wait timeout", "207001"),
    ],
)
def test_of_several_codes_the_one_that_explains_the_others_is_told(text: str, code: str) -> None:
    assert of(text).code == code


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_code_that_is_cut_by_the_end_of_a_line_is_put_together(cut: int) -> None:
    digits = "507035"

    assert of(f"RuntimeError: error code is {digits[:cut]}\n{digits[cut:]} in stream 3").code == digits


def test_two_numbers_that_make_no_code_stay_two() -> None:
    assert evidence("error code is 12\n3456 tokens") is None


def test_of_a_log_that_has_grown_large_the_end_is_read() -> None:
    line = "RuntimeError: error code is 507035"

    assert of("x" * 20_000_000 + "\n" + line).line == line
    assert len(of(line + "y" * 60_000).line) <= MOST_LINE
    assert evidence(line + "\n" + "x" * 200_000) is None


def test_only_what_another_card_may_do_better_is_tried_elsewhere() -> None:
    codes = {
        "507053": True,
        "507033": True,
        "507035": True,
        "EZ9999": True,
        "107002": False,
        "207001": False,
        "EI0006": False,
        "E30006": False,
    }

    assert {code: of(f"error code is {code}").elsewhere for code in codes} == codes


def test_colours_and_control_characters_of_a_log_are_left_out_of_the_line() -> None:
    assert of("\x1b[31mRuntimeError: error code is 507035\x1b[0m\r\n").line == "RuntimeError: error code is 507035"


@given(
    st.text()
    | st.lists(
        st.sampled_from(["error code is ", "507035", "5070", "\n", "35", "EI0006", "E", "80E0", "1801", " ret: ", "-8005", "[", "\x1b["])
    ).map("".join)
)
def test_any_text_is_read_without_an_error_and_its_line_is_one_line(text: str) -> None:
    found = evidence(text)

    assert found is None or ("\n" not in found.line and len(found.line) <= MOST_LINE and found.code)
