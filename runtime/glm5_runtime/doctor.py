"""What this machine's stack supports: driver, CANN, torch, torch_npu, cards, and whether every NPU operator's kernel is there and right.

Called by the command line. Imports no torch: what needs torch_npu runs in a process of its own, which may crash or hang where a stack is
broken.
"""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm5_runtime import device as devices
from glm5_runtime.ops.kernels import KERNELS
from glm5_runtime.versions import MADE_FOR_CANN

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL_RIGHT, SOME_PLAIN, NO_NPU = 0, 1, 3
"""Exit codes: every operator runs in its kernel and agrees with the reference; some don't; no NPU is usable here."""
PASSED, FAILED, SKIPPED = 0, 1, 3
"""Exit codes of the compute check: the devices compute; one computes wrongly, fails or hangs; nothing can be said of them."""
_MOST_MESSAGE = 500
_COMPUTE_SECONDS = 120  # of which most is torch and the driver
_SECONDS = 600  # the first call of every kernel loads it


def examine(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, Any]:
    """Everything that `doctor` shows; `root` is the machine's."""
    facts = devices.read_host(environ, root)
    lacking = devices.npu_lacks(facts)
    probe = _probe(environ, facts, usable=not lacking)
    operators = [{"name": name, "kernels": list(names), **_state(name, probe)} for name, names in KERNELS.items()]
    report: dict[str, Any] = {
        "npu_usable": not lacking,
        "lacking": list(lacking),
        "driver": {"present": facts.driver, "version": facts.stack.driver},
        "cann": {"home": facts.cann_home, "version": facts.stack.cann, "made_for": MADE_FOR_CANN},
        "python": platform.python_version(),
        "torch": {"version": _installed("torch"), "made_for": _pinned("torch")},
        "torch_npu": {"version": facts.torch_npu, "made_for": _pinned("torch_npu"), "error": probe.get("error")},
        "nodes": [{"path": node.path, "owner": node.owner, "mode": node.mode, "usable": node.usable} for node in facts.nodes],
        "assigned": facts.assigned,
        "cards": [
            {"name": name, "memory_bytes": memory} for name, memory in zip(probe.get("devices", []), probe.get("memory", []), strict=True)
        ],
        "operators": operators,
    }
    report["exit_code"] = _exit_code(report)
    report["verdict"] = _verdict(report, facts)
    return report


