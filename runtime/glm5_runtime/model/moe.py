"""Feed-forward layers: dense, and a mixture of experts with a shared one.

Called by the decoder layer. Gate and up projections are one matrix each here, two tensors in the checkpoint (`weights`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from glm5_runtime.model.layers import Linear, Module
from glm5_runtime.ops.reference import Routing

if TYPE_CHECKING:
    from glm5_runtime.config import ModelConfig
    from glm5_runtime.ops.interface import OperatorSet


class MLP(Module):
    """SwiGLU feed-forward, [N, hidden] → [N, hidden]."""

    def __init__(self, hidden: int, inner: int, ops: OperatorSet) -> None:
        super().__init__()
        self.ops = ops
        self.gate_up_proj = Linear(hidden, 2 * inner)
        self.down_proj = Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[N, hidden] → [N, hidden]."""
        output: Tensor = self.down_proj(self.ops.swiglu(self.gate_up_proj(x)))
        return output


class Router(Module):
    """Weight [E, hidden] and load-balancing bias [E]; both stay fp32: a rounded score picks another expert."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, hidden, dtype=torch.float32))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(experts, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """[N, hidden] → logits [N, E] fp32."""
        return nn.functional.linear(x.float(), self.weight)


class Experts(Module):
    """All routed experts of a layer, fused: gate_up_proj [E, 2i, hidden], down_proj [E, hidden, i]."""

    def __init__(self, hidden: int, inner: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))


class MoE(Module):
    """Routed experts plus the shared one, [N, hidden] → [N, hidden]."""

    def __init__(self, config: ModelConfig, ops: OperatorSet) -> None:
        super().__init__()
        self.ops = ops
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        self.routing = Routing(
            config.num_experts_per_tok, config.n_group, config.topk_group, config.norm_topk_prob, config.routed_scaling_factor
        )
        self.gate = Router(hidden, config.n_routed_experts)
        self.experts = Experts(hidden, inner, config.n_routed_experts)
        self.shared_experts = MLP(hidden, inner * config.n_shared_experts, ops)

    def forward(self, x: Tensor) -> Tensor:
        """[N, hidden] → [N, hidden]."""
        chosen, weights = self.ops.route(self.gate(x), self.gate.e_score_correction_bias, self.routing)
        routed = self.ops.run_experts(x, self.experts.gate_up_proj, self.experts.down_proj, chosen, weights)
        shared: Tensor = self.shared_experts(x)
        return routed + shared
