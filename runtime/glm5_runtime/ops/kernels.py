"""Which NPU kernels an operator needs, and how often one ran in plain torch instead. No torch here: metrics and `doctor` read it.

Written by `npu` alone. Operators that the set has no kernel for (layer norm) are not listed: they are plain torch by choice.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

_EXPERTS = ("npu_moe_init_routing_v2", "npu_grouped_matmul", "npu_swiglu", "npu_moe_token_unpermute")
KERNELS: dict[str, tuple[str, ...]] = {
    "rms_norm": ("npu_rms_norm",),
    "rotate": ("npu_interleave_rope",),
    "remember": ("npu_kv_rmsnorm_rope_cache",),
    "remember_index": ("npu_scatter_nd_update_",),
    "choose": ("npu_lightning_indexer",),
    "attend": ("npu_sparse_flash_attention",),
    "route": ("npu_moe_gating_top_k",),
    "run_experts": _EXPERTS,
    "swiglu": ("npu_swiglu",),
    "quantise": ("npu_dynamic_quant",),
    "quantised_linear": ("npu_quant_matmul",),
    "run_quantised_experts": (*_EXPERTS, "npu_dynamic_quant"),
}
"""Operators of the set, and torch_npu's kernels that each one calls."""

fallbacks: dict[str, int] = dict.fromkeys(KERNELS, 0)
"""Calls of each operator that ran in plain torch though the device is an NPU, since the process began."""

_told: set[tuple[str, str]] = set()


def count_fallback(operator: str, reason: str) -> None:
    """One call ran in plain torch; each operator's reason is logged once."""
    fallbacks[operator] += 1
    if (operator, reason) not in _told:
        _told.add((operator, reason))
        log.warning("%s runs in plain torch, not in the NPU's kernel: %s", operator, reason)
