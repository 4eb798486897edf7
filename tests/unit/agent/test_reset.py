"""Resets by the node agent: real scripts on a real terminal stand in for npu-smi. Only the card readings and the clock are given.

Case C12 with its relatives. That an id is one reset is in test_reset_once.py, the agent's own death in test_reset_kills.py.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from glm5_operator.api.node_facts import ToolReport
from tests.unit.agent.npu_smi_reset import (
    A2_HCCS,
    A3,
    DUO,
    HELD,
    ONE_CHIP,
    QUICK,
    Look,
    Script,
    a_node,
    a_request,
    an_agent,
    asked,
    with_card,
)

SAMPLES = Path(__file__).parents[2] / "fixtures" / "npu-smi"
# --- questions --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "product"), [(A2_HCCS, "A2"), (A3, "A3")])
async def test_both_questions_are_answered_and_one_command_resets_the_node(tmp_path: Path, body: str, product: str) -> None:
    report, script = await asked(tmp_path, body, a_request(), a_node(product))

    assert (report.state, report.reason, report.exit_code) == ("Succeeded", "", 0)
    assert script.calls == ["set -t reset -i 0 -c 0 -m 1"]
    assert script.answers == ["Y", "y"]
    assert report.started == report.ended == "2026-11-30T10:00:00Z"
    assert report.output.startswith(f"$ {script.path} set -t reset -i 0 -c 0 -m 1\nResetting the standard PCIe card")
    assert report.output.endswith("\t" + "Message".ljust(30) + " : Reset server successfully.\n")


@pytest.mark.parametrize("radius", ["Device", "Card"])
@pytest.mark.parametrize("body", [A2_HCCS, A3])
async def test_a_reset_that_would_take_all_cards_is_declined_where_fewer_were_asked_for(tmp_path: Path, body: str, radius: str) -> None:
    report, script = await asked(tmp_path, body, a_request(radius=radius, cards=(3,)))

    assert (report.state, report.reason, script.resets) == ("Refused", "HccsOn", 0)
    assert script.answers == ["Y", "n"]
    assert "ask for the node" in report.message


async def test_on_a_310p_duo_all_devices_are_the_card_that_was_asked_for(tmp_path: Path) -> None:
    report, script = await asked(tmp_path, DUO, a_request(radius="Card", cards=(2, 3)), a_node("310P"))

    assert (report.state, script.calls, script.answers) == ("Succeeded", ["set -t reset -i 1 -c 0 -m 1"], ["Y", "y"])


async def test_an_smp_system_of_another_product_is_no_card(tmp_path: Path) -> None:
    report, script = await asked(tmp_path, DUO, a_request(radius="Card", cards=(2,)))

    assert (report.reason, script.resets) == ("HccsOn", 0)


@pytest.mark.parametrize(
    "question",
    [
        "是否继续复位?(Y/N)",
        "确定要复位吗?（y/n）：",
        "Continuer ? [y/N]",
        "Proceed with reset <yes/no>: ",
        "Weiter? (Y/N)\n\n",
        "\033[1mSure?\033[0m (Y/N) ",
    ],
)
async def test_a_question_in_any_language_is_answered(tmp_path: Path, question: str) -> None:
    escaped = question.replace("\033", "\\033")
    report, script = await asked(
        tmp_path, f"printf '{escaped}'; read -r word; echo $word >> $here/answers; work; good\n", a_request(cards=(0,)), a_node(cards=1)
    )

    assert (report.state, [answer.lower() for answer in script.answers]) == ("Succeeded", ["y"])


async def test_in_another_language_too_a_reset_of_all_is_declined(tmp_path: Path) -> None:
    body = 'risk; ask "将复位所有芯片, 是否继续? [y/n]"; work; good\n'

    report, script = await asked(tmp_path, body, a_request(radius="Device", cards=(1,)))

    assert (report.reason, script.resets, script.answers) == ("HccsOn", 0, ["Y", "n"])


async def test_a_question_that_nobody_knows_gets_the_end_of_input_and_nothing_blocks(tmp_path: Path) -> None:
    body = 'echo "Type the serial number of the card to go on:"; read -r word || { bad; exit 3; }; work; good\n'

    report, script = await asked(tmp_path, body, patience=replace(QUICK, quiet=0.05))

    assert (report.state, report.reason, report.exit_code, script.resets) == ("Failed", "ToolFailed", 3, 0)


async def test_a_tool_that_asks_for_ever_gets_the_end_of_input_too(tmp_path: Path) -> None:
    body = 'while echo "Really? (Y/N)"; read -r word; do echo $word >> $here/answers; done; exit 4\n'

    report, script = await asked(tmp_path, body, a_request(cards=(0,)), a_node(cards=1))

    assert (report.state, report.exit_code) == ("Failed", 4)
    assert script.answers == ["Y"] * 8


async def test_the_questions_are_seen_though_the_tool_flushes_only_to_a_terminal(tmp_path: Path) -> None:
    python = f"#!{sys.executable}\n"
    body = (
        "import sys\n"
        "print('Are you sure you want to continue resetting?(Y/N)')\n"  # the C library, too, writes whole lines to a terminal only
        "assert sys.stdin.readline() == 'Y\\n' and sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()\n"
        "print('\\tStatus                         : OK')\n"
        "print('\\tMessage                        : Reset server successfully.')\n"
    )
    script = Script.write(tmp_path, body, prelude=python)

    report = await an_agent(tmp_path, script, a_node(cards=1)).handle(a_request(cards=(0,)))

    assert report.state == "Succeeded"


async def test_a_tool_that_wants_a_terminal_of_the_agents_own_finds_none_and_does_not_block(tmp_path: Path) -> None:
    report, _ = await asked(tmp_path, "read -r word < /dev/tty || exit 6\n")

    assert (report.state, report.reason, report.exit_code) == ("Failed", "NoResult", 6)


async def test_y_n_in_the_middle_of_a_text_is_no_question(tmp_path: Path) -> None:
    body = (
        'echo "Answer questions with (Y/N)"; sleep 0.05; echo "and be patient."; work; good; read -r word && echo $word >> $here/answers\n'
    )

    report, script = await asked(tmp_path, body, a_request(cards=(0,)), a_node(cards=1), patience=replace(QUICK, limit=0.6, settle=0.25))

    assert report.reason == "TimedOut"  # since it waits, after all is done, for an answer that nobody owes it
    assert script.answers == []


async def test_what_hangs_is_killed_at_the_limit_with_all_that_it_started(tmp_path: Path) -> None:
    body = 'trap "" TERM INT HUP; risk; work; sleep 1000 & echo $! > $here/child; wait; good\n'

    report, script = await asked(tmp_path, body, patience=replace(QUICK, limit=0.3))

    assert (report.state, report.reason, report.exit_code) == ("Failed", "TimedOut", -9)
    assert "resetting (about 150 seconds)" in report.output
    assert len(script.calls) == 1  # the other cards aren't tried: each would take the limit again
    child = int((tmp_path / "child").read_text())
    assert not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()


async def test_only_the_end_of_an_endless_output_is_kept(tmp_path: Path) -> None:
    body = 'i=0; while [ $i -lt 20000 ]; do echo "noise $i"; i=$((i+1)); done; risk; work; good\n'

    report, _ = await asked(tmp_path, body, a_request(cards=(0,)), a_node(cards=1))

    assert report.state == "Succeeded"
    assert len(report.output) == 4096


# --- text and exit status are judged together -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "state", "reason"),
    [
        ("risk; work; good", "Succeeded", ""),
        ("risk; work; good; exit 1", "Failed", "ExitStatus"),
        ("risk; work; good; exit 203", "Failed", "ExitStatus"),
        ("risk; work; good; kill -9 $$", "Failed", "ExitStatus"),
        ("risk; work; bad", "Failed", "ToolFailed"),
        ("risk; work; bad; exit 245", "Failed", "ToolFailed"),
        ("risk; work; field Status OK", "Failed", "NoResult"),  # cut off before the sentence
        ("risk; work; field Message 'Reset server successfully.'", "Failed", "NoResult"),
        ("risk; work; kill -9 $$", "Failed", "NoResult"),
        ("risk; work; kill -SEGV $$", "Failed", "NoResult"),
        ("risk; work; good; bad", "Failed", "ToolFailed"),
        ("exit 0", "Failed", "NoResult"),
        ("printf '\\377\\000\\376 %%s'; exit 0", "Failed", "NoResult"),
        ("echo 操作失败; exit 1", "Failed", "NoResult"),
        ("risk; work; good >&2", "Succeeded", ""),
    ],
)
async def test_success_is_what_text_and_exit_status_agree_on(tmp_path: Path, body: str, state: str, reason: str) -> None:
    report, script = await asked(tmp_path, f"{body}\n", a_request(cards=(0,)), a_node(cards=1))

    assert (report.state, report.reason) == (state, reason)
    assert len(script.calls) == 1
    assert report.message or state == "Succeeded"


SAID = [
    ("This command can be executed only by the root user.", "NotRoot"),
    ("This command cannot be executed on a VM or container.", "NeedsHost"),
    ("This command cannot be executed on a common container.", "NeedsHost"),
    ("This command cannot be executed on a common container or a VM privileged container.", "NeedsHost"),
    ("This command cannot be executed on a VM.", "NeedsHost"),
    ("In the vNPU scenario, this device does not support setting reset.", "VirtualNPU"),
    ("Another user is resetting the NPU(s). Please try again later.", "AnotherReset"),
    ("This device does not support setting reset.", "NotSupported"),
    ("Chip reset is not supported. Please check BMC version and IPMI driver.", "NotSupported"),
    ("Command or option is not found.", "NotSupported"),
    ("Invalid card id.", "WrongCard"),
    ("dcmi module initialize failed. ret is -8005", "NoAccess"),
    ("dcmi model initialized failed, because the device is used. ret is -8020", "CardsBusy"),
    ("npu-smi: error while loading shared libraries: libdrvdsmi_host.so: cannot open shared object file", "NoAccess"),
]


@pytest.mark.parametrize("code", [0, 203])
@pytest.mark.parametrize(("said", "reason"), SAID)
async def test_a_refusal_is_known_by_its_text_whatever_the_exit_status_is(tmp_path: Path, said: str, reason: str, code: int) -> None:
    report, _ = await asked(tmp_path, f"echo '{said}'; exit {code}\n", a_request(cards=(0,)), a_node(cards=1))

    assert (report.state, report.reason, report.exit_code) == ("Refused", reason, code)
    assert report.message.startswith(said)
    assert len(report.message) > len(said) + 10  # what to do about it


async def test_another_reset_is_told_though_this_one_was_announced(tmp_path: Path) -> None:
    body = "risk; field Message 'resetting ...'; echo 'Another user is resetting the NPU(s). Please try again later.'; bad; exit 251\n"

    report, _ = await asked(tmp_path, body)

    assert (report.state, report.reason) == ("Refused", "AnotherReset")


async def test_the_case_of_exit_203_is_a_busy_card_and_not_the_end_of_the_agent(tmp_path: Path) -> None:
    body = 'ask "Are you sure?(Y/N)"; field Status Fail; field Message "the chip is in use (invented wording)"; exit 203\n'

    report, _ = await asked(tmp_path, body, a_request(cards=(0,)), a_node(cards=1))

    assert (report.state, report.reason, report.exit_code) == ("Refused", "CardsBusy", 203)


@pytest.mark.parametrize(
    ("sample", "state"),
    [
        ("reset_950_inband_ok.txt", "Succeeded"),
        ("synthetic_reset_910b_hccs_on.txt", "Succeeded"),
        ("synthetic_reset_a3_all.txt", "Succeeded"),
        ("synthetic_reset_fail.txt", "Failed"),
        ("err_permission_not_root.txt", "Refused"),
        ("err_unknown_subcommand.txt", "Refused"),
        ("err_dcmi_8005_no_device_access.txt", "Refused"),
        ("info_910b3_8card_idle_24.1.rc1.txt", "Failed"),
    ],
)
async def test_recorded_outputs_are_judged(tmp_path: Path, sample: str, state: str) -> None:
    report, _ = await asked(tmp_path, f"cat '{SAMPLES / sample}'\n", a_request(cards=(0,)), a_node(cards=1))

    assert report.state == state


# --- nothing is reset that isn't idle ---------------------------------------------------------------------------------------

NOT_IDLE: list[tuple[Look, str, str]] = [
    (
        with_card(a_node(), 5, holder=HELD),
        "CardsBusy",
        "card 5 is held by pod team-x/notebook-0; a reset here takes cards 0, 1, 2, 3, 4, 5, 6, 7",
    ),
    (with_card(a_node(), 6, pids=(4711, 4712)), "CardsBusy", "card 6 has process 4711, 4712; a reset"),
    (with_card(a_node(), 2, pids=None), "CardsUnknown", "whether processes are on card 2 can't be read"),
    (with_card(a_node(), 2, stale=True), "CardsUnknown", "whether processes are on card 2 can't be read"),
    (a_node(allocations_known=None), "CardsUnknown", "kubelet doesn't say which pods hold cards"),
    (a_node(allocations_known=False), "CardsUnknown", "kubelet doesn't say"),
    (a_node(tool=ToolReport(state="Hanging", message="no answer in 10 s")), "CardsUnknown", "npu-smi is Hanging"),
    (a_node(tool=ToolReport(state="Missing")), "CardsUnknown", "npu-smi is Missing"),
    (TimeoutError("npu-smi"), "CardsUnknown", "TimeoutError('npu-smi')"),
    (a_node(cards=0), "WrongCard", "npu-smi shows no cards 0, 1"),
    (a_node(virtual=True), "VirtualNPU", "remove the vNPUs first"),
]


@pytest.mark.parametrize(("look", "reason", "message"), NOT_IDLE)
async def test_cards_that_are_not_idle_or_not_known_are_not_reset(tmp_path: Path, look: Look, reason: str, message: str) -> None:
    report, script = await asked(tmp_path, A2_HCCS, a_request(), look)

    assert (report.state, report.reason, script.calls) == ("Refused", reason, [])
    assert message in report.message
    assert (report.started, report.ended, report.exit_code) == (None, None, None)


async def test_a_card_beside_the_ones_asked_for_counts_where_the_reset_takes_it_too(tmp_path: Path) -> None:
    node = with_card(a_node("310P"), 3, pids=(1,))

    for name, radius, cards in (("node", "Node", (0,)), ("card", "Card", (2,))):
        report, _ = await asked(tmp_path, ONE_CHIP, a_request(name, radius, cards), node)
        assert (report.reason, report.message[:18]) == ("CardsBusy", "card 3 has process"), radius


async def test_a_holder_outside_the_radius_is_left_alone(tmp_path: Path) -> None:
    report, script = await asked(tmp_path, ONE_CHIP, a_request(radius="Device", cards=(1,)), with_card(a_node(), 5, holder=HELD))

    assert (report.state, script.calls) == ("Succeeded", ["set -t reset -i 1 -c 0 -m 1"])


async def test_hccs_that_is_known_to_be_on_rules_out_one_card_before_npu_smi_is_asked(tmp_path: Path) -> None:
    report, script = await asked(tmp_path, ONE_CHIP, a_request(radius="Device", cards=(1,)), a_node(hccs=True))

    assert (report.reason, script.calls) == ("HccsOn", [])


async def test_a_card_that_fell_off_the_bus_does_not_keep_the_node_from_its_reset(tmp_path: Path) -> None:
    node = with_card(a_node(missing=(7,)), 7, health="Unknown", stale=True, pids=None)

    whole, _ = await asked(tmp_path, A2_HCCS, a_request("whole"), node)
    one, _ = await asked(tmp_path, A2_HCCS, a_request("one", "Device", (7,)), node)

    assert (whole.state, one.reason, one.message) == ("Succeeded", "WrongCard", "npu-smi shows no card 7")


async def test_a_card_that_fell_off_the_bus_under_a_pod_keeps_the_node_from_its_reset(tmp_path: Path) -> None:
    node = with_card(a_node(missing=(7,)), 7, health="Unknown", stale=True, pids=None, holder=HELD)

    report, script = await asked(tmp_path, A2_HCCS, a_request(), node)

    assert (report.state, script.calls) == ("Refused", [])


# --- several cards ----------------------------------------------------------------------------------------------------------

FAILS_ON_1 = 'risk; work; case "$*" in *"-i 1 "*) bad; exit 251 ;; esac; good\n'


async def test_where_npu_smi_does_not_take_all_at_once_each_card_has_its_command(tmp_path: Path) -> None:
    report, script = await asked(tmp_path, ONE_CHIP, a_request(cards=(0, 1, 2, 3)), a_node(cards=4))

    assert (report.state, report.exit_code) == ("Succeeded", 0)
    assert script.calls == [f"set -t reset -i {npu} -c 0 -m 1" for npu in range(4)]


async def test_one_card_that_fails_does_not_keep_the_others_from_their_reset(tmp_path: Path) -> None:
    report, script = await asked(tmp_path, FAILS_ON_1, a_request(cards=(0, 1, 2, 3)), a_node(cards=4))

    assert (report.state, report.reason, report.exit_code, script.resets) == ("Failed", "ToolFailed", 251, 4)
    assert report.message == (
        "NPU 0 chip 0: Reset server successfully.; NPU 1 chip 0: Failed to reset server; "
        "NPU 2 chip 0: Reset server successfully.; NPU 3 chip 0: Reset server successfully."
    )


async def test_a_process_that_appears_between_two_cards_ends_it(tmp_path: Path) -> None:
    busy = with_card(a_node(cards=4), 3, pids=(99,))

    report, script = await asked(tmp_path, ONE_CHIP, a_request(cards=(0, 1, 2, 3)), a_node(cards=4), a_node(cards=4), busy)

    assert (report.state, report.reason, script.resets) == ("Failed", "CardsBusy", 2)


async def test_a_refusal_that_holds_for_every_card_is_heard_once(tmp_path: Path) -> None:
    report, script = await asked(tmp_path, "echo 'This command cannot be executed on a VM.'; exit 214\n")

    assert (report.state, report.reason, len(script.calls)) == ("Refused", "NeedsHost", 1)


# --- with -c or without -----------------------------------------------------------------------------------------------------

NO_CHIP = 'case "$*" in *" -c "*) echo "Error parameter of -c"; exit 215 ;; esac; risk; work; good card\n'
WANTS_CHIP = 'case "$*" in *" -c "*) risk; work; good chip ;; *) echo "Must input parameter of chip id."; exit 215 ;; esac\n'


@pytest.mark.parametrize(
    ("body", "product", "calls"),
    [
        (NO_CHIP, "950", ["set -t reset -i 2 -m 1"]),
        (NO_CHIP, None, ["set -t reset -i 2 -c 0 -m 1", "set -t reset -i 2 -m 1"]),
        (WANTS_CHIP, "A2", ["set -t reset -i 2 -c 0 -m 1"]),
        (WANTS_CHIP, "950", ["set -t reset -i 2 -m 1", "set -t reset -i 2 -c 0 -m 1"]),
    ],
)
async def test_the_chip_is_named_where_npu_smi_wants_it(tmp_path: Path, body: str, product: str | None, calls: list[str]) -> None:
    node = a_node().model_copy(update={"product": product})

    report, script = await asked(tmp_path, body, a_request(radius="Device", cards=(2,)), node)

    assert (report.state, script.calls, script.resets) == ("Succeeded", calls, 1)


async def test_one_chip_of_two_is_never_reset_by_a_command_that_takes_both(tmp_path: Path) -> None:
    report, script = await asked(tmp_path, NO_CHIP, a_request(radius="Device", cards=(2,)), a_node("A3"))

    assert (report.state, report.reason, script.resets) == ("Refused", "NotSupported", 0)


async def test_without_npu_smi_it_is_refused(tmp_path: Path) -> None:
    report = await an_agent(tmp_path, tmp_path / "no-such-file").handle(a_request())
    (tmp_path / "npu-smi").write_text("not a program")
    other = await an_agent(tmp_path, tmp_path / "npu-smi").handle(a_request("r2"))
    third = await an_agent(tmp_path, tmp_path / "no-such-file", before=("env", "LC_ALL=C")).handle(a_request("r3"))

    assert [(each.state, each.reason) for each in (report, other, third)] == [("Refused", "ToolMissing")] * 3
    assert "no-such-file" in third.message


async def test_the_report_names_the_command_without_what_finds_it_on_the_host(tmp_path: Path) -> None:
    script = Script.write(tmp_path, ONE_CHIP)

    report = await an_agent(tmp_path, script, a_node(cards=1), before=("env", "SECRET=1")).handle(a_request(cards=(0,)))

    assert (report.state, report.output.splitlines()[0]) == ("Succeeded", f"$ {script.path} set -t reset -i 0 -c 0 -m 1")


async def test_cards_for_which_no_time_is_left_are_not_begun(tmp_path: Path) -> None:
    body = "risk; work; sleep 0.1; good\n"

    report, script = await asked(tmp_path, body, a_request(cards=(0, 1, 2, 3)), a_node(cards=4), patience=replace(QUICK, limit=0.25))

    assert (report.state, report.reason) == ("Failed", "TimedOut")
    assert 1 <= len(script.calls) < 4
