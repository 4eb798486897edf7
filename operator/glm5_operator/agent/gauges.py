"""The node's cards as metrics, for whoever scrapes the port of probes. Called by `loop`.

Each node tells its own: on one page of the operator's the cards of 2,000 nodes would be 128,000 series. Names stand beside npu-exporter's;
the recording rules of the chart (files/alerts.yaml) take that one's where it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest

from glm5_operator.metrics import Column, LiveTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from glm5_operator.api.node_facts import CardReport, NodeFactsReport

_MIB: Final = 2**20
_HEALTH = Column("glm5_card_health", "1 for a card that npu-smi calls OK or Warning, 0 for Alarm, Critical or missing.")
_TEMPERATURE = Column("glm5_card_temperature_celsius", "Temperature; npu-exporter's npu_chip_info_temperature.")
_UTILISATION = Column("glm5_card_utilisation_percent", "AI cores in use; npu-exporter's npu_chip_info_utilization.")
_MEMORY = Column("glm5_card_memory_used_bytes", "HBM in use; npu-exporter's npu_chip_info_hbm_used_memory, which is in MB of 2**20 bytes.")
_WELL: Final = frozenset({"OK", "Warning"})


class CardGauges:
    """Series of the last reading. What wasn't read has none: an old number would look like a new one."""

    def __init__(self, node: str, read: Callable[[], NodeFactsReport | None]) -> None:
        self._node, self._read = node, read
        self._registry = CollectorRegistry()
        self._registry.register(LiveTable((_HEALTH, _TEMPERATURE, _UTILISATION, _MEMORY), ("node", "card"), self._rows))

    def exposition(self) -> bytes:
        """The text format, for /metrics."""
        return generate_latest(self._registry)

    def _rows(self) -> Iterator[tuple[tuple[str, ...], Mapping[str, float]]]:
        facts = self._read()
        if facts is None:
            return
        missing = frozenset(facts.missing or ())
        for card in facts.cards:
            yield (self._node, str(card.physical)), {_HEALTH.name: 0.0} if card.physical in missing else _numbers(card)


def _numbers(card: CardReport) -> dict[str, float]:
    """What isn't known is left out."""
    if card.stale:
        return {}
    found: dict[Column, float | None] = {
        _HEALTH: None if card.health == "Unknown" else card.health in _WELL,
        _TEMPERATURE: card.temperature,
        _UTILISATION: card.utilisation,
        _MEMORY: None if card.memory_used is None else card.memory_used * _MIB,
    }
    return {column.name: float(value) for column, value in found.items() if value is not None}
