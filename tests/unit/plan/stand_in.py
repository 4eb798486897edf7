"""Runs a planned vllm container's command on this machine: its real entry script, a stand-in `vllm`, and a fake `npu-smi`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[2] / "fixtures" / "vllm"
HEADER = "\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name"


@dataclass(frozen=True)
class Ran:
    """How the container's command ended; `said` is what the stand-in was given."""

    code: int
    errors: str
    said: dict[str, Any]


def map_of(cards: range) -> str:
    """`npu-smi info -m` of an A2 container that was given these cards of its node, in the layout of driver 24.1."""
    rows = [HEADER]
    for logical, card in enumerate(cards):
        rows.append(f"\t{card:<30} 0{'':<29} {logical:<30} Ascend 910B3")
        rows.append(f"\t{card:<30} 1{'':<29} -{'':<29} Mcu")
    return "\n".join(rows)


def expand(text: str, variables: dict[str, str]) -> str:
    """What kubelet makes of a command's text: `$(NAME)` is replaced where NAME is known and kept where not, `$$` becomes `$`."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda found: "$" if found[1] == "$" else variables.get(found[2], found[0]), text)


def run(container: dict[str, Any], folder: Path, *, npu_smi: str | None = None, npu_smi_code: int = 0, **environment: str) -> Ran:
    """Run command and args of a container. Without `npu_smi` there is no such program."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("bash", "awk", "sort", "paste", "printf", "cat"):
        link = programs / name
        if not link.exists():
            link.symlink_to(next(path for path in (Path("/bin") / name, Path("/usr/bin") / name) if path.exists()))
    python = programs / "python3"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        (programs / "vllm").symlink_to(FIXTURES / "vllm")
    if npu_smi is not None:
        (folder / "map.txt").write_text(npu_smi + "\n")
        fake = programs / "npu-smi"
        fake.write_text(f'#!/bin/bash\n[ "$*" = "info -m" ] || exit 9\ncat "{folder}/map.txt"\nexit {npu_smi_code}\n')
        fake.chmod(0o755)
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    env |= {"PATH": str(programs), "LANG": os.environ.get("LANG", "C.UTF-8"), **environment}
    command = [expand(part, env) for part in (*container["command"], *container["args"])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    return Ran(done.returncode, done.stderr, json.loads(done.stdout) if done.returncode == 0 else {})
