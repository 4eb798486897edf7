"""Sizing: nothing is faked, hardware is a value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_operator.api.known import CONTEXT_LIMIT, KNOWN_MODELS
from glm5_operator.api.service import WEIGHTS_FORMS
from glm5_operator.plan.facts import Finding, Product
from glm5_operator.plan.product import GB
from glm5_operator.plan.recipe import CARDS_PER_NODE, recipes
from glm5_operator.plan.sizing import Hardware, Sizing, required_bytes, size
from tests.unit.plan.builders import service, standard_hardware, tiny

SERVED = (Product.A2, Product.A3)


def sized(product: Product, model: str = "GLM-5.1", weights: str = "w8a8", spec: dict[str, Any] | None = None) -> Sizing:
    found = size(service(model, weights, spec).spec, standard_hardware(product))
    assert isinstance(found, Sizing), found
    return found


def refused(product: Product, model: str, weights: str, spec: dict[str, Any]) -> Finding:
    found = size(service(model, weights, spec).spec, standard_hardware(product))
    assert isinstance(found, Finding), found
    return found


# Measured on the model's shapes, and typed in here independently of the recipes: total bytes of the weights in GB, routed experts in 10^9
# parameters with their bytes, KV and indexer bytes of a token.
WEIGHT_GB = {"bf16": 1487, "w8a8": 745, "w8a8c8": 745, "w4a8": 383, "w4a8c8": 383}
EXPERTS, EXPERT_BYTES = 724.78, {"bf16": 2, "w8a8": 1, "w8a8c8": 1, "w4a8": 0.5, "w4a8c8": 0.5}
KV_BYTES = {"GLM-5": 89856 + 19968, "GLM-5.1": 89856 + 19968, "GLM-5.2": 89856 + 5376, "GLM-5.3": 89856 + 5376}
CARD_GB = 64

SHAPES = [
    {"tensor": tensor, "data": data, "pipeline": pipeline}
    for tensor in (1, 2, 4, 8, 16, 32)
    for data in (1, 2, 3, 4, 8, 16)
    for pipeline in (1, 2, 4)
    if 8 <= tensor * data * pipeline <= 64
]
LENGTHS = [8192, 20480, 32768, 40960, 65536, 131072, 135000, 200000, 202752, 1024000]


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Around what the tables hold, where a mistake would be accepted."""
    spec: dict[str, Any] = {}
    if shape := draw(st.none() | st.sampled_from(SHAPES) | st.fixed_dictionaries({"data": st.integers(1, 8)})):
        spec["parallelism"] = shape
    if length := draw(st.none() | st.sampled_from(LENGTHS) | st.integers(16, 1048576)):
        spec["context"] = {"maxTokens": length}
    return spec


def check_fits(model: str, weights: str, spec: dict[str, Any], product: Product) -> bool:
    """Whether it is accepted; fails when what is accepted doesn't fit."""
    found = size(service(model, weights, spec).spec, standard_hardware(product))
    if isinstance(found, Finding):
        assert "spec." in found.message, "a refusal says what to change"
        return False
    assert found.layout is not None
    assert found.recipe is not None
    assert found.max_tokens is not None
    shape = found.shape
    experts = EXPERTS * EXPERT_BYTES[weights]
    kv = KV_BYTES[model] / (2 if weights.endswith("c8") else 1)
    # Tensor parallelism splits the attention weights and not the latent cache; data parallelism splits neither.
    card = (experts / found.cards + (WEIGHT_GB[weights] - experts) / (shape.tensor * shape.pipeline) + found.recipe.reserve) * GB
    card += kv * found.max_tokens / (shape.context * shape.pipeline)
    usable = CARD_GB * GB * found.layout.utilization
    assert card <= usable
    assert WEIGHT_GB[weights] * GB + kv * found.max_tokens <= found.cards * usable
    assert found.nodes == -(-found.cards // CARDS_PER_NODE[product])
    assert found.shm_bytes < found.memory_bytes
    return True


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KNOWN_MODELS), st.sampled_from(WEIGHTS_FORMS), specs(), st.sampled_from(SERVED))
def test_whatever_sizing_accepts_fits_memory(model: str, weights: str, spec: dict[str, Any], product: Product) -> None:
    check_fits(model, weights, spec, product)


