"""kubelet's words become a reason and a sentence. Pure: pods are built with the texts of Kubernetes 1.35."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from glm5_operator.status.causes import Cause, Reason
from glm5_operator.status.pods import is_replica, pod_state
from tests.support.clock import at
from tests.support.pods import Json, a_pod, an_end, running, terminated, waiting

PLOG = Path(__file__).parents[2] / "fixtures" / "plog"
NOT_FOUND = 'rpc error: code = NotFound desc = failed to pull and unpack image "registry.example/glm5-runtime:0.1.0": not found'


def cause_of(pod: Json) -> Cause:
    cause = pod_state(pod, timedelta(minutes=10)).cause
    assert cause is not None
    return cause


def down(state: Json, **changes: object) -> Json:
    return a_pod(containers=[state], ready=False, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "reason", "says"),
    [
        (waiting("ErrImagePull", NOT_FOUND), Reason.IMAGE_PULL, ["registry.example/glm5-runtime:0.1.0", "check name and tag", "not found"]),
        (
            waiting("ErrImagePull", "pull access denied, authorization failed"),
            Reason.IMAGE_PULL,
            ["check imagePullSecrets", "authorization failed"],
        ),
        (waiting("ErrImagePull", "dial tcp: i/o timeout"), Reason.IMAGE_PULL, ["node npu-0 reaches the registry", "i/o timeout"]),
        (waiting("InvalidImageName", "couldn't parse image name"), Reason.IMAGE_NAME_INVALID, ["correct spec.engine.image"]),
        (waiting("CreateContainerConfigError", 'secret "api-key" not found'), Reason.SECRET_MISSING, ["create Secret api-key"]),
        (waiting("CreateContainerConfigError", 'configmap "tpl" not found'), Reason.CONFIG_MAP_MISSING, ["create ConfigMap tpl"]),
        (
            waiting("CreateContainerConfigError", "couldn't find key token in Secret prod/api-key"),
            Reason.SECRET_MISSING,
            ["key token in Secret prod/api-key"],
        ),
        (
            waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
            Reason.CONTAINER_CONFIG,
            ["runAsNonRoot", "spec.podTemplate"],
        ),
        (waiting("RunContainerError", 'exec: "glm5-runtime": not found'), Reason.CONTAINER_START, ["RunContainerError", "glm5-runtime"]),
        (waiting("ContainerCreating"), Reason.CREATING, ["kubectl describe pod chat-engine-5d9f-aaaaa"]),
        (running(), Reason.LOADING, ["is loading the model", "600 s"]),
        (running(started=True), Reason.LOADING, ["yet to produce its first token"]),
        (
            terminated(an_end(137, reason="OOMKilled"), restarts=1),
            Reason.OUT_OF_MEMORY,
            ["memory limit of 64Gi", "restarts: 1", "spec.model.memory"],
        ),
        (
            waiting("CrashLoopBackOff", "back-off 20s", restarts=2, last=an_end(3, message="Loading\nValueError: bad config\n")),
            Reason.ENGINE_CRASHING,
            ["exit code 3", "restarts: 2", "last log: Loading | ValueError: bad config"],
        ),
        (waiting("CrashLoopBackOff", restarts=2, last=an_end(137)), Reason.ENGINE_CRASHING, ["killed from outside"]),
        (
            waiting("CrashLoopBackOff", restarts=1, last=an_end(143, started=at(), finished=at(seconds=605))),
            Reason.STARTUP_TIMEOUT,
            ["600 s", "spec.startup.timeout"],
        ),
    ],
)
def test_a_container_that_is_not_ready_says_why_and_what_to_do(state: Json, reason: Reason, says: list[str]) -> None:
    cause = cause_of(down(state))

    assert cause.reason is reason
    assert [part for part in says if part not in cause.message] == []


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("RuntimeError: ACL stream synchronize failed, error code:507035\n[ERROR] fftsplus aicore error, core id is 3\n", "507035"),
        ("NPU function error: SetDevice, error code is 507033\nE30006: operator package could not be verified\n", "507033"),
        ("RuntimeError: aclrtMalloc, error code is 507999\n", "error code is 507999"),
        ("RuntimeError: context is not there, error code is 107002\n", "107002"),
        ("out of memory: error code is 207001; lower --max-batched-tokens or --max-sequences\n", "207001; lower --max-batched-tokens"),
        ("RuntimeError: error code is 5070\n35 in stream 3\n", "error code is 5070 | 35 in stream 3"),
        ("Killed without a word\n", "Killed without a word"),
        ("x" * 200_000 + "\nRuntimeError: error code is 507035\n", "error code is 507035"),
        ("--model: /models/model.safetensors: is a Git LFS pointer, not the data; run `git lfs pull`\n", "Git LFS pointer"),
        ("/models/model.safetensors: header truncated: 6 bytes, the header alone needs 8; download it again\n", "header truncated"),
        ("/models/model-00002-of-00002.safetensors: shard 2 of 2 missing; download it again\n", "shard 2 of 2 missing"),
    ],
)
def test_the_code_and_the_line_around_it_that_ended_an_engine_reach_the_service(log: str, says: str) -> None:
    """Codes of CANN are told as they are, known or not: what a card is worth is decided by its own health, never by a log."""
    cause = cause_of(down(waiting("CrashLoopBackOff", restarts=1, last=an_end(1, message=log))))

    assert cause.reason is Reason.ENGINE_CRASHING
    assert says in cause.message
    assert len(cause.message) < 2000


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("device_open_507033", ["error code 507033 (driver)", "error code is 507033", "E30006"]),
        (
            "vector_core_507035",
            ["error code 507035: ", "by its kernel, its input or the card", "error code:507035", "chipId:2", "EngineDeadError"],
        ),
        ("hccl_ei0006", ["error code EI0006 (peer)", "not at this one", "no peer connected"]),
    ],
)
def test_a_cards_log_is_told_whole_and_its_code_is_no_verdict_on_the_card(name: str, says: list[str]) -> None:
    """C15, C16: an operator's bug, a broken package and a late peer have given these codes."""
    message = cause_of(down(waiting("CrashLoopBackOff", restarts=1, last=an_end(1, message=(PLOG / f"{name}.txt").read_text())))).message

    assert [part for part in says if part not in message] == []
    assert "hardware" not in message


