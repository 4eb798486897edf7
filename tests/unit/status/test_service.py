"""The whole status of a service as a table: what is seen → what is said. Pure: nothing is faked, time is an argument."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.api.service import GLM5Service
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.service import ServicePlan
from glm5_operator.status.service import Observed, Report, WriteFault, service_status
from tests.support.clock import at
from tests.support.objects import (
    Json,
    a_deployment,
    a_plan,
    a_service,
    a_stalled_plan,
    condition,
    no_progress,
    refused_creation,
)
from tests.support.pods import CARD, a_pod, an_end, running, waiting

OLD = "0ld0ld"
SHORT = "0/2 nodes are available: 2 Insufficient huawei.com/Ascend910."


def report(
    *pods: Json,
    service: Json | None = None,
    plan: ServicePlan | None = None,
    deployment: Json | None = None,
    faults: tuple[WriteFault, ...] = (),
    now: datetime | None = None,
    holders: tuple[str, ...] = (),
) -> Report:
    seen = Observed(deployment or a_deployment(), pods, {CARD: 8 * len(pods)}, holders)
    return service_status(service or a_service(), plan or a_plan(), seen, faults, now or at(seconds=30))


def said(found: Report) -> tuple[str, str]:
    """The verdict in short: (Ready's status, its reason), with which of Reconciling and Stalled holds checked to agree."""
    ready = condition(found.status, "Ready")
    held = [kind for kind in ("Reconciling", "Stalled") if condition(found.status, kind)["status"] == "True"]
    assert (ready["status"] == "True") == (held == [])
    assert found.stalled == (held == ["Stalled"])
    assert len(held) <= 1
    return ready["status"], ready["reason"]


def loading(name: str = "chat-engine-5d9f-bbbbb", **changes: object) -> Json:
    return a_pod(name, containers=[running()], ready=False, **changes)  # type: ignore[arg-type]


def crashing(restarts: int = 1, **changes: object) -> Json:
    state = waiting("CrashLoopBackOff", restarts=restarts, last=an_end(3, message="ValueError: bad config"))
    return a_pod(containers=[state], ready=False, **changes)  # type: ignore[arg-type]


def test_one_ready_pod_of_the_planned_revision_is_a_serving_service() -> None:
    found = report(a_pod())

    assert said(found) == ("True", "Serving")
    assert found.status["endpoint"] == "http://chat-api.prod.svc:8000/v1"
    assert found.status["selector"] == "app.kubernetes.io/name=glm5-service,glm5.dev/service=chat"
    assert {name: found.status[name] for name in ("replicas", "readyReplicas", "updatedReplicas", "cardsHeld")} == {
        "replicas": 1,
        "readyReplicas": 1,
        "updatedReplicas": 1,
        "cardsHeld": 8,
    }


def test_the_status_is_what_the_crd_has_fields_for() -> None:
    found = report(a_pod())
    read = GLM5Service.parse({**a_service(), "status": found.status})

    assert read.status is not None
    # Fields that the model doesn't know are passed over when reading, so what comes back must be all that was written.
    assert read.status.model_dump(mode="json", by_alias=True, exclude_unset=True) == found.status


def test_ready_falls_as_soon_as_the_pod_is_no_longer_ready() -> None:
    before = report(a_pod())
    stopped = a_pod(containers=[running(started=True)], ready=False, ready_changed=at(minutes=9))

    after = report(stopped, service=a_service(status=before.status), now=at(minutes=9))

    assert said(after) == ("False", "EngineNotReady")
    assert condition(after.status, "Ready")["lastTransitionTime"] == "2026-11-29T12:09:00Z"
    assert after.status["readyReplicas"] == 0


def test_a_second_look_at_the_same_thing_writes_the_same_bytes() -> None:
    for pods in ([a_pod()], [loading()], [crashing(5)], []):
        first = report(*pods)
        second = report(*pods, service=a_service(status=first.status), now=at(seconds=31))
        assert second.status == first.status


@pytest.mark.parametrize("deployment", [a_deployment(generation=2, observed=1), {**a_deployment(), "status": {}}])
def test_ready_is_unknown_while_a_new_revision_was_written_and_not_looked_at(deployment: Json) -> None:
    assert said(report(a_pod(revision=OLD), deployment=deployment)) == ("Unknown", "Applying")
    assert said(report(a_pod(), plan=a_plan(replicas=2), deployment=deployment)) == ("Unknown", "Applying")


def test_somebodys_annotation_on_the_deployment_raises_its_generation_and_does_not_make_ready_blink() -> None:
    assert said(report(a_pod(), deployment=a_deployment(generation=2, observed=1))) == ("True", "Serving")


@pytest.mark.parametrize("deleted", [False, True])
def test_ready_waits_until_the_old_revision_is_gone_even_when_it_only_finishes_its_requests(deleted: bool) -> None:
    old = a_pod("chat-engine-old-zzzzz", revision=OLD, deleted=deleted)

    found = report(a_pod(), old)

    assert said(found) == ("False", "RollingOut")
    assert "chat-engine-old-zzzzz of an older revision" in condition(found.status, "Ready")["message"]


def test_a_deleted_pod_of_the_same_revision_does_not_hold_up_its_successor() -> None:
    assert said(report(a_pod(), a_pod("chat-engine-5d9f-gone", deleted=True)))[0] == "True"


def test_a_restart_by_kubectl_keeps_our_revision_label_and_is_still_seen_as_a_rollout() -> None:
    assert said(report(a_pod(), deployment=a_deployment(updated=0)))[0] == "False"


def test_an_old_crashing_pod_does_not_speak_for_the_corrected_spec() -> None:
    found = report(crashing(9, revision=OLD), loading())

    assert said(found) == ("False", "Loading")


def test_fewer_pods_than_asked_for_are_not_ready() -> None:
    found = report(a_pod(), plan=a_plan(replicas=2), deployment=a_deployment(replicas=2, total=1, updated=1))

    assert said(found) == ("False", "RollingOut")
    assert "1 of 2 pods ready; more pods" in condition(found.status, "Ready")["message"]


@pytest.mark.parametrize(
    ("old", "count"),
    [
        (3, "0 of 3 new pods ready, 3 old ones serve; pod new"),
        (1, "0 of 3 new pods ready, 1 old one serves"),
        (0, "0 of 3 pods ready; pod new"),
    ],
)
def test_a_rollout_tells_new_pods_from_old_ones_that_serve(old: int, count: str) -> None:
    pods = [a_pod(f"old-{n}", revision=OLD) for n in range(old)]

    found = report(loading("new"), *pods, plan=a_plan(replicas=3), deployment=a_deployment(replicas=3, total=old + 1, updated=1))

    assert found.status["readyReplicas"] == old
    assert count in condition(found.status, "Ready")["message"]


def test_zero_replicas_on_purpose_are_ready_once_the_pods_are_gone() -> None:
    plan, deployment = a_plan(replicas=0), a_deployment(replicas=0)

    assert said(report(plan=plan, deployment=deployment)) == ("True", "ScaledToZero")
    assert said(report(a_pod(), plan=plan, deployment=deployment)) == ("False", "ScalingToZero")


def test_a_paused_rollout_says_how_to_go_on() -> None:
    service = a_service(rollout={"paused": True})

    found = report(a_pod(revision=OLD), service=service, deployment=a_deployment(updated=0))

    assert said(found) == ("False", "RolloutPaused")
    assert "spec.rollout.paused" in condition(found.status, "Ready")["message"]
    assert said(report(a_pod(), service=service)) == ("True", "Serving")


def test_a_plan_that_can_not_be_made_is_stalled_and_keeps_what_it_knew_while_pods_serve() -> None:
    before = report(a_pod()).status

    found = report(a_pod(), service=a_service(status=before), plan=a_stalled_plan())

    assert said(found) == ("False", "PoolNotFound")
    ready = condition(found.status, "Ready")
    assert "create NPUPool inference" in ready["message"]
    assert "pods of the previous plan keep serving (1 ready)" in ready["message"]
    assert {name: found.status[name] for name in ("endpoint", "resolved", "selector", "revision", "cardsHeld")} == {
        name: before[name] for name in ("endpoint", "resolved", "selector", "revision", "cardsHeld")
    }


def test_a_plan_that_could_never_be_made_promises_no_endpoint() -> None:
    found = service_status(a_service(), a_stalled_plan(), Observed(None), (), at())

    assert said(found) == ("False", "PoolNotFound")
    assert "endpoint" not in found.status
    assert condition(found.status, "Planned")["status"] == "False"


def test_a_refused_write_is_stalled_and_an_unreachable_server_is_only_a_delay() -> None:
    refused = WriteFault("NameConflict", "Deployment chat-engine exists and isn't ours; rename one", retryable=False)
    away = WriteFault("Unavailable", "the API server answered 503", retryable=True)

    assert said(report(a_pod(), faults=(away,))) == ("False", "Unavailable")
    assert said(report(a_pod(), faults=(away, refused))) == ("False", "NameConflict")


def test_warnings_of_the_plan_are_told_without_spoiling_ready() -> None:
    found = report(a_pod(), plan=a_plan(warnings=(Finding("ProductUnknown", "label the nodes"),)))

    assert said(found) == ("True", "Serving")
    assert "ProductUnknown: label the nodes" in condition(found.status, "Planned")["message"]


@pytest.mark.parametrize(
    ("pod", "patience"),
    [
        (a_pod(containers=[waiting("ErrImagePull", "not found")], ready=False), timedelta(minutes=2)),
        (a_pod(containers=[waiting("CreateContainerConfigError", 'secret "k" not found')], ready=False), timedelta(minutes=2)),
        (a_pod(scheduled="0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."), timedelta(minutes=2)),
        (a_pod(scheduled=SHORT), timedelta(minutes=10)),
        (a_pod(containers=[waiting("ContainerCreating")], ready=False), timedelta(minutes=10)),
    ],
)
def test_a_cause_that_outlasts_its_patience_is_stalled_and_the_moment_is_announced(pod: Json, patience: timedelta) -> None:
    early = report(pod, now=at() + patience - timedelta(seconds=1))
    late = report(pod, now=at() + patience)

    assert (early.stalled, early.look_again) == (False, at() + patience)
    assert (late.stalled, late.look_again) == (True, None)
    assert said(early)[1] == said(late)[1]


def test_loading_for_an_hour_is_not_stalled_but_the_deadline_of_the_deployment_is() -> None:
    assert not report(loading(), now=at(hours=1)).stalled

    found = report(loading(), deployment=a_deployment(conditions=[no_progress()]), now=at(hours=1))

    assert said(found) == ("False", "ProgressDeadlineExceeded")
    assert found.stalled


def test_an_endless_crasher_is_stalled_with_its_last_words_and_recovers_by_itself() -> None:
    broken = report(crashing(restarts=3))
    healed = report(a_pod(), service=a_service(status=broken.status))

    assert said(broken) == ("False", "EngineCrashing")
    assert broken.stalled
    assert "ValueError: bad config" in condition(broken.status, "Stalled")["message"]
    assert said(healed) == ("True", "Serving")


def test_a_deadline_passed_by_a_crashing_engine_is_told_as_the_crash() -> None:
    found = report(crashing(1), deployment=a_deployment(conditions=[no_progress()]))

    assert said(found) == ("False", "EngineCrashing")
    assert found.stalled


def test_a_refused_pod_reaches_the_service_with_quota_name_and_numbers() -> None:
    message = 'pods "chat-engine-6d4c-x2k4p" is forbidden: exceeded quota: team-a, requested: cards=8, used: cards=0, limited: cards=4'
    deployment = a_deployment(total=0, updated=0, conditions=[refused_creation(message)])

    found = report(deployment=deployment)

    assert said(found) == ("False", "QuotaExceeded")
    assert (
        "ResourceQuota team-a of namespace prod refuses a pod: asked cards=8, used cards=0, limit cards=4"
        in (condition(found.status, "Ready")["message"])
    )
    assert condition(found.status, "PodsScheduled")["reason"] == "QuotaExceeded"
    assert found.look_again == at(minutes=2)


def test_short_cards_name_their_holders() -> None:
    found = report(a_pod(scheduled=SHORT), holders=("dev/b-0", "prod/a-0", "prod/c-0", "prod/d-0"))

    message = condition(found.status, "Ready")["message"]
    assert "no node has 8 huawei.com/Ascend910 free" in message
    assert "cards are held by pods dev/b-0, prod/a-0, prod/c-0 and 1 more" in message


def test_the_gravest_of_several_causes_is_told_and_the_others_do_not_make_it_wander() -> None:
    pods = [loading("p-1"), crashing(1, name="p-2"), a_pod("p-3", scheduled=SHORT)]
    plan, deployment = a_plan(replicas=3), a_deployment(replicas=3)

    messages = {condition(report(*order, plan=plan, deployment=deployment).status, "Ready")["message"] for order in (pods, pods[::-1])}

    assert len(messages) == 1
    assert "pod p-2" in messages.pop()


def test_ended_pods_are_history_once_a_successor_lives() -> None:
    ended = a_pod("p-1", ready=False, phase="Failed", reason="Evicted", message="low on memory", startTime="2026-11-29T11:00:00Z")

    assert said(report(ended, loading()))[1] == "Loading"
    assert said(report(ended))[1] == "PodFailed"


def test_pods_that_are_refused_by_their_node_again_and_again_stall_the_service() -> None:
    ended = [
        a_pod(f"p-{n}", ready=False, phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices") for n in range(3)
    ]

    assert report(*ended).stalled


def test_scheduled_and_ready_engines_are_told_apart() -> None:
    found = report(a_pod(), a_pod("p-2", scheduled=SHORT), plan=a_plan(replicas=2), deployment=a_deployment(replicas=2))

    assert condition(found.status, "PodsScheduled")["reason"] == "InsufficientCards"
    assert condition(found.status, "EngineReady")["reason"] == "PodsNotScheduled"


PODS = st.lists(
    st.sampled_from(
        [
            a_pod("a"),
            loading("b"),
            crashing(4, name="c"),
            a_pod("d", scheduled=SHORT),
            a_pod("e", revision=OLD),
            a_pod("f", deleted=True),
            a_pod("g", ready=False, phase="Failed", reason="Evicted", message="m"),
        ]
    ),
    max_size=4,
    unique_by=lambda pod: pod["metadata"]["name"],
)


@given(pods=PODS, replicas=st.integers(0, 3), planned=st.booleans(), observed=st.booleans(), paused=st.booleans())
def test_whatever_is_seen_the_status_is_whole_and_ready_is_never_claimed_too_early(
    pods: list[Json], replicas: int, planned: bool, observed: bool, paused: bool
) -> None:
    plan = a_plan(replicas=replicas) if planned else a_stalled_plan()
    service = a_service(generation=4, replicas=replicas, rollout={"paused": paused})
    deployment = a_deployment(replicas=replicas, generation=2, observed=2 if observed else 1)
    found = report(*pods, service=service, plan=plan, deployment=deployment)

    assert found.status["observedGeneration"] == 4
    assert {item["observedGeneration"] for item in found.status["conditions"]} == {4}
    kinds = ["Ready", "Reconciling", "Stalled", "Planned", "PodsScheduled", "EngineReady", "Degraded"]
    assert [item["type"] for item in found.status["conditions"]] == kinds
    assert all(item["reason"] for item in found.status["conditions"])
    if said(found)[0] == "True":
        assert planned
        assert found.status["readyReplicas"] == found.status["replicas"] == replicas
        assert all(pod["metadata"]["labels"]["glm5.dev/revision"] != OLD for pod in pods)


def test_a_replica_out_of_traffic_is_not_counted_and_the_service_says_degraded() -> None:
    found = report(
        a_pod("chat-engine-5d9f-a"),
        a_pod("chat-engine-5d9f-b", serving=False),
        plan=a_plan(replicas=2),
        deployment=a_deployment(replicas=2),
    )

    assert said(found) == ("False", "ReplicaQuiesced")
    assert found.status["readyReplicas"] == 1
    assert "get ascendnode npu-0" in condition(found.status, "Ready")["message"]
    degraded = condition(found.status, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ReplicaQuiesced")
    assert "chat-engine-5d9f-b" in degraded["message"]


def test_a_pod_that_is_out_of_traffic_and_not_ready_is_told_for_what_it_lacks() -> None:
    found = report(loading(serving=False))

    assert said(found)[1] == "Loading"
    assert condition(found.status, "Degraded")["status"] == "False"
