"""The sample policy against the pods that are planned: it covers a job's ranks, and lets in those and the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from glm5_operator.api import names
from glm5_operator.plan.check import check_objects
from tests.unit.plan.test_attempt import child, job, plan

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
POLICY: Json = yaml.safe_load((ROOT / "manifests" / "samples" / "networkpolicy-training.yaml").read_text())["spec"]


def chosen(selector: Json, labels: Json) -> bool:
    return bool(selector["matchLabels"].items() <= labels.items())


def ranks_of(name: str) -> Json:
    labels: Json = child(plan(job(name=name)), "Job")["spec"]["template"]["metadata"]["labels"]
    return labels


def test_the_sample_is_for_the_ranks_of_the_sample_job_and_for_no_others() -> None:
    sample = yaml.safe_load((ROOT / "manifests" / "samples" / "finetune-tiny.yaml").read_text())["metadata"]["name"]
    template = plan(job(name=sample)).template
    assert template is not None
    check = check_objects(job(name=sample), template)[1]["spec"]["template"]["metadata"]["labels"]

    assert chosen(POLICY["podSelector"], ranks_of(sample))
    assert not chosen(POLICY["podSelector"], ranks_of("another"))
    assert not chosen(POLICY["podSelector"], check)


def test_it_lets_the_ranks_in_at_all_ports_and_the_operator_at_the_one_of_progress() -> None:
    ranks, operator = POLICY["ingress"]

    assert ranks == {"from": [{"podSelector": POLICY["podSelector"]}]}
    assert operator["ports"] == [{"port": names.PROGRESS_PORT, "protocol": "TCP"}]
    (source,) = operator["from"]
    assert set(source) == {"namespaceSelector", "podSelector"}, "both of one entry: the operator's pods in its own namespace"
