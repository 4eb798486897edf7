"""What a level of MindCluster and a word of npu-smi ask for: the tables of facts/ascend.md §1.6 and §6 as grades.

Used by `view`. A level that nobody knows is graded as the gravest: isolated and told, never reset.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from glm5_operator.health.types import Grade

if TYPE_CHECKING:
    from collections.abc import Mapping

CARD_LEVELS: Final[Mapping[str, Grade]] = MappingProxyType(
    {
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
_AS_IT_IS: Final = frozenset({Grade.NOTE, Grade.ISOLATE})


def card_grade(level: str, *, network: bool = False) -> Grade:
    """What a level of the device plugin asks for. A network fault is never reset: multi-card work avoids the card, or it is isolated."""
    grade = CARD_LEVELS.get(level, Grade.ISOLATE)
    return grade if not network or grade in _AS_IT_IS else Grade.DEGRADED


def word_grade(word: str) -> Grade | None:
    """What npu-smi's health word asks for; None for OK, and for Unknown, which says nothing."""
    return _WORDS.get(word)
