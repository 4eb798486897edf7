"""The reference implementation (transformers' GlmMoeDsa) as an oracle: seeded models, its logits, and the tokens it selects.

transformers chooses with torch.topk, whose ties depend on memory layout; here it chooses with a stable sort, as this project does.
Its own files are not touched: the change holds inside `reference()` only.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import mock

import torch
from transformers import AutoModelForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as module

from glm5_runtime.config import ModelConfig
from glm5_runtime.model.batch import WORKSPACE_BYTES, Chunk, build_batch
from glm5_runtime.model.cache import KVCache
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.model.indexer import Selector
    from glm5_runtime.ops.paging import Queries

CPU = torch.device("cpu")
PAGE = 16


def _stable_topk(scores: Tensor, k: int, dim: int = -1, largest: bool = True, **_: object) -> torch.return_types.topk:
    values, indices = torch.sort(scores, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


@contextmanager
def _stable() -> Iterator[None]:
    with mock.patch.object(torch.Tensor, "topk", _stable_topk), mock.patch.object(torch, "topk", _stable_topk):
        yield


@dataclass
class Reference:
    """Logits [N, V] of a prompt, and per full layer the positions that each of its N tokens attends to, [N, K]."""

    logits: Tensor
    selections: dict[int, Tensor]


def reference(model: GlmMoeDsaForCausalLM, tokens: Sequence[int]) -> Reference:
    selections: dict[int, Tensor] = {}
    hooks = [
        part.register_forward_hook(lambda owner, _, output: selections.__setitem__(owner.layer_idx, output[0].long()))
        for part in model.modules()
        if isinstance(part, module.GlmMoeDsaIndexer)
    ]
    with _stable():
        logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return Reference(logits, selections)


def seeded_checkpoint(directory: Path, seed: int, **changes: object) -> GlmMoeDsaForCausalLM:
    """A random model of some shape, saved as a checkpoint; nothing is zero or one, so that no term can be forgotten unseen."""
    config = GlmMoeDsaConfig(
        bos_token_id=None,
        eos_token_id=[0],
        pad_token_id=None,
        rope_parameters={"rope_theta": 10000.0 * (seed + 1), "rope_type": "default"},
        **changes,
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GlmMoeDsaForCausalLM(config).eval()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "inv_freq" in name:
            continue
        is_vector = tensor.dim() == 1
        spread = 0.2 if is_vector else 1.5 * tensor.shape[-1] ** -0.5
        center = 1.0 if name.endswith("norm.weight") or "layernorm" in name else 0.0
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * spread + center)
    model.save_pretrained(directory)
    return model


def trained(directory: Path) -> GlmMoeDsaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def ours(directory: Path) -> Decoder:
    return load_decoder(ModelConfig.from_dir(directory), directory, operators("cpu"), CPU, torch.float32)


def new_cache(decoder: Decoder, pages: int = 64) -> KVCache:
    return KVCache.allocate(decoder.config, pages, PAGE, CPU, torch.float32)


def logits_of(
    decoder: Decoder,
    tokens: Sequence[int],
    sizes: Sequence[int] | None = None,
    select: Selector | None = None,
    workspace: int = WORKSPACE_BYTES,
) -> Tensor:
    """Logits [N, V] of a prompt computed in steps of the given sizes; one step when none are given."""
    cache = new_cache(decoder)
    pages = list(range(cache.pages, 0, -1))  # not in order: a slot must come from the page list, not from the position
    rows, start = [], 0
    for size in sizes or [len(tokens)]:
        chunk = Chunk(tokens[start : start + size], start, pages)
        rows.append(decoder.logits(decoder(build_batch([chunk], decoder.config, PAGE, CPU, workspace), cache, select)))
        start += size
    return torch.cat(rows)


@dataclass
class Injected:
    """A selector that compares our choice with the reference's and goes on with the reference's, so later layers stay comparable."""

    selections: dict[int, Tensor]
    worst: float = 0.0
    compared: int = 0
    layers: set[int] = field(default_factory=set)

    def __call__(self, layer: int, queries: Queries, scores: Tensor, k: int) -> Tensor:
        own = operators("cpu").select_tokens(scores, k)
        positions = queries.positions[0]
        theirs = self.selections[layer][positions][:, :k].unsqueeze(0)
        for row, position in enumerate(positions.tolist()):
            mine = {token for token in own[0, row].tolist() if token <= position}
            other = {token for token in theirs[0, row].tolist() if token <= position}
            threshold = scores[0, row, own[0, row]].min()
            for token in mine ^ other:
                self.worst = max(self.worst, float((scores[0, row, token] - threshold).abs()))
            self.compared += 1
        self.layers.add(layer)
        return theirs
