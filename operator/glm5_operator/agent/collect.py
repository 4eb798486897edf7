"""What npu-smi and kubelet say, as one NodeFactsReport. Called by `loop` for each poll; keeps what was known when it can't be read again.

One call, `npu-smi info`, tells health, heat, memory and processes of all cards. Single cards are asked only for the codes of a fault, once
its health has been told, and all of them one by one while the whole table hangs, so that one stuck card doesn't hide the others. What is
asked rarely is in `rare`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from glm5_operator.agent import fields
from glm5_operator.agent.podresources import SOCKET, Allocations, PodResourcesError, allocations
from glm5_operator.agent.runner import End
from glm5_operator.api.node_facts import MOST_CARDS, MOST_CODES, MOST_PROBLEMS, CardReport, NodeFactsReport, ToolReport
from glm5_operator.health.sources.npusmi import parse_health, parse_info, parse_map, parse_process_memory
from glm5_operator.health.sources.npusmi.identify import physical_ids
from glm5_operator.health.sources.npusmi.readings import Layout
from glm5_operator.health.sources.npusmi.report import card_report
from glm5_operator.health.sources.reading import ToolErrorKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5_operator.agent.host import Host
    from glm5_operator.agent.rare import Rare
    from glm5_operator.agent.runner import Answer, Runner
    from glm5_operator.agent.settings import AgentSettings
    from glm5_operator.health.sources.npusmi.readings import CardMap, HealthReading, InfoTable

NPU_SMI: Final = "npu-smi"
KEEP: Final = 60.0
"""Seconds for which a card that can't be read keeps its last health, marked stale; then it is Unknown."""
ONE_BY_ONE: Final = 60.0
"""Seconds for which cards are asked singly after the table hung, before it is tried again."""
ASIDE: Final = 30.0
"""Seconds for which a card that hung isn't asked again."""
MOST_PIDS: Final = 64
"""Processes of a card that are told."""
AT_ONCE: Final = 4
"""Cards asked side by side."""

log = logging.getLogger(__name__)
Chip = tuple[int, int]
"""NPU id and chip, which is what npu-smi asks for."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one poll found, but for what is remembered anyway."""

    observed_at: str
    tool: ToolReport
    cards: tuple[CardReport, ...]
    missing: tuple[int, ...]
    problems: list[str]


@dataclass(slots=True)
class _Memory:
    """What is remembered from one poll to the next; `seen` and `product` also over restarts, while `kept` in the file."""

    cards: dict[int, CardReport] = field(default_factory=dict)
    read_at: dict[int, float] = field(default_factory=dict)
    seen: dict[int, Chip] = field(default_factory=dict)
    product: str | None = None
    kept: bool = False
    table: InfoTable | None = None
    mapping: CardMap | None = None
    mapped: frozenset[Chip] | None = None
    coded: dict[int, str] = field(default_factory=dict)
    codes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    code_problems: dict[int, str] = field(default_factory=dict)
    owed: dict[int, CardReport] = field(default_factory=dict)
    last: _Reading | None = None
    processes: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    allocations: Allocations | None = None
    allocation_problem: str = ""
    full_at: float | None = None
    one_by_one_until: float = 0.0
    aside_until: dict[int, float] = field(default_factory=dict)
    hung: str = ""


