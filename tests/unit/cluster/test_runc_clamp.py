"""runc-clamp asks runc for nothing that this process itself may not have, and changes nothing else."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.tools import tool

LIMIT = 9223372036854771712  # a 64-bit number that a float would round


@pytest.fixture
def runc(tmp_path: Path) -> Path:
    """A stand-in for runc that prints what it was called with."""
    program = tmp_path / "bin" / "runc"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "runc $*"\n')
    program.chmod(0o755)
    return program


def bounding_set() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd:"))
    return int(line.split()[1], 16)


def clamp(runc: Path, *words: str) -> str:
    env = {**os.environ, "PATH": f"{runc.parent}:/usr/bin:/bin"}
    return subprocess.run([tool("runc-clamp"), *words], env=env, capture_output=True, text=True, check=True).stdout


def document() -> dict[str, object]:
    # 0 and 24 are the numbers of these two; the third is a capability that no kernel knows.
    sets = {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE", "CAP_OF_THE_FUTURE"], "ambient": []}
    return {"capabilities": sets, "rlimits": [{"type": "RLIMIT_NOFILE", "hard": LIMIT}]}


def expected() -> list[str]:
    return [name for bit, name in ((0, "CAP_CHOWN"), (24, "CAP_SYS_RESOURCE")) if bounding_set() >> bit & 1]


def test_a_new_container_loses_what_the_bounding_set_lacks(runc: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"process": document(), "hostname": "x"}))
    assert clamp(runc, "create", "--bundle", str(tmp_path), "id") == f"runc create --bundle {tmp_path} id\n"
    after = json.loads(config.read_text())
    assert after["process"]["capabilities"] == {"bounding": expected(), "ambient": []}
    assert after["process"]["rlimits"][0]["hard"] == LIMIT
    assert after["hostname"] == "x"


def test_an_exec_is_clamped_too(runc: Path, tmp_path: Path) -> None:
    process = tmp_path / "process.json"
    process.write_text(json.dumps(document()))
    clamp(runc, "exec", "--process", str(process), "id")
    assert json.loads(process.read_text())["capabilities"]["bounding"] == expected()


def test_other_commands_pass_through(runc: Path) -> None:
    assert clamp(runc, "--version") == "runc --version\n"
