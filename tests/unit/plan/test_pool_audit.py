"""Who holds a pool's cards against its rules, and how the free ones lie. Nodes and pods are values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glm5_operator.plan.facts import NodeFacts, Product
from glm5_operator.plan.pool_audit import Audit, Die, Exempt, Holding, audit_pool, breach_of
from tests.unit.plan.builders import RESOURCE, node, pool

NOBODY = Exempt()
SITE = Exempt(namespaces=("lab",), daemon_sets=("kube-system",))


def held(namespace: str = "prod", *, names: str | None = "inference", daemon_set: bool = False, count: int = 1) -> Holding:
    return Holding("n0", namespace, "chat-0", count, pool=names, daemon_set=daemon_set)


@pytest.mark.parametrize(
    ("holding", "reason"),
    [
        (held(), None),
        (held(names=""), "NoPool"),
        (held(names="training"), "OtherPool"),
        (held("dev"), "NamespaceNotOpen"),
        (held("dev", names="training"), "OtherPool"),
        (held("dev", names=None), "NamespaceNotOpen"),
        (held("prod", names=None), None),
        (held("lab", names=""), None),
        (held("kube-system", names="", daemon_set=True), None),
        (held("kube-system", names=""), "NoPool"),
        (held("dev", names="", daemon_set=True), "NoPool"),
    ],
)
def test_a_holding_is_held_against_the_rules_that_admission_has(holding: Holding, reason: str | None) -> None:
    assert breach_of(pool({"namespaces": ["prod"]}), holding, SITE) == reason


def test_the_operators_own_compute_check_breaks_no_rule() -> None:
    check = replace(held("glm5-system", names="inference"), compute_check=True)

    assert breach_of(pool({"namespaces": ["prod"]}), check, NOBODY) is None


def test_a_pool_that_is_open_to_all_asks_only_to_be_named() -> None:
    assert breach_of(pool(), held("anything"), NOBODY) is None
    assert breach_of(pool(), held("anything", names=""), NOBODY) == "NoPool"


def look(*nodes: NodeFacts, product: Product = Product.A2, dies: dict[str, tuple[Die, ...]] | None = None) -> Audit:
    return audit_pool(pool(), nodes, (), resource=RESOURCE, product=product, dies=dies or {}, exempt=NOBODY)


def test_whole_nodes_are_counted_where_every_card_is_free() -> None:
    found = look(node("n0", cards=8), node("n1", cards=8, held=3), node("n2", cards=8, ready=False), node("n3", cards=8, schedulable=False))

    assert (found.free_nodes, found.most_on_one_node) == (1, 8)


def test_cards_of_a_node_in_quarantine_are_counted_apart() -> None:
    sick = node("n1", cards=8, schedulable=False, taints=frozenset({"glm5.dev/health=quarantined"}))

    assert look(node("n0", cards=8), sick).quarantined == 8


def test_two_dies_are_a_pair_only_on_one_module() -> None:
    """Case C20: free dies 0, 2, 3, 4 serve a request for two with 2 and 3 alone."""
    free = {0, 2, 3, 4}
    dies = tuple(Die(number // 2, usable=number in free) for number in range(16))

    assert look(node("n0", cards=16, held=12), product=Product.A3, dies={"n0": dies}).free_pairs == 1


def test_pairs_are_not_guessed_where_a_node_with_free_dies_has_no_agent_that_knows() -> None:
    dies = {"n0": tuple(Die(number // 2, usable=True) for number in range(16))}

    assert look(node("n0", cards=16), node("n1", cards=16), product=Product.A3, dies=dies).free_pairs is None
    assert look(node("n0", cards=16), node("n1", cards=16, held=16), product=Product.A3, dies=dies).free_pairs == 8
    assert look(node("n0", cards=8), product=Product.A2).free_pairs is None
