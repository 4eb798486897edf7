"""NPU nodes of the benchmark: fake cards and a fake kubelet socket, and the real node agent as a process on each.

Real: the agent, its calls of npu-smi (processes that print real layouts), gRPC over kubelet's socket, the reset with its questions.
Faked: the cards behind npu-smi, and kubelet's answer, which follows the pods that the API server has on the node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks.process import Usage
from tests.cluster.devices import NodeDevices
from tests.cluster.nodes import RESOURCE
from tests.cluster.processes import free_ports
from tests.cluster.shell import wait_for
from tests.cluster.tools import tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.kube import Kube

DRIVER = "25.5.0"
"""New enough for the engine of the benchmark's services: on an older one they wouldn't start."""


@dataclass(frozen=True, slots=True)
class Server:
    """The API server as an agent reaches it: address, file with the authority, file with the token."""

    url: str
    authority: Path
    token: Path


@dataclass
class NpuNode:
    """One node with its agent."""

    name: str
    folder: Path
    agent: subprocess.Popen[bytes]
    kubelet: subprocess.Popen[bytes]
    _given: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def start(cls, name: str, product: str, folder: Path, server: Server, *, hccs: bool = False) -> Self:
        """Put the node there and start its agent; with `hccs` a reset of one A2 card takes all."""
        programs, kubelet = folder / "bin", folder / "kubelet" / "pod-resources"
        for each in (programs, kubelet):
            each.mkdir(parents=True)
        for name_of_tool in ("npu-smi", "hccn_tool"):
            (programs / name_of_tool).symlink_to(tool("ascend-fake"))
        replace(NodeDevices.idle(product), version=DRIVER).resetting(hccs=hccs).write(folder / "node.json")
        (folder / "pods.json").write_text('{"Pods": []}')
        with (folder / "agent.log").open("wb") as log:
            socket = subprocess.Popen([tool("pod-resources"), kubelet / "kubelet.sock", folder / "pods.json"], stdout=log, stderr=log)
            agent = subprocess.Popen(
                [sys.executable, "-m", "glm5_operator.agent"], env=_environment(name, folder, server), stdout=log, stderr=log
            )
        return cls(name, folder, agent, socket)

    def fail(self, card: int) -> None:
        """The source shows a fault from now on."""
        NodeDevices.read(self._cards).change(card, health="Critical", codes=("80E01801",)).write(self._cards)

    @property
    def well(self) -> bool:
        """The source shows none."""
        return all(device.health == "OK" for device in NodeDevices.read(self._cards).devices)

    @property
    def usage(self) -> Usage:
        """Of the agent, and of the calls of npu-smi that it has made."""
        return Usage.of(self.agent.pid)

    def give(self, pods: Iterable[dict[str, Any]]) -> None:
        """Kubelet's answer for these pods of the node, each with the devices that it was given first."""
        wanted = {pod["metadata"]["uid"]: pod for pod in pods if _cards(pod)}
        given = {uid: devices for uid, devices in self._given.items() if uid in wanted}
        for uid, pod in wanted.items():
            taken = {device for devices in given.values() for device in devices}
            given.setdefault(uid, [card for card in range(64) if card not in taken][: _cards(pod)])
        if given != self._given:
            self._given = given
            answer = {"Pods": [_resources(wanted[uid], devices) for uid, devices in given.items()]}
            draft = self.folder / "pods.draft"
            draft.write_text(json.dumps(answer))
            draft.replace(self.folder / "pods.json")

    def check(self) -> None:
        """Raise where the agent has ended."""
        if self.agent.poll() is not None:
            raise RuntimeError(
                f"the agent of {self.name} ended with {self.agent.returncode}:\n{(self.folder / 'agent.log').read_text()[-3000:]}"
            )

    def end(self) -> None:
        """End both processes."""
        for process in (self.agent, self.kubelet):
            process.terminate()
        for process in (self.agent, self.kubelet):
            process.wait(timeout=30)

    @property
    def _cards(self) -> Path:
        return self.folder / "node.json"


class Kubelets:
    """Keeps the kubelet sockets of all nodes in step with the pods of the API server."""

    def __init__(self, kube: Kube, nodes: list[NpuNode]) -> None:
        self._kube, self._nodes = kube, nodes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            pods = self._kube.list("Pod")
            for node in self._nodes:
                node.give(pod for pod in pods if pod["spec"].get("nodeName") == node.name)


def wait_for_facts(kube: Kube, node: NpuNode) -> None:
    """Until the agent's first report is in the AscendNode."""

    def reported() -> bool:
        node.check()
        return bool(((kube.find("AscendNode", "", node.name) or {}).get("status") or {}).get("facts"))

    wait_for(f"facts of {node.name}", reported, timeout=60, every=0.1)


def _environment(name: str, folder: Path, server: Server) -> dict[str, str]:
    (port,) = free_ports(1)
    settings = {
        "NODE_NAME": name,
        "NODE_ROOT": "/",
        "NODE_STATE": str(folder / "state"),
        "NODE_KUBELET": str(folder / "kubelet"),
        "TOOL_PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "API_URL": server.url,
        "API_TOKEN": str(server.token),
        "API_AUTHORITY": str(server.authority),
        "PROBE_HOST": "127.0.0.1",
        "PROBE_PORT": str(port),
    }
    own = {key: value for key, value in os.environ.items() if not key.startswith("GLM5_")}
    return {**own, **{f"GLM5_AGENT_{key}": value for key, value in settings.items()}, "GLM5_FAKE_ASCEND": str(folder / "node.json")}


def _cards(pod: dict[str, Any]) -> int:
    limits = [(container.get("resources") or {}).get("limits") or {} for container in pod["spec"]["containers"]]
    return sum(int(each.get(RESOURCE, 0)) for each in limits)


def _resources(pod: dict[str, Any], devices: list[int]) -> dict[str, Any]:
    held = [{"Resource": RESOURCE, "IDs": [f"Ascend910-{device}" for device in devices]}]
    metadata = pod["metadata"]
    return {"Namespace": metadata["namespace"], "Name": metadata["name"], "Containers": [{"Name": "engine", "Devices": held}]}
