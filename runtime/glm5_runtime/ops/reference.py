"""Plain torch operators: the truth that every faster set is measured against. Right and readable before fast.

Called through `ops.interface` by the model. Knows no device; everything is differentiable except the selection.
Sources: GLM-5 technical report (arXiv 2602.15763), DeepSeek-V3.2 sparse attention. Legend: see `ops.interface`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Routing:
    """How the router chooses: `k` experts out of the best `kept_groups` of `groups`, weights summing to `scale`."""

    k: int
    groups: int
    kept_groups: int
    normalise: bool
    scale: float


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, x [..., n], weight [n] → x's dtype. The weight multiplies after rounding, as the model was trained."""
    return weight * functional.rms_norm(x.float(), weight.shape, eps=eps).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm, x [..., n], weight and bias [n] → x's dtype."""
    return functional.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding: x [N, heads, R] of pairs (even, odd); cos, sin [N, R/2] fp32 → [N, heads, R], first all evens, then all odds.

    Queries and keys leave in the same order, so their dot products are those of the interleaved form, without the
    shuffle back. fp32 because a sine off by 1e-3 moves logits by percents at long contexts.
    """
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), dim=-1).to(x.dtype)


def index_scores(query: Tensor, weights: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
    """Sum over heads of weight · relu(query · key), fp32, -inf where not visible.

    query [B, Q, I, D], weights [B, Q, I] fp32, keys [B, T, D], visible [B, Q, T] bool → [B, Q, T].
    """
    batch, queries, heads, size = query.shape
    products = torch.matmul(query.float().flatten(1, 2), keys.float().transpose(1, 2)) * size**-0.5
    hits = products.relu_().view(batch, queries, heads, -1)
    scores = torch.matmul((weights * heads**-0.5).unsqueeze(2), hits).squeeze(2)
    return scores.masked_fill_(~visible, float("-inf"))


def select_tokens(scores: Tensor, k: int) -> Tensor:
    """Indices of the k best scores, best first, ties to the lower index: scores [..., T] → [..., min(k, T)] int64.

    A plain topk breaks ties by memory layout. The indexer's ReLU makes exact zeros common, and cached and uncached
    runs would then attend to different tokens (measured: logits apart by 0.33).
    """
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]


def attend(query_latent: Tensor, query_rope: Tensor, latent: Tensor, key_rope: Tensor, *, visible: Tensor, scale: float) -> Tensor:
    """Attention in latent space, logits and softmax in fp32; the latent is key and value at once.

    query_latent [B, Q, H, L] already multiplied by W_UK, query_rope [B, Q, H, R], visible [B, Q, K] bool with at least
    one True a row (a token sees itself). Keys are one set per query, latent [B, Q, K, L] and key_rope [B, Q, K, R], or
    one set for all queries of a sequence, latent [B, 1, K, L] and key_rope [B, 1, K, R] → [B, Q, H, L].
    """
    batch, queries, heads, _ = query_latent.shape
    if latent.shape[1] != queries:  # shared keys: all queries of a sequence in one matrix product
        query_latent, query_rope = query_latent.flatten(1, 2).unsqueeze(1), query_rope.flatten(1, 2).unsqueeze(1)
    # In fp32 from the start: the two products would otherwise be rounded apart before they are added.
    logits = torch.matmul(query_latent.float(), latent.float().mT) + torch.matmul(query_rope.float(), key_rope.float().mT)
    logits = logits.view(batch, queries, heads, -1) * scale
    weights = logits.masked_fill_(~visible.unsqueeze(2), float("-inf")).softmax(dim=-1).to(latent.dtype)
    weights = weights if latent.shape[1] == queries else weights.flatten(1, 2).unsqueeze(1)
    return torch.matmul(weights, latent).view(batch, queries, heads, -1)


def route(logits: Tensor, bias: Tensor, choice: Routing) -> tuple[Tensor, Tensor]:
    """Router logits [N, E] fp32, bias [E] fp32 → experts [N, k] int64 and their weights [N, k] fp32.

    The bias balances load and takes part in the choice only; weights come from the plain sigmoid.
    """
    scores = logits.sigmoid()
    ranked = scores + bias
    if choice.groups > 1:
        grouped = ranked.view(-1, choice.groups, ranked.shape[-1] // choice.groups)
        best = select_tokens(grouped.topk(2, dim=-1).values.sum(-1), choice.kept_groups)
        dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, value=False)
        ranked = grouped.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = select_tokens(ranked, choice.k)
    weights = scores.gather(-1, chosen)
    if choice.normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * choice.scale


def run_experts(x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Each token through its experts: x [N, h], gate_up [E, 2i, h], down [E, h, i], chosen and weights [N, k] → [N, h].

    Tokens are grouped by expert so that every expert's matrices are read once a step.
    """
    k = chosen.shape[1]
    by_expert = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=gate_up.shape[0]).tolist()
    parts = [
        functional.linear(swiglu(functional.linear(part, gate_up[expert])), down[expert])
        for expert, part in enumerate(torch.split(x[by_expert // k], counts))
        if part.shape[0]
    ]
    sums = torch.empty_like(by_expert).scatter_(0, by_expert, torch.arange(by_expert.shape[0], device=x.device))
    outputs = torch.cat(parts)[sums].view(-1, k, x.shape[1])
    return (outputs * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """SiLU of the first half times the second half: [..., 2i] → [..., i]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
