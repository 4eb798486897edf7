"""What is measured, one function a part; each runs in a process of its own and returns figures as lists, one value a repetition.

`Size` says how much of it: the full one for figures, the tiny one for the test that every part runs.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.health.cluster import CARDS, SPACE, Bench, running
from benchmarks.health.node import Kubelets, NpuNode, wait_for_facts
from benchmarks.health.steady import Steady, write_for_a_while
from benchmarks.process import Usage, family_rss_mb
from tests.support.agents import Agent
from tests.support.kube import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.kube import Json

Figures = dict[str, list[float]]
WRITERS = 16
"""Threads that play agents of a storm."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    agent_seconds: float = 120.0
    agent_settles: float = 20.0
    """Before the agent's use counts: what a start costs is paid once."""
    walks: int = 20
    walk_nodes: int = 3
    steady_nodes: int = 2000
    steady_seconds: float = 120.0
    storm_nodes: int = 200
    replicas: int = 2


TINY = Size(agent_seconds=3, agent_settles=2, walks=1, steady_nodes=12, steady_seconds=3, storm_nodes=4)


def agent(bench: Bench, size: Size) -> Figures:
    """What one agent needs on an A3 node of 16 dies, with its usual settings: polls each 2 s, a full reading each 10 s."""
    bench.kube.create({"kind": "AscendNode", "metadata": {"name": "a3-0"}, "spec": {}})
    node = NpuNode.start("a3-0", "A3", bench.folder / "a3-0", bench.server)
    try:
        wait_for_facts(bench.kube, node)
        time.sleep(size.agent_settles)
        before, begin, most = node.usage, time.monotonic(), 0.0
        while (seconds := time.monotonic() - begin) < size.agent_seconds:
            most = max(most, family_rss_mb(node.agent.pid))
            time.sleep(0.02)  # its calls of npu-smi take a few tens of milliseconds
        after = node.usage
        node.check()
    finally:
        node.end()
    own, tools = after.cpu - before.cpu, after.children_cpu - before.children_cpu
    return {
        "agent_rss_mb": [max(most, after.peak_mb)],
        "agent_cpu": [(own + tools) / seconds],
        "without the tools, MB": [after.peak_mb],
        "without the tools, cores": [own / seconds],
    }


def walk(bench: Bench, size: Size) -> Figures:
    """A fault at its source, to the replica out of its endpoints, to the reset asked for, to the capacity back; again and again."""
    names = bench.pool(size.walk_nodes)
    with ExitStack() as stack:
        nodes = {name: NpuNode.start(name, "A2", bench.folder / name, bench.server, hccs=True) for name in names}
        for node in nodes.values():
            stack.callback(node.end)
        stack.enter_context(Kubelets(bench.kube, list(nodes.values())))
        for node in nodes.values():
            wait_for_facts(bench.kube, node)
        bench.services(1, size.replicas)
        found = [one_walk(bench, nodes, number % CARDS) for number in range(size.walks)]
    quiesce = sorted(each["quiesce"] for each in found)
    return {
        "quiesce_p99_s": [quiesce[math.ceil(0.99 * len(quiesce)) - 1]],
        "reset_requested_s": [each["asked"] - each["drain"] for each in found],
        "back_s": [each["back"] for each in found],
        "fault to out of the endpoints, s": quiesce,
        "drain, s": [each["drain"] for each in found],
        "fault to capacity back, s": [each["whole"] for each in found],
    }


def one_walk(bench: Bench, nodes: Mapping[str, NpuNode], card: int) -> dict[str, float]:
    """Seconds of each way; the drain is from out of traffic to the pod's end. The service must always have an endpoint."""
    settle(bench, nodes)
    sick = nodes[sorted(bench.endpoints()["s0"])[0]]
    begin = time.monotonic()
    sick.fail(card)
    quiesce = took(bench, begin, "the replica to leave its endpoints", lambda: sick.name not in bench.endpoints()["s0"])
    gone = took(bench, begin, "the pod to end", lambda: not held(bench, sick.name))
    asked = took(bench, begin, "the reset to be asked for", lambda: bool(spec_of(bench, sick.name).get("reset")))
    well = took(bench, begin, "the cards to be well", lambda: sick.well)
    whole = took(bench, begin, "the node to be back", lambda: bench.remedies()[sick.name] == "Healthy" and not tainted(bench, sick.name))
    return {"quiesce": quiesce, "drain": gone - quiesce, "asked": asked, "back": whole - well, "whole": whole}


def settle(bench: Bench, nodes: Mapping[str, NpuNode]) -> None:
    """Until all is well and the service is whole."""

    def quiet() -> bool:
        for node in nodes.values():
            node.check()
        serves = bench.kube.condition(SPACE, "s0").get("reason") == "Serving"
        return serves and len(bench.endpoints()["s0"]) == 2 and set(bench.remedies().values()) == {"Healthy"}

    until("all to be well", quiet, 120, bench.told, 0.1)


