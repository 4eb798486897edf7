"""What the runtime is told: the checkpoint's own facts (ModelConfig) and this process's settings (EngineConfig).

Read by every layer above; imports no torch, so a wrong file is reported before anything heavy loads. Strict: what a
checkpoint says and this code does not know is an error with the file, the field and what to do, never a guess.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ConfigError(ValueError):
    """A checkpoint's config can't be served; the message names file, field and remedy."""


class ModelConfig(BaseModel):
    """Facts of one GLM-5 checkpoint, from config.json and generation_config.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int

    @classmethod
    def from_dir(cls, model_dir: Path) -> ModelConfig:
        """Read a checkpoint folder; raises ConfigError."""
        raise NotImplementedError(model_dir)


class EngineConfig(BaseModel):
    """Settings of one engine. Every field is a flag of `glm5-runtime serve`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "npu", "cuda"] = Field(
        "auto", description="Where the model runs; auto takes the accelerator torch finds, else cpu."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Type of weights and cache; auto is the checkpoint's own on an accelerator and float32 on cpu."
    )
    max_model_len: int | None = Field(None, ge=1, description="Longest prompt plus answer, tokens; default: the checkpoint's limit.")
    max_sequences: int = Field(16, ge=1, description="Requests decoded side by side.")
    max_batched_tokens: int = Field(2048, ge=1, description="Tokens computed in one step, prompts and decodes together.")
    max_queue: int = Field(256, ge=0, description="Requests waiting for a place; one more is refused.")
    page_size: int = Field(16, ge=1, description="Tokens per cache page.")
    cache_tokens: int | None = Field(None, ge=1, description="Tokens the cache holds; default: from memory and the limits above.")
    seed: int = Field(0, ge=0, description="Seed of the draws for requests that bring none.")
