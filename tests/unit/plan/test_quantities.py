"""Quantities that admission accepts, however large: every one ends in a plan or a finding, never in an exception."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm5_operator.api.common import QUANTITY_PATTERN, quantity_bytes
from glm5_operator.plan.facts import Product
from glm5_operator.plan.pod import quantity
from glm5_operator.plan.product import MEMORY_LABEL
from glm5_operator.plan.service import STARTUP_LIMIT, ServicePlan
from tests.unit.plan.builders import node, plan, service, tiny

HUGE = "999999999999999Pi"
QUANTITIES = st.from_regex(QUANTITY_PATTERN, fullmatch=True).filter(lambda text: len(text) <= 32)
CARD_LABELS = st.from_regex(r"[0-9]{1,62}G", fullmatch=True)


def planned(model: str, engine: str, memory: str, card: str, *, limit: str = "", cards: int = 16) -> ServicePlan:
    """The plan of a service whose every quantity is given: its memory, its cards' memory, and the limit and /dev/shm of its podTemplate."""
    engine_limit = {"name": "engine", "resources": {"limits": {"memory": limit}}}
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}
    spec = {"engine": {"name": engine}, "podTemplate": {"spec": {"containers": [engine_limit], "volumes": [shm]}} if limit else {}}
    wanted = tiny(spec, memory=memory) if model == "tiny-glm5" else service(model, "w8a8", spec, memory=memory)
    return plan(wanted, node(product=Product.A3, labels={MEMORY_LABEL: card}, cards=cards))


@settings(max_examples=300, deadline=None)
@given(
    model=st.sampled_from(("tiny-glm5", "GLM-5.1")),
    engine=st.sampled_from(("native", "vllm")),
    memory=QUANTITIES.filter(lambda text: quantity_bytes(text) >= 2**28) | st.just(HUGE),
    card=CARD_LABELS,
    limit=st.just("") | QUANTITIES,
    cards=st.integers(0, 2**63 - 1),
)
def test_no_quantity_that_admission_accepts_ends_in_an_exception(
    *, model: str, engine: str, memory: str, card: str, limit: str, cards: int
) -> None:
    found = planned(model, engine, memory, card, limit=limit, cards=cards)

    assert found.startup <= STARTUP_LIMIT
    assert found.stalled is not None or found.objects


@pytest.mark.parametrize("engine", ["native", "vllm"])
@pytest.mark.parametrize(("memory", "card"), [(HUGE, "64G"), ("1Gi", "9" * 60 + "G"), (HUGE, "9" * 60 + "G")])
def test_memory_beyond_all_machines_is_planned_with_the_longest_startup(engine: str, memory: str, card: str) -> None:
    found = planned("tiny-glm5", engine, memory, card)

    assert found.stalled is None
    assert (found.startup == STARTUP_LIMIT) == (memory == HUGE if engine == "native" else len(card) > 3)


def test_a_quantity_is_written_as_the_api_server_caps_it() -> None:
    assert quantity(quantity_bytes(HUGE)) == quantity(2**63 - 1) == "9223372036854775807"
    assert quantity(2**62) == "4194304Ti"
