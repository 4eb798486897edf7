"""Each NPU operator on a small input, compared with the reference on the CPU. Run by `doctor` as a process of its own.

`python -m glm5_runtime.ops.trial` prints one JSON object; with `--names-only` it touches no device and says only which kernels torch_npu
knows.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
import torch_npu

from glm5_runtime.ops import kernels, npu, reference
from glm5_runtime.ops.packing import Weights
from glm5_runtime.ops.paging import LayerCache, Queries
from glm5_runtime.ops.reference import Routing

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from glm5_runtime.ops.interface import OperatorSet, Rotary

    Trial = Callable[[OperatorSet, torch.device], Tensor]

TOLERANCE = 0.02
"""Largest difference that passes, as a share of the largest number: two roundings to bf16 and sums in another order."""
_PAGE, _CONTEXT, _COUNT, _SELECTED, _HEADS = 16, 96, 6, 32, 4
_PAGES = [5, 2, 7, 1, 3, 4]  # in no order
_CHOSEN = [[0, 3], [3, 1], [2, 0], [3, 2], [1, 3], [0, 1]]


def _put(device: torch.device, *shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The same numbers on every device."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype).to(device)


def _cache(device: torch.device) -> LayerCache:
    rows = 8 * _PAGE
    return LayerCache(*(_put(device, rows, width, seed=width, scale=0.3) for width in (512, 64, 128)))


def _queries(device: torch.device) -> Queries:
    """The last tokens of one sequence."""
    positions = torch.arange(_CONTEXT - _COUNT, _CONTEXT).view(1, _COUNT).to(device)
    return Queries(slice(0, _COUNT), positions, [_CONTEXT], [_PAGES], _PAGE)


def _angles(ops: OperatorSet, device: torch.device) -> Rotary:
    return ops.rotary(torch.tensor([0, 1, 7, 100, 4000, 100_000]).to(device), 1e6, 64)


def _products(rotated: Tensor) -> Tensor:
    """What rotated vectors are for: their products with each other. Sets may order a vector's numbers each in its own way."""
    flat = rotated.float().cpu().flatten(0, -2)
    return flat @ flat.T


def _rotate(ops: OperatorSet, device: torch.device) -> Tensor:
    x = _put(device, _COUNT, _HEADS, 64)
    ops.rotate(x, _angles(ops, device))
    return _products(x)


def _remember(ops: OperatorSet, device: torch.device) -> Tensor:
    cache, slots = _cache(device), torch.tensor([17, 40, 16, 3, 99, 64])
    weight = _put(device, 512, seed=1)
    ops.remember(_put(device, _COUNT, 576), weight, 1e-6, _angles(ops, device), slots=slots.to(device), cache=cache)
    assert isinstance(cache.latent, torch.Tensor)
    assert isinstance(cache.rope, torch.Tensor)
    return torch.cat((cache.latent.float().cpu().flatten(), _products(cache.rope[slots.to(device)]).flatten()))


def _remember_index(ops: OperatorSet, device: torch.device) -> Tensor:
    cache = _cache(device)
    ops.remember_index(_put(device, 3, 128), torch.tensor([17, 40, 16]).to(device), cache)
    assert isinstance(cache.index, torch.Tensor)
    return cache.index


def _choose(ops: OperatorSet, device: torch.device) -> Tensor:
    """Chosen positions as a table of zeros and ones: their order is nobody's promise."""
    query, weights = _put(device, _COUNT, 8, 128), _put(device, _COUNT, 8, seed=1).float()
    chosen = ops.choose(query, weights, _cache(device), _queries(device), k=_SELECTED, select=None).positions[0].cpu().long()
    seen = (chosen >= 0) & (chosen <= torch.arange(_CONTEXT - _COUNT, _CONTEXT).unsqueeze(1))
    return torch.zeros(_COUNT, _CONTEXT + 1).scatter_(1, torch.where(seen, chosen, _CONTEXT), 1.0)[:, :_CONTEXT]


def _attend(ops: OperatorSet, device: torch.device) -> Tensor:
    latent, rope = _put(device, _COUNT, _HEADS, 512, scale=0.3), _put(device, _COUNT, _HEADS, 64, seed=1, scale=0.3)
    mixed: Tensor = ops.attend(latent, rope, _cache(device), _queries(device), None, scale=0.1)
    return mixed


