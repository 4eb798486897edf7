"""What changes seldom and costs a call a card: RoCE ports, ECC, versions, HCCS, the host. Runs beside the polls, one call at a time.

Called by `loop`; `collect` takes what is known. One question is asked after the other, so that a hanging hccn_tool delays nothing else
and the processes of a minute are spread over it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.agent import fields
from glm5_operator.agent.runner import End
from glm5_operator.health.sources.hccn import parse_address, parse_link, parse_net_health, parse_tls
from glm5_operator.health.sources.npusmi import parse_board, parse_ecc, parse_topology
from glm5_operator.health.sources.npusmi.readings import Layout
from glm5_operator.health.sources.versions import parse_version_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from glm5_operator.agent.host import Host
    from glm5_operator.agent.runner import Runner
    from glm5_operator.agent.settings import AgentSettings
    from glm5_operator.api.node_facts import CardReport, HostReport
    from glm5_operator.health.sources.npusmi.readings import InfoTable

HCCN: Final = "hccn_tool"
DRIVER_FILE: Final = "usr/local/Ascend/driver/version.info"
FIRMWARE_FILE: Final = "usr/local/Ascend/firmware/version.info"
TOOLKIT: Final = "usr/local/Ascend/ascend-toolkit/latest"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Question:
    """One thing to ask, each `period` seconds."""

    name: str
    period: float
    ask: Callable[[], Awaitable[None]]


class Rare:
    """Asks what is due, and remembers the answers."""

    def __init__(self, settings: AgentSettings, runner: Runner, host: Host) -> None:
        self._settings = settings
        self._runner = runner
        self._host = host
        self._cards: dict[int, CardReport] = {}
        self._table: InfoTable | None = None
        self._values: dict[int, dict[str, Any]] = {}
        self._asked: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self._no_hccn = False
        self.versions: dict[str, str | None] = {}
        self.hccs: bool | None = None
        self.host: HostReport | None = None

    @property
    def problems(self) -> list[str]:
        """What couldn't be read, by the newest try."""
        return [self._problems[name] for name in sorted(self._problems)]

    def known(self, cards: tuple[CardReport, ...], table: InfoTable | None) -> None:
        """The cards to ask about from now on: those that could be read."""
        self._cards = {card.physical: card for card in cards if not card.stale}
        self._table = table

    def of(self, physical: int) -> Mapping[str, Any]:
        """Fields of a card's report."""
        return self._values.get(physical, {})

    async def ask_next(self, now: float) -> bool:
        """Ask the question that has waited longest past its time; False when none is due."""
        due = [(self._asked.get(question.name, float("-inf")) + question.period, question) for question in self._questions()]
        if not due:
            return False
        when, question = min(due, key=lambda item: item[0])
        if when > now:
            return False
        self._asked[question.name] = now
        await question.ask()
        return True

    def _questions(self) -> Iterator[_Question]:
        every = self._settings.every
        yield _Question("host", every.rare, self._read_host)
        if not self._cards:
            return
        first = next(iter(self._cards.values()))
        yield _Question("board", every.rare, partial(self._board, first))
        yield _Question("topology", every.rare, self._topology)
        for physical, card in self._cards.items():
            yield _Question(f"ecc {physical}", every.rare, partial(self._ecc, card))
            if self._no_hccn:
                continue
            yield _Question(f"link {physical}", every.link, partial(self._link, physical))
            yield _Question(f"net health {physical}", every.network, partial(self._net_health, physical))
            yield _Question(f"address {physical}", every.rare, partial(self._address, physical))
            yield _Question(f"tls {physical}", every.rare, partial(self._tls, physical))

    # --- files -------------------------------------------------------------------------------------------------------------

    async def _read_host(self) -> None:
        self.host = self._host.report()
        self._no_hccn = False  # the driver may have been installed since
        for name, files in (("driver", (DRIVER_FILE,)), ("firmware", (FIRMWARE_FILE,)), ("cann", self._toolkits())):
            text = next((text for file in files if (text := self._host.text(file)) is not None), None)
            if text is not None:
                self.versions[name] = fields.word(parse_version_file(text).version)
        for physical, card in self._cards.items():
            pcie = self._host.pcie(self._bus(card))
            self._values.setdefault(physical, {}).update(pcie=pcie.now, pcie_most=pcie.most, numa=pcie.numa)

    def _toolkits(self) -> tuple[str, ...]:
        return tuple(f"{TOOLKIT}/{arch}-linux/ascend_toolkit_install.info" for arch in ("aarch64", "x86_64"))

    def _bus(self, card: CardReport) -> str | None:
        rows = self._table.chips if self._table is not None else ()
        return next((row.bus for row in rows if (row.npu, row.chip) == (card.npu, card.chip)), None)

    # --- npu-smi -----------------------------------------------------------------------------------------------------------

    async def _npu_smi(self, name: str, *words: str) -> str | None:
        answer = await self._runner.run("npu-smi", "info", *words, limit=self._settings.tool.call_timeout)
        return self._text(name, answer.end, answer.text, answer.why)

    def _chip(self, card: CardReport) -> tuple[str, ...]:
        narrow = () if self._table is not None and self._table.layout is Layout.SPLIT else ("-c", str(card.chip))
        return ("-i", str(card.npu), *narrow)

    async def _board(self, card: CardReport) -> None:
        text = await self._npu_smi("board", "-t", "board", "-i", str(card.npu))
        if text is not None and (firmware := parse_board(text).firmware):
            self.versions["firmware"] = fields.word(firmware)

    async def _topology(self) -> None:
        text = await self._npu_smi("topology", "-t", "topo")
        if text is not None:
            self.hccs = parse_topology(text).hccs

    async def _ecc(self, card: CardReport) -> None:
        text = await self._npu_smi(f"ecc {card.physical}", "-t", "ecc", *self._chip(card))
        chip = next((item for item in parse_ecc(text).chips if item.at.chip in (card.chip, None)), None) if text is not None else None
        self._set(card.physical, ecc_double=chip.hbm.double if chip is not None and chip.hbm is not None else None)

    # --- hccn_tool ---------------------------------------------------------------------------------------------------------

    async def _hccn(self, name: str, physical: int, *words: str) -> str | None:
        answer = await self._runner.run(
            HCCN, "-i", str(physical), *words, limit=self._settings.tool.call_timeout, key=f"hccn_tool, card {physical}"
        )
        if answer.end is End.MISSING:
            self._no_hccn = True  # looked for again with the host: 310P and 950 have none, and that is no problem
            return None
        return self._text(name, answer.end, answer.text, answer.why)

    async def _link(self, physical: int) -> None:
        text = await self._hccn(f"link {physical}", physical, "-link", "-g")
        self._set(physical, link=None if self._no_hccn else parse_link(text).link if text is not None else "Unknown")

    async def _net_health(self, physical: int) -> None:
        text = await self._hccn(f"net health {physical}", physical, "-net_health", "-g")
        self._set(physical, net_health=fields.word(parse_net_health(text).status) if text is not None else None)

    async def _address(self, physical: int) -> None:
        text = await self._hccn(f"address {physical}", physical, "-ip", "-g")
        self._set(physical, address=fields.word(parse_address(text).address) if text is not None else None)

    async def _tls(self, physical: int) -> None:
        text = await self._hccn(f"tls {physical}", physical, "-tls", "-g")
        self._set(physical, tls=parse_tls(text).enabled if text is not None else None)

    def _set(self, physical: int, **values: object) -> None:
        self._values.setdefault(physical, {}).update(values)

    def _text(self, name: str, end: End, text: str, why: str) -> str | None:
        """What was printed, None when the tool hung or isn't there; that it hung is told until it no longer does."""
        if end is End.EXITED:
            self._problems.pop(name, None)
            return text
        self._problems[name] = why
        return None
