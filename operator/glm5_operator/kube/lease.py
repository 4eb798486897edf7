"""Who may write: a Lease, held by at most one of several operators.

Run by `app`; its `guard` is asked by the client before each write. Clocks of different machines are never compared: a candidate
measures on its own steady clock how long the record has stayed unchanged, and the holder counts from before it sent its last renewal.
So the holder stops writing before anybody else may start, also after it was frozen (SIGSTOP, a paused VM) and wakes up unaware.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.kube import errors, kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from glm5_operator.kube.client import Client
    from glm5_operator.settings import Lease as LeaseSettings

log = logging.getLogger(__name__)

_MARGIN: Final = 0.15  # of the duration: the holder stops this much before a candidate may start
_FIRST_SHARE: Final = 0.25  # of the duration: how long the first attempt at a renewal may take
_MOST_TRANSITIONS: Final = 2**31 - 1  # the API server refuses more


def steady_clock() -> float:
    """Seconds that go on while the process is stopped or the machine is suspended (CLOCK_MONOTONIC stands still in a suspend)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseLostError(Exception):
    """This process was the leader and may not be any more. It must end: somebody else may be writing."""


@dataclass(slots=True)
class _Observed:
    """The record as last read, and since when (our clock) it has been like that."""

    spec: Mapping[str, Any]
    since: float


class LeaderLease:
    """One candidate. `acquire` returns once it leads, `hold` raises LeaseLostError when it no longer does."""

    def __init__(self, client: Client, settings: LeaseSettings, identity: str, clock: Callable[[], float] = steady_clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self.identity = f"{identity}_{uuid.uuid4().hex[:8]}"  # a restarted pod has the same name and isn't the same holder
        self._object: dict[str, Any] | None = None
        self._observed: _Observed | None = None
        self._writable_until = -math.inf

    @property
    def leading(self) -> bool:
        """May write now."""
        return self._clock() < self._writable_until

    def guard(self) -> None:
        """Raise NotLeaderError unless this process may write now. Asked immediately before each write."""
        if not self.leading:
            raise errors.NotLeaderError("this operator doesn't hold the lease (any more); the write was held back")

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while True:
            if await self._try():
                break
            await asyncio.sleep(min(self._settings.renew, 1.0))
        log.info("leading as %s", self.identity)

    async def hold(self) -> None:
        """Renew until it fails for too long or somebody else has the lease."""
        while True:
            await asyncio.sleep(self._settings.renew)
            held = await self._try()
            while not held:
                left = self._writable_until - self._clock()
                if left <= 0:
                    raise LeaseLostError(f"{self.identity} could not renew its lease in time")
                await asyncio.sleep(0.2)
                held = await self._try(left)
            if not self.leading:
                raise LeaseLostError(f"{self.identity} lost its lease")

    async def release(self) -> None:
        """Let the next one start at once; called when nothing of ours writes any more."""
        if not self.leading or self._object is None:
            return
        self._writable_until = -math.inf
        spec = {**self._object["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            await self._client.replace(kinds.LEASE, {**self._object, "spec": spec})
            log.info("released the lease")
        except errors.KubeError as error:
            log.info("the lease could not be released and will run out: %s", error)

    async def _try(self, limit: float | None = None) -> bool:
        """One attempt to take or renew; True when we hold the lease after it.

        The first attempt is short: its connection may be dead, and a second must fit in. The second may take all the time that is
        left: an overloaded API server answers late, and asking it more often doesn't help.
        """
        sent = self._clock()
        try:
            async with asyncio.timeout(limit or self._settings.duration * _FIRST_SHARE):
                return await self._take(sent)
        except (errors.KubeError, TimeoutError) as error:
            log.warning("lease: %s", str(error) or "no answer in time")
            self._object = None  # read it anew: an update whose answer we missed may have happened
            return False

    async def _take(self, sent: float) -> bool:
        holding = self.leading
        if self._object is None or not holding:
            self._object = await self._read()
            if self._object is None:
                return self._won(await self._client.create(kinds.LEASE, self._record({}, taken=True)), sent)
        spec = self._object.get("spec") or {}
        if self._observed is None or self._observed.spec != spec:
            self._observed = _Observed(spec, self._clock())
        holder = spec.get("holderIdentity")
        if holder != self.identity:
            if holding:
                raise LeaseLostError(f"{holder or 'nobody'} has the lease")
            if holder and self._clock() - self._observed.since < float(spec.get("leaseDurationSeconds") or self._settings.duration):
                return False
        try:
            answer = await self._client.replace(kinds.LEASE, self._record(self._object, taken=holder != self.identity))
        except errors.ConflictError:
            self._object = None  # somebody wrote first; look again
            return False
        return self._won(answer, sent)

    def _won(self, answer: dict[str, Any], sent: float) -> bool:
        self._object = answer
        self._observed = _Observed(answer.get("spec") or {}, sent)
        self._writable_until = sent + self._settings.duration * (1 - _MARGIN)
        return True

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._client.get(kinds.LEASE, self._settings.namespace, self._settings.name)
        except errors.NotFoundError:
            return None

    def _record(self, current: Mapping[str, Any], *, taken: bool) -> dict[str, Any]:
        spec = dict(current.get("spec") or {})
        now = _now()
        spec |= {"holderIdentity": self.identity, "leaseDurationSeconds": math.ceil(self._settings.duration), "renewTime": now}
        if taken:
            spec |= {"acquireTime": now, "leaseTransitions": min(int(spec.get("leaseTransitions") or 0) + 1, _MOST_TRANSITIONS)}
        metadata = current.get("metadata") or {"name": self._settings.name, "namespace": self._settings.namespace}
        return {"apiVersion": kinds.LEASE.api_version, "kind": kinds.LEASE.name, "metadata": metadata, "spec": spec}


def _now() -> str:
    """For people who look at the Lease; no program compares it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
