"""Golden files of the planner: what they hold, and the program that rewrites them.

`python -m tests.unit.plan.regenerate` writes tests/fixtures/golden; `test_golden` and `make verify` require that nothing changes.
A golden file is read by people: a change of it in a commit says what a change of the planner does to users.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from glm5_operator.plan.facts import Finding, Product
from glm5_operator.plan.sizing import size
from tests.unit.plan.builders import node, plan, pool, service, standard_hardware, tiny

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.api.pool import NPUPool
    from glm5_operator.api.service import GLM5Service

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"

# The rows of the node-need table: one file each, a column per product; `200k` is the row's second number.
SIZING_ROWS = {
    "glm-5.1-w4a8": ("GLM-5.1", "w4a8", {}),
    "glm-5.1-w8a8": ("GLM-5.1", "w8a8", {}),
    "glm-5.1-w8a8-200k": ("GLM-5.1", "w8a8", {"context": {"maxTokens": 200000}}),
    "glm-5.1-bf16": ("GLM-5.1", "bf16", {}),
    "glm-5.2-w4a8c8": ("GLM-5.2", "w4a8c8", {}),
    "glm-5.2-w8a8": ("GLM-5.2", "w8a8", {}),
    "glm-5.2-w8a8c8": ("GLM-5.2", "w8a8c8", {}),
    "glm-5.2-bf16": ("GLM-5.2", "bf16", {}),
}


def driver_mounts() -> NPUPool:
    """A pool of nodes without Ascend Docker Runtime: its podTemplate mounts the driver, as the vllm-ascend documentation does."""
    paths = {
        "dcmi": "/usr/local/dcmi",
        "npu-smi": "/usr/local/bin/npu-smi",
        "driver-lib64": "/usr/local/Ascend/driver/lib64",
        "driver-version": "/usr/local/Ascend/driver/version.info",
        "install-info": "/etc/ascend_install.info",
        "hccn-tool": "/usr/local/Ascend/driver/tools/hccn_tool",
    }
    mounts = [{"name": name, "mountPath": path, "readOnly": True} for name, path in paths.items()]
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
    return pool({"podTemplate": {"spec": {"containers": [{"name": "engine", "volumeMounts": mounts}], "volumes": volumes}}})


def pods() -> dict[str, tuple[GLM5Service, Product, NPUPool]]:
    """The single-node rows of the launch recipes, one derived row, and this project's own engine."""
    vllm = {
        "vllm-glm-5.1-w4a8-a3": (service("GLM-5.1", "w4a8"), Product.A3),
        "vllm-glm-5.1-w8a8-a3": (service("GLM-5.1", "w8a8"), Product.A3),
        "vllm-glm-5.1-w4a8-a2": (service("GLM-5.1", "w4a8"), Product.A2),
        "vllm-glm-5.2-w4a8c8-a3": (service("GLM-5.2", "w4a8c8"), Product.A3),
        "vllm-glm-5.2-w4a8c8-a3-1m": (service("GLM-5.2", "w4a8c8", {"context": {"maxTokens": 1024000}}), Product.A3),
        "vllm-glm-5.2-w8a8-a3": (service("GLM-5.2", "w8a8"), Product.A3),
    }
    native = tiny({"replicas": 2, "auth": {"secretRef": {"name": "chat-key", "key": "token"}}}, source="hostpath:///models/tiny-glm5")
    return {name: (wanted, product, driver_mounts()) for name, (wanted, product) in vllm.items()} | {
        "native-tiny-a2": (native, Product.A2, pool())
    }


def rendered() -> dict[Path, str]:
    """Every golden file with its text."""
    return {
        **{Path("sizing") / f"{name}.yaml": _sizing(name) for name in SIZING_ROWS},
        **{Path("pods") / f"{name}.yaml": _pod(*given) for name, given in pods().items()},
    }


def _sizing(name: str) -> str:
    model, weights, spec = SIZING_ROWS[name]
    columns: dict[str, dict[str, object]] = {}
    for product in (Product.A3, Product.A2):
        found = size(service(model, weights, spec).spec, standard_hardware(product))
        if isinstance(found, Finding):
            columns[product.value] = {"refused": found.reason, "message": found.message}
            continue
        columns[product.value] = {
            "nodes": found.nodes,
            "cards": found.cards,
            "tensor": found.shape.tensor,
            "data": found.shape.data,
            "expert": found.expert,
            "maxTokens": found.max_tokens,
            "maxSequences": found.max_sequences,
            "maxBatchedTokens": found.max_batched_tokens,
            "utilization": found.layout.utilization if found.layout else None,
            "weightsBytes": found.weights_bytes,
            "memoryGiB": found.memory_bytes // 2**30,
            "warnings": [warning.reason for warning in found.warnings],
        }
    return dump({"model": model, "weights": weights, **spec, "servers": columns})


def _pod(wanted: GLM5Service, product: Product, of: NPUPool) -> str:
    planned = plan(wanted, node("n0", product), node("n1", product), of=of)
    assert planned.stalled is None, planned.stalled
    manifest = wanted.manifest()
    stated = dump({key: manifest[key] for key in ("apiVersion", "kind", "metadata", "spec")}).splitlines()
    header = "\n".join(f"# {line}" for line in (f"On two {product} servers, this", *stated, "becomes"))
    return f"{header}\n---\n" + "---\n".join(dump(manifest) for manifest in planned.objects)


class _Dumper(yaml.SafeDumper):
    """Scripts as blocks, nothing as an alias."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def dump(value: Mapping[str, Any]) -> str:
    """YAML as a person would write it."""
    return yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, width=200, allow_unicode=True)


def main() -> int:
    """Rewrite all golden files and take away those that nothing makes any more."""
    files = rendered()
    for path in GOLDEN.rglob("*.yaml"):
        if path.relative_to(GOLDEN) not in files:
            path.unlink()
    for path, text in files.items():
        (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
        (GOLDEN / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
