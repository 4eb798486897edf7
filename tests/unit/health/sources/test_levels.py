"""Levels and words as grades: the table of facts, and what nobody knows. Pure."""

from __future__ import annotations

import pytest

from glm5_operator.health.sources.levels import card_grade, code_grade, word_grade
from glm5_operator.health.types import Grade


@pytest.mark.parametrize(
    ("level", "grade", "of_network"),
    [
        ("NotHandleFault", Grade.NOTE, Grade.NOTE),
        ("SubHealthFault", Grade.DEGRADED, Grade.DEGRADED),
        ("RestartRequest", Grade.RESTART_ENGINE, Grade.DEGRADED),
        ("RestartBusiness", Grade.RESTART_ENGINE, Grade.DEGRADED),
        ("FreeRestartNPU", Grade.RESET_WHEN_IDLE, Grade.DEGRADED),
        ("RestartNPU", Grade.RESET, Grade.DEGRADED),
        ("PreSeparateNPU", Grade.NO_NEW_PODS, Grade.DEGRADED),
        ("SeparateNPU", Grade.ISOLATE, Grade.ISOLATE),
        ("ManuallySeparateNPU", Grade.ISOLATE, Grade.ISOLATE),
        ("RestartUniverse", Grade.ISOLATE, Grade.ISOLATE),
        ("", Grade.ISOLATE, Grade.ISOLATE),
        ("restartnpu", Grade.ISOLATE, Grade.ISOLATE),
    ],
)
def test_each_level_has_its_grade_and_an_unknown_one_the_safest(level: str, grade: Grade, of_network: Grade) -> None:
    assert (card_grade(level), card_grade(level, network=True)) == (grade, of_network)


@pytest.mark.parametrize(
    ("word", "grade"),
    [("OK", None), ("Warning", Grade.NOTE), ("Alarm", Grade.RESET), ("Critical", Grade.RESET), ("Unknown", None), ("Wonderful", None)],
)
def test_each_word_of_npu_smi_has_its_grade_and_unknown_is_neither_well_nor_ill(word: str, grade: Grade | None) -> None:
    assert word_grade(word) is grade


@pytest.mark.parametrize(
    ("code", "word", "grade"),
    [
        ("80E18404", "Alarm", Grade.RESET),
        ("80E18402", "Alarm", Grade.ISOLATE),  # HBM has used up its spare rows: no reset helps
        ("80e18402", "Critical", Grade.ISOLATE),
        ("80C98000", "Alarm", Grade.RESET),  # a restart of the engine by its level, but the word says more
        ("81078605", "Warning", Grade.DEGRADED),
        ("80E18404", "Warning", Grade.DEGRADED),  # its level asks for a reset, but Warning alone takes no card out
        ("80E18402", "Warning", Grade.DEGRADED),
        ("80E18401", "Warning", Grade.NOTE),
        ("FFFFFFFF", "Warning", Grade.NOTE),
        ("FFFFFFFF", "Alarm", Grade.RESET),
    ],
)
def test_a_code_says_how_a_word_is_meant_but_never_takes_a_card_out_on_a_warning(code: str, word: str, grade: Grade) -> None:
    assert code_grade(code, word) is grade
