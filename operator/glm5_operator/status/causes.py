"""Why a service doesn't serve: the stable reasons, in order of gravity, and how long each is given to heal by itself.

Filled by `pods`, `scheduling` and `refusals`, read by `service`. The reasons are part of the API: alerts and scripts match them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Reason(StrEnum):
    """Gravest first: when pods of one service differ, the first of these is told."""

    # The API server refused to create pods.
    QUOTA_EXCEEDED = "QuotaExceeded"
    QUOTA_NEEDS_LIMITS = "QuotaNeedsLimits"
    POD_SECURITY = "PodSecurityViolation"
    ADMISSION_DENIED = "AdmissionDenied"
    LIMIT_RANGE = "LimitRangeViolated"
    SERVICE_ACCOUNT_MISSING = "ServiceAccountMissing"
    PODS_REFUSED = "PodsRefused"
    # A container can't start, or doesn't stay.
    OUT_OF_MEMORY = "OutOfMemory"
    VERSIONS = "VersionsDoNotFit"
    ENGINE_CRASHING = "EngineCrashing"
    STARTUP_TIMEOUT = "StartupTimeout"
    IMAGE_NAME_INVALID = "InvalidImageName"
    IMAGE_PULL = "ImagePullFailed"
    SECRET_MISSING = "SecretMissing"  # noqa: S105  a reason, no password
    CONFIG_MAP_MISSING = "ConfigMapMissing"
    CONTAINER_CONFIG = "ContainerConfigError"
    CONTAINER_START = "ContainerStartFailed"
    POD_FAILED = "PodFailed"
    # No node takes the pod.
    VOLUME_MISSING = "VolumeMissing"
    VOLUME_UNBOUND = "VolumeUnbound"
    NO_MATCHING_NODE = "NoMatchingNode"
    INSUFFICIENT_CARDS = "InsufficientCards"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    UNSCHEDULABLE = "Unschedulable"
    # It ran and stopped serving.
    REPLICA_QUIESCED = "ReplicaQuiesced"
    NODE_UNREACHABLE = "NodeUnreachable"
    ENGINE_NOT_READY = "EngineNotReady"
    DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    # Ordinary stations of a start.
    PENDING = "Pending"
    CREATING = "ContainerCreating"
    LOADING = "Loading"


ORDINARY = frozenset({Reason.PENDING, Reason.CREATING, Reason.LOADING})
"""Reasons that every healthy start passes through: no news worth an Event."""

_GRAVITY = {reason: place for place, reason in enumerate(Reason)}

NEVER: timedelta | None = None
AT_ONCE = timedelta(0)
SOON = timedelta(minutes=2)
LATER = timedelta(minutes=10)

_PATIENCE: dict[Reason, timedelta | None] = {
    # Retrying what can't change without an edit is no progress.
    Reason.QUOTA_NEEDS_LIMITS: AT_ONCE,
    Reason.POD_SECURITY: AT_ONCE,
    Reason.ADMISSION_DENIED: AT_ONCE,
    Reason.LIMIT_RANGE: AT_ONCE,
    Reason.IMAGE_NAME_INVALID: AT_ONCE,
    Reason.CONTAINER_CONFIG: AT_ONCE,
    Reason.DEADLINE_EXCEEDED: AT_ONCE,
    Reason.VERSIONS: AT_ONCE,
    # Things that are often applied a moment later, or a registry that hiccups.
    Reason.QUOTA_EXCEEDED: SOON,
    Reason.SERVICE_ACCOUNT_MISSING: SOON,
    Reason.PODS_REFUSED: SOON,
    Reason.IMAGE_PULL: SOON,
    Reason.SECRET_MISSING: SOON,
    Reason.CONFIG_MAP_MISSING: SOON,
    Reason.CONTAINER_START: SOON,
    Reason.POD_FAILED: SOON,
    Reason.VOLUME_MISSING: SOON,
    Reason.VOLUME_UNBOUND: SOON,
    Reason.NO_MATCHING_NODE: SOON,
    # Cards come free when others end, nodes join in minutes, large images take minutes to unpack.
    Reason.INSUFFICIENT_CARDS: LATER,
    Reason.INSUFFICIENT_RESOURCES: LATER,
    Reason.UNSCHEDULABLE: LATER,
    Reason.NODE_UNREACHABLE: LATER,
    Reason.CREATING: LATER,
    Reason.PENDING: LATER,
    # The Deployment's progress deadline and kubelet's restarts bound these; crashes count runs, not time.
    Reason.OUT_OF_MEMORY: NEVER,
    Reason.ENGINE_CRASHING: NEVER,
    Reason.STARTUP_TIMEOUT: NEVER,
    Reason.ENGINE_NOT_READY: NEVER,
    # The remedy of its node ends by itself, in quarantine at the latest; then its pod is replaced.
    Reason.REPLICA_QUIESCED: NEVER,
    Reason.LOADING: NEVER,
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason, told for a user.

    Attributes:
        reason: stable.
        message: what is wrong and what to change; carries no age or counter that moves by itself.
        since: when it began; None counts as just now.
        hopeless: it has been tried often enough; overrides the patience of the reason.
    """

    reason: Reason
    message: str
    since: datetime | None = None
    hopeless: bool = False

    def stalled_at(self) -> datetime | None:
        """When patience ends; None when it never does, or when the beginning is unknown."""
        patience = _PATIENCE[self.reason]
        return self.since + patience if patience is not None and self.since is not None else None

    def is_stalled(self, now: datetime) -> bool:
        """Whether it now waits for somebody rather than for time."""
        if self.hopeless or _PATIENCE[self.reason] == AT_ONCE:
            return True
        end = self.stalled_at()
        return end is not None and now >= end


def gravest(causes: Iterable[Cause]) -> Cause | None:
    """The one to tell: by gravity, then by message, so that the choice doesn't wander between reconciles."""
    return min(causes, key=lambda cause: (_GRAVITY[cause.reason], not cause.hopeless, cause.message), default=None)


def next_deadline(causes: Iterable[Cause], now: datetime) -> datetime | None:
    """The next moment at which some cause turns into Stalled without any event; None when there is none."""
    return min((end for cause in causes if (end := cause.stalled_at()) is not None and end > now), default=None)
