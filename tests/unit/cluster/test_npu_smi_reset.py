"""The fake `npu-smi set -t reset` asks, refuses, fails and heals as the driver's source has it."""

import signal
import subprocess

import pytest

from glm5_operator.health.sources.npusmi import parse_reset
from glm5_operator.health.sources.npusmi.readings import ResetOutcome, ResetRefusal
from tests.cluster.devices import NodeDevices, Process, ResetMode
from tests.cluster.shell import wait_for
from tests.unit.cluster.npu_smi import Smi, deaf_to_sigterm, fixture, smi

__all__ = ["smi"]


def sick(product: str, card: int = 3) -> NodeDevices:
    fault = {"health": "Alarm", "codes": ("80E18404",), "information": ("HBM",), "hbm_used": 60000, "aicore": 9}
    return NodeDevices.idle(product).change(card, processes=(Process(1, "python3", 5),), **fault)


@pytest.mark.parametrize(
    ("product", "words", "taken"),
    [
        ("A2", ("-i", "3", "-c", "0"), tuple(range(8))),
        ("A3", ("-i", "1", "-c", "1"), tuple(range(16))),
        ("310P", ("-i", "96", "-c", "0"), (2, 3)),
        ("950", ("-i", "3"), (3,)),
    ],
)
def test_a_reset_takes_what_the_product_takes_and_heals_it(smi: Smi, product: str, words: tuple[str, ...], taken: tuple[int, ...]) -> None:
    code, text, after = smi.reset(sick(product), *words)

    transcript = parse_reset(text)
    assert (code, transcript.outcome) == (0, ResetOutcome.SUCCEEDED)
    assert transcript.whole_node == (len(taken) == len(after.devices))
    assert transcript.asked == (1 if product == "950" else 2)
    assert after.reset.done == (taken,)
    healed = after.devices[3]
    assert (healed.health, healed.codes, healed.processes, healed.aicore) == ("OK", (), (), 0)
    assert healed.hbm_used <= 3314


def test_without_hccs_one_chip_is_reset_after_one_question(smi: Smi) -> None:
    node = sick("A2").change(5, health="Alarm").resetting(hccs=False)
    code, text, after = smi.reset(node, "-i", "3", "-c", "0", answers="y\n")

    assert (code, parse_reset(text).asked) == (0, 1)
    assert (after.devices[3].health, after.devices[5].health) == ("OK", "Alarm")
    assert after.reset.done == ((3,),)


def test_the_transcript_is_that_of_the_source(smi: Smi) -> None:
    # Without the answers, which a terminal would show between the lines.
    def silent(name: str) -> str:
        return "".join(line for line in fixture(name).splitlines(keepends=True) if line.strip() not in ("Y", "y"))

    assert smi.reset(sick("A2"), "-i", "0", "-c", "0")[1].expandtabs(8) == silent("synthetic_reset_910b_hccs_on")
    assert smi.reset(sick("A3"), "-i", "0", "-c", "0")[1].expandtabs(8) == silent("synthetic_reset_a3_all")
    assert smi.reset(sick("A3").resetting("fail"), "-i", "0", "-c", "0")[1].expandtabs(8) == silent("synthetic_reset_fail")
    assert smi.reset(sick("950"), "-i", "0")[1].expandtabs(8) == silent("reset_950_inband_ok")


@pytest.mark.parametrize("answers", ["", "n\n", "Y\n", "Y\nn\n", "yes\n", "Y\nyes\n"])
def test_every_question_needs_its_own_yes(smi: Smi, answers: str) -> None:
    code, text, after = smi.reset(sick("A2"), "-i", "3", "-c", "0", answers=answers)

    assert code != 0
    assert parse_reset(text).refusal == ResetRefusal.ABORTED
    assert after == sick("A2")


