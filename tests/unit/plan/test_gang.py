"""Who sees to it that an attempt gets all its cards or none: the operator, Kueue or Volcano. Pure."""

from __future__ import annotations

from typing import Any

from glm5_operator.plan.attempt import claim_of
from glm5_operator.plan.gang import advice
from tests.unit.plan.builders import RESOURCE, node
from tests.unit.plan.test_attempt import A2, child, job, plan

Json = dict[str, Any]
FULL = (node("n0", A2, held=8), node("n1", A2, held=8))
VOLCANO: Json = {"podTemplate": {"spec": {"schedulerName": "volcano"}}}


def queued(spec: Json | None = None, **labels: str) -> Any:  # noqa: ANN401 - a job
    made = job(spec)
    marks = {"kueue": "kueue.x-k8s.io/queue-name", "volcano": "scheduling.volcano.sh/queue-name"}
    metadata = made.metadata.model_copy(update={"labels": {marks[name]: queue for name, queue in labels.items()}})
    return made.model_copy(update={"metadata": metadata})


def test_with_a_queue_of_kueue_the_job_begins_suspended_whoever_holds_the_cards() -> None:
    made = child(plan(queued(kueue="team"), *FULL, kueue=True), "Job")

    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert made["spec"]["suspend"] is True
    assert claim_of(made | {"spec": {**made["spec"]}}, RESOURCE, 0)[1] == 0, "it claims nothing before Kueue gives it"


def test_a_label_alone_or_kueue_alone_changes_nothing() -> None:
    for wanted, facts in ((queued(kueue="team"), {}), (job(), {"kueue": True})):
        assert plan(wanted, *FULL, **facts).waits is not None
        made = child(plan(wanted, **facts), "Job")
        assert "suspend" not in made["spec"]
        assert "kueue.x-k8s.io/queue-name" not in made["metadata"]["labels"]


def test_a_choice_of_somebody_who_is_not_there_is_advised_against() -> None:
    def said(wanted: Any, **there: bool) -> list[str]:  # noqa: ANN401 - a job
        return [item.message for item in advice(wanted, **{"kueue": False, "volcano": False, **there})]

    (kueue,), (volcano,) = said(queued(kueue="team")), said(job(VOLCANO))
    assert ("no Kueue" in kueue, "no Volcano" in volcano) == (True, True)
    assert said(queued(kueue="team"), kueue=True) == said(job(VOLCANO), volcano=True) == said(job()) == []


def test_for_volcano_there_is_a_group_of_all_pods_with_all_they_need() -> None:
    wanted = queued({**VOLCANO, "parallelism": {"nodes": 2, "npusPerNode": 4}}, volcano="team")
    planned = plan(wanted, *FULL, volcano=True)
    group, made = child(planned, "PodGroup"), child(planned, "Job")

    assert [item["kind"] for item in planned.objects] == ["ConfigMap", "PodGroup", "Job"], "the group is there before its pods"
    assert group["spec"]["minMember"] == 2
    assert group["spec"]["queue"] == "team"
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert group["spec"]["minResources"] == {"cpu": "4000m", "memory": "16Gi", RESOURCE: "8"}
    assert container["resources"]["limits"]["memory"] == "8Gi"
    assert made["spec"]["template"]["metadata"]["annotations"] == {"scheduling.k8s.io/group-name": group["metadata"]["name"]}


def test_without_volcano_or_without_its_scheduler_there_is_none() -> None:
    for wanted, facts in ((job(VOLCANO), {}), (job(), {"volcano": True})):
        planned = plan(wanted, **facts)
        assert [item["kind"] for item in planned.objects] == ["ConfigMap", "Job"]
        assert plan(wanted, *FULL, **facts).waits is not None
