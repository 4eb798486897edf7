"""Feed-forward layers: dense, and a mixture of experts with a shared one.

Called by the decoder layer, which sums over the tensor ranks: what these return is a rank's part. Gate and up projections are one matrix
here, two tensors in the checkpoint (`weights`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from glm5_runtime.model.layers import Linear, Module
from glm5_runtime.model.parallel import ALONE
from glm5_runtime.ops.reference import Routing

if TYPE_CHECKING:
    from glm5_runtime.config import ModelConfig
    from glm5_runtime.model.parallel import Ranks
    from glm5_runtime.ops.interface import OperatorSet
    from glm5_runtime.ops.reference import Extra


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
    """The routed experts of a layer that this rank holds, fused: gate_up_proj [E, 2i, hidden], down_proj [E, hidden, i]."""

    def __init__(self, hidden: int, inner: int, experts: int, ops: OperatorSet, first: int | None = None) -> None:
        super().__init__()
        self.ops, self.first = ops, first
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor, extra: Extra | None = None) -> Tensor:
        """[N, hidden], each token's experts and their weights [N, k] → the weighted sum [N, hidden]."""
        return self.ops.run_experts(x, self.gate_up_proj, self.down_proj, chosen, weights, first=self.first, extra=extra)


class MoE(Module):
    """Routed experts plus the shared one, [N, hidden] → [N, hidden]."""

    def __init__(self, config: ModelConfig, ops: OperatorSet, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.ops, self.ranks = ops, ranks
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        self.routing = Routing(
            config.num_experts_per_tok, config.n_group, config.topk_group, config.norm_topk_prob, config.routed_scaling_factor
        )
        self.gate = Router(hidden, config.n_routed_experts)
        held = config.n_routed_experts // ranks.expert_size
        first = ranks.rank * held if ranks.expert_size > 1 else None
        self.experts = Experts(hidden, inner // ranks.expert_cut, held, ops, first)
        self.shared_experts = MLP(hidden, inner * config.n_shared_experts // ranks.tensor_size, ops)

    def forward(self, x: Tensor) -> Tensor:
        """[N, hidden] → [N, hidden]."""
        everyone = self.ranks.gather(x)
        chosen, weights = self.ops.route(self.gate(everyone), self.gate.e_score_correction_bias, self.routing)
        routed: Tensor = self.experts(everyone, chosen, weights)
        shared: Tensor = self.shared_experts(x)
        return self.ranks.scatter(routed) + shared
