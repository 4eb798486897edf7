"""One container's status read for a user: pulling, refused, loading, crashing, or serving no more.

Used by `pods`. The last log lines come from the termination message (the pods' terminationMessagePolicy is
FallbackToLogsOnError), so no right to read logs is needed.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from glm5_operator.health.sources.runtime_errors import evidence
from glm5_operator.status.causes import Cause, Reason
from glm5_operator.status.conditions import clipped, moment

if TYPE_CHECKING:
    from collections.abc import Mapping

HOPELESS_RUNS = 3
"""Restarts after which a container that never became ready in its last run is told as Stalled. It still heals by itself."""

WRONG_VERSIONS = 9
"""Exit code of `glm5-runtime` on a machine whose driver or cards don't fit the image; `tests/contract` holds it to the runtime's own."""

LOG_LINES = 5
LOG_CHARACTERS = 600

_UNPRINTABLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f]")
_MISFIT = re.compile(r"versions: (found [^\n\x00-\x1f]{1,400})")
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(?:: (?:ErrImagePull: )?)?')
_DENIED = re.compile(r"unauthorized|denied|forbidden|no basic auth|authorization failed|401|403", re.IGNORECASE)
_ABSENT = re.compile(r"not found|manifest unknown|404", re.IGNORECASE)
_MISSING = re.compile(
    r'(secret|configmap) "(?P<name>[^"]+)" not found|key (?P<key>\S+) in (Secret|ConfigMap) (?P<where>\S+)', re.IGNORECASE
)


def container_cause(state: Mapping[str, Any], pod: Mapping[str, Any], scheduled_at: datetime | None, startup: timedelta) -> Cause | None:
    """Why this container keeps its pod from being ready; None when it doesn't."""
    now_in = state.get("state") or {}
    if waiting := now_in.get("waiting"):
        return _waiting(waiting, state, pod, scheduled_at, startup)
    if ended := now_in.get("terminated"):
        is_init = any(item["name"] == state["name"] for item in pod["spec"].get("initContainers") or ())
        return None if is_init and ended.get("exitCode") == 0 else _ended(ended, state, pod, startup)
    if "running" in now_in and not state.get("ready") and not _is_sidecar_done(state, pod):
        return _running(now_in["running"], state, pod, scheduled_at, startup)
    return None


def _waiting(
    waiting: Mapping[str, Any], state: Mapping[str, Any], pod: Mapping[str, Any], since: datetime | None, startup: timedelta
) -> Cause:
    word, said = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if word in {
        "ErrImagePull",
        "ImagePullBackOff",
        "RegistryUnavailable",
        "ImageInspectError",
        "ErrImageNeverPull",
        "SignatureValidationFailed",
    }:
        return Cause(Reason.IMAGE_PULL, _pull_message(said, state, pod), since)
    if word == "InvalidImageName":
        return Cause(Reason.IMAGE_NAME_INVALID, f"{_image(state, pod)} is no image reference: correct spec.engine.image ({said})", since)
    if word == "CreateContainerConfigError":
        return _config_error(said, since)
    if word == "CrashLoopBackOff":
        return _ended((state.get("lastState") or {}).get("terminated") or {}, state, pod, startup)
    if word in {"ContainerCreating", "PodInitializing", ""}:
        if last := (state.get("lastState") or {}).get("terminated"):
            return _ended(last, state, pod, startup)
        name = pod["metadata"]["name"]
        message = f"container {state['name']} is being created; if this stays, `kubectl describe pod {name}` names what it waits for"
        return Cause(Reason.CREATING, message, since)
    return Cause(Reason.CONTAINER_START, f"container {state['name']} can't be started ({word}): {clipped(said, LOG_CHARACTERS)}", since)