@pytest.mark.parametrize("product", SERVED)
@pytest.mark.parametrize("weights", WEIGHTS_FORMS)
def test_whatever_shape_of_cards_sizing_accepts_fits_memory(weights: str, product: Product) -> None:
    """All shapes, because those that a mistake would let through are few: little tensor parallelism and much of the others."""
    accepted = [check_fits(model, weights, {"parallelism": shape}, product) for model in ("GLM-5.1", "GLM-5.2") for shape in SHAPES]

    assert set(accepted) == {True, False}


@pytest.mark.parametrize("product", SERVED)
@pytest.mark.parametrize("model", KNOWN_MODELS)
def test_every_layout_of_a_recipe_is_reachable_and_fits(model: str, product: Product) -> None:
    recipe = recipes()[model]
    for layout in (known for known in recipe.layouts if known.product == product):
        found = sized(product, model, layout.weights, {"context": {"maxTokens": layout.max_tokens}})
        assert found.layout == layout
        assert required_bytes(recipe, layout.weights, found.shape, layout.max_tokens) <= CARD_GB * GB * layout.utilization


def test_recipes_know_the_models_that_the_api_knows_and_agree_on_their_context() -> None:
    assert set(recipes()) == set(KNOWN_MODELS)
    for model, recipe in recipes().items():
        assert all(layout.max_tokens <= CONTEXT_LIMIT[model] for layout in recipe.layouts)


def test_a_longer_context_takes_the_next_larger_layout() -> None:
    assert sized(Product.A3).nodes == 1
    assert sized(Product.A3, spec={"context": {"maxTokens": 40961}}).nodes == 2


def test_a_million_tokens_of_glm_5_2_split_the_cache_over_all_dies_of_an_a3_node() -> None:
    found = sized(Product.A3, "GLM-5.2", "w4a8c8", {"context": {"maxTokens": 1_000_000}})

    assert (found.shape.tensor, found.shape.context, found.nodes) == (16, 16, 1)


def test_stated_tensor_parallelism_keeps_the_faster_layout_of_the_default_context() -> None:
    found = sized(Product.A3, "GLM-5.2", "w4a8c8", {"parallelism": {"tensor": 16}})

    assert (found.shape.tensor, found.shape.data, found.shape.context, found.max_tokens) == (16, 1, 1, 135000)


