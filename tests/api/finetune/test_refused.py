"""Pods of a run that may not be created say so in its conditions, and it goes on once they may. Real: quota, the Job controller."""

from __future__ import annotations

import pytest

from tests.api.finetune.conftest import Training
from tests.support.kube import Kube
from tests.support.trainers import bound_pods

pytestmark = pytest.mark.api


def quota(kube: Kube, home: str, hard: dict[str, str]) -> None:
    kube.create({"kind": "ResourceQuota", "metadata": {"name": "team", "namespace": home}, "spec": {"hard": hard}})


def test_a_quota_on_cards_is_named_by_the_run_that_it_refuses(kube: Kube, home: str, training: Training) -> None:
    quota(kube, home, {"requests.huawei.com/Ascend910": "4"})
    training.create(cards=8)

    ready = training.wait("QuotaExceeded", timeout=60)

    for part in ("ResourceQuota team", "asked requests.huawei.com/Ascend910=8", "limit requests.huawei.com/Ascend910=4"):
        assert part in ready["message"]
    assert training.condition("Reconciling")["status"] == "True"
    assert training.condition("Scheduled")["reason"] == "QuotaExceeded"

    kube.delete("ResourceQuota", home, "team")
    bound_pods(kube, home, 1, 1)
    training.wait("Starting")


def test_a_check_that_a_quota_refuses_says_so_too(kube: Kube, home: str, training: Training) -> None:
    quota(kube, home, {"pods": "0"})
    training.create()

    assert "ResourceQuota team" in training.wait("QuotaExceeded", timeout=60)["message"]
    assert training.status().get("attempt") is None

    kube.delete("ResourceQuota", home, "team")
    bound_pods(kube, home, 1, 1)
