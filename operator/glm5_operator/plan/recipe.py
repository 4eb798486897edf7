"""Recipes: what is known about serving a model, as packaged data (`recipes/*.yaml`), typed and read once.

Called by sizing and by the vllm command. Must not hold numbers itself: a new model or layout is a change of data.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from glm5_operator.api.service import WeightsForm  # noqa: TC001  # pydantic needs it at run time
from glm5_operator.plan.facts import Product
from glm5_operator.plan.product import GB

CARDS_PER_NODE: Final = {Product.A2: 8, Product.A3: 16}
"""Cards (dies on A3) of the servers that the recipes are written for."""

_Count = Annotated[int, Field(ge=1)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class WeightSizes(_Data):
    """Bytes of one weights form, in 10^9."""

    experts: float
    rest: float
    draft: float

    @property
    def total(self) -> int:
        """All bytes on disk."""
        return round((self.experts + self.rest + self.draft) * GB)


class KVBytes(_Data):
    """Bytes a token of context takes on each card, by the cache's number format."""

    bf16: _Count
    c8: _Count


class Host(_Data):
    """Main memory and processors of a pod."""

    shm_gib: Annotated[int, Field(ge=1, alias="shmGiB")]
    gib_per_card: _Count
    cpu_per_card: _Count


class VLLM(_Data):
    """The part of vLLM's command that all layouts share."""

    args: tuple[str, ...]
    env: dict[str, str]
    compilation: dict[str, Any]
    additional: dict[str, Any]
    speculative: dict[str, Any]


class Layout(_Data):
    """One known way to serve one weights form on one product; dicts are laid over those of `VLLM`."""

    weights: WeightsForm
    product: Product
    nodes: _Count
    tensor: _Count
    data: _Count = 1
    context_parallel: _Count = 1
    max_tokens: _Count
    max_sequences: _Count
    max_batched_tokens: _Count
    utilization: Annotated[float, Field(gt=0, lt=1)]
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    compilation: dict[str, Any] = Field(default_factory=dict)
    additional: dict[str, Any] = Field(default_factory=dict)
    speculative: dict[str, Any] = Field(default_factory=dict)
    source: str = ""
    derived: bool = False

    @property
    def cards(self) -> int:
        """Cards of all nodes."""
        return self.tensor * self.data


class Recipe(_Data):
    """Everything known about a family of models."""

    family: str
    models: tuple[str, ...]
    undocumented: tuple[str, ...] = ()
    weights: dict[WeightsForm, WeightSizes]
    kv_bytes_per_token: KVBytes
    reserve: float
    host: Host
    vllm: VLLM
    layouts: tuple[Layout, ...]

    def kv_bytes(self, weights: WeightsForm) -> int:
        """Bytes a token of context takes on each card of a tensor-parallel group (the latent isn't split by it)."""
        return self.kv_bytes_per_token.c8 if weights.endswith("c8") else self.kv_bytes_per_token.bf16

    def layouts_for(self, weights: WeightsForm, product: Product) -> tuple[Layout, ...]:
        """The known layouts, smallest first; among equals the one for the shorter context first, it is the faster one."""
        found = (layout for layout in self.layouts if layout.weights == weights and layout.product == product)
        return tuple(sorted(found, key=lambda layout: (layout.nodes, layout.max_tokens)))


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes by model name."""
    folder = resources.files("glm5_operator.plan") / "recipes"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    found = (Recipe.model_validate(yaml.safe_load(file.read_text(encoding="utf-8"))) for file in files)
    return {model: recipe for recipe in found for model in recipe.models}


def recipe_of(model: str) -> Recipe | None:
    """The recipe of a model named exactly so; None means that the spec must state parallelism and memory."""
    return recipes().get(model)