def took(bench: Bench, begin: float, what: str, done: Callable[[], bool]) -> float:
    """Seconds since `begin` when it is done."""

    def looked() -> bool:
        assert bench.endpoints().get("s0"), "the service has lost its last endpoint"
        return done()

    until(what, looked, 120, bench.told, 0.02)
    return time.monotonic() - begin


def held(bench: Bench, node: str) -> bool:
    """Whether a pod of the service is on it."""
    return any(pod["spec"].get("nodeName") == node for pod in bench.kube.list("Pod", SPACE))


def spec_of(bench: Bench, node: str) -> Json:
    """What the operator asks of that node's agent."""
    found: Json = bench.kube.get("AscendNode", "", node).get("spec") or {}
    return found


def tainted(bench: Bench, node: str) -> bool:
    """Whether the remedy keeps pods away from it."""
    return any(taint["key"] == "glm5.dev/health" for taint in bench.kube.get("Node", "", node)["spec"].get("taints") or ())


def steady(bench: Bench, size: Size) -> Figures:
    """Writes to AscendNodes, by agents and operator, while many nodes work and nothing is wrong."""
    names = bench.pool(size.steady_nodes)
    fleet = Steady(names)
    write_for_a_while(bench.server, fleet, first=True)
    settled(bench, size)
    bench.log.since_last()
    before, begin = bench.operator.usage(), time.monotonic()
    counted = write_for_a_while(bench.server, fleet, seconds=size.steady_seconds)
    seconds, after = time.monotonic() - begin, bench.operator.usage()
    settled(bench, size)
    requests = {key: count for key, count in bench.log.since_last().items() if key[1].startswith("ascendnodes")}
    return {
        "node_writes_s": [sum(requests.values()) / seconds],
        "writes of agents, 1/s": [counted / seconds],
        "operator, cores": [(after.cpu - before.cpu) / seconds],
        "operator, MB": [Usage.of(bench.operator.pid).rss_mb],
    }


def settled(bench: Bench, size: Size) -> None:
    """Until the operator has worked off what it was told."""
    names = ("glm5_operator_queue_depth", "glm5_operator_queue_running")
    until("an idle operator", lambda: not sum(map(bench.operator.total, names)), 120 + size.steady_nodes / 5, bench.told, 0.2)


class Told(Agent):
    """An agent that is told who holds its cards, instead of looking for each write."""

    held: Mapping[int, Json] = {}

    def holders(self) -> Mapping[int, Json]:
        """As told."""
        return self.held


def storm(bench: Bench, size: Size) -> Figures:
    """Faults on many nodes at once, in a pool of many more: until the operator has decided on each, and no service without an endpoint."""
    agents = {name: Told(bench.kube, name, cards=CARDS) for name in bench.pool(size.steady_nodes)}
    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(Told.say, agents.values()))
        bench.services(size.storm_nodes // size.replicas, size.replicas)
        held_by = {pod["spec"]["nodeName"]: pod["metadata"] for pod in bench.kube.list("Pod", SPACE) if pod["spec"].get("nodeName")}
        for name, pod in held_by.items():
            agents[name].held = {card: {"namespace": SPACE, "pod": pod["name"], "container": "engine"} for card in range(CARDS)}
        list(threads.map(lambda name: agents[name].say(), held_by))
        until("all nodes to be well", lambda: set(bench.remedies().values()) == {"Healthy"}, 120 + size.steady_nodes / 5, bench.told, 0.5)
        settled(bench, size)
        used, begin = bench.operator.usage().cpu, time.monotonic()
        list(threads.map(lambda name: agents[name].ill(3), held_by))
        least = [wait_decided(bench, list(held_by))]
    seconds = time.monotonic() - begin
    settled(bench, size)
    least.append(min(len(nodes) for nodes in bench.endpoints().values()))
    assert min(least) >= 1, "a service has lost its last endpoint"
    return {
        "storm_s": [seconds],
        "nodes with a fault": [float(len(held_by))],
        "nodes of the pool": [float(len(agents))],
        "operator, CPU s": [bench.operator.usage().cpu - used],
        "endpoints of a service, at least": [float(min(least))],
    }


def wait_decided(bench: Bench, names: list[str]) -> int:
    """Until no node is Healthy any more; returns the fewest endpoints that a service had meanwhile."""
    least: list[int] = []

    def decided() -> bool:
        least.append(min(len(nodes) for nodes in bench.endpoints().values()))
        states = bench.remedies()
        return all(states[name] not in {"", "Healthy"} for name in names)

    until("a decision on every node", decided, 300, bench.told, 0.5)
    return min(least)


PARTS: dict[str, Callable[[Bench, Size], Figures]] = {"agent": agent, "walk": walk, "steady": steady, "storm": storm}


def main(names: list[str], size: Size) -> None:
    """Print the figures of each part as a line of JSON."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the control plane and the agents end too
    for name in names:
        with tempfile.TemporaryDirectory(prefix="glm5-bench-") as folder, running(Path(folder)) as bench:
            print(json.dumps(PARTS[name](bench, size)), flush=True)


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if not word.startswith("-")], TINY if "--tiny" in sys.argv else Size())
