"""Comparisons of desired and live objects. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from glm5_operator.api import names
from glm5_operator.kube import managed

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("live", "desired", "held"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"b": 2}, {"a": 1}, False),
        ({"a": {"x": 1, "default": 5}}, {"a": {"x": 1}}, True),
        ({"a": {"default": 5}}, {"a": {"x": 1}}, False),
        ({"args": ["serve", "--x"]}, {"args": ["serve", "--x"]}, True),
        ({"args": ["serve", "--x", "--foreign"]}, {"args": ["serve", "--x"]}, False),
        ({"args": ["--x", "serve"]}, {"args": ["serve", "--x"]}, False),
        ({"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "1"}]}, True),
        ({"env": [{"name": "A", "value": "2"}]}, {"env": [{"name": "A", "value": "1"}]}, False),
        ({"env": []}, {"env": [{"name": "A", "value": "1"}]}, False),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1024Mi"}}, True),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1025Mi"}}, False),
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1000m"}}, True),
        ({"requests": {"cpu": "500m"}}, {"requests": {"cpu": 0.5}}, True),
        ({"requests": {"cpu": "500m"}}, {"requests": {"cpu": ".5"}}, True),
        ({"limits": {"memory": "1k"}}, {"limits": {"memory": "1e3"}}, True),
        ({"limits": {"memory": "1E"}}, {"limits": {"memory": "1000P"}}, True),
        ({"limits": {"memory": "1k"}}, {"limits": {"memory": "1e999999999"}}, False),
        ({"sizeLimit": "1Gi"}, {"sizeLimit": "1024Mi"}, True),
        ({"limits": {"cards": "8"}}, {"limits": {"cards": 8}}, True),
        ({"env": [{"name": "A", "value": "1k"}]}, {"env": [{"name": "A", "value": "1000"}]}, False),  # a text, not a quantity
        ({"flag": True}, {"flag": 1}, True),  # Python's equality; the schema of the field settles its type
        ({"port": 8000}, {"port": "http"}, False),
        ({}, {"nothing": {}}, True),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, {"volumes": [{"name": "v", "emptyDir": {}}]}, True),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, {"volumes": [{"name": "v", "emptyDir": {}}]}, False),
        ({}, {"labelSelector": {}}, False),  # absent selects nothing, an empty one everything
        ({"emptyDir": {}}, {"emptyDir": {}}, True),
        ({"emptyDir": "?"}, {"emptyDir": {}}, False),
        ({}, {"nothing": None}, True),
        ({}, {"list": []}, True),
        ({"list": [1]}, {"list": []}, False),
        ({}, {"hostNetwork": False}, True),
        ({"hostNetwork": True}, {"hostNetwork": False}, False),
        ({"volumeMounts": [{"name": "m"}]}, {"volumeMounts": [{"name": "m", "readOnly": False}]}, True),
        ({"volumeMounts": [{"name": "m", "readOnly": True}]}, {"volumeMounts": [{"name": "m", "readOnly": False}]}, False),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "A", "value": ""}]}, True),
        ({"env": [{"name": "A", "value": "x"}]}, {"env": [{"name": "A", "value": ""}]}, False),
        ({}, {"initialDelaySeconds": 0}, True),
        ({"timeoutSeconds": 1, "successThreshold": 1}, {"timeoutSeconds": 0, "successThreshold": 0}, True),
        ({"timeoutSeconds": 5}, {"timeoutSeconds": 0}, False),  # not the server's doing
        ({"terminationMessagePath": "/dev/termination-log"}, {"terminationMessagePath": ""}, True),
        ({"schedulerName": "default-scheduler", "dnsPolicy": "ClusterFirst"}, {"schedulerName": "", "dnsPolicy": ""}, True),
        ({"schedulerName": "mine"}, {"schedulerName": ""}, False),
        ({"terminationGracePeriodSeconds": 30}, {"terminationGracePeriodSeconds": 0}, False),  # 0 is a value there
        ({}, {"nodeSelector": {}, "tolerations": []}, True),
        ({}, {"automountServiceAccountToken": False}, False),  # absent means true
        ({}, {"runAsNonRoot": False}, False),  # absent means the pod's
        ({}, {"replicas": 0}, False),
        ({}, {"storageClassName": ""}, False),  # absent means the default class
    ],
)
def test_a_live_object_holds_what_is_desired(live: Json, desired: Json, held: bool) -> None:
    assert managed.holds(live, desired) is held


DESIRED: Json = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "namespace": "ns", "labels": {"app": "x"}},
    "spec": {
        "replicas": 2,
        "template": {"spec": {"containers": [{"name": "engine", "image": "i:1", "args": ["serve"], "ports": [{"containerPort": 8000}]}]}},
    },
}
CONTAINER: Json = {
    "f:name": {},
    "f:image": {},
    "f:args": {},
    "f:ports": {'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
}


def entry(fields: Json, manager: str = names.FIELD_MANAGER, operation: str = "Apply", subresource: str = "") -> Json:
    return {"manager": manager, "operation": operation, "subresource": subresource, "fieldsV1": fields}


def all_fields(container: Json = CONTAINER, **spec: Json) -> Json:
    containers = {"f:containers": {'k:{"name":"engine"}': {".": {}, **container}}}
    return {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:replicas": {}, "f:template": {"f:spec": containers}, **spec}}


def live(*entries: Json, **spec: object) -> Json:
    document: Json = {**DESIRED, "spec": {**DESIRED["spec"], **spec}}
    return {**document, "metadata": {**DESIRED["metadata"], "managedFields": list(entries)}}


def test_all_desired_fields_in_our_apply_entry_are_ours() -> None:
    assert managed.ours(live(entry(all_fields())), DESIRED)


def test_what_the_server_leaves_out_needs_no_entry() -> None:
    container = {**DESIRED["spec"]["template"]["spec"]["containers"][0], "tty": False, "workingDir": "", "env": []}
    desired = {**DESIRED, "spec": {**DESIRED["spec"], "template": {"spec": {"containers": [container]}}}}

    assert managed.ours(live(entry(all_fields())), desired)


def test_one_field_less_is_not_ours() -> None:
    fewer = all_fields({name: value for name, value in CONTAINER.items() if name != "f:image"})

    assert not managed.ours(live(entry(fewer)), DESIRED)


@pytest.mark.parametrize(
    "wrong", [entry(all_fields(), manager="kubectl"), entry(all_fields(), operation="Update"), entry(all_fields(), subresource="status")]
)
def test_entries_of_others_updates_and_subresources_do_not_count(wrong: Json) -> None:
    assert not managed.ours(live(wrong), DESIRED)


def test_a_foreign_manager_with_another_value_is_named() -> None:
    scaler = entry({"f:spec": {"f:replicas": {}}}, manager="kubectl-edit", operation="Update")

    assert managed.foreign_managers(live(entry(all_fields()), scaler, replicas=5), DESIRED) == ("kubectl-edit",)


def test_a_co_owner_of_the_same_value_is_no_rival() -> None:
    """Applying again would not end the sharing, so it must not count as something to do."""
    twin = entry({"f:spec": {"f:replicas": {}}}, manager="gitops")

    assert managed.foreign_managers(live(entry(all_fields()), twin), DESIRED) == ()


def test_a_manager_of_fields_that_we_do_not_want_is_no_rival() -> None:
    other = entry({"f:spec": {"f:paused": {}}, "f:status": {"f:replicas": {}}}, manager="kube-controller-manager", operation="Update")

    assert managed.foreign_managers(live(entry(all_fields()), other, replicas=5), DESIRED) == ()


def test_a_rival_inside_a_container_is_named() -> None:
    document = live(
        entry(all_fields()),
        entry({"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"engine"}': {"f:image": {}}}}}}}, "rogue"),
    )
    containers = [{**DESIRED["spec"]["template"]["spec"]["containers"][0], "image": "evil:1"}]
    changed = {**document, "spec": {**document["spec"], "template": {"spec": {"containers": containers}}}}

    assert managed.foreign_managers(changed, DESIRED) == ("rogue",)
