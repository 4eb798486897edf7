"""The fake npu-smi as a program, and the outputs of real ones to compare with."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.devices import NodeDevices
from tests.cluster.tools import tool

FIXTURES = Path(__file__).parents[2] / "fixtures" / "npu-smi"


def fixture(name: str) -> str:
    # Some pastes came with tabs turned into spaces; the tool prints tabs.
    return (FIXTURES / f"{name}.txt").read_text().expandtabs(8)


def deaf_to_sigterm(pid: int) -> bool:
    """Whether the process ignores it by now, which the fake does before it waits for ever."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
    return bool(int(ignored, 16) & 1 << (signal.SIGTERM - 1))


class Smi:
    """Puts a node in force and calls npu-smi on it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "node.json"
        self.program = folder / "npu-smi"
        self.program.symlink_to(tool("ascend-fake"))
        self.hccn_tool = folder / "hccn_tool"
        self.hccn_tool.symlink_to(tool("ascend-fake"))

    def env(self, visible: str | None = None) -> dict[str, str]:
        env = {**os.environ, "GLM5_FAKE_ASCEND": str(self.state)}
        env.pop("ASCEND_VISIBLE_DEVICES", None)
        return env if visible is None else {**env, "ASCEND_VISIBLE_DEVICES": visible}

    def __call__(self, node: NodeDevices, *words: str, visible: str | None = None) -> tuple[int, str]:
        code, text = self.raw(node, *words, visible=visible)
        return code, text.expandtabs(8)

    def raw(self, node: NodeDevices, *words: str, visible: str | None = None) -> tuple[int, str]:
        """The exit code, and the text with its tabs."""
        node.write(self.state)
        done = subprocess.run(
            [self.program, *words], env=self.env(visible), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=30
        )
        return done.returncode, done.stdout

    def hccn(self, node: NodeDevices, *words: str) -> tuple[int, str]:
        """hccn_tool's exit code and text."""
        node.write(self.state)
        done = subprocess.run([self.hccn_tool, *words], env=self.env(), capture_output=True, text=True, check=False, timeout=30)
        return done.returncode, done.stdout

    def reset(self, node: NodeDevices, *words: str, answers: str = "Y\ny\n") -> tuple[int, str, NodeDevices]:
        """`set -t reset -m 1` with those answers: the exit code, the text, and the node as it is then."""
        node.write(self.state)
        command = [self.program, "set", "-t", "reset", *words, "-m", "1"]
        done = subprocess.run(command, env=self.env(), input=answers, capture_output=True, text=True, check=False, timeout=30)
        return done.returncode, done.stdout, NodeDevices.read(self.state)


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path)