def _pull_message(said: str, state: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """One text for ErrImagePull and ImagePullBackOff, which kubelet shows in turn for one fault."""
    why = _BACK_OFF.sub("", said) or "kubelet gives no cause"
    node = pod["spec"].get("nodeName", "?")
    if _DENIED.search(why):
        remedy = "check imagePullSecrets in spec.podTemplate (of the service or its pool)"
    elif _ABSENT.search(why):
        remedy = "check name and tag in spec.engine.image"
    else:
        remedy = f"check that node {node} reaches the registry"
    return f"image {_image(state, pod)} of container {state['name']} can't be pulled: {remedy} ({clipped(why, LOG_CHARACTERS)})"


def _config_error(said: str, since: datetime | None) -> Cause:
    if found := _MISSING.search(said):
        is_secret = (found[1] or found[4] or "").lower() == "secret"
        what = "Secret" if is_secret else "ConfigMap"
        name = f"{what} {found['name']}" if found["name"] else f"key {found['key']} in {what} {found['where']}"
        return Cause(Reason.SECRET_MISSING if is_secret else Reason.CONFIG_MAP_MISSING, f"create {name}, which the pod refers to", since)
    return Cause(Reason.CONTAINER_CONFIG, f"the container's configuration is refused: {said}; change spec.podTemplate", since)


def _ended(ended: Mapping[str, Any], state: Mapping[str, Any], pod: Mapping[str, Any], startup: timedelta) -> Cause:
    """The container is down, or comes up again after it was."""
    restarts = int(state.get("restartCount") or 0)
    hopeless = restarts >= HOPELESS_RUNS and not _was_ready_in(ended, pod)
    since = moment(ended.get("finishedAt"))
    name, code = state["name"], ended.get("exitCode")
    if ended.get("reason") == "OOMKilled":
        limit = _memory_limit(name, pod)
        message = f"container {name} needed more than its memory limit of {limit}, restarts: {restarts}; raise spec.model.memory"
        return Cause(Reason.OUT_OF_MEMORY, message, since, hopeless)
    # Kubelet ends a container whose start-up probe failed too often by SIGTERM (an engine may answer with 0), then SIGKILL.
    if code in {0, 137, 143} and startup and _lasted(ended) >= startup - _early(name, pod) and not _was_ready_in(ended, pod):
        message = (
            f"container {name} was not up within its start-up window of {int(startup.total_seconds())} s (restarts: {restarts}); "
            f"see why loading is slow, or raise spec.startup.timeout{_log_tail(ended)}"
        )
        return Cause(Reason.STARTUP_TIMEOUT, message, since, hopeless)
    if code == WRONG_VERSIONS and (misfit := _MISFIT.search(str(ended.get("message") or ""))):
        node = (pod.get("spec") or {}).get("nodeName", "?")
        return Cause(Reason.VERSIONS, f"container {name} doesn't run on node {node}: {misfit[1]}", since)
    how = f"exit code {code} ({ended.get('reason') or 'no reason'})" if code is not None else "no exit code reported"
    hint = "; it was killed from outside: by its liveness probe, or by the node for lack of memory" if code == 137 else ""
    tail = _log_tail(ended)
    message = f"container {name} ended with {how}, restarts: {restarts}{hint}{_code_hint(ended, tail)}{tail}"
    return Cause(Reason.ENGINE_CRASHING, message, since, hopeless)


def _running(
    running: Mapping[str, Any], state: Mapping[str, Any], pod: Mapping[str, Any], scheduled_at: datetime | None, startup: timedelta
) -> Cause:
    name, started_at = state["name"], moment(running.get("startedAt"))
    if state.get("started") and _turned_unready_after(started_at, pod):
        message = (
            f"container {name} was ready and no longer is: its engine makes no progress or doesn't answer; if that lasts it is restarted"
        )
        return Cause(Reason.ENGINE_NOT_READY, message, moment(_ready(pod).get("lastTransitionTime")))
    if last := (state.get("lastState") or {}).get("terminated"):
        return _ended(last, state, pod, startup)
    if any(item["name"] == name for item in pod["spec"].get("initContainers") or ()):
        return Cause(Reason.CREATING, f"init container {name} is at work; the engine starts after it", started_at or scheduled_at)
    limit = f"; it has {int(startup.total_seconds())} s for that" if startup else ""
    doing = "is up and has yet to produce its first token" if state.get("started") else f"is loading the model{limit}"
    return Cause(Reason.LOADING, f"container {name} {doing}", started_at or scheduled_at)


def _is_sidecar_done(state: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Init containers that restart always are sidecars: `started` is all that is asked of them."""
    return bool(state.get("started")) and any(item["name"] == state["name"] for item in pod["spec"].get("initContainers") or ())


def _ready(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == "Ready"), {})


def _turned_unready_after(started_at: datetime | None, pod: Mapping[str, Any]) -> bool:
    """Whether the pod was ready in this run: its Ready condition flipped after the container had started."""
    flipped = moment(_ready(pod).get("lastTransitionTime"))
    return started_at is not None and flipped is not None and flipped > started_at


def _was_ready_in(run: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether the pod was ready during a run that has ended."""
    return _turned_unready_after(moment(run.get("startedAt")), pod)


def _lasted(run: Mapping[str, Any]) -> timedelta:
    begin, end = moment(run.get("startedAt")), moment(run.get("finishedAt"))
    return end - begin if begin and end else timedelta(0)


def _early(name: str, pod: Mapping[str, Any]) -> timedelta:
    """How long before its window is over a container may be ended for not being up.

    Kubelet's first look comes within one period of the start, at a random moment, so the last of N looks comes up to a period early.
    Beside that, both times are cut to whole seconds.
    """
    return timedelta(seconds=int((_spec(name, pod).get("startupProbe") or {}).get("periodSeconds") or 10) + 1)


def _spec(name: str, pod: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    return next((item for item in containers if item["name"] == name), {})


def _image(state: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """As the user wrote it: kubelet's own field holds a normalised name."""
    return str(_spec(state["name"], pod).get("image") or state.get("image") or "?")


def _memory_limit(name: str, pod: Mapping[str, Any]) -> str:
    return str(((_spec(name, pod).get("resources") or {}).get("limits") or {}).get("memory") or "the node's memory")


def _code_hint(ended: Mapping[str, Any], tail: str) -> str:
    """What the error codes in its last words say, with the line of the one that says most where the shown end doesn't have it."""
    found = evidence(str(ended.get("message") or ""))
    if found is None or found.general:
        return ""
    return f"; {found}" + ("" if found.line in tail else f" ({found.line})")


def _log_tail(ended: Mapping[str, Any]) -> str:
    """The last log lines, without colours and control characters; empty when there are none."""
    lines = [line.strip() for line in _UNPRINTABLE.sub("", str(ended.get("message") or "")).splitlines() if line.strip()]
    tail = " | ".join(lines[-LOG_LINES:])
    # The end of a traceback is what tells; the beginning may go.
    return f"; last log: {tail if len(tail) <= LOG_CHARACTERS else '…' + tail[-LOG_CHARACTERS:]}" if tail else ""