@pytest.mark.parametrize(
    ("mode", "code", "outcome", "refusal"),
    [
        ("fail", 1, ResetOutcome.FAILED, None),
        ("fail_exit_0", 0, ResetOutcome.FAILED, None),
        ("in_use", 203, ResetOutcome.REFUSED, ResetRefusal.CARDS_BUSY),
        ("another_user", 1, ResetOutcome.REFUSED, ResetRefusal.ANOTHER_RESET),
        ("needs_host", 1, ResetOutcome.REFUSED, ResetRefusal.NEEDS_HOST),
        ("virtual", 1, ResetOutcome.REFUSED, ResetRefusal.VIRTUAL_NPU),
        ("not_root", 1, ResetOutcome.REFUSED, ResetRefusal.NOT_ROOT),
    ],
)
def test_a_reset_that_does_not_happen_changes_no_card(
    smi: Smi, mode: ResetMode, code: int, outcome: ResetOutcome, refusal: ResetRefusal | None
) -> None:
    node = sick("A2").resetting(mode)
    exit_code, text, after = smi.reset(node, "-i", "3", "-c", "0")

    assert (exit_code, parse_reset(text).outcome, parse_reset(text).refusal) == (code, outcome, refusal)
    assert after == node


def test_a_reset_that_says_ok_may_leave_the_card_sick(smi: Smi) -> None:
    code, text, after = smi.reset(sick("A2").resetting("stays_sick"), "-i", "3", "-c", "0")

    assert (code, parse_reset(text).outcome) == (0, ResetOutcome.SUCCEEDED)
    assert after.devices[3].health == "Alarm"
    assert len(after.reset.done) == 1


@pytest.mark.parametrize(
    ("product", "words"),
    [
        ("A2", ("-i", "3")),
        ("A2", ("-i", "9", "-c", "0")),
        ("A2", ("-i", "3", "-c", "1")),
        ("310P", ("-i", "0", "-c", "1")),
    ],
)
def test_a_card_that_is_not_there_or_half_named_is_refused_before_any_question(smi: Smi, product: str, words: tuple[str, ...]) -> None:
    code, text, after = smi.reset(NodeDevices.idle(product), *words)

    assert code != 0
    assert (parse_reset(text).refusal, parse_reset(text).asked) == (ResetRefusal.WRONG_CARD, 0)
    assert after == NodeDevices.idle(product)


def test_950_refuses_a_chip_by_the_option(smi: Smi) -> None:
    assert smi.reset(NodeDevices.idle("950"), "-i", "0", "-c", "0")[1] == "Error parameter of -c\n"


def test_what_a_test_changes_while_a_reset_runs_is_kept(smi: Smi) -> None:
    sick("A2").resetting(seconds=1.0).write(smi.state)
    command = [smi.program, "set", "-t", "reset", "-i", "3", "-c", "0", "-m", "1"]
    with subprocess.Popen(command, env=smi.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("Y\ny\n")
        while "resetting (about" not in (line := process.stdout.readline()):
            assert line, "it ended before it began"
        NodeDevices.read(smi.state).change(0, temperature=77).write(smi.state)
        process.communicate(timeout=20)

    after = NodeDevices.read(smi.state)
    assert process.returncode == 0
    assert (after.devices[0].temperature, after.devices[3].health) == (77, "OK")


def test_a_reset_that_hangs_has_said_that_it_began(smi: Smi) -> None:
    sick("A2").resetting("hang").write(smi.state)
    command = [smi.program, "set", "-t", "reset", "-i", "3", "-c", "0", "-m", "1"]
    with subprocess.Popen(command, env=smi.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=0) as process:
        assert process.stdin is not None
        try:
            process.stdin.write("Y\ny\n")
            wait_for("it to ignore SIGTERM", lambda: deaf_to_sigterm(process.pid), timeout=20, every=0.01)
            process.terminate()
        finally:
            process.kill()
        printed, _ = process.communicate(timeout=20)

    assert process.returncode == -signal.SIGKILL
    assert "resetting (about 150 seconds)" in printed
    assert parse_reset(printed).outcome == ResetOutcome.CUT
    assert NodeDevices.read(smi.state).reset.done == ()
