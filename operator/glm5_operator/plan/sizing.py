"""How many cards, and how laid out: (spec, hardware) → sizes, or what to change.

Called by `plan_service` and by `glm5 plan`. For models with a recipe the known layouts decide and arithmetic only ever refuses more;
any other model states its own parallelism and memory. Must not know pods, images or pools.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from glm5_operator.plan import findings
from glm5_operator.plan.facts import Finding, Product
from glm5_operator.plan.product import CARD_BYTES, GB
from glm5_operator.plan.recipe import Layout, Recipe, recipe_of

if TYPE_CHECKING:
    from glm5_operator.api.service import GLM5ServiceSpec, ParallelismSpec, WeightsForm

GIB: Final = 2**30
MIB: Final = 2**20
DEFAULT_SEQUENCES: Final = 16
DEFAULT_BATCHED_TOKENS: Final = 2048
SHM_LIMIT: Final = 64 * GIB
SHM_SHARE: Final = 8  # of a stated memory, this part is /dev/shm
SHM_LEAST: Final = 64 * MIB  # what a container gets when nobody asks
MEMORY_LEAST: Final = 256 * MIB
NATIVE_WEIGHTS: Final = ("bf16", "w8a8", "w4a8")
CPU_MILLIS: Final = 500  # of a small model's card; no limit, so a loaded engine takes what is idle


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one node of the pool offers."""

    product: Product | None
    cards_per_node: int
    card_bytes: int = CARD_BYTES


@dataclass(frozen=True, slots=True)
class Shape:
    """Cards of one replica by what they split."""

    tensor: int
    pipeline: int
    data: int
    context: int = 1

    @property
    def cards(self) -> int:
        """Cards of one replica; context parallelism takes none of its own."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Sizing:
    """The numbers of one replica. `max_tokens` None: the checkpoint says. `weights_bytes` None: unknown."""

    recipe: Recipe | None
    layout: Layout | None
    shape: Shape
    nodes: int
    expert: int
    max_tokens: int | None
    max_sequences: int
    max_batched_tokens: int
    speculative_tokens: int
    weights_bytes: int | None
    memory_bytes: int
    shm_bytes: int
    cpu_millis: int
    warnings: tuple[Finding, ...] = ()

    @property
    def cards(self) -> int:
        """Cards of one replica."""
        return self.shape.cards


@dataclass(frozen=True, slots=True)
class _Choice:
    """A layout for a spec, before it is known to fit."""

    spec: GLM5ServiceSpec
    recipe: Recipe
    layout: Layout
    shape: Shape
    max_tokens: int

    @property
    def name(self) -> str:
        return f"{self.spec.model.name} {self.layout.weights}"

    @property
    def known(self) -> tuple[Layout, ...]:
        return self.recipe.layouts_for(self.layout.weights, self.layout.product)


def size(spec: GLM5ServiceSpec, hardware: Hardware) -> Sizing | Finding:
    """Size one replica of `spec`; a Finding says what to change when it can't be."""
    recipe = recipe_of(spec.model.name)
    if spec.engine_name == "native":
        return _native(spec, hardware, recipe)
    return _stated(spec, hardware) if recipe is None else _from_recipe(spec, hardware, recipe)


def required_bytes(recipe: Recipe, weights: WeightsForm, shape: Shape, max_tokens: int) -> int:
    """Memory that each card needs: its part of the weights, one request of the full length, and the reserve.

    Tensor parallelism doesn't split the KV cache (MLA keeps one latent for all heads); context and pipeline parallelism do.
    """
    sizes = recipe.weights[weights]
    part = (sizes.experts + sizes.draft) / shape.cards + sizes.rest / (shape.tensor * shape.pipeline)
    cache = recipe.kv_bytes(weights) * max_tokens / (shape.context * shape.pipeline)
    return round((part + recipe.reserve) * GB + cache)


def _native(spec: GLM5ServiceSpec, hardware: Hardware, recipe: Recipe | None) -> Sizing | Finding:
    """The bundled runtime takes what the spec states, also for a model that has a recipe: recipes are vLLM's."""
    shape, weights = _shape(spec.parallelism), spec.model.weights
    if shape.pipeline > 1 or (shape.data > 1 and (spec.parallelism is None or (spec.parallelism.expert or 1) == 1)):
        return findings.native_parallelism()
    if weights not in NATIVE_WEIGHTS:
        return findings.native_weights(NATIVE_WEIGHTS)
    if recipe is not None and weights in recipe.weights:
        needed, offered = recipe.weights[weights].total, shape.cards * hardware.card_bytes
        if needed > offered:
            return findings.native_too_large(spec.model.name, needed, shape.cards, offered)
    found = _stated(spec, hardware)
    if recipe is None or isinstance(found, Finding):
        return found
    return replace(found, warnings=(findings.native_not_measured(spec.model.name),))


