"""How far a model that computes with fewer bits is from the same model in fp32, on real text.

Measured by KL of the next token's distribution and by how often the likeliest token is the same. Used by `glm5-runtime quantize --check`
and by tests, which hold it below a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.batch import Chunk, build_batch
from glm5_runtime.model.cache import KVCache
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators
from glm5_runtime.ops.thinned import thinned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.ops.interface import OperatorSet
    from glm5_runtime.ops.thinned import SparseKV

_PAGE = 16
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Drift:
    """Mean KL in nats from fp32, share of equal likeliest tokens, over so many positions."""

    kl: float
    top1: float
    positions: int


def measure(
    model_dir: Path, other: Path, tokens: Sequence[int], cache_dtype: torch.dtype = torch.float32, sparse: SparseKV | None = None
) -> Drift:
    """From `model_dir` in fp32 to `other` with a cache of a type, which may look at fewer tokens (`sparse`).

    Both compute in fp32 on the CPU. Raises ConfigError, WeightsError.
    """
    wanted = _log_probabilities(model_dir, tokens, torch.float32, operators("cpu"))
    got = _log_probabilities(other, tokens, cache_dtype, operators("cpu") if sparse is None else thinned(operators("cpu"), sparse))
    kl = (wanted.exp() * (wanted - got)).sum(dim=-1)
    return Drift(float(kl.mean()), float((wanted.argmax(-1) == got.argmax(-1)).float().mean()), len(tokens))


@torch.inference_mode()
def _log_probabilities(model_dir: Path, tokens: Sequence[int], cache_dtype: torch.dtype, ops: OperatorSet) -> Tensor:
    """[N, vocabulary] fp32. In chunks, so that most of the context is read from the cache."""
    config = ModelConfig.from_dir(model_dir)
    decoder = load_decoder(config, model_dir, ops, _CPU, torch.float32)
    pages = -(-len(tokens) // _PAGE)
    cache = KVCache.allocate(config, pages, _PAGE, _CPU, cache_dtype)
    numbers = list(range(1, pages + 1))
    chunks = [Chunk(tokens[start : start + 256], start, numbers) for start in range(0, len(tokens), 256)]
    logits = [decoder.logits(decoder(build_batch([chunk], config, _PAGE, _CPU), cache)) for chunk in chunks]
    return torch.cat(logits).log_softmax(dim=-1)
