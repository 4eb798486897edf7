"""Jobs of attempts and their pods as Kubernetes leaves them, for tests of what follows from them. Defaults are a run that goes on."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from tests.support.clock import at, stamp

Json = dict[str, Any]


def a_job(attempt: int = 1, *conditions: str, since: datetime | None = None, deleted: bool = False, completions: int = 1) -> Json:
    """The Job of an attempt with these conditions True."""
    metadata: Json = {
        "name": f"tune-attempt-{attempt}",
        "namespace": "prod",
        "uid": f"job-{attempt}",
        "creationTimestamp": stamp(at()),
        "labels": {"glm5.dev/finetune": "tune", "glm5.dev/attempt": str(attempt)},
    }
    if deleted:
        metadata["deletionTimestamp"] = stamp(at())
    told = [{"type": kind, "status": "True", "lastTransitionTime": stamp(since or at()), "message": "told"} for kind in conditions]
    return {"kind": "Job", "metadata": metadata, "spec": {"completions": completions}, "status": {"conditions": told}}


def a_rank(
    rank: int = 0,
    *,
    attempt: int = 1,
    phase: str = "Running",
    node: str = "n0",
    code: int | None = None,
    word: Json | str = "",
    reason: str = "Error",
    disrupted: str = "",
    deleted: bool | datetime = False,
    ready_changed: datetime | None = None,
    finished: datetime | None = None,
    **status: object,
) -> Json:
    """A pod of an attempt. With `code` its trainer has ended so, `word` is the termination message. `deleted`: by when it must end."""
    state: Json = {"running": {"startedAt": stamp(at())}}
    if code is not None:
        message = word if isinstance(word, str) else json.dumps(word)
        state = {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": stamp(finished or at())}}
    conditions: list[Json] = [{"type": "PodScheduled", "status": "True"}]
    if disrupted:
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": disrupted, "message": "said"})
    if ready_changed is not None:
        conditions.append({"type": "Ready", "status": "False", "lastTransitionTime": stamp(ready_changed)})
    metadata: Json = {
        "name": f"tune-attempt-{attempt}-{rank}",
        "namespace": "prod",
        "labels": {"glm5.dev/finetune": "tune", "glm5.dev/attempt": str(attempt)},
        "ownerReferences": [{"kind": "Job", "name": f"tune-attempt-{attempt}", "uid": f"job-{attempt}", "controller": True}],
    }
    if deleted:
        metadata["deletionTimestamp"] = stamp(deleted if isinstance(deleted, datetime) else at())
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "trainer"}]},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": [{"name": "trainer", "state": state}], **status},
    }


def failed(rank: int = 0, code: int = 1, word: Json | str = "", **more: Any) -> Json:  # noqa: ANN401 - fields of a_rank
    """A rank whose trainer ended with a code other than 0."""
    return a_rank(rank, phase="Failed", code=code, word=word, **more)