def compute(environ: Mapping[str, str], root: Path = Path("/"), *, seconds: float = _COMPUTE_SECONDS) -> dict[str, Any]:
    """Whether the devices of this process compute: `outcome` Passed, Failed or Skipped with a message, and `exit_code`.

    Failed is said of devices alone. An image or a machine that lacks something is Skipped: that speaks against no card.
    """
    facts = devices.read_host(environ, root)
    try:
        choice = devices.choose(devices.wanted("auto", environ), facts)
    except devices.DeviceUnusable as error:
        return _outcome("Skipped", str(error))
    variables = {**environ, **devices.environment(choice, facts, environ), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-m", "glm5_runtime.ops.arithmetic", choice.device]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, timeout=seconds, check=False)
        code, said, trouble = done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired as expired:
        code, said, trouble = None, (expired.stdout or b"").decode(errors="replace"), ""
    if code == -signal.SIGKILL:
        return _outcome("Skipped", "killed, as for want of memory")
    if not said:  # its imports come first
        return _outcome("Skipped", f"torch isn't imported: {_reason(trouble) or 'no answer'}")
    if code is None:
        return _outcome("Failed", f"no answer within {seconds:g} s: the device or its driver hangs")
    if code != 0:
        return _outcome("Failed", _reason(trouble) or f"ended with {code}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    if not found["devices"]:
        return _outcome("Failed", f"the driver shows no device, and {len(facts.nodes)} were given")
    if found["faults"]:
        return _outcome("Failed", "; ".join(found["faults"]))
    return _outcome("Passed", f"{found['devices']} x {choice.device}: products in bf16 and fp32 are as the CPU's")


def _outcome(outcome: str, message: str) -> dict[str, Any]:
    codes = {"Passed": PASSED, "Failed": FAILED, "Skipped": SKIPPED}
    line = " ".join(message.split())
    return {"outcome": outcome, "message": line[:_MOST_MESSAGE], "exit_code": codes[outcome]}


def _probe(environ: Mapping[str, str], facts: devices.HostFacts, *, usable: bool) -> dict[str, Any]:
    """What a process with torch_npu reports; `error` where it could not."""
    if facts.torch_npu is None:
        return {"error": "not installed"}
    command = [sys.executable, "-m", "glm5_runtime.ops.trial", *([] if usable else ["--names-only"])]
    variables = {**environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # it imports torch_npu itself, and says what is wrong with it
    if usable:
        variables |= devices.environment(devices.Choice("npu", ""), facts, variables)
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_SECONDS} s: the device or its driver hangs"}
    if done.returncode != 0:
        return {"error": _reason(done.stderr) or f"ended with {done.returncode}"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _reason(stderr: str) -> str:
    """The exception of a traceback; torch_npu prints lines of its own behind it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith((" ", "["))]
    return next((line for line in reversed(lines) if "Error" in line or "Exception" in line), lines[-1] if lines else "")


def _state(operator: str, probe: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in probe:
        return {"state": "unknown", "reason": f"torch_npu: {probe['error']}"}
    tried: dict[str, Any] = probe.get("operators", {}).get(operator, {})
    if tried:
        return tried
    if operator in probe["missing"]:
        return {"state": "plain", "reason": f"torch_npu has no {probe['missing'][operator]}"}
    return {"state": "untried", "reason": "torch_npu has the kernel; without a usable card it was not run"}


def _exit_code(report: Mapping[str, Any]) -> int:
    if not report["npu_usable"] or report["torch_npu"]["error"]:
        return NO_NPU
    return ALL_RIGHT if all(operator["state"] == "kernel" for operator in report["operators"]) else SOME_PLAIN


def _verdict(report: Mapping[str, Any], facts: devices.HostFacts) -> str:
    if report["exit_code"] == ALL_RIGHT:
        return "an NPU is usable, and every operator runs in its kernel and agrees with the reference"
    if report["exit_code"] == SOME_PLAIN:
        names = [operator["name"] for operator in report["operators"] if operator["state"] != "kernel"]
        return f"an NPU is usable; not in its kernel, or not as the reference: {', '.join(names)}"
    if report["npu_usable"]:
        return f"no NPU is usable here: torch_npu doesn't run ({report['torch_npu']['error']})"
    if facts.has_card:
        return "a card is held for this process and can't be used; `serve` ends unless --device cpu asks for the CPU"
    return f"no NPU is usable here; `serve` takes {'CUDA' if facts.cuda else 'the CPU'}"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pinned(package: str) -> str | None:
    """The version that this package asks for."""
    for requirement in requires("glm5-ascend") or ():
        name, _, wanted = requirement.partition("==")
        if name.strip().replace("-", "_") == package:
            return wanted.partition(";")[0].strip()
    return None


def as_table(report: Mapping[str, Any]) -> str:
    """The report as lines for people."""

    def beside(part: Mapping[str, Any]) -> str:
        found = part["version"] or "not found"
        return found if part["version"] == part["made_for"] else f"{found} (made for {part['made_for']})"

    rows = [
        ("driver", report["driver"]["version"] or ("present" if report["driver"]["present"] else "not found")),
        ("CANN", beside(report["cann"]) + (f", {report['cann']['home']}" if report["cann"]["home"] else "")),
        ("Python", report["python"]),
        ("torch", beside(report["torch"])),
        ("torch_npu", beside(report["torch_npu"])),
        ("device nodes", ", ".join(node["path"] for node in report["nodes"]) or "none"),
        *(("card", f"{card['name']}, {card['memory_bytes'] / 2**30:.0f} GiB") for card in report["cards"]),
    ]
    lines = [f"{name:<14}{value}" for name, value in rows]
    wide = max(map(len, KERNELS)) + 2
    lines += ["", f"{'operator':<{wide}}{'state':<10}kernels"]
    for operator in report["operators"]:
        lines.append(f"{operator['name']:<{wide}}{operator['state']:<10}{', '.join(operator['kernels'])}{_remark(operator)}")
    if report["lacking"]:
        lines += ["", "an NPU lacks:", *(f"  - {item}" for item in report["lacking"])]
    return "\n".join([*lines, "", report["verdict"]])


def _remark(operator: Mapping[str, Any]) -> str:
    parts = [f"apart by {operator['apart']:.2%}"] if "apart" in operator else []
    parts += [operator["reason"]] if operator["state"] in {"plain", "fails"} else []
    return f"; {'; '.join(parts)}" if parts else ""
