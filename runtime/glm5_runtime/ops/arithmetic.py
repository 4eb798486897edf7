"""Whether the devices compute: known matrices are multiplied on each, and compared with the CPU. Run by `doctor` as a process of its own.

`python -m glm5_runtime.ops.arithmetic DEVICE` prints a line once its imports are done, and then one JSON object: how many devices there
were and what was wrong with which.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any, Final

import torch

TOLERANCES: Final = {torch.bfloat16: 0.02, torch.float32: 0.001}
"""Largest difference that passes, as a share of the largest number: of bf16 two roundings; of fp32 what cards round that multiply it as
HF32, with 11 bits."""
_SIZE: Final = 512
_TIMES: Final = 4


def run(device: str) -> dict[str, Any]:
    """What was found on all devices of that kind that this process sees."""
    names = ["cpu"] if device == "cpu" else [f"{device}:{number}" for number in range(_count(device))]
    faults = [fault for name in names if (fault := _look(name)) is not None]
    return {"devices": len(names), "faults": faults}


def _count(device: str) -> int:
    return int(torch.npu.device_count()) if device == "npu" else torch.cuda.device_count()  # type: ignore[attr-defined]  # torch_npu's


def _look(device: str) -> str | None:
    """What is wrong with one device; None when nothing is."""
    try:
        for dtype, tolerance in TOLERANCES.items():
            apart = max(_apart(device, dtype, seed) for seed in range(_TIMES))
            if not apart <= tolerance:  # so that NaN counts
                return f"{device}: products in {str(dtype).removeprefix('torch.')} are {apart:.2%} off, {tolerance:.1%} is allowed"
    except Exception as error:  # noqa: BLE001 - whatever the device says is the finding
        return f"{device}: {next(iter(str(error).splitlines()), type(error).__name__)}"
    return None


def _apart(device: str, dtype: torch.dtype, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(_SIZE, _SIZE, generator=generator).to(dtype) for _ in range(2))
    wanted = left.double() @ right.double()
    got = (left.to(device) @ right.to(device)).cpu().double()
    return float((got - wanted).abs().max() / wanted.abs().max())


def main(device: str) -> None:
    """Print both lines. `doctor` takes what goes wrong before the first for the image's fault, and afterwards for the device's."""
    if device == "npu":
        importlib.import_module("torch_npu")
    sys.stdout.write("imported\n")
    sys.stdout.flush()
    sys.stdout.write(json.dumps(run(device)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