def _route(ops: OperatorSet, device: torch.device) -> Tensor:
    logits, bias = (_put(device, *shape, dtype=torch.float32) for shape in ((_COUNT, 16), (16,)))
    experts, weights = ops.route(logits, bias, Routing(4, 1, 1, normalise=True, scale=2.5))
    return torch.zeros(_COUNT, 16).scatter_(1, experts.cpu().long(), weights.cpu())


def _run_experts(ops: OperatorSet, device: torch.device) -> Tensor:
    chosen = torch.tensor(_CHOSEN).to(device)
    gate_up, down = _put(device, 4, 64, 256, seed=1, scale=0.06), _put(device, 4, 256, 32, seed=2, scale=0.2)
    out: Tensor = ops.run_experts(_put(device, _COUNT, 256), gate_up, down, chosen, _put(device, _COUNT, 2, seed=3).float())
    return out


def _quantise(ops: OperatorSet, device: torch.device) -> Tensor:
    """What the integers stand for."""
    integers, scale = ops.quantise(_put(device, _COUNT, 256))
    return integers.float() * scale.float().unsqueeze(1)


def _quantised_linear(ops: OperatorSet, device: torch.device) -> Tensor:
    x, x_scale = reference.quantise(_put(torch.device("cpu"), _COUNT, 256))
    weight, scale = reference.quantise(_put(torch.device("cpu"), 64, 256, seed=1, scale=0.06))
    return ops.quantised_linear(x.to(device), x_scale.to(device), weight.to(device), scale.to(device), torch.bfloat16)


def _packed(device: torch.device, *shape: int, seed: int) -> Weights:
    values, scale = reference.quantise(_put(torch.device("cpu"), *shape, seed=seed, scale=0.1).flatten(0, 1))
    return Weights(values.view(shape).to(device), scale.view(shape[:2]).to(device))


def _run_quantised_experts(ops: OperatorSet, device: torch.device) -> Tensor:
    gate_up, down = _packed(device, 4, 64, 256, seed=1), _packed(device, 4, 256, 32, seed=2)
    chosen, weights = torch.tensor(_CHOSEN).to(device), _put(device, _COUNT, 2, seed=3).float()
    return ops.run_quantised_experts(_put(device, _COUNT, 256), gate_up, down, chosen, weights)


TRIALS: dict[str, Trial] = {
    "rms_norm": lambda ops, device: ops.rms_norm(_put(device, _COUNT, 512), _put(device, 512, seed=1), 1e-5),
    "rotate": _rotate,
    "remember": _remember,
    "remember_index": _remember_index,
    "choose": _choose,
    "attend": _attend,
    "route": _route,
    "run_experts": _run_experts,
    "swiglu": lambda ops, device: ops.swiglu(_put(device, _COUNT, 64)),
    "quantise": _quantise,
    "quantised_linear": _quantised_linear,
    "run_quantised_experts": _run_quantised_experts,
}


def run(device: torch.device) -> dict[str, dict[str, Any]]:
    """State of each operator: `kernel`, `plain`, `differs` or `fails`, with the difference from the reference or the reason."""
    return {name: _try(name, trial, device) for name, trial in TRIALS.items()}


def _try(name: str, trial: Trial, device: torch.device) -> dict[str, Any]:
    before = kernels.fallbacks[name]
    try:
        with torch.inference_mode():
            got = trial(npu, device).float().cpu()
            wanted = trial(reference, torch.device("cpu")).float()
    except Exception as error:  # noqa: BLE001 - whatever the device says is the finding
        return {"state": "fails", "reason": next(iter(str(error).splitlines()), type(error).__name__)}
    apart = float((got - wanted).abs().max() / wanted.abs().max())
    if kernels.fallbacks[name] != before:
        return {"state": "plain", "apart": apart, "reason": npu.missing.get(name, "the kernel doesn't take the call")}
    return {"state": "kernel" if apart <= TOLERANCE else "differs", "apart": apart}


def main(arguments: list[str]) -> None:
    """Print the report."""
    report: dict[str, Any] = {"torch": torch.__version__, "torch_npu": version("torch_npu"), "missing": npu.missing}
    if "--names-only" not in arguments:
        cards = range(torch_npu.npu.device_count())
        report["devices"] = [torch_npu.npu.get_device_name(card) for card in cards]
        report["memory"] = [torch_npu.npu.get_device_properties(card).total_memory for card in cards]
        report["operators"] = run(torch.device("npu"))
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