@pytest.mark.parametrize(
    ("log", "hint"),
    [
        ("error code is 207001", "error code 207001 (resource): the card's memory was not enough; lower spec.context.maxBatchedTokens"),
        ("error code:207008", "error code 207008 (resource)"),
        ("error code is 507999", "error code 507999 is unknown here"),
        ("error code: 999999", "error code 999999 is unknown here"),
        ("error code is 107002", "error code 107002 (user)"),
        ("error code is 507035\nerror code is 507999", "error code 507035"),  # the first is the cause, the others follow from it
        ("error code is 5070\n35", "error code 507035"),
        ("error code is 5070351", ""),
        ("EE9999: Inner Error!", ""),
        ("no code", ""),
    ],
)
def test_what_the_code_says_comes_before_the_log(log: str, hint: str) -> None:
    message = cause_of(down(waiting("CrashLoopBackOff", restarts=1, last=an_end(1, message=log)))).message

    before, _, after = message.partition("last log: ")
    assert hint in before
    assert ("error code" in before) == bool(hint)
    assert after == log.replace("\n", " | ")


def test_the_line_of_the_code_is_told_also_when_the_end_of_the_log_no_longer_has_it() -> None:
    log = "RuntimeError: stream synchronize failed, error code:507035\n" + "\n".join(f"frame {number}" for number in range(20))

    message = cause_of(down(waiting("CrashLoopBackOff", restarts=1, last=an_end(1, message=log)))).message

    before, _, after = message.partition("last log: ")
    assert "(RuntimeError: stream synchronize failed, error code:507035)" in before
    assert "507035" not in after


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(588, Reason.ENGINE_CRASHING), (589, Reason.STARTUP_TIMEOUT), (597, Reason.STARTUP_TIMEOUT), (605, Reason.STARTUP_TIMEOUT)],
)
def test_a_start_that_was_ended_up_to_one_period_early_ran_into_its_window_too(seconds: int, reason: Reason) -> None:
    """Kubelet's looks begin at a random moment of the first period: of 600 s a container may get 590."""
    end = an_end(143, started=at(), finished=at(seconds=seconds))
    pod = down(waiting("CrashLoopBackOff", restarts=1, last=end))
    pod["spec"]["containers"][0]["startupProbe"] = {"periodSeconds": 10, "failureThreshold": 60}

    assert cause_of(pod).reason is reason


def test_the_two_faces_of_a_failed_pull_read_the_same_so_that_the_status_does_not_flicker() -> None:
    pulling = cause_of(down(waiting("ErrImagePull", NOT_FOUND)))
    backing_off = cause_of(
        down(waiting("ImagePullBackOff", f'Back-off pulling image "registry.example/glm5-runtime:0.1.0": ErrImagePull: {NOT_FOUND}'))
    )

    assert pulling == backing_off


def test_loading_for_the_first_time_is_no_failure_but_loading_after_a_crash_tells_the_crash() -> None:
    first = cause_of(down(running()))
    again = cause_of(down(running(since=at(minutes=1), restarts=1, last=an_end(1, message="boom"))))

    assert first.reason is Reason.LOADING
    assert again.reason is Reason.ENGINE_CRASHING
    assert "last log: boom" in again.message


def test_crashing_reads_the_same_down_backing_off_and_up_again() -> None:
    end = an_end(1, message="boom")
    texts = {
        cause_of(down(state)).message
        for state in (
            terminated(end, restarts=2),
            waiting("CrashLoopBackOff", "back-off 40s", restarts=2, last=end),
            running(since=at(minutes=2), restarts=2, last=end),
        )
    }

    assert len(texts) == 1