REFUSALS = [
    # The tables win: bytes would fit, and it doesn't.
    (Product.A2, "GLM-5.2 w4a8c8", {"parallelism": {"tensor": 8}}, "WeightsDoNotFit", "needs 16 cards of A2"),
    (Product.A2, "GLM-5.1 w8a8", {}, "WeightsDoNotFit", "w8a8 on one A3 node"),
    (Product.ATLAS_310P, "GLM-5.1 w4a8", {}, "WeightsDoNotFit", "no way to serve GLM-5.1 w4a8 on 310P"),
    (Product.A5, "GLM-5.1 w8a8", {}, "WeightsDoNotFit", "on 950"),
    (Product.A3, "GLM-5.1 w8a8", {"parallelism": {"tensor": 8}}, "WeightsDoNotFit", "needs 16 cards of A3"),
    (Product.A3, "GLM-5.1 w4a8c8", {}, "WeightsNotKnown", "no w4a8c8 weights of GLM-5.1 are known"),
    (Product.A3, "GLM-5.2 w4a8", {}, "WeightsNotKnown", "w4a8c8"),
    (Product.A2, "GLM-5.2 w4a8c8", {"context": {"maxTokens": 1024000}}, "ContextDoesNotFit", "w4a8c8 on one A3 node"),
    (Product.A3, "GLM-5.2 w4a8c8", {"context": {"maxTokens": 1024001}}, "ContextDoesNotFit", "reaches 1024000 tokens"),
    (Product.A3, "GLM-5.1 w8a8", {"parallelism": {"tensor": 16}, "context": {"maxTokens": 65536}}, "ContextDoesNotFit", "reaches 40960"),
    (Product.A3, "GLM-5.1 w8a8", {"context": {"maxTokens": 202752}}, "ContextDoesNotFit", "lower spec.context.maxTokens from 202752"),
    # Arithmetic refuses what the tables don't mention: data parallelism of 16 repeats the attention weights sixteen times.
    (Product.A3, "GLM-5.1 w8a8", {"parallelism": {"tensor": 1, "data": 16}}, "WeightsDoNotFit", "tensor before data"),
    (Product.A3, "GLM-5.1 w8a8", {"parallelism": {"tensor": 1, "data": 17, "pipeline": 3}}, "OddDies", "51 dies leave half a card"),
    (Product.A3, "GLM-5.1 bf16", {"engine": {"name": "native"}}, "WeightsDoNotFit", "set spec.engine.name to vllm"),
    (Product.A3, "GLM-5.1 w8a8", {"engine": {"name": "native"}, "parallelism": {"tensor": 8}}, "WeightsDoNotFit", "8 cards have"),
    (Product.A3, "GLM-5.1 w8a8", {"engine": {"name": "native"}, "parallelism": {"tensor": 16}}, "MemoryNotStated", "spec.model.memory"),
]


@pytest.mark.parametrize(("product", "what", "spec", "reason", "says"), REFUSALS)
def test_what_can_not_fit_is_refused_with_what_to_change(product: Product, what: str, spec: dict[str, Any], reason: str, says: str) -> None:
    model, weights = what.split()

    finding = refused(product, model, weights, spec)

    assert finding.reason == reason
    assert says in finding.message


def test_small_cards_are_refused_by_arithmetic() -> None:
    found = size(service("GLM-5.1", "w4a8").spec, Hardware(Product.A2, cards_per_node=8, card_bytes=32 * GB))

    assert isinstance(found, Finding)
    assert found.reason == "WeightsDoNotFit"
    assert "8 cards of 32 GB" in found.message


def test_an_unknown_product_asks_for_it_only_where_a_recipe_needs_it() -> None:
    unknown = Hardware(product=None, cards_per_node=8)

    assert isinstance(found := size(service().spec, unknown), Finding)
    assert found.reason == "ProductUnknown"
    assert isinstance(size(tiny().spec, unknown), Sizing)


@pytest.mark.parametrize(
    ("tensor", "product", "accepted"),
    [
        (1, Product.A3, True),
        (2, Product.A3, True),
        (3, Product.A3, False),
        (3, Product.A2, True),
        (16, Product.A3, True),
        (15, Product.A3, False),
    ],
)
def test_an_a3_replica_takes_one_die_or_an_even_number(tensor: int, product: Product, accepted: bool) -> None:
    found = size(tiny({"engine": {"name": "vllm"}}, tensor=tensor).spec, standard_hardware(product))

    assert isinstance(found, Sizing) == accepted
    if isinstance(found, Finding):
        assert found.reason == "OddDies"


@pytest.mark.parametrize(
    ("context", "speculative", "sequences", "batched"),
    [
        (None, None, 16, 4096),
        ({"maxSequences": 2048}, None, 2048, 8192),  # every sequence gets its token and three drafts
        ({"maxBatchedTokens": 8}, None, 2, 8),
        ({"maxBatchedTokens": 1}, None, 1, 1),
        ({"maxBatchedTokens": 8}, {"tokens": 0}, 8, 8),
        ({"maxSequences": 4, "maxBatchedTokens": 64}, None, 4, 64),
    ],
)
def test_what_the_user_leaves_open_follows_what_they_state(
    context: dict[str, int] | None, speculative: dict[str, int] | None, sequences: int, batched: int
) -> None:
    optional = {key: value for key, value in (("context", context), ("speculative", speculative)) if value is not None}
    found = sized(Product.A3, spec=optional)

    assert (found.max_sequences, found.max_batched_tokens) == (sequences, batched)


