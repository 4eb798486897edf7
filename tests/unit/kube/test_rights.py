"""The rights follow from what is planned. Pure."""

from __future__ import annotations

import pytest

from glm5_operator.api import names
from glm5_operator.kube import kinds, rights

WRITING = {"create", "update", "patch", "delete"}


def test_nothing_is_written_but_what_plans_make_and_what_carries_marks() -> None:
    written = {resource.split("/")[0] for right in rights.CLUSTER if WRITING & set(right.verbs) for resource in right.resources}
    children = {kind.plural for kind in kinds.CHILDREN}

    assert written == children | {"glm5services", "glm5finetunejobs", "npupools", "ascendnodes", "nodes", "pods", "events"}
    assert children == {"deployments", "services", "poddisruptionbudgets", "jobs", "configmaps", "podgroups"}


def test_of_pods_nothing_but_a_patch_and_an_eviction_is_allowed() -> None:
    of_pods = {(name, verb) for right in rights.CLUSTER for verb in right.verbs for name in right.resources if name.startswith("pods")}

    assert of_pods == {("pods", "list"), ("pods", "watch"), ("pods", "patch"), ("pods/eviction", "create")}


NODE_MARKS = (names.POOL_LABEL, names.ROLE_TAINT, names.HEALTH_TAINT, names.MOVE_TAINT, names.MOVE_ANNOTATION, names.LENT_ANNOTATION)


@pytest.mark.parametrize("table", [rights.CLUSTER, rights.CLEANUP_CLUSTER], ids=["operator", "clean-up"])
def test_who_reads_the_role_learns_every_mark_that_is_written_on_nodes(table: tuple[rights.Right, ...]) -> None:
    why = " ".join(right.why for right in table if right.resources == ("nodes",) and "patch" in right.verbs)

    assert [mark for mark in NODE_MARKS if mark not in why] == []


def test_the_role_says_that_daemon_sets_are_read_for_taints_and_for_the_plugins_hot_reset() -> None:
    why = " ".join(right.why for right in rights.CLUSTER if right.resources == ("daemonsets",))

    assert "taint" in why
    assert "-hotReset" in why
