"""Which nodes a pool takes, keeps and lets go. Nodes are values."""

from __future__ import annotations

from glm5_operator.api.pool import NPUPool
from glm5_operator.plan.facts import NodeFacts, Product
from glm5_operator.plan.pool import NodeChange, members, owner_of, plan_pool, plan_release
from tests.unit.plan.builders import RESOURCE, node, pool

TAINTED = frozenset({"glm5.dev/role=inference"})


def labelled(name: str, owner: str, *, rack: str = "a", taints: frozenset[str] = frozenset()) -> NodeFacts:
    return node(name, labels={"rack": rack, "glm5.dev/pool": owner}, taints=taints)


def leaving(wanted: NPUPool) -> NPUPool:
    return wanted.model_copy(update={"metadata": wanted.metadata.model_copy(update={"deletion_timestamp": "2026-11-01T00:00:00Z"})})


def test_nodes_that_the_selector_matches_are_labelled_and_no_other_node_is_touched() -> None:
    mine = pool()
    plan = plan_pool(mine, [mine], (node("n0"), node("n1", labels={"rack": "b"}), node("n2", labels={})))

    assert plan.changes == (NodeChange("n0", "inference", None),)
    assert plan.members == ("n0",)


def test_a_pool_whose_nodes_are_as_they_should_be_changes_nothing() -> None:
    mine = pool()

    assert plan_pool(mine, [mine], (labelled("n0", "inference"),)).changes == ()


def test_nodes_are_named_instead_of_selected() -> None:
    mine = pool({"nodeNames": ["n1"]})

    assert plan_pool(mine, [mine], (node("n0"), node("n1"))).members == ("n1",)


def test_a_node_that_left_the_selector_is_released_with_its_taint() -> None:
    mine = pool({"taint": True})
    plan = plan_pool(mine, [mine], (labelled("n0", "inference", rack="b", taints=TAINTED),))

    assert plan.changes == (NodeChange("n0", None, None),)


def test_the_taint_follows_the_setting() -> None:
    tainting, plain = pool({"taint": True}), pool()

    assert plan_pool(tainting, [tainting], (labelled("n0", "inference"),)).changes == (NodeChange("n0", "inference", "inference"),)
    assert plan_pool(tainting, [tainting], (labelled("n0", "inference", taints=TAINTED),)).changes == ()
    assert plan_pool(plain, [plain], (labelled("n0", "inference", taints=TAINTED),)).changes == (NodeChange("n0", "inference", None),)


def test_the_taint_waits_for_daemonsets_that_would_be_driven_away() -> None:
    mine = pool({"taint": True})
    plan = plan_pool(mine, [mine], (labelled("n0", "inference"),), intolerant=["kube-system/device-plugin"])

    assert plan.changes == ()
    assert [warning.reason for warning in plan.warnings] == ["TaintWaits"]
    assert "kube-system/device-plugin" in plan.warnings[0].message


def test_daemonsets_that_a_quarantine_keeps_away_are_told_and_hold_nothing_back() -> None:
    mine = pool({"taint": True})
    plan = plan_pool(mine, [mine], (labelled("n0", "inference"),), kept_away=["kube-system/device-plugin"])

    assert plan.changes == (NodeChange("n0", "inference", "inference"),)
    assert [warning.reason for warning in plan.warnings] == ["DaemonSetsKeptAway"]
    for word in ("kube-system/device-plugin", "glm5.dev/health", "glm5.dev/moving"):
        assert word in plan.warnings[0].message


def test_the_older_pool_gets_a_node_that_two_select_and_the_other_reports_it() -> None:
    older, newer = pool(name="zeta", created="2026-01-01T00:00:00Z"), pool(name="alpha", created="2026-02-01T00:00:00Z")
    contested = (node("n0"),)

    assert plan_pool(older, [newer, older], contested).members == ("n0",)
    lost = plan_pool(newer, [newer, older], contested)
    assert (lost.members, lost.changes, lost.conflicts) == ((), (), {"n0": "zeta"})
    assert [warning.reason for warning in lost.warnings] == ["NodeConflict"]
    assert plan_pool(older, [newer, older], contested).conflicts == {}


def test_of_two_pools_made_in_the_same_second_the_name_decides() -> None:
    one, two = pool(name="alpha"), pool(name="beta")

    assert owner_of(node("n0"), [two, one]) == owner_of(node("n0"), [one, two]) == "alpha"