@pytest.mark.parametrize(
    ("memory", "shm_mib"),
    [("256Mi", 64), ("1Gi", 128), ("64Gi", 8192), ("4Ti", 65536)],
)
def test_shared_memory_scales_with_a_stated_memory(memory: str, shm_mib: int) -> None:
    found = size(tiny(memory=memory).spec, standard_hardware(Product.A2))

    assert isinstance(found, Sizing)
    assert found.shm_bytes == shm_mib * 2**20


def test_a_model_without_a_recipe_must_state_memory_and_parallelism() -> None:
    hardware = standard_hardware(Product.A2)
    no_memory = size(service("mine", "bf16", {"parallelism": {"tensor": 1}}).spec, hardware)
    no_tensor = size(service("mine", "bf16", memory="4Gi").spec, hardware)
    too_small = size(tiny(memory="255Mi").spec, hardware)

    assert [found.reason for found in (no_memory, no_tensor, too_small) if isinstance(found, Finding)] == [
        "MemoryNotStated",
        "ParallelismNotStated",
        "MemoryTooSmall",
    ]


def test_native_refuses_pipelines_lone_data_and_weights_with_a_quantised_cache() -> None:
    hardware = standard_hardware(Product.A2)
    lined_up, copied = ({"parallelism": {"tensor": 1, name: 2}} for name in ("pipeline", "data"))
    reasons = [size(spec.spec, hardware) for spec in (tiny(lined_up), tiny(copied), tiny(weights="w8a8c8"))]

    assert [found.reason for found in reasons if isinstance(found, Finding)] == ["NativeParallelism", "NativeParallelism", "NativeWeights"]


def test_native_divides_a_model_over_the_cards_of_a_node() -> None:
    found = size(tiny({"parallelism": {"tensor": 2, "data": 2, "expert": 4}}, weights="w4a8").spec, standard_hardware(Product.A2))

    assert isinstance(found, Sizing)
    assert (found.shape.cards, found.nodes, found.expert, found.warnings) == (4, 1, 4, ())


def test_native_named_for_a_large_model_is_planned_as_stated_with_a_warning() -> None:
    wanted = service("GLM-5.1", "w8a8", {"engine": {"name": "native"}, "parallelism": {"tensor": 16}}, memory="900Gi")
    found = size(wanted.spec, standard_hardware(Product.A3))

    assert isinstance(found, Sizing)
    assert [warning.reason for warning in found.warnings] == ["NativeNotMeasured"]


def test_a_stated_memory_replaces_the_recipes_one() -> None:
    found = size(service(memory="100Gi").spec, standard_hardware(Product.A3))

    assert isinstance(found, Sizing)
    assert (found.memory_bytes, found.shm_bytes) == (100 * 2**30, 50 * 2**30)


@pytest.mark.parametrize(
    ("model", "weights", "spec", "reasons"),
    [
        ("GLM-5.1", "w8a8", {}, []),
        ("GLM-5.2", "w8a8", {}, ["LayoutDerived"]),
        ("GLM-5.3", "w4a8c8", {}, ["LayoutDerived"]),
        ("GLM-5.1", "w4a8", {"parallelism": {"tensor": 8, "data": 2}}, ["LayoutNotDocumented"]),
    ],
)
def test_a_layout_that_nobody_documents_is_planned_with_a_warning(
    model: str, weights: str, spec: dict[str, Any], reasons: list[str]
) -> None:
    assert [warning.reason for warning in sized(Product.A3, model, weights, spec).warnings] == reasons