class Collector:
    """Reads the node's cards."""

    def __init__(self, settings: AgentSettings, runner: Runner, host: Host, rare: Rare) -> None:
        self._settings = settings
        self._runner = runner
        self._host = host
        self._rare = rare
        self._file = Path(settings.node.state) / "cards.json"
        seen, product = _load_seen(self._file)
        self._memory = _Memory(seen=seen, product=product, kept=self._file.exists())
        self._turn = asyncio.Lock()

    async def read(self, observed_at: str, now: float, *, full: bool = False, holders: bool = False) -> NodeFactsReport:
        """One reading. The codes of a fault that wasn't there before are owed: `ask_codes` gets them.

        Args:
            observed_at: what the report says of when it is from.
            now: of a clock that only goes forward, in seconds.
            full: ask everything, whenever that was last done.
            holders: ask kubelet who holds which card, whenever that was last done.
        """
        async with self._turn:  # a reset looks for itself beside the polls
            return await self._read(observed_at, now, full=full, holders=holders)

    @property
    def owes_codes(self) -> bool:
        """There are faults whose codes nobody has asked for yet, or not for some time."""
        return bool(self._memory.owed)

    async def ask_codes(self) -> NodeFactsReport | None:
        """Ask for the codes that are owed; the newest reading with them, None where none are.

        Not a part of `read`: a card that hangs when asked would keep the health of all cards back, its own too. A card whose codes can't
        be had is asked again with the next full reading.
        """
        memory, gate = self._memory, asyncio.Semaphore(AT_ONCE)
        owed, memory.owed = memory.owed, {}

        async def ask(card: CardReport) -> None:
            async with gate:
                reading, problem = await self._health(card.npu, card.chip, "codes")
            state = next((item for item in reading.chips if item.at.chip in (card.chip, None)), None) if reading else None
            memory.coded[card.physical] = card.health
            if card.physical in memory.owed and memory.owed[card.physical].health == card.health:
                del memory.owed[card.physical]  # a poll that came meanwhile
            if state is None:
                memory.code_problems[card.physical] = problem
                return
            memory.code_problems.pop(card.physical, None)
            memory.codes[card.physical] = state.codes[:MOST_CODES]

        await asyncio.gather(*(ask(card) for card in owed.values()))
        if not owed or (last := memory.last) is None:
            return None
        cards = tuple(card if card.stale else self._with_codes(card) for card in last.cards)
        memory.cards |= {card.physical: card for card in cards if card.physical in memory.cards}
        memory.last = replace(last, cards=cards)
        return self._report(memory.last)

    async def _read(self, observed_at: str, now: float, *, full: bool, holders: bool) -> NodeFactsReport:
        memory = self._memory
        due = memory.full_at is None or now - memory.full_at >= self._settings.every.full
        tool, table, problems = await self._table(now)
        # A fault is told before kubelet and single cards are asked, which the next poll makes up for.
        full = full or (due and not self._newly_sick(table))
        if table is not None:
            fresh, unnamed = await self._from_table(table, again=full)
            problems += unnamed
        elif memory.hung:
            fresh, problems = await self._singly(now)
            if any(card.stale is None for card in fresh.values()):
                tool = ToolReport(
                    state="Working", message=fields.message(f"cards are asked one by one: {memory.hung}"), version=self._version()
                )
        else:
            fresh = {}
        self._owe_codes(fresh, again=full)
        await self._add_processes(fresh, again=full)
        if full:
            memory.full_at = now
        if full or holders or self._newly_used(fresh):
            await self._ask_kubelet()
        missing = self._absent(table, fresh)
        cards = self._merge(fresh, missing, now)
        self._rare.known(cards, memory.table)
        memory.last = _Reading(observed_at, tool, cards, missing, problems)
        return self._report(memory.last)

    # --- the table ---------------------------------------------------------------------------------------------------------

    async def _table(self, now: float) -> tuple[ToolReport, InfoTable | None, list[str]]:
        """The tool's state, and the table where there is one; `hung` in memory says that cards are to be asked one by one."""
        memory = self._memory
        if memory.hung and now < memory.one_by_one_until:
            return ToolReport(state="Hanging", message=memory.hung, version=self._version()), None, []
        answer = await self._runner.run(NPU_SMI, "info", limit=self._settings.tool.table_timeout)
        memory.hung = ""
        if answer.end is End.MISSING:
            return ToolReport(state="Missing", message=fields.message(answer.why)), None, []
        if answer.end is not End.EXITED:
            memory.hung, memory.one_by_one_until = fields.message(answer.why), now + ONE_BY_ONE
            return ToolReport(state="Hanging", message=fields.message(answer.why), version=self._version()), None, []
        table = parse_info(answer.text)
        problems = [f"npu-smi info: {problem}" for problem in (*table.warnings, *table.problems)]
        if not table.chips:
            return ToolReport(state="Failing", message=_failure(answer, parse_info(answer.said)), version=self._version()), None, problems
        if answer.exit_code:
            problems.append(f"npu-smi info printed a table and exited with {answer.exit_code}")
        memory.table = table
        return ToolReport(state="Working", version=self._version()), table, problems

    async def _from_table(self, table: InfoTable, *, again: bool) -> tuple[dict[int, CardReport], list[str]]:
        """Cards by physical id, and a word on rows of which that can't be told."""
        memory = self._memory
        chips = frozenset((row.npu, row.chip) for row in table.chips)
        new = chips != memory.mapped or (again and memory.mapping is None)
        if new and any(row.physical is None for row in table.chips):
            answer = await self._runner.run(NPU_SMI, "info", "-m", limit=self._settings.tool.call_timeout)
            mapping = parse_map(answer.text) if answer.end is End.EXITED else None
            memory.mapping, memory.mapped = mapping if mapping and mapping.chips else None, chips
        ids = physical_ids(table, memory.mapping, self._host.davinci())
        cards = {
            ids[row.npu, row.chip]: card_report(row, ids[row.npu, row.chip], table) for row in table.chips if (row.npu, row.chip) in ids
        }
        unnamed = [f"NPU {row.npu} chip {row.chip}: its physical id can't be told" for row in table.chips if (row.npu, row.chip) not in ids]
        return cards, unnamed

    # --- single cards ------------------------------------------------------------------------------------------------------

    async def _singly(self, now: float) -> tuple[dict[int, CardReport], list[str]]:
        """Health of each known card by itself, several at a time; one that hangs is left alone for a while."""
        memory = self._memory
        gate = asyncio.Semaphore(AT_ONCE)

        async def ask(physical: int, chip: Chip) -> tuple[int, CardReport | None, str]:
            if now < memory.aside_until.get(physical, 0.0):
                return physical, None, f"card {physical}: npu-smi hung when asked about it"
            async with gate:
                reading, problem = await self._health(*chip, "alone")
            if reading is None:
                memory.aside_until[physical] = now + ASIDE
                return physical, None, f"card {physical}: {problem}"
            state = next((item for item in reading.chips if item.at.chip in (chip[1], None)), None)
            if state is None:
                return physical, None, f"card {physical}: {problem}"
            before = memory.cards.get(physical) or CardReport(physical=physical, npu=chip[0], chip=chip[1], health="Unknown")
            memory.coded[physical] = state.health
            card = CardReport(
                physical=physical,
                npu=chip[0],
                chip=chip[1],
                health=state.health,
                codes=state.codes[:MOST_CODES] or None,
                name=before.name,
                memory_total=before.memory_total,
            )
            return physical, card, ""

        answers = await asyncio.gather(*(ask(physical, chip) for physical, chip in memory.seen.items()))
        cards = {physical: card for physical, card, _ in answers if card is not None}
        return cards, [problem for _, _, problem in answers if problem]

    async def _health(self, npu: int, chip: int, purpose: str) -> tuple[HealthReading | None, str]:
        """`-t health` of a chip; None when npu-smi hangs or is busy with it for the same purpose."""
        words = ("info", "-t", "health", "-i", str(npu))
        narrow = self._chip(chip)
        key = f"npu-smi info -t health, card {npu}.{chip}, {purpose}"
        answer = await self._runner.run(NPU_SMI, *words, *narrow, limit=self._settings.tool.call_timeout, key=key)
        reading = parse_health(answer.text or answer.said)
        if narrow and reading.error is not None and reading.error.kind is ToolErrorKind.INVALID_PARAMETER:
            answer = await self._runner.run(NPU_SMI, *words, limit=self._settings.tool.call_timeout, key=key)
            reading = parse_health(answer.text or answer.said)
        if answer.end is not End.EXITED:
            return None, answer.why
        return reading, reading.error.message if reading.error else "; ".join(str(problem) for problem in reading.problems)

    def _newly_sick(self, table: InfoTable | None) -> bool:
        """A card that was well isn't any more."""
        well = {(card.npu, card.chip) for card in self._memory.cards.values() if card.health == "OK"}
        return table is not None and any(row.health != "OK" and (row.npu, row.chip) in well for row in table.chips)

    def _owe_codes(self, cards: Mapping[int, CardReport], *, again: bool) -> None:
        """Codes of cards that aren't well are owed when health changes, and with each full reading."""
        memory = self._memory
        memory.owed = {}
        for physical, card in cards.items():
            if card.health == "OK":
                for kept in (memory.coded, memory.codes, memory.code_problems):
                    kept.pop(physical, None)
            elif card.codes is not None:
                memory.codes[physical] = card.codes  # asked a moment ago
            elif again or memory.coded.get(physical) != card.health:
                memory.owed[physical] = card

    def _with_codes(self, card: CardReport) -> CardReport:
        """With what was said when it was last asked; codes of an earlier word stand until then."""
        codes = self._memory.codes.get(card.physical) if card.health != "OK" else None
        return card.model_copy(update={"codes": codes or None})

    async def _add_processes(self, cards: dict[int, CardReport], *, again: bool) -> None:
        """Processes of cards of which the table says nothing, as it does where it has no table of processes: with each full reading."""
        memory = self._memory
        for physical, card in cards.items():
            if card.pids is not None:
                memory.processes.pop(physical, None)
                continue
            if again or physical not in memory.processes:
                memory.processes[physical] = await self._processes(card.npu, card.chip)
            cards[physical] = card.model_copy(update={"pids": memory.processes[physical]})

    async def _processes(self, npu: int, chip: int) -> tuple[int, ...] | None:
        """`-t proc-mem` of a chip; None when that can't be read to the last line."""
        words = ("info", "-t", "proc-mem", "-i", str(npu), *self._chip(chip))
        answer = await self._runner.run(NPU_SMI, *words, limit=self._settings.tool.call_timeout)
        reading = parse_process_memory(answer.text)
        if answer.end is not End.EXITED or not reading.complete:
            return None
        pids = tuple(sorted({process.pid for process in reading.processes if process.at.chip in (chip, None)}))[:MOST_PIDS]
        free = any(at.chip in (chip, None) for at in reading.none_on)
        return pids if pids or free else None

    def _chip(self, chip: int) -> tuple[str, ...]:
        """-c and the chip; 950 knows no -c."""
        table = self._memory.table
        return () if table is not None and table.layout is Layout.SPLIT else ("-c", str(chip))

    # --- kubelet -----------------------------------------------------------------------------------------------------------

    def _newly_used(self, cards: Mapping[int, CardReport]) -> bool:
        """A process came onto a card of nobody: most likely of a pod that started since kubelet was asked, and no stranger's."""
        given = self._memory.allocations.holders if self._memory.allocations else {}
        before = {physical for physical, card in self._memory.cards.items() if card.pids}
        return any(card.pids and physical not in given and physical not in before for physical, card in cards.items())

    async def _ask_kubelet(self) -> None:
        socket = str(self._host.path(self._settings.node.kubelet) / SOCKET)
        try:
            self._memory.allocations = await allocations(socket, self._settings.tool.call_timeout, self._settings.node.resources)
            self._memory.allocation_problem = ""
        except PodResourcesError as problem:
            self._memory.allocations = None
            self._memory.allocation_problem = f"kubelet's PodResources: {problem}"

    # --- all of it ---------------------------------------------------------------------------------------------------------

    def _absent(self, table: InfoTable | None, fresh: Mapping[int, CardReport]) -> tuple[int, ...]:
        """Cards that were seen before and aren't in a table that shows all there are; of another table only what was missing before."""
        memory = self._memory
        whole = table is not None and table.whole and len(fresh) == len(table.chips)
        product = table.product.value if table is not None and table.product is not None else memory.product
        if whole and (why := self._other_hardware(product)):
            log.warning(
                "%s: cards that were seen before and aren't there now are forgotten: %s", why, sorted(memory.seen.keys() - fresh.keys())
            )
            memory.seen = {}
        new = {physical: (card.npu, card.chip) for physical, card in fresh.items() if memory.seen.get(physical) != (card.npu, card.chip)}
        known = product if whole or memory.product is None else memory.product
        if table is not None and (new or known != memory.product):
            memory.seen, memory.product = memory.seen | new, known
            memory.kept = _save_seen(self._file, memory.seen, known)
        if whole:
            return tuple(sorted(memory.seen.keys() - fresh.keys()))
        return tuple(sorted(memory.seen.keys() - fresh.keys() - memory.cards.keys()))

    def _other_hardware(self, product: str | None) -> str:
        """Why what was seen before says nothing of what should be there; empty when it does."""
        memory = self._memory
        if memory.product is not None and product != memory.product:
            return f"cards of {product} are where cards of {memory.product} were"
        if memory.kept and not self._file.exists():
            return f"{self._file} was removed"  # as docs/health.md tells whoever takes a card out
        return ""

    def _merge(self, fresh: Mapping[int, CardReport], missing: Iterable[int], now: float) -> tuple[CardReport, ...]:
        """What was read now, and beside it what was known of cards that couldn't be."""
        memory, gone = self._memory, set(missing)
        given = memory.allocations.holders if memory.allocations else {}
        cards = {}
        for physical in sorted(memory.seen.keys() | fresh.keys())[:MOST_CARDS]:
            update: dict[str, object] = {"holder": given.get(physical)}
            if physical in fresh:
                card = self._with_codes(fresh[physical])
                memory.read_at[physical] = now
                update |= self._rare.of(physical)
            else:
                npu, chip = memory.seen[physical]
                card = memory.cards.get(physical) or CardReport(physical=physical, npu=npu, chip=chip, health="Unknown")
                update |= {"stale": True, "pids": None}
                if physical in gone or now - memory.read_at.get(physical, float("-inf")) > KEEP:
                    update |= {"health": "Unknown", "codes": None}
            cards[physical] = card.model_copy(update=update)
        memory.cards = {physical: card for physical, card in cards.items() if physical not in gone}
        return tuple(cards.values())

    def _report(self, reading: _Reading) -> NodeFactsReport:
        memory, given, table = self._memory, self._memory.allocations, self._memory.table
        versions = self._rare.versions
        no_codes = [f"card {physical}: fault codes can't be read: {why}" for physical, why in sorted(memory.code_problems.items())]
        all_problems = [*reading.problems, *no_codes, *self._rare.problems]
        if memory.allocation_problem:
            all_problems.append(memory.allocation_problem)
        if given is not None:
            all_problems += [f"which card is it: {device}" for device in given.unclear]
        return NodeFactsReport(
            observed_at=reading.observed_at,
            tool=reading.tool,
            cards=reading.cards,
            missing=reading.missing or None,
            product=table.product.value if table is not None and table.product is not None else None,
            driver=versions.get("driver") or (fields.word(table.driver) if table is not None else None),
            firmware=versions.get("firmware"),
            cann=versions.get("cann"),
            allocations_known=given is not None and not given.unclear,
            virtual=given.virtual if given is not None else None,
            hccs=self._rare.hccs,
            problems=tuple(fields.message(problem) for problem in dict.fromkeys(all_problems))[:MOST_PROBLEMS] or None,
            host=self._rare.host,
        )

    def _version(self) -> str | None:
        return fields.word(self._memory.table.version) if self._memory.table is not None else None


def _failure(answer: Answer, read: InfoTable) -> str:
    """In the tool's own words, wherever it printed them."""
    words = read.error.message if read.error is not None else " / ".join(line for line in answer.said.splitlines() if line.strip())
    return fields.message(f"exit {answer.exit_code}: {words or 'it printed nothing'}")


def _load_seen(file: Path) -> tuple[dict[int, Chip], str | None]:
    """Cards of earlier lives of the agent, and of which product; a file that can't be read is as none, and told."""
    try:
        kept = json.loads(file.read_text())
        seen = {int(physical): (int(npu), int(chip)) for physical, (npu, chip) in kept["cards"].items()}
        return seen, kept["product"] and str(kept["product"])
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as problem:
        log.warning("%s can't be read, cards that are missing already won't be noticed: %s", file, problem)
        return {}, None


def _save_seen(file: Path, seen: Mapping[int, Chip], product: str | None) -> bool:
    """Whether it is in the file now."""
    draft = file.with_suffix(".draft")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps({"product": product, "cards": {str(physical): chip for physical, chip in sorted(seen.items())}}))
        draft.replace(file)
    except OSError as problem:
        log.warning("%s can't be written, a restarted agent won't notice a missing card: %s", file, problem)
        return False
    return True
