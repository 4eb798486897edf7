"""Which node a pool lends next and which it takes back. Nodes and times are values."""

from __future__ import annotations

from glm5_operator.api.pool import NPUPool
from glm5_operator.plan.facts import NodeFacts
from glm5_operator.plan.lending import Assignment, plan_loan
from tests.support.clock import at, stamp
from tests.unit.plan.builders import node, pool

MARK = f"inference training {stamp(at())}"


def lender(count: int, keep: str = "10m") -> NPUPool:
    return pool({"lend": [{"pool": "training", "nodes": count, "keep": keep}]})


def mine(name: str, *, held: int = 0, assigned: str = "", mark: str = "", label: str = "inference", ready: bool = True) -> NodeFacts:
    found = node(name, labels={"rack": "a", "glm5.dev/pool": label}, held=held, assigned=assigned, ready=ready)
    return NodeFacts(**{field: getattr(found, field) for field in found.__slots__} | {"lent_by": mark})


def lent(name: str, *, held: int = 0, mark: str = MARK) -> NodeFacts:
    return mine(name, held=held, assigned="training", mark=mark, label="training")


def test_the_idlest_node_that_is_ready_goes_first() -> None:
    nodes = (mine("a", held=4), mine("b"), mine("c"), mine("d", ready=False))

    assert plan_loan(lender(1), nodes, at()) == Assignment("b", "training", MARK)


def test_the_next_goes_when_the_last_has_arrived() -> None:
    on_its_way = mine("a", assigned="training", mark=MARK)

    assert plan_loan(lender(2), (on_its_way, mine("b")), at(hours=1)) is None
    assert plan_loan(lender(2), (lent("a"), mine("b")), at(hours=1)) is not None
    assert plan_loan(lender(2), (lent("a"), lent("b"), mine("c")), at(hours=1)) is None


def test_a_smaller_number_takes_the_idlest_back_but_not_before_it_was_kept_for_long_enough() -> None:
    nodes = (lent("a", held=8), lent("b"), mine("c"))

    assert plan_loan(lender(1), nodes, at(minutes=9)) is None
    assert plan_loan(lender(1), nodes, at(minutes=10)) == Assignment("b", "inference", None)
    assert plan_loan(lender(1, keep="0s"), nodes, at()) == Assignment("b", "inference", None)


def test_a_node_that_is_lent_to_the_pool_is_not_lent_on() -> None:
    """Two pools that lend to each other would drain and reset the same node for ever, and a third would keep it."""
    borrowed = mine("a", assigned="inference", mark=f"lab inference {stamp(at())}")

    assert plan_loan(lender(1), (borrowed,), at(hours=1)) is None
    assert plan_loan(lender(1), (borrowed, mine("b", held=8)), at(hours=1)) == Assignment(
        "b", "training", f"inference training {stamp(at(hours=1))}"
    )


def test_a_mark_of_a_time_that_is_yet_to_come_keeps_no_node_for_ever() -> None:
    assert plan_loan(lender(0), (lent("a", mark="inference training 9999-12-31T23:59:59-14:00"),), at()) == Assignment(
        "a", "inference", None
    )


def test_without_the_entry_all_come_back() -> None:
    assert plan_loan(pool(), (lent("a"), mine("b")), at(minutes=11)) == Assignment("a", "inference", None)
    assert plan_loan(pool(), (mine("a"), mine("b")), at()) is None


def test_a_node_that_a_person_sent_somewhere_else_is_neither_lent_nor_taken_back() -> None:
    sent, garbled = mine("a", assigned="lab", label="lab"), lent("b", mark="inference training yesterday")
    taken = mine("c", assigned="lab", mark=MARK, label="training")

    assert plan_loan(pool(), (sent, garbled, taken), at(hours=1)) is None
    assert plan_loan(lender(1), (sent, garbled, taken), at(hours=1)) is None
