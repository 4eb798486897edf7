"""The operator set: every piece of arithmetic that a device may do in its own way.

The decoder calls nothing but these and plain linear layers. One set is chosen at start (`operators`) and passed down;
a module of functions with these signatures is a set. Nothing here reads a config or a cache.

Legend: B sequences, Q query tokens of each, T context tokens, H heads, I indexer heads, D indexer head size, K selected
tokens, L latent, R rotary key, E experts, N any number of tokens. Shapes are in the order given, dtype is the model's unless said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from glm5_runtime.ops import reference

if TYPE_CHECKING:
    from torch import Tensor


class OperatorSet(Protocol):
    """Signatures of one set; `reference` says what each must compute."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm over the last axis, in fp32."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Layer norm over the last axis, in fp32."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding of interleaved pairs."""

    def index_scores(self, query: Tensor, weights: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
        """The indexer's opinion of every context token."""

    def select_tokens(self, scores: Tensor, k: int) -> Tensor:
        """The k best per row, ties to the lower index."""

    def attend(
        self, query_latent: Tensor, query_rope: Tensor, latent: Tensor, key_rope: Tensor, *, visible: Tensor, scale: float
    ) -> Tensor:
        """Absorbed latent attention."""

    def route(self, logits: Tensor, bias: Tensor, choice: reference.Routing) -> tuple[Tensor, Tensor]:
        """Which experts see a token, and how much each counts."""

    def run_experts(self, x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The routed experts' weighted sum."""

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """SiLU of the first half times the second half."""


def operators(device_type: str) -> OperatorSet:
    """The set for a device; today every device runs the reference, which is plain torch."""
    del device_type
    return reference
