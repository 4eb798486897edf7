"""Asks the first pod of each running attempt how far it is, and has its job looked at when that is news.

Runs beside the queue while this operator leads. Pods are never told anything and hold no credentials: the operator comes to them. What
was heard is kept here only; the status has what was told last, so nothing is lost but a few seconds when the operator changes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.kube import Key, kinds
from glm5_operator.kube.cache import controller_of
from glm5_operator.status.pods import is_true
from glm5_operator.status.progress import Heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from glm5_operator.kube import Cache, Resource
    from glm5_operator.pods import PodReader

log = logging.getLogger(__name__)

PATH: Final = "/progress"
SIDE_BY_SIDE: Final = 32
"""Pods asked at the same time: a slow one takes its whole time-out."""
_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The pod that is asked for one job."""

    key: Key
    job_uid: str
    attempt: int
    host: str


@dataclass
class ProgressPoller:
    """What trainers say, at most one news for each job in `tell`."""

    cache: Cache
    pods: PodReader
    wake: Callable[[Key], None]
    interval: timedelta
    tell: timedelta
    port: int
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _heard: dict[str, Heard] = field(default_factory=dict)
    """By the uid of the attempt's Job: a run of the same name is another run."""

    def heard(self, job_uid: str) -> Heard | None:
        """What the trainer of that Job was last told to the status to have said."""
        return self._heard.get(job_uid)

    async def run(self) -> None:
        """Ask again and again, until cancelled. What a pod answers ends nothing."""
        while True:
            try:
                await self.round()
            except Exception:
                log.exception("a round of asking for progress failed")
            await asyncio.sleep(self.interval.total_seconds())

    async def round(self) -> None:
        """Ask every running attempt once."""
        asked = list(self._asked())
        there = {job["metadata"]["uid"] for job in self.cache.list(kinds.JOB.name)}
        self._heard = {uid: heard for uid, heard in self._heard.items() if uid in there}
        for begin in range(0, len(asked), SIDE_BY_SIDE):
            some = asked[begin : begin + SIDE_BY_SIDE]
            answers = await self.pods.read([one.host for one in some], self.port, PATH)
            for one in some:
                if (answer := answers.get(one.host)) is not None:
                    self._take(one, answer)

    def _take(self, asked: _Asked, answer: dict[str, Any]) -> None:
        if answer.get("attempt") != asked.attempt or isinstance(answer.get("attempt"), bool):
            return  # the pod's address is somebody else's by now
        before, now = self._heard.get(asked.job_uid), self.now()
        if before is not None and (answer == before.answer or now < before.time + self.tell):
            return
        self._heard[asked.job_uid] = Heard(asked.attempt, answer, now)
        self.wake(asked.key)

    def _asked(self) -> Iterator[_Asked]:
        for job in self.cache.list(kinds.JOB.name):
            attempt, owner = (job["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, ""), controller_of(job)
            over = any(is_true(job, kind) for kind in ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"))
            if over or not attempt.isdigit() or owner is None or owner.get("kind") != names.FINETUNE_KIND:
                continue
            key = Key(names.FINETUNE_KIND, job["metadata"]["namespace"], str(owner["name"]))
            for pod in self.cache.pods(key):
                if _is_first_rank(pod, job["metadata"]["uid"]):
                    yield _Asked(key, job["metadata"]["uid"], int(attempt), str(pod["status"]["podIP"]))


def _is_first_rank(pod: Resource, job_uid: str) -> bool:
    metadata, status = pod["metadata"], pod.get("status") or {}
    return (
        any(item.get("controller") and item.get("uid") == job_uid for item in metadata.get("ownerReferences") or ())
        and (metadata.get("labels") or {}).get(_INDEX_LABEL) == "0"
        and status.get("phase") == "Running"
        and bool(status.get("podIP"))
        and not metadata.get("deletionTimestamp")
    )
