"""Every command that the operator can render for the bundled runtime is one that the runtime's own parser accepts, with the same meaning.

The two packages don't know each other: this test stands between them. Nothing is faked; nothing is started.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.facts import Product
from glm5_runtime.cli import ArgumentFaults, ServeArguments, parse_serve
from tests.unit.plan.builders import engine_of, env_of, node, plan, service, tiny

CARD = node("n0", Product.A2)


def rendered(spec: dict[str, Any], source: str = "") -> list[str]:
    container = engine_of(plan(tiny(spec, source=source), CARD))
    assert container["command"][0] == "glm5-runtime"
    return [*container["command"][1:], *container["args"]]


def parsed(spec: dict[str, Any], source: str = "") -> ServeArguments:
    return parse_serve(rendered(spec, source))


SERVED_NAMES = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9._:/-]{0,126}[A-Za-z0-9])?\Z")
DURATIONS = st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(hours=2)).map(
    lambda value: f"{value // timedelta(milliseconds=1)}ms"
)
SOURCES = st.sampled_from(["pvc://weights", "pvc://weights/a/b", "hostpath:///data/tiny", "image:///opt/models/tiny"])


@st.composite
def contexts(draw: st.DrawFn) -> dict[str, int]:
    """Those that admission accepts: a step holds a token of every sequence, and up to eight guesses."""
    context = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "maxTokens": st.integers(16, 1048576),
                "maxSequences": st.integers(1, 4096),
                "maxBatchedTokens": st.integers(1, 1048576),
            },
        )
    )
    if "maxBatchedTokens" in context:
        context["maxBatchedTokens"] = max(context["maxBatchedTokens"], 9 * context.get("maxSequences", 1))
    return context


SPECULATION = st.fixed_dictionaries({"tokens": st.integers(0, 8)})
SPECS = st.fixed_dictionaries(
    {}, optional={"context": contexts(), "speculative": SPECULATION, "drain": st.fixed_dictionaries({"timeout": DURATIONS})}
)


@settings(max_examples=100, deadline=None)
@given(SPECS, SOURCES)
def test_every_rendered_command_is_accepted(spec: dict[str, Any], source: str) -> None:
    context = spec.get("context", {})

    found = parsed(spec, source)

    assert found.host == "0.0.0.0"
    assert found.port == 8000
    assert found.device == "auto"
    assert found.max_model_len == context.get("maxTokens")
    assert context.get("maxSequences") in {None, found.max_sequences}
    assert context.get("maxBatchedTokens") in {None, found.max_batched_tokens}
    assert found.model == Path("/opt/models/tiny" if source.startswith("image") else "/models/tiny-glm5")


@settings(max_examples=50, deadline=None)
@given(SERVED_NAMES)
def test_every_served_name_that_admission_accepts_is_served_as_it_is(name: str) -> None:
    container = engine_of(plan(_named(name), CARD))

    assert parse_serve([*container["command"][1:], *container["args"]]).served_model_name == name


def _named(name: str) -> GLM5Service:
    wanted = tiny()
    model = wanted.spec.model.model_copy(update={"served_name": name})
    return wanted.model_copy(update={"spec": wanted.spec.model_copy(update={"model": model})})


@pytest.mark.parametrize(("stated", "seconds"), [(None, 300), ("1s", 1), ("90m", 5400), ("1h30m", 5400), ("1500ms", 1.5), ("2h", 7200)])
def test_the_drain_timeout_means_the_same_to_both(stated: str | None, seconds: float) -> None:
    spec = {"drain": {"timeout": stated}} if stated else {}

    assert parsed(spec).drain_timeout == seconds


@pytest.mark.parametrize(
    "extra", ["--seed=7", "--log-level=debug", "--chat-template=5.2", "--max-queue=8", "--device=cpu", "--dtype=float32"]
)
def test_flags_that_users_may_add_follow_the_planned_ones(extra: str) -> None:
    assert parsed({"engine": {"args": [extra]}})


@pytest.mark.parametrize(
    ("spec", "means"),
    [
        ({"kvCache": {"prefixCache": False}}, {"prefix_cache": "off"}),
        ({"kvCache": {"prefixCache": True}}, {"prefix_cache": "on"}),
        ({"kvCache": {"pageSize": 128}}, {"page_size": 128}),
        *(
            ({"kvCache": {"dtype": short}}, {"kv_cache_dtype": long})
            for short, long in {"bf16": "bfloat16", "fp16": "float16", "int8": "int8", "int4": "int4"}.items()
        ),
        ({"speculative": {"tokens": 3}}, {"speculative_tokens": 3}),
        ({"speculative": {"tokens": 0}}, {"speculative_tokens": 0}),
        ({"parallelism": {"tensor": 4}}, {"tensor_parallel_size": 4, "data_parallel_size": 1, "enable_expert_parallel": False}),
        (
            {"parallelism": {"tensor": 2, "data": 2, "expert": 4}},
            {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True},
        ),
        ({"parallelism": {"tensor": 2, "expert": 2}}, {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
        ({}, {"prefix_cache": "on", "page_size": 16, "kv_cache_dtype": "auto", "speculative_tokens": 0}),
    ],
    ids=str,
)
def test_cache_speculation_and_parallelism_mean_the_same_to_both(spec: dict[str, Any], means: dict[str, Any]) -> None:
    found = parsed(spec)

    assert {name: getattr(found, name) for name in means} == means


@pytest.mark.parametrize(
    ("model", "version"),
    [
        *(("GLM-5-mini", "5"), ("GLM-5.1-tuned", "5.1"), ("glm-5.2-tiny", "5.2"), ("GLM5.3-Flash", "5.3")),
        *(("tiny-glm5", None), ("GLM-5.9-mini", None), ("GLM-50", None), ("GLM-5.11", None)),
    ],
)
def test_the_runtime_is_told_the_version_that_the_models_name_begins_with(model: str, version: str | None) -> None:
    container = engine_of(plan(service(model, "bf16", {"parallelism": {"tensor": 1}}, memory="1Gi"), CARD))

    assert parse_serve([*container["command"][1:], *container["args"]]).model_version == version


def test_a_flag_that_no_runtime_has_is_refused_so_this_test_can_fail() -> None:
    with pytest.raises(ArgumentFaults):
        parsed({"engine": {"args": ["--max-num-seqs=8"]}})


def test_the_key_is_read_from_the_variable_that_the_plan_sets() -> None:
    from glm5_runtime import cli

    planned = plan(tiny({"auth": {"secretRef": {"name": "chat-key", "key": "token"}}}), CARD)

    assert cli.API_KEY in env_of(planned)
    assert not any("key" in argument for argument in engine_of(planned)["args"])


def test_the_checks_ask_for_paths_that_the_server_answers_without_a_key() -> None:
    from glm5_runtime.server.app import OPEN_PATHS

    container = engine_of(plan(tiny(), CARD))

    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} <= OPEN_PATHS