def test_an_engine_that_was_ready_and_stopped_is_told_apart_from_one_that_loads() -> None:
    cause = cause_of(a_pod(containers=[running(started=True, since=at(minutes=1))], ready=False, ready_changed=at(minutes=30)))

    assert cause.reason is Reason.ENGINE_NOT_READY
    assert cause.since == at(minutes=30)


@pytest.mark.parametrize(
    ("restarts", "flipped", "hopeless"),
    [(2, at(), False), (3, at(), True), (30, at(seconds=20), False)],
    ids=["tried too little", "never ready in its last run", "it was ready in its last run"],
)
def test_an_endless_crasher_is_hopeless_only_when_its_last_run_never_got_ready(restarts: int, flipped: datetime, hopeless: bool) -> None:
    end = an_end(1, started=at(seconds=10), finished=at(seconds=40))
    pod = a_pod(containers=[waiting("CrashLoopBackOff", restarts=restarts, last=end)], ready=False, ready_changed=flipped)

    assert cause_of(pod).hopeless is hopeless


def test_a_long_run_that_was_ready_and_then_killed_is_no_start_up_timeout() -> None:
    end = an_end(137, started=at(), finished=at(hours=5))
    pod = a_pod(containers=[waiting("CrashLoopBackOff", restarts=1, last=end)], ready=False, ready_changed=at(hours=5))

    assert cause_of(pod).reason is Reason.ENGINE_CRASHING


def test_a_log_tail_keeps_the_end_without_colours_and_control_characters() -> None:
    log = "\n".join([*(f"line {n}" for n in range(50)), "\x1b[31mRuntimeError:\x1b[0m ACL 507035\x07", ""])
    message = cause_of(down(terminated(an_end(1, message=log)))).message

    assert message.endswith("line 46 | line 47 | line 48 | line 49 | RuntimeError: ACL 507035")
    assert "line 45" not in message


def test_a_failing_init_container_is_told_before_the_engine_that_waits_for_it() -> None:
    pod = down(waiting("PodInitializing"))
    pod["spec"]["initContainers"] = [{"name": "fetch", "image": "fetch:1"}]
    pod["status"]["initContainerStatuses"] = [{**waiting("CrashLoopBackOff", restarts=1, last=an_end(2)), "name": "fetch"}]

    cause = cause_of(pod)

    assert cause.reason is Reason.ENGINE_CRASHING
    assert "container fetch" in cause.message


def test_a_finished_init_container_is_no_cause() -> None:
    pod = down(running())
    pod["spec"]["initContainers"] = [{"name": "fetch", "image": "fetch:1"}]
    pod["status"]["initContainerStatuses"] = [{**terminated(an_end(0, reason="Completed")), "name": "fetch", "ready": True}]

    assert cause_of(pod).reason is Reason.LOADING


def test_running_containers_in_an_unready_pod_point_at_the_node() -> None:
    cause = cause_of(a_pod(containers=[running(ready=True, started=True)], ready=False, ready_changed=at(hours=1)))

    assert cause.reason is Reason.NODE_UNREACHABLE
    assert "kubectl describe node npu-0" in cause.message


def test_an_evicted_pod_no_longer_counts_but_says_why_it_ended() -> None:
    state = pod_state(a_pod(ready=False, phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices present"))

    assert state.leaving
    assert state.cause is not None
    assert "no healthy devices present" in state.cause.message


def test_a_pod_that_is_being_deleted_is_not_ready_whatever_its_conditions_say() -> None:
    state = pod_state(a_pod(ready=True, deleted=True))

    assert (state.ready, state.leaving, state.terminating, state.cause) == (False, True, True, None)


def test_a_brand_new_pod_waits_for_the_scheduler() -> None:
    pod = a_pod(ready=False, node=None)
    pod["status"] = {"phase": "Pending"}

    assert cause_of(pod).reason is Reason.PENDING


def test_a_bound_pod_that_kubelet_has_not_seen_yet_is_being_created() -> None:
    pod = a_pod(ready=False)
    del pod["status"]["containerStatuses"]

    assert cause_of(pod).reason is Reason.CREATING


def owned_by(**reference: object) -> Json:
    pod = a_pod()
    pod["metadata"]["ownerReferences"][0].update(reference)
    return pod


def labelled(**labels: str) -> Json:
    pod = a_pod()
    pod["metadata"]["labels"] = labels
    return pod


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        (a_pod(), True),
        (a_pod(deleted=True), True),
        (owned_by(controller=False), False),
        (owned_by(kind="Job"), False),
        (owned_by(name="chat-engine-other"), False),
        (labelled(**{"pod-template-hash": "5d9f", "glm5.dev/service": "chat"}), False),
        ({"metadata": {"name": "stray", "labels": {"glm5.dev/service": "chat"}}}, False),
    ],
)
def test_a_pod_counts_when_a_replica_set_of_the_deployment_made_it(pod: Json, counts: bool) -> None:
    assert is_replica(pod, "chat-engine", {"app.kubernetes.io/name": "glm5-service", "glm5.dev/service": "chat"}) is counts
