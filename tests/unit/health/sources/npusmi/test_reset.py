"""What the text of a reset proves, and what it doesn't. The strings are those of the driver's source."""

from datetime import timedelta

import pytest

from glm5_operator.health.sources.npusmi import parse_reset
from glm5_operator.health.sources.npusmi.readings import ResetOutcome, ResetRefusal
from tests.unit.health.sources.npusmi.files import case, text_of

RISK = """\
Resetting the standard PCIe card or NPU chip may cause a system hang or abnormal reset during service running.
Are you sure you want to continue resetting?(Y/N)
"""
ALL = "It will reboot all devices, do you want to continue reboot? [y/n]\n"
OK = "\tStatus                         : OK\n"
FAIL = "\tStatus                         : Fail\n"


def message(text: str) -> str:
    return f"\tMessage                        : {text}\n"


DONE = message("Reset server successfully.")
RESETTING = message("resetting (about 150 seconds) ...")


def test_how_long_it_takes_is_told_before() -> None:
    assert parse_reset(text_of("synthetic_reset_910b_hccs_on")).expected == timedelta(seconds=150)
    assert parse_reset(text_of("synthetic_reset_a3_all")).expected == timedelta(seconds=360)
    assert parse_reset(text_of("reset_950_inband_ok")).expected is None


def test_a_question_that_waits_is_seen() -> None:
    for asked, text in ((1, RISK), (2, RISK + "Y\n" + ALL), (1, RISK.rstrip("\n"))):
        transcript = parse_reset(text)
        assert (transcript.outcome, transcript.asked, transcript.unanswered) == (ResetOutcome.CUT, asked, True)


def test_all_devices_of_the_node_are_more_than_those_of_a_duo_card() -> None:
    duo = "It's SMP mode, it will reboot all devices in this SMP system, do you want to continue reboot? [y/n]\n"

    assert parse_reset(RISK + ALL).whole_node
    assert not parse_reset(RISK + duo).whole_node
    assert not parse_reset(RISK).whole_node


@pytest.mark.parametrize(
    "text",
    [
        "",
        OK,
        DONE,
        RISK + "Y\n" + RESETTING,
        RISK + "Y\n" + RESETTING + OK,
        RISK + "Y\n" + RESETTING + OK + message("Reset server"),
        RISK + "Y\n" + RESETTING + OK + message("The custom-op of the chip is set successfully."),
        RISK + "Y\n" + RESETTING + "\tStatus                         : OK",
        RISK + "Y\n" + RESETTING + DONE,
    ],
)
def test_success_needs_the_status_and_the_sentence(text: str) -> None:
    assert parse_reset(text).outcome == ResetOutcome.CUT


@pytest.mark.parametrize(
    "text",
    [
        FAIL + message("Failed to reset server"),
        FAIL + DONE,
        OK + FAIL + DONE,
        OK + DONE + FAIL,
        OK + message("Failed to reset chip") + DONE,
        "\tStatus                         : Okay\n" + DONE,
    ],
)
def test_anything_against_it_means_failure(text: str) -> None:
    assert parse_reset(RISK + "Y\n" + RESETTING + text).outcome == ResetOutcome.FAILED


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("This command can be executed only by the root user.\n", ResetRefusal.NOT_ROOT),
        ("Another user is resetting the NPU(s). Please try again later.\n" + FAIL, ResetRefusal.ANOTHER_RESET),
        ("This command cannot be executed on a common container.\n", ResetRefusal.NEEDS_HOST),
        ("This command cannot be executed on a common container or a VM privileged container.\n", ResetRefusal.NEEDS_HOST),
        ("This command cannot be executed on a VM or container.\n", ResetRefusal.NEEDS_HOST),
        ("In the vNPU scenario, this device does not support setting reset.\n", ResetRefusal.VIRTUAL_NPU),
        (FAIL + message("The chip 0 is occupied by Docker. Please release the device first."), ResetRefusal.CARDS_BUSY),
        ("dcmi model initialized failed, because the device is used. ret is -8020\n", ResetRefusal.CARDS_BUSY),
        ("dcmi module initialize failed. ret is -8005\n", ResetRefusal.NO_ACCESS),
        ("Invalid card id.\nError parameter of -i\n", ResetRefusal.WRONG_CARD),
        ("Must input parameter of chip id.\n", ResetRefusal.WRONG_CARD),
        ("SMP mode only support reset chip 0.\n", ResetRefusal.WRONG_CARD),
        ("This device does not support setting reset.\n", ResetRefusal.NOT_SUPPORTED),
        ("\nChip reset is not supported. Please check BMC version and IPMI driver.\n", ResetRefusal.NOT_SUPPORTED),
        ("Command or option is not found.\n", ResetRefusal.NOT_SUPPORTED),
        (FAIL + message("User aborts reset server by inband."), ResetRefusal.ABORTED),
    ],
)
def test_a_refusal_has_its_reason_and_goes_before_any_status(text: str, reason: ResetRefusal) -> None:
    for whole in (text, RISK + "Y\n" + text, text + OK + DONE):
        transcript = parse_reset(whole)
        assert (transcript.outcome, transcript.refusal) == (ResetOutcome.REFUSED, reason)
        assert transcript.message


def test_a_chip_in_use_is_refused_in_other_words_too() -> None:
    transcript = parse_reset(case("set_refused_exit_203.stdout"))

    assert (transcript.outcome, transcript.refusal) == (ResetOutcome.REFUSED, ResetRefusal.CARDS_BUSY)
    assert transcript.message == "Message                        : the chip is in use (invented wording)"


def test_the_risk_that_every_reset_tells_of_is_no_refusal() -> None:
    assert parse_reset(RISK).refusal is None
    assert parse_reset(RISK + ALL).refusal is None
