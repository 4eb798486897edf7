"""Our taint beside others', and whom it would lock out. Pure: nothing is faked."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.controllers.taints import intolerant, kept_away, with_taint

Json = dict[str, Any]

THEIRS = {"key": "example.com/maintenance", "effect": "NoSchedule"}
OURS = {"key": "glm5.dev/role", "value": "inference", "effect": "NoSchedule"}


def node(*taints: Json, **labels: str) -> Json:
    return {"metadata": {"name": "npu-0", "labels": labels}, "spec": {"taints": list(taints)} if taints else {}}


def daemon_set(*tolerations: Json, selector: Json | None = None) -> Json:
    spec = {"tolerations": list(tolerations), "nodeSelector": selector or {}}
    return {"metadata": {"name": "device-plugin", "namespace": "kube-system"}, "spec": {"template": {"spec": spec}}}


@pytest.mark.parametrize(
    ("present", "role", "expected"),
    [
        ([], "inference", [OURS]),
        ([THEIRS], "inference", [THEIRS, OURS]),
        ([THEIRS, OURS], "inference", None),
        ([THEIRS, OURS], "training", [THEIRS, {**OURS, "value": "training"}]),
        ([THEIRS, OURS], None, [THEIRS]),
        ([THEIRS], None, None),
        ([], None, None),
    ],
)
def test_foreign_taints_stay_and_nothing_is_written_when_ours_is_right(
    present: list[Json], role: str | None, expected: list[Json] | None
) -> None:
    assert with_taint(node(*present), role) == expected


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "glm5.dev/role", "operator": "Exists"}, True),
        ({"key": "glm5.dev/role", "value": "inference"}, True),
        ({"key": "glm5.dev/role", "value": "inference", "effect": "NoSchedule"}, True),
        ({"key": "glm5.dev/role", "value": "training"}, False),
        ({"key": "glm5.dev/role", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations_are_read_as_the_scheduler_reads_them(toleration: Json, tolerates: bool) -> None:
    found = intolerant([daemon_set(toleration)], [node()], "inference")

    assert found == (() if tolerates else ("kube-system/device-plugin",))


def test_a_daemon_set_of_other_nodes_is_not_asked() -> None:
    elsewhere = daemon_set(selector={"accelerator": "nvidia"})

    assert intolerant([elsewhere], [node(accelerator="huawei-Ascend910")], "inference") == ()
    assert intolerant([elsewhere], [node(accelerator="nvidia")], "inference") == ("kube-system/device-plugin",)


SICK = {"key": "glm5.dev/health", "value": "quarantined", "effect": "NoSchedule"}
LEAVING = {"key": "glm5.dev/moving", "value": "training", "effect": "NoSchedule"}
BY_KEY, BY_VALUE = {"key": "glm5.dev/health", "operator": "Exists"}, {"key": "glm5.dev/health", "value": "quarantined"}


@pytest.mark.parametrize(
    ("taints", "tolerations", "away"),
    [
        ([SICK], [], True),
        ([SICK], [{"key": "glm5.dev/role", "operator": "Exists"}], True),
        ([SICK], [BY_KEY], False),
        ([SICK], [BY_VALUE], False),
        ([{**SICK, "value": "remedy"}], [BY_VALUE], True),
        ([SICK, LEAVING], [BY_KEY], True),
        ([SICK, LEAVING], [BY_KEY, {"key": "glm5.dev/moving", "operator": "Exists"}], False),
        ([SICK, LEAVING], [{"operator": "Exists"}], False),
        ([THEIRS, OURS], [], False),
        ([], [], False),
    ],
)
def test_a_daemon_set_is_kept_from_a_node_by_the_taint_that_the_node_has_now(
    taints: list[Json], tolerations: list[Json], away: bool
) -> None:
    assert kept_away([daemon_set(*tolerations)], [node(*taints)]) == (("kube-system/device-plugin",) if away else ())


def test_a_daemon_set_of_other_nodes_is_not_kept_away() -> None:
    nodes = [node(SICK, accelerator="huawei-Ascend910"), node(accelerator="nvidia")]

    assert kept_away([daemon_set(selector={"accelerator": "nvidia"})], nodes) == ()
