"""The vendor's tools for tests of the node agent: programs on a PATH of their own that answer from files, and answers without processes.

Real in a `ToolFolder`: processes, exit codes, signals. Faked: what they print, which is text of real machines (tests/fixtures/npu-smi).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from glm5_operator.agent.collect import Collector
from glm5_operator.agent.host import Host
from glm5_operator.agent.rare import Rare
from glm5_operator.agent.runner import Answer, End, Runner
from glm5_operator.agent.settings import AgentSettings, Every, Node, Tool

TEXTS = Path(__file__).parents[1] / "fixtures" / "npu-smi"
NO_SUCH_TYPE = "Error parameter of -t\nUsage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]\n"

_SCRIPT = """#!/bin/sh
here=${0%/*}
name=$(echo "${0##*/} $*" | tr ' ' '_')
echo "${0##*/} $*" >> "$here/calls"
[ -f "$here/$name.err" ] && cat "$here/$name.err" >&2
[ -f "$here/$name.out" ] || { echo "Error parameter of -t"; exit 1; }
cat "$here/$name.out"
[ -f "$here/$name.sh" ] && . "$here/$name.sh"
exit "$(cat "$here/$name.exit" 2>/dev/null || echo 0)"
"""


def text(name: str) -> str:
    """One of the outputs of real machines."""
    return (TEXTS / name).read_text()


@dataclass(frozen=True)
class ToolFolder:
    """npu-smi and hccn_tool in one folder."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> ToolFolder:
        folder.mkdir()
        for name in ("npu-smi", "hccn_tool"):
            (folder / name).write_text(_SCRIPT)
            (folder / name).chmod(0o755)
        return cls(folder)

    def answer(self, command: str, output: str, *, error: str = "", code: int = 0, then: str = "") -> None:
        """What `command` prints from now on; `then` is shell that runs after it has printed."""
        file = self.folder / command.replace(" ", "_")
        for suffix, content in ((".err", error), (".sh", then), (".exit", str(code))):
            Path(f"{file}{suffix}").write_text(content)
        Path(f"{file}.out").write_text(output)

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def tool(self) -> Tool:
        return Tool(path=f"{self.folder}:/usr/bin:/bin")


def exited(output: str = "", *, error: str = "", code: int = 0) -> Answer:
    return Answer(End.EXITED, output, error, code)


def hung(command: str = "npu-smi info") -> Answer:
    return Answer(End.TIMED_OUT, why=f"`{command}` gave no answer within 15 s")


@dataclass
class ScriptedRunner(Runner):
    """Answers at once, and keeps what was asked."""

    node: Node = field(default_factory=Node)
    tool: Tool = field(default_factory=Tool)
    answers: dict[str, Answer | Callable[[], Answer]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fallback: Answer | Callable[[], Answer] = field(default_factory=lambda: exited(NO_SUCH_TYPE, code=1))
    """Of what isn't in `answers`."""
    before: dict[str, Callable[[str], Awaitable[None]]] = field(default_factory=dict)
    """What a command waits for until it answers."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each call."""

    async def run(self, *argv: str, limit: float, key: str | None = None) -> Answer:
        command = " ".join(argv)
        self.asked.append(command)
        self.news.set()
        if command in self.before:
            await self.before[command](command)
        answer = self.answers.get(command, self.fallback)
        return answer if isinstance(answer, Answer) else answer()


@dataclass
class Bench:
    """A collector on scripted tools and an empty host."""

    runner: ScriptedRunner
    collector: Collector
    rare: Rare
    settings: AgentSettings

    @classmethod
    def at(cls, folder: Path, table: str = "", **every: float) -> Bench:
        settings = AgentSettings(
            node=Node(name="node-1", root=str(folder / "host"), state=str(folder / "state")),
            every=Every(**every),
        )
        runner = ScriptedRunner()
        if table:
            runner.answers["npu-smi info"] = exited(text(table))
        host = Host(folder / "host")
        rare = Rare(settings, runner, host)
        return cls(runner, Collector(settings, runner, host, rare), rare, settings)

    def again(self) -> Bench:
        """The agent after a restart on the same node."""
        host = Host(Path(self.settings.node.root))
        rare = Rare(self.settings, self.runner, host)
        return Bench(self.runner, Collector(self.settings, self.runner, host, rare), rare, self.settings)
