"""The operator set: every piece of arithmetic that a device may do in its own way.

The decoder calls nothing but these and plain linear layers. One set is chosen at start (`operators`) and passed down;
a module of functions with these signatures is a set. Nothing here reads a config.

Legend: N tokens of a step, B sequences, Q query tokens of each, T context tokens, P pages of a context, S cache rows, H heads,
I indexer heads, D indexer head size, K selected tokens, L latent, R rotary key, E experts. Shapes are in the order given, dtype is
the model's unless said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from glm5_runtime.ops import reference

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from glm5_runtime.ops.packing import Weights
    from glm5_runtime.ops.paging import LayerCache, Queries, Selection

Rotary = Any
"""Rotary angles of the step's tokens, in the form that the set's own `rotate` takes."""


class OperatorSet(Protocol):
    """Signatures of one set; `reference` says what each must compute."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm over the last axis, in fp32."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Layer norm over the last axis, in fp32."""

    def rotary(self, positions: Tensor, theta: float, size: int) -> Rotary:
        """Angles of the step's positions, once a step."""

    def rotate(self, x: Tensor, rotary: Rotary) -> None:
        """Rotary embedding of interleaved pairs, in place."""

    def remember(self, kv: Tensor, weight: Tensor, eps: float, rotary: Rotary, *, slots: Tensor, cache: LayerCache) -> None:
        """Norm of the latent, rotation of the key, and both written to the cache."""

    def remember_index(self, key: Tensor, slots: Tensor, cache: LayerCache) -> None:
        """The index key written to the cache."""

    def choose(
        self, query: Tensor, weights: Tensor, cache: LayerCache, queries: Queries, *, k: int, select: Callable[[Tensor, int], Tensor] | None
    ) -> Selection:
        """The lightning indexer: the k context tokens of each query that matter most."""

    def attend(
        self, latent: Tensor, rope: Tensor, cache: LayerCache, queries: Queries, selection: Selection | None, *, scale: float
    ) -> Tensor:
        """Absorbed latent attention on the selected tokens, or on all visible ones."""

    def route(self, logits: Tensor, bias: Tensor, choice: reference.Routing) -> tuple[Tensor, Tensor]:
        """Which experts see a token, and how much each counts."""

    def run_experts(
        self,
        x: Tensor,
        gate_up: Tensor,
        down: Tensor,
        chosen: Tensor,
        weights: Tensor,
        *,
        first: int | None = None,
        extra: reference.Extra | None = None,
    ) -> Tensor:
        """The routed experts' weighted sum. `first`: number of the first expert here; those that are elsewhere count nothing.

        `extra` adds to the outputs of both products (adapters).
        """

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """SiLU of the first half times the second half."""

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's activations as int8 with a scale."""

    def quantised_linear(self, x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
        """A linear layer of int8 weights on quantised activations."""

    def run_quantised_experts(
        self,
        x: Tensor,
        gate_up: Weights,
        down: Weights,
        chosen: Tensor,
        weights: Tensor,
        *,
        first: int | None = None,
        extra: reference.Extra | None = None,
    ) -> Tensor:
        """The routed experts' weighted sum with int8 or 4-bit weights."""


def operators(device_type: str) -> OperatorSet:
    """The set for a device: torch_npu's kernels on an NPU, elsewhere the reference, which is plain torch."""
    if device_type != "npu":
        return reference
    from glm5_runtime.ops import npu  # noqa: PLC0415 - brings torch_npu, which is on NPU machines alone

    return npu
