"""Many agents in one process: each node's readings change as those of a working node do, and the agent's own rule says which are written.

Real: the rule (`agent.worth.due`) with its usual settings, the writes (`agent.apiserver`), the API server. Not there: 2,000 processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glm5_operator.agent.apiserver import ApiServer
from glm5_operator.agent.settings import AgentSettings, Api
from glm5_operator.agent.worth import due
from glm5_operator.api.node_facts import CardReport, DeviceNode, Holder, HostReport, NodeFactsReport, ToolReport

if TYPE_CHECKING:
    from benchmarks.health.node import Server

CARDS = 16
"""Dies of an A3 node: the largest report there is."""
READING = 10.0
"""Seconds between two readings of a node. Numbers are worth a write each 60 s at most, so closer ones would change nothing."""
WRITERS = 32
HOT_NODES = 0.05
"""Share of nodes whose cards are above 80 °C, where a few degrees are worth a write."""
HOST = HostReport(
    kernel="5.10.0-216.0.0.115.oe2203sp4.aarch64",
    architecture="aarch64",
    cpu_flags=("asimd", "sve", "bf16", "i8mm"),
    cpus=640,
    numa_nodes=8,
    memory=2_000_000,
    hugepages=0,
    disks=("nvme0n1=3576", "nvme1n1=3576"),
    device_nodes=tuple(DeviceNode(path=f"/dev/davinci{index}", owner="1000:1000", mode="0660") for index in range(CARDS)),
)


@dataclass
class _Node:
    name: str
    hot: bool
    written: NodeFactsReport
    written_at: float
    read_at: float


@dataclass
class Steady:
    """The nodes, and what each has written last."""

    names: list[str]
    seed: int = 1
    nodes: list[_Node] = field(init=False)
    settings: AgentSettings = field(default_factory=AgentSettings)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.nodes = []
        for name in self.names:
            hot = self.random.random() < HOT_NODES
            # As if they had run for long: the last writes are spread over the whole interval, and so are the readings.
            interval = self.settings.every.numbers if hot else self.settings.every.heartbeat
            age, phase = self.random.uniform(0, interval), self.random.uniform(0, READING)
            self.nodes.append(_Node(name, hot, self.reading(hot), -age, phase))

    def reading(self, hot: bool) -> NodeFactsReport:
        """One of a node that works: temperature, power, utilisation and memory waver; nothing is wrong."""
        draw = self.random
        cards = tuple(
            CardReport.model_construct(
                physical=index,
                npu=index // 2,
                chip=index % 2,
                health="OK",
                name="Ascend910",
                temperature=round(draw.gauss(83 if hot else 58, 1)),
                power=round(draw.gauss(310, 20), 1),
                utilisation=draw.randint(40, 100),
                memory_used=61000 + draw.randint(0, 600),
                memory_total=65536,
                pids=(4000 + index,),
                ecc_double=0,
                link="Up",
                net_health="Success",
                address=f"10.20.0.{index + 1}",
                tls=False,
                pcie="32.0 GT/s x16",
                pcie_most="32.0 GT/s x16",
                numa=index // 4,
                holder=Holder(namespace="bench", pod="chat-0"),
            )
            for index in range(CARDS)
        )
        return NodeFactsReport.model_construct(
            observed_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            tool=ToolReport(state="Working", version="25.5.0"),
            cards=cards,
            product="A3",
            driver="25.5.0",
            firmware="7.8.0.2.220",
            allocations_known=True,
            virtual=False,
            hccs=True,
            host=HOST,
        )

    def due(self, node: _Node, now: float) -> NodeFactsReport | None:
        """A reading of that node if the agent would write it. `now` counts from the beginning, seconds."""
        read = self.reading(node.hot)
        if not due((node.written, ()), (read, ()), now - node.written_at, self.settings.every, self.settings.worth):
            return None
        node.written, node.written_at = read, now
        return read

    def ready(self, now: float) -> list[_Node]:
        """Nodes whose next reading has come; the one after that is set."""
        found = [node for node in self.nodes if node.read_at <= now]
        for node in found:
            node.read_at += READING
        return found


def write_for_a_while(server: Server, fleet: Steady, *, first: bool = False, seconds: float = 0.0) -> int:
    """Write what is due for that long, or with `first` every node's report once; returns how many were written."""
    return asyncio.run(_first(server, fleet) if first else _while(server, fleet, seconds))


async def _first(server: Server, fleet: Steady) -> int:
    api, gate = _connect(server), asyncio.Semaphore(WRITERS)
    await asyncio.gather(*(_write(api, gate, node.name, node.written) for node in fleet.nodes))
    await api.close()
    return len(fleet.nodes)


async def _while(server: Server, fleet: Steady, seconds: float) -> int:
    api, gate = _connect(server), asyncio.Semaphore(WRITERS)
    begin, written = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        while (now := time.monotonic() - begin) < seconds:
            for node in fleet.ready(now):
                if (facts := fleet.due(node, now)) is not None:
                    written += 1
                    tasks.create_task(_write(api, gate, node.name, facts))
            await asyncio.sleep(0.05)
    await api.close()
    return written


def _connect(server: Server) -> ApiServer:
    return ApiServer.connect(Api(url=server.url, token=str(server.token), authority=str(server.authority), timeout=60.0), {})


async def _write(api: ApiServer, gate: asyncio.Semaphore, name: str, facts: NodeFactsReport) -> None:
    async with gate:
        await api.write(name, facts, ())
