"""Every raw output that we have is read whole: no line of it is left over, and what its name says of it is found in it."""

import re
from pathlib import Path

import pytest

from glm5_operator.health.sources import npusmi
from glm5_operator.health.sources.npusmi.readings import InfoTable, Layout, ResetOutcome, ResetTranscript
from glm5_operator.health.sources.reading import ToolErrorKind
from tests.unit.health.sources.npusmi.files import FILES, FOLDER, parser_of, text_of

names = [str(path.relative_to(FOLDER)) for path in FILES]

# The vendor's page leaves out rows and says so by "...".
LEFT_OUT = {"info_910a_warning_docsample_23.0.5.txt"}

ERRORS = {
    "err_card_lost_invalid_id.txt": ToolErrorKind.CARD_LOST,
    "err_dcmi_8005_no_device_access.txt": ToolErrorKind.NO_ACCESS,
    "err_dcmi_8020_device_used.txt": ToolErrorKind.IN_USE,
    "err_permission_not_root.txt": ToolErrorKind.NOT_PERMITTED,
    "err_unknown_subcommand.txt": ToolErrorKind.UNKNOWN_COMMAND,
    "cases/dcmi_device_used.stdout": ToolErrorKind.IN_USE,
    "cases/dcmi_init_failed.stdout": ToolErrorKind.NO_ACCESS,
}


def test_there_are_all_the_files() -> None:
    listed = set(re.findall(r"^\| (\S+\.txt) \|", (FOLDER / "README.md").read_text(), re.MULTILINE))

    assert len(listed) > 60
    assert {path.name for path in FOLDER.glob("*.txt")} == listed


@pytest.mark.parametrize("path", FILES, ids=names)
def test_a_file_leaves_no_line_unread(path: Path) -> None:
    name = str(path.relative_to(FOLDER))
    reading = parser_of(path)(path.read_text())

    if name in LEFT_OUT:
        assert {problem.line for problem in reading.problems} == {"..."}
    else:
        assert reading.problems == ()
    assert (reading.error.kind if reading.error else None) == ERRORS.get(name)
    assert reading.complete == (name not in LEFT_OUT and name not in ERRORS)


@pytest.mark.parametrize("path", FILES, ids=names)
def test_windows_line_ends_and_tabs_as_blanks_change_nothing(path: Path) -> None:
    parser, text = parser_of(path), path.read_text()

    assert parser(text.replace("\n", "\r\n")) == parser(text)
    assert parser(text.expandtabs(8)) == parser(text)


@pytest.mark.parametrize("path", FILES, ids=names)
def test_the_driver_librarys_noise_between_the_lines_changes_no_value(path: Path) -> None:
    # In a container without rights on its log level the library says this on standard error, and both streams meet in one file.
    noise = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n"
    parser, text = parser_of(path), path.read_text()
    lines = text.splitlines(keepends=True)
    mixed = "".join(noise + line for line in lines) + noise

    quiet, loud = parser(text), parser(mixed)

    assert loud.error == quiet.error
    assert len(loud.problems) == len(quiet.problems)
    assert _values(loud) == _values(quiet)


def _values(reading: object) -> dict[str, object]:
    return {name: getattr(reading, name) for name in reading.__dataclass_fields__ if name != "problems"}  # type: ignore[attr-defined]


def table(name: str) -> InfoTable:
    return npusmi.parse_info(text_of(name))


@pytest.mark.parametrize(
    ("name", "version", "layout", "cards", "product"),
    [
        ("info_310_2chip_excerpt_23.0.0", "23.0.0", Layout.DEVICE, (2, 2), None),
        ("info_310p3_duo_4card_8chip_25.3.rc1", "25.3.rc1", Layout.DEVICE, (4, 8), "310P"),
        ("info_910a_warning_docsample_23.0.5", "23.0.5", Layout.ONE_CHIP, (2, 2), None),
        ("info_910b2c_16card_loaded_24.1.rc1", "24.1.rc1", Layout.ONE_CHIP, (16, 16), "A2"),
        ("info_910b3_2card_busy_wide_norules_26.x", None, Layout.ONE_CHIP, (2, 2), "A2"),
        ("info_910b3_8card_idle_24.1.rc1", "24.1.rc1.b030", Layout.ONE_CHIP, (8, 8), "A2"),
        ("info_910b4_1card_idle_wide_26.0.rc1", "26.0.rc1", Layout.ONE_CHIP, (1, 1), "A2"),
        ("info_950_pcie_1card_docsample", "x.x.x", Layout.SPLIT, (1, 1), "950"),
        ("info_950dt_8card_idle", None, Layout.SPLIT, (8, 8), "950"),
        ("info_a3_8npu_16die_partial_25.3.rc1", "25.3.rc1", Layout.PHYSICAL_ID, (8, 16), "A3"),
        ("info_a3_container_subset_npu2_24.1.rc3.7", "24.1.rc3.7", Layout.PHYSICAL_ID, (1, 2), "A3"),
        ("synthetic_info_910b3_npu3_missing", "24.1.rc1.b030", Layout.ONE_CHIP, (7, 7), "A2"),
        ("synthetic_info_a3_die1_critical", "25.3.rc1", Layout.PHYSICAL_ID, (8, 16), "A3"),
    ],
)
def test_a_table_has_the_cards_and_chips_that_its_name_says(
    name: str, version: str | None, layout: Layout, cards: tuple[int, int], product: str | None
) -> None:
    found = table(name)

    assert (found.version, found.layout) == (version, layout)
    assert (len({row.npu for row in found.chips}), len(found.chips)) == cards
    assert found.product == product


@pytest.mark.parametrize(
    ("name", "outcome", "whole_node", "asked"),
    [
        ("reset_950_inband_ok", ResetOutcome.SUCCEEDED, False, 1),
        ("synthetic_reset_910b_hccs_on", ResetOutcome.SUCCEEDED, True, 2),
        ("synthetic_reset_a3_all", ResetOutcome.SUCCEEDED, True, 2),
        ("synthetic_reset_fail", ResetOutcome.FAILED, True, 2),
        ("cases/set_refused_exit_203.stdout", ResetOutcome.REFUSED, False, 1),
    ],
)
def test_a_transcript_says_how_the_reset_went(name: str, outcome: ResetOutcome, whole_node: bool, asked: int) -> None:
    transcript: ResetTranscript = npusmi.parse_reset(text_of(name))

    assert (transcript.outcome, transcript.whole_node, transcript.asked) == (outcome, whole_node, asked)
    assert not transcript.unanswered
