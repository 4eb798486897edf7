"""What a level of MindCluster and a word of npu-smi ask for: the tables of facts/ascend.md §1.6 and §6 as grades.

Used by `view`. A level that nobody knows is graded as the gravest: isolated and told, never reset.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import yaml

from glm5_operator.health.types import GRADES, Grade

if TYPE_CHECKING:
    from collections.abc import Mapping

CARD_LEVELS: Final[Mapping[str, Grade]] = MappingProxyType(
    {
        "NormalNPU": Grade.NOTE,
        "NormalNetwork": Grade.NOTE,
        "NotHandleFault": Grade.NOTE,
        "SubHealthFault": Grade.DEGRADED,
        "RestartRequest": Grade.RESTART_ENGINE,
        "RestartBusiness": Grade.RESTART_ENGINE,
        "FreeRestartNPU": Grade.RESET_WHEN_IDLE,
        "RestartNPU": Grade.RESET,
        "PreSeparateNPU": Grade.NO_NEW_PODS,
        "SeparateNPU": Grade.ISOLATE,
        "ManuallySeparateNPU": Grade.ISOLATE,
    }
)
"""Of the device plugin (`mindx-dl-deviceinfo-*`, fault_handling)."""

HOST_LEVELS: Final[Mapping[str, Grade]] = MappingProxyType(
    {"NotHandleFault": Grade.NOTE, "PreSeparateFault": Grade.NO_NEW_PODS, "SeparateFault": Grade.ISOLATE}
)
"""Of NodeD (`mindx-dl-nodeinfo-*`): processors, memory and disks of the host, so they concern all its cards."""

SWITCH_LEVELS: Final[Mapping[str, Grade]] = MappingProxyType(
    {"NotHandle": Grade.NOTE, "SubHealthFault": Grade.DEGRADED, "RestartRequest": Grade.RESTART_ENGINE, "Separate": Grade.ISOLATE}
)
"""Of the switch inside an A3 or 950 server (`SwitchInfoCfg`)."""

_WORDS: Final[Mapping[str, Grade]] = MappingProxyType({"Warning": Grade.NOTE, "Alarm": Grade.RESET, "Critical": Grade.RESET})
_ALSO_OF_NETWORKS: Final = frozenset({Grade.NOTE, Grade.ISOLATE})


def card_grade(level: str, *, network: bool = False) -> Grade:
    """What a level of the device plugin asks for. A network fault is never reset: multi-card work avoids the card, or it is isolated."""
    grade = CARD_LEVELS.get(level, Grade.ISOLATE)
    return grade if not network or grade in _ALSO_OF_NETWORKS else Grade.DEGRADED


def word_grade(word: str) -> Grade | None:
    """What npu-smi's health word asks for; None for OK, and for Unknown, which says nothing."""
    return _WORDS.get(word)


def code_grade(code: str, word: str) -> Grade:
    """What a code asks for that npu-smi gives with a word that isn't OK.

    The word bounds it: with Warning nothing is done to a card that serves, so at most Degraded; Alarm and Critical ask for a reset at
    least, and for more where the code's level says that no reset helps.
    """
    known, said = _levels().get(code.upper()), _WORDS.get(word, Grade.NOTE)
    if known is None:
        return said
    if said is Grade.NOTE:
        return min(known, Grade.DEGRADED, key=GRADES.index)
    return max(known, said, key=GRADES.index)


@cache
def _levels() -> Mapping[str, Grade]:
    text = resources.files(__package__ or "").joinpath("fault_levels.yaml").read_text(encoding="utf-8")
    return {code: CARD_LEVELS[level] for level, codes in yaml.safe_load(text).items() for code in codes.split()}