def test_a_labelled_node_stays_where_it_is_whatever_pool_comes() -> None:
    holder, older = pool(name="holder", created="2026-06-01T00:00:00Z"), pool(name="older", created="2026-01-01T00:00:00Z")

    assert owner_of(labelled("n0", "holder"), [older, holder]) == "holder"


def test_a_label_of_a_pool_that_does_not_select_the_node_gives_no_claim() -> None:
    assert owner_of(labelled("n0", "inference"), [pool(name="other"), pool({"nodeSelector": {"rack": "z"}})]) == "other"


def test_a_pool_that_is_being_deleted_claims_nothing_and_releases_what_it_has() -> None:
    going = leaving(pool())
    plan = plan_pool(going, [going], (labelled("n0", "inference"),))

    assert plan.members == ()
    assert plan.changes == (NodeChange("n0", None, None),)


def test_a_released_node_that_the_next_pool_wants_is_left_to_that_pool() -> None:
    going, staying = leaving(pool()), pool(name="staying")
    nodes = (labelled("n0", "inference"),)

    assert plan_pool(going, [going, staying], nodes).changes == ()
    assert plan_pool(staying, [going, staying], nodes).changes == (NodeChange("n0", "staying", None),)


def test_release_touches_only_nodes_with_the_pools_own_label() -> None:
    nodes = (labelled("n0", "gone"), labelled("n1", "inference"), node("n2"))

    assert plan_release("gone", nodes) == (NodeChange("n0", None, None),)


def test_cards_are_counted_total_held_and_free_on_nodes_that_take_pods() -> None:
    mine = pool()
    plan = plan_pool(
        mine, [mine], (node("n0", held=4), node("n1", ready=False), node("n2", schedulable=False, held=2), node("n3", held=20))
    )

    assert (plan.cards, plan.held_cards, plan.free_cards) == (64, 26, 12)
    assert (plan.product, plan.resource_name, plan.stalled) == (Product.A3, RESOURCE, None)


def test_a_pool_without_usable_nodes_says_why() -> None:
    mine = pool()

    empty = plan_pool(mine, [mine], ())
    mixed = plan_pool(mine, [mine], (node("n0", Product.A2), node("n1", Product.A3)))

    assert empty.stalled is not None
    assert empty.stalled.reason == "PoolHasNoNodes"
    assert mixed.stalled is not None
    assert (mixed.stalled.reason, mixed.product, mixed.resource_name, mixed.cards) == ("ProductMixed", None, RESOURCE, 24)


def test_members_are_what_the_plan_of_the_pool_says() -> None:
    mine, rival = pool(), pool(name="rival", created="2027-01-01T00:00:00Z")
    nodes = (node("n0"), labelled("n1", "rival"), node("n2", labels={}))

    assert tuple(found.name for found in members(mine, [mine, rival], nodes)) == plan_pool(mine, [mine, rival], nodes).members == ("n0",)


def test_a_node_that_is_assigned_stays_where_it_is_until_its_label_says_so_and_then_belongs_there_whatever_selects_it() -> None:
    old, new = pool(), pool({"nodeSelector": {"rack": "elsewhere"}}, name="training")
    pools = [old, new]

    assert owner_of(node(labels={"rack": "a", "glm5.dev/pool": "inference"}, assigned="training"), pools) == "inference"
    assert owner_of(node(labels={"rack": "b", "glm5.dev/pool": "inference"}, assigned="training"), pools) == "inference", (
        "not let go undrained"
    )
    assert owner_of(node(labels={"rack": "a", "glm5.dev/pool": "training"}, assigned="training"), pools) == "training"
    assert owner_of(node(labels={"rack": "a", "glm5.dev/pool": "training"}), pools) == "inference", "without the note the selector counts"
    assert owner_of(node(labels={"rack": "a"}, assigned="training"), pools) == "training", "nobody has it, so there is nothing to drain"
    assert owner_of(node(labels={"rack": "a", "glm5.dev/pool": "inference"}, assigned="gone"), pools) == "inference"
    assert owner_of(node(labels={"rack": "a", "glm5.dev/pool": "training"}, assigned="training"), [old, leaving(new)]) == "inference"


def test_a_node_that_was_moved_away_is_no_conflict_for_the_pool_that_selects_it() -> None:
    old, new = pool(), pool({"nodeSelector": {"rack": "elsewhere"}}, name="training")
    moved = node(labels={"rack": "a", "glm5.dev/pool": "training"}, assigned="training")

    assert plan_pool(old, [old, new], (moved,)).conflicts == {}
    assert plan_pool(old, [old, new], (moved,)).changes == ()
    assert plan_pool(new, [old, new], (moved,)).members == ("n0",)
