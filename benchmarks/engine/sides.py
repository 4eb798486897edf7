"""The two sides of the engine's benchmarks: our engine without its thread, and transformers' generate, on one checkpoint in one process."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from glm5_runtime.config import EngineConfig
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.request import Request, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from glm5_runtime.engine.engine import Engine
    from glm5_runtime.engine.request import Output

TINY = Path(__file__).parents[2] / "tests" / "fixtures" / "tiny-glm5"
THREADS = tuple(range(1, (os.cpu_count() or 1) + 1))


def prompt(length: int, vocabulary: int = 2000) -> list[int]:
    """Token ids without a pattern, the same on each side."""
    return torch.randint(20, vocabulary, (length,), generator=torch.Generator().manual_seed(length)).tolist()


class Ours:
    """The engine, its loop driven by the caller: what it does in a step is what its thread does."""

    def __init__(self, folder: Path, **settings: Any) -> None:  # noqa: ANN401 - fields of EngineConfig
        defaults: dict[str, Any] = {"device": "cpu", "prefix_cache": False, "max_queue": 1000}
        self.engine: Engine = load_engine(folder, EngineConfig(**{**defaults, **settings}))
        self._count = 0

    def submit(self, tokens: Sequence[int], new: int, sink: Callable[[Output], None] = lambda _: None, **of_request: Any) -> None:  # noqa: ANN401 - fields of Request
        """Queue a greedy request of exactly `new` tokens."""
        self._count += 1
        params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
        self.engine.submit(Request(f"r{self._count}", tuple(tokens), params, **of_request), sink)

    def run(self) -> None:
        """Until nothing is left to do."""
        with torch.inference_mode():
            while self.engine.stats().has_work:
                self.engine._take_commands()
                self.engine._step()

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> float:
        """Seconds from the first prompt to the last token."""
        begin = time.perf_counter()
        for tokens in prompts:
            self.submit(tokens, new)
        self.run()
        return time.perf_counter() - begin


class Theirs:
    """transformers' model with its dynamic cache."""

    def __init__(self, folder: Path, attention: str) -> None:
        transformers.utils.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()
        self.attention = attention
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> float:
        """Seconds from the first prompt to the last token; prompts of one length."""
        ids = torch.tensor(prompts)
        begin = time.perf_counter()
        with torch.inference_mode():
            self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False)
        return time.perf_counter() - begin


def best_threads(work: Callable[[], object]) -> int:
    """The thread count with which the work is fastest; it is set afterwards."""
    took = {}
    for count in THREADS:
        torch.set_num_threads(count)
        work()
        begin = time.perf_counter()
        work()
        took[count] = time.perf_counter() - begin
    best = min(took, key=lambda count: took[count])
    torch.set_num_threads(best)
    return best


def random_checkpoint(folder: Path, longest: int) -> Path:
    """The model of the long-context and prefill figures: random weights, hidden 512, 8 layers, every 4th with an indexer of its own."""
    config = transformers.GlmMoeDsaConfig(
        vocab_size=2048,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        q_lora_rank=256,
        kv_lora_rank=128,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        index_topk=512,
        index_n_heads=8,
        index_head_dim=64,
        intermediate_size=1024,
        moe_intermediate_size=256,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        indexer_types=["full" if layer % 4 == 0 else "shared" for layer in range(8)],
        mlp_layer_types=["dense", *["sparse"] * 7],
        max_position_embeddings=longest,
        bos_token_id=None,
        eos_token_id=[0],
        pad_token_id=None,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
    )
    torch.manual_seed(0)
    transformers.GlmMoeDsaForCausalLM(config).save_pretrained(folder)
    gc.collect()
    return folder


def peak_bytes(work: Callable[[], object]) -> int:
    """Resident bytes that the work takes at its peak beyond what was there before (Linux' own mark, set back first)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
