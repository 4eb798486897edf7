"""The rights follow from what is planned. Pure."""

from __future__ import annotations

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