def _stated(spec: GLM5ServiceSpec, hardware: Hardware) -> Sizing | Finding:
    """A model without a recipe: the spec states parallelism and memory."""
    memory = spec.memory_bytes
    if memory is None:
        return findings.memory_not_stated(spec.model.name)
    if memory < MEMORY_LEAST:
        return findings.memory_too_small(memory, MEMORY_LEAST)
    if spec.parallelism is None or spec.parallelism.tensor is None:
        return findings.parallelism_not_stated(spec.model.name)
    shape = _shape(spec.parallelism)
    if _leaves_half_a_card(shape, hardware):
        return findings.odd_dies(shape.cards)
    speculative = spec.speculative.tokens if spec.speculative else 0
    sequences, batched = _batch(spec, DEFAULT_SEQUENCES, DEFAULT_BATCHED_TOKENS, speculative)
    return Sizing(
        recipe=None,
        layout=None,
        shape=shape,
        nodes=_nodes(shape, hardware),
        expert=spec.parallelism.expert or 1,
        max_tokens=spec.context.max_tokens if spec.context else None,
        max_sequences=sequences,
        max_batched_tokens=batched,
        speculative_tokens=speculative,
        weights_bytes=None,
        memory_bytes=memory,
        shm_bytes=min(SHM_LIMIT, max(SHM_LEAST, _whole_mib(memory // SHM_SHARE))),
        cpu_millis=CPU_MILLIS * shape.cards,
    )


def _from_recipe(spec: GLM5ServiceSpec, hardware: Hardware, recipe: Recipe) -> Sizing | Finding:
    layout = _choose_layout(spec, hardware.product, recipe)
    if isinstance(layout, Finding):
        return layout
    wanted = spec.context.max_tokens if spec.context else None
    choice = _Choice(spec, recipe, layout, _shape(spec.parallelism, layout), wanted or layout.max_tokens)
    refused = _too_few_cards(choice) or _memory_refuses(choice, hardware.card_bytes)
    if refused:
        return refused
    if _leaves_half_a_card(choice.shape, hardware):
        return findings.odd_dies(choice.shape.cards)
    return _sized(choice, hardware)


def _sized(choice: _Choice, hardware: Hardware) -> Sizing:
    spec, recipe, layout, shape = choice.spec, choice.recipe, choice.layout, choice.shape
    recipe_tokens = int({**recipe.vllm.speculative, **layout.speculative}["num_speculative_tokens"])
    speculative = spec.speculative.tokens if spec.speculative else recipe_tokens
    sequences, batched = _batch(spec, layout.max_sequences, layout.max_batched_tokens, speculative)
    stated_expert = spec.parallelism.expert if spec.parallelism else None
    memory = spec.memory_bytes or (recipe.host.shm_gib + recipe.host.gib_per_card * shape.cards) * GIB
    return Sizing(
        recipe=recipe,
        layout=layout,
        shape=shape,
        nodes=_nodes(shape, hardware),
        expert=stated_expert or shape.tensor * shape.data,
        max_tokens=choice.max_tokens,
        max_sequences=sequences,
        max_batched_tokens=batched,
        speculative_tokens=speculative,
        weights_bytes=recipe.weights[layout.weights].total,
        memory_bytes=memory,
        shm_bytes=min(recipe.host.shm_gib * GIB, _whole_mib(memory // 2)),
        cpu_millis=recipe.host.cpu_per_card * 1000 * shape.cards,
        warnings=_layout_warnings(choice),
    )


def _choose_layout(spec: GLM5ServiceSpec, product: Product | None, recipe: Recipe) -> Layout | Finding:
    """The smallest known layout that reaches the wanted context on the stated cards."""
    name, weights = spec.model.name, spec.model.weights
    if product is None:
        return findings.product_unknown(spec.pool)
    if weights not in recipe.weights:
        return findings.weights_not_known(name, weights, recipe.weights)
    layouts = recipe.layouts_for(weights, product)
    if not layouts:
        return findings.no_layout(name, weights, product, recipe)
    wanted = (spec.context.max_tokens if spec.context else None) or 0
    reaching = [layout for layout in layouts if layout.max_tokens >= wanted]
    if not reaching:
        return findings.context_exceeds_layouts(name, layouts, wanted, recipe)
    cards = _stated_cards(spec.parallelism)
    held = [layout for layout in layouts if cards is None or layout.cards <= cards]
    if not held:
        return layouts[0]  # `_too_few_cards` refuses it with the number
    fitting = [layout for layout in held if layout in reaching]
    if not fitting:
        best = max(layout.max_tokens for layout in held)
        return findings.context_exceeds_cards(f"{name} {weights}", best, wanted, f"{cards} cards of {product}")
    return fitting[0]


def _too_few_cards(choice: _Choice) -> Finding | None:
    """The tables win over arithmetic: fewer cards than the smallest known layout are refused, even where bytes would seem to fit."""
    smallest = min(layout.cards for layout in choice.known)
    if choice.shape.cards >= smallest:
        return None
    return findings.too_few_cards(choice.spec.model.name, choice.layout, smallest, choice.shape.cards)


def _memory_refuses(choice: _Choice, card_bytes: int) -> Finding | None:
    recipe, weights, shape = choice.recipe, choice.layout.weights, choice.shape
    budget = round(card_bytes * choice.layout.utilization)
    if required_bytes(recipe, weights, shape, choice.max_tokens) <= budget:
        return None
    cards = f"{shape.cards} cards of {card_bytes // GB} GB"
    bare = required_bytes(recipe, weights, shape, 0)
    if bare >= budget:
        return findings.weights_exceed_cards(choice.name, bare, budget, cards)
    fits = (budget - bare) * shape.context * shape.pipeline // recipe.kv_bytes(weights)
    return findings.context_exceeds_cards(choice.name, fits, choice.max_tokens, cards)


def _layout_warnings(choice: _Choice) -> tuple[Finding, ...]:
    layout, shape, model = choice.layout, choice.shape, choice.spec.model.name
    name = f"{choice.name} on {layout.product}"
    if shape.pipeline != 1 or (shape.tensor, shape.data) not in {(known.tensor, known.data) for known in choice.known}:
        return (findings.layout_not_documented(name, shape.tensor, shape.data),)
    if layout.derived:
        return (findings.layout_derived(name, layout.source),)
    if model in choice.recipe.undocumented:
        return (findings.served_as(model, choice.recipe.models[0]),)
    return ()


def _shape(stated: ParallelismSpec | None, layout: Layout | None = None) -> Shape:
    """The stated parallelism, completed from the layout. Who states tensor states the whole shape: data is then 1 unless given."""
    tensor = (stated.tensor if stated else None) or (layout.tensor if layout else 1)
    from_layout = layout.data if layout and not (stated and stated.tensor) else 1
    data = (stated.data if stated else None) or from_layout
    pipeline = (stated.pipeline if stated else None) or 1
    context = layout.context_parallel if layout and tensor % layout.context_parallel == 0 else 1
    return Shape(tensor=tensor, pipeline=pipeline, data=data, context=context)


def _stated_cards(stated: ParallelismSpec | None) -> int | None:
    """Cards that the spec fixes; None when it leaves them to the layout."""
    return None if stated is None or stated.tensor is None else _shape(stated).cards


def _leaves_half_a_card(shape: Shape, hardware: Hardware) -> bool:
    return hardware.product is Product.A3 and shape.cards != 1 and shape.cards % 2 == 1


def _nodes(shape: Shape, hardware: Hardware) -> int:
    return -(-shape.cards // max(1, hardware.cards_per_node))


def _batch(spec: GLM5ServiceSpec, sequences: int, batched: int, speculative: int) -> tuple[int, int]:
    """Sequences and tokens of a step; what the user left open follows what they stated, so that every running sequence gets its tokens."""
    context = spec.context
    stated_sequences = context.max_sequences if context else None
    stated_batched = context.max_batched_tokens if context else None
    per_sequence = speculative + 1
    if stated_batched is None:
        chosen = stated_sequences or sequences
        return chosen, max(batched, chosen * per_sequence)
    return stated_sequences or max(1, min(sequences, stated_batched // per_sequence)), stated_batched


def _whole_mib(size_bytes: int) -> int:
    return size_bytes // MIB * MIB
