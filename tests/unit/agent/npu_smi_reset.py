"""Scripts that behave like `npu-smi set -t reset`, as its source has it (npu_chip_set.c, npu_set_print.c), and facts of idle nodes.

Each call is written down beside the script, so a test sees what was called, what was answered and what was really reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from glm5_operator.agent.reset import Resets
from glm5_operator.agent.terminal import Patience
from glm5_operator.api.node import ResetReport, ResetRequest
from glm5_operator.api.node_facts import CardReport, Holder, NodeFactsReport, ToolReport

QUICK = Patience(limit=20.0, settle=0.01, quiet=10.0, ending=2.0, poll=0.002)
"""For scripts that answer at once; the limits only end a test that would hang."""

PRELUDE = """\
#!/bin/sh
here=${0%/*}
echo "$*" >> "$here/calls"
field() { printf '\\t%-30s : %s\\n' "$1" "$2"; }
ask() {
  echo "$1"
  read -r word || word=EOF
  echo "$word" >> "$here/answers"
  case $word in [Yy]) ;; *) field Status Fail; field Message "User aborts reset server by inband."; exit 200 ;; esac
}
risk() {
  echo "Resetting the standard PCIe card or NPU chip may cause a system hang or abnormal reset during service running."
  ask "Are you sure you want to continue resetting?(Y/N)"
}
work() { field Message "resetting (about ${1:-150} seconds) ..."; echo "$*" >> "$here/resets"; }
good() { field Status OK; field Message "Reset ${1:-server} successfully."; }
bad() { field Status Fail; field Message "Failed to reset ${1:-server}"; }
"""

A2_HCCS = """\
risk
ask "It's AMP mode, but hccs is on, it will reboot all devices, do you want to continue reboot? [y/n]"
work 150; good
"""
A3 = """\
risk
ask "It will reboot all devices, do you want to continue reboot? [y/n]"
work 360; good
"""
DUO = """\
risk
ask "It's SMP mode, it will reboot all devices in this SMP system, do you want to continue reboot? [y/n]"
work; good chip
"""
ONE_CHIP = "risk; work; good\n"
"""A2 with HCCS off, 950: what is named is reset, and nothing is asked about others."""


@dataclass(frozen=True)
class Script:
    """One that stands in for npu-smi."""

    path: Path

    @classmethod
    def write(cls, folder: Path, body: str, *, prelude: str = PRELUDE) -> Script:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "npu-smi"
        path.write_text(prelude + body)
        path.chmod(0o755)
        return cls(path)

    def _lines(self, name: str) -> list[str]:
        file = self.path.parent / name
        return file.read_text().splitlines() if file.exists() else []

    @property
    def calls(self) -> list[str]:
        """Arguments of each call."""
        return self._lines("calls")

    @property
    def answers(self) -> list[str]:
        """What was typed to it."""
        return self._lines("answers")

    @property
    def resets(self) -> int:
        """How often it has come so far that cards are reset."""
        return len(self._lines("resets"))


def a_node(product: str = "A2", cards: int = 8, **changes: object) -> NodeFactsReport:
    """A node with idle cards; on A3 and 310P two chips an NPU."""
    chips = 2 if product in {"A3", "310P"} else 1
    fields: dict[str, object] = {
        "observed_at": "2026-11-30T10:00:00Z",
        "tool": ToolReport(state="Working"),
        "cards": tuple(CardReport(physical=i, npu=i // chips, chip=i % chips, health="OK", pids=()) for i in range(cards)),
        "product": product,
        "allocations_known": True,
        **changes,
    }
    return NodeFactsReport.model_validate(fields)


def with_card(node: NodeFactsReport, physical: int, **changes: object) -> NodeFactsReport:
    """The same node with one card changed."""
    cards = tuple(card.model_copy(update=changes) if card.physical == physical else card for card in node.cards)
    return node.model_copy(update={"cards": cards})


def a_request(
    name: str = "r1", radius: str = "Node", cards: tuple[int, ...] | None = None, deadline: str = "2026-11-30T10:10:00Z"
) -> ResetRequest:
    """One that the operator could have written at 10:00."""
    return ResetRequest.model_validate({"id": name, "radius": radius, "cards": cards or tuple(range(8)), "deadline": deadline})


HELD = Holder(namespace="team-x", pod="notebook-0")
TEN = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
Look = NodeFactsReport | Exception


def an_agent(
    folder: Path,
    script: Script | Path,
    *looks: Look,
    patience: Patience = QUICK,
    now: Callable[[], datetime] = lambda: TEN,
    changed: Callable[[], None] = lambda: None,
    before: Sequence[str] = (),
) -> Resets:
    """The readings come one after the other; the last one stays."""
    left = list(looks or (a_node(),))

    async def look() -> NodeFactsReport:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    path = script.path if isinstance(script, Script) else script
    return Resets(folder / "state", look, command=(*before, str(path)), now=now, patience=patience, changed=changed)


async def asked(
    folder: Path, body: str, request: ResetRequest | None = None, *looks: Look, patience: Patience = QUICK
) -> tuple[ResetReport, Script]:
    script = Script.write(folder, body)
    return await an_agent(folder, script, *looks, patience=patience).handle(request or a_request()), script


async def until(seen: Callable[[], Sequence[object] | bool], what: str) -> None:
    """Wait for something that another task or process does."""
    try:
        async with asyncio.timeout(10):
            while not seen():  # noqa: ASYNC110  a file or another process has no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"{what} didn't come in 10 s")
