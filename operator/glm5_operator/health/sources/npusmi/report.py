"""A chip's row of `npu-smi info` as an AscendNode's status has it. Called by the agent, and by doctor with collected files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.api.node_facts import CardReport

if TYPE_CHECKING:
    from glm5_operator.health.sources.npusmi.readings import ChipRow, InfoTable


def card_report(row: ChipRow, physical: int, table: InfoTable) -> CardReport:
    """One chip of `npu-smi info`."""
    memory, pids = row.main_memory, table.pids(row.npu, row.chip)
    return CardReport(
        physical=physical,
        npu=row.npu,
        chip=row.chip,
        health=row.health,
        name=row.name[:128] or None,
        temperature=row.temperature,
        power=row.power,
        utilisation=row.utilisation,
        memory_used=memory.used,
        memory_total=memory.total,
        pids=None if pids is None else tuple(sorted(set(pids)))[:64],
    )
