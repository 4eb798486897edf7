"""The operator's settings: small frozen groups, read once from the environment, passed as arguments.

Called by `__main__`; `python -m glm5_operator.settings` prints docs/settings.md. Must not be read at import anywhere.
Each field's variable is `GLM5_OPERATOR_<GROUP>_<FIELD>`. Decoding is strict: an unknown variable with our prefix or a value out
of range is a fault, and all faults are reported together.
"""

from __future__ import annotations

import math
import re
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from glm5_operator import images

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "GLM5_OPERATOR_"
T = TypeVar("T")


class SettingsError(ValueError):
    """One or more settings can't be used; `faults` holds one sentence each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


def setting(default: T, meaning: str, why: str, *, unit: str = "", low: float = -math.inf, high: float = math.inf) -> T:
    """A field with what the docs table and the decoder need beside its default."""
    return field(default=default, metadata={"meaning": meaning, "why": why, "unit": unit, "low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Scope:
    """What the operator looks after."""

    namespaces: tuple[str, ...] = setting(
        (),
        "Namespaces whose GLM5Services are reconciled, separated by commas; none means all. Pods of other namespaces aren't seen then, so "
        "the cards that they hold aren't counted.",
        "One operator a cluster is the usual case.",
    )


@dataclass(frozen=True, slots=True)
class Queue:
    """How keys are worked off."""

    workers: int = setting(
        8, "Objects reconciled side by side.", "A reconcile mostly waits for the API server; more than this only loads it.", low=1, high=64
    )
    settle: float = setting(
        0.1,
        "How long a change of a child waits for more of its kind.",
        "A rollout changes a Deployment and its pods many times a second; one reconcile and one status write answer them all.",
        unit="s",
        low=0,
        high=5,
    )
    backoff_base: float = setting(
        0.5, "First delay after a failure; doubles with each one.", "Most conflicts are gone by then.", unit="s", low=0.01, high=60
    )
    backoff_max: float = setting(
        60.0, "Longest delay between two tries.", "A healed cause is noticed within a minute.", unit="s", low=1, high=3600
    )
    budget: int = setting(
        12,
        "Failures in a row after which an object is Stalled and tried again only each `recheck`, or when an event comes.",
        "With the delays above three to five minutes: longer than an API server restart, and short enough to be told soon.",
        low=1,
        high=1000,
    )
    recheck: float = setting(
        60.0,
        "About how often an object is looked at again whose writes are refused.",
        "A lifted quota or policy sends no event; it is noticed within about a minute.",
        unit="s",
        low=1,
        high=3600,
    )
    resync: float = setting(
        600.0,
        "How long an object is left alone when no event comes.",
        "Watches carry news; this only repairs what they missed, without a request where nothing did.",
        unit="s",
        low=1,
        high=86400,
    )
    timeout: float = setting(60.0, "Longest time for one reconcile.", "No reconcile holds a worker for ever.", unit="s", low=1, high=3600)


@dataclass(frozen=True, slots=True)
class Api:
    """How the API server is talked to."""

    request_timeout: float = setting(
        10.0, "Whole time of one request.", "A dead connection is noticed and replaced after this.", unit="s", low=1, high=300
    )
    connect_timeout: float = setting(5.0, "Time to connect.", "Loss of a SYN is repeated after 1 and 3 s.", unit="s", low=0.5, high=60)
    connections: int = setting(16, "Connections kept for requests.", "Two for each worker.", low=1, high=256)
    page_size: int = setting(
        100, "Objects in a page of a list.", "Keeps the peak of memory small; all kinds are listed side by side.", low=10, high=5000
    )


@dataclass(frozen=True, slots=True)
class Watch:
    """How watches are kept honest."""

    server_timeout: int = setting(
        40,
        "The API server ends a watch after this, and the operator opens it again.",
        "Together with `grace` the longest time a silently dead watch can go unnoticed; a watch costs one request per this time.",
        unit="s",
        low=5,
        high=3600,
    )
    grace: float = setting(
        5.0,
        "How much later than `server_timeout` the operator ends a watch by itself.",
        "Clock and network slack.",
        unit="s",
        low=1,
        high=60,
    )
    relist: float = setting(
        600.0,
        "Every kind is listed anew and compared with the cache this often.",
        "Repairs what watches missed, deletions above all.",
        unit="s",
        low=5,
        high=86400,
    )
    discovery: float = setting(
        60.0,
        "How often it is looked whether Kueue and Volcano are installed.",
        "They come and go once in a cluster's life; a look is one small request.",
        unit="s",
        low=1,
        high=86400,
    )
    dead_after: float = setting(
        180.0,
        "/healthz fails when a watch gave no sign of life for this long.",
        "Four missed rounds of `server_timeout`.",
        unit="s",
        low=10,
        high=86400,
    )


@dataclass(frozen=True, slots=True)
class Lease:
    """Which of several operators is active."""

    enabled: bool = setting(
        True, "Take a Lease before writing anything.", "Rolling updates run two operators for a moment, even with one replica."
    )
    namespace: str = setting("glm5-system", "Namespace of the Lease.", "The operator's own.")
    name: str = setting("glm5-operator", "Name of the Lease.", "Two operators of different scope need different ones.")
    duration: float = setting(
        8.0,
        "A leader that hasn't renewed for this long is replaced.",
        "A standby leads soon after that; how soon it acts depends on the number of objects.",
        unit="s",
        low=3,
        high=60,
    )
    renew: float = setting(
        2.0, "The leader renews, a standby looks, this often.", "Three tries fit into the duration.", unit="s", low=0.5, high=20
    )
    identity: str = setting(
        "", "Name of this process in the Lease; a random part is added.", "Empty: the host name, which is the pod's name."
    )


@dataclass(frozen=True, slots=True)
class Admin:
    """The HTTP port for probes and metrics."""

    host: str = setting("0.0.0.0", "Address to listen on.", "Kubelet's probes come from outside the pod.")  # noqa: S104 - the reason stands beside it
    port: int = setting(
        8080, "Port of /healthz, /readyz and /metrics; 0 takes a free one and logs it.", "Above 1024: not root.", low=0, high=65535
    )


@dataclass(frozen=True, slots=True)
class Log:
    """Logging."""

    level: str = setting("info", "debug, info, warning or error.", "Debug logs every reconcile.")
    format: str = setting("text", "text or json (one object a line).", "Text for people; json for log stores.")


@dataclass(frozen=True, slots=True)
class Site:
    """Defaults for what the operator renders."""

    native_image: str = setting(
        "glm5-runtime:0.1.0", "Image of engine `native` where a service names none.", "Built from the same release."
    )
    vllm_image: str = setting(
        "quay.io/ascend/vllm-ascend:v0.23.0",
        "Image of engine `vllm` where a service names none; the planner appends `-a3` and the like.",
        "The tested release.",
    )
    image_pull_policy: str = setting(
        "", "imagePullPolicy of engine containers; empty leaves it to Kubernetes.", "Kubernetes' rule fits pinned tags."
    )
    cluster_domain: str = setting("cluster.local", "DNS suffix of Services in `status.endpoint`.", "Kubernetes' default.")


@dataclass(frozen=True, slots=True)
class Progress:
    """What the operator asks of training runs."""

    interval: float = setting(
        5.0,
        "How often the first pod of each running attempt is asked how far it is.",
        "One small request a run.",
        unit="s",
        low=1,
        high=3600,
    )
    tell: float = setting(
        10.0,
        "Least time between two writes of one job's progress into its status.",
        "Each is a write to etcd and an event for everybody who watches; people don't read faster.",
        unit="s",
        low=1,
        high=3600,
    )
    port: int = setting(
        8090, "Port of GET /progress in trainers' pods, from the next attempt on.", "Above 1024: not root.", low=1024, high=65535
    )


@dataclass(frozen=True, slots=True)
class Audit:
    """How pools are audited: who holds their cards, whatever admission let in."""

    interval: float = setting(
        60.0,
        "How often a pool is looked at when no pod took or freed cards.",
        "Pods that only kubelet knows of send no event; a minute without them being told is short.",
        unit="s",
        low=1,
        high=3600,
    )
    evict_after: float = setting(
        60.0,
        "How long a violation is told before its pod is evicted, where the pool says Evict.",
        "Somebody who sees the Event can still act.",
        unit="s",
        low=0,
        high=86400,
    )
    exempt_namespaces: tuple[str, ...] = setting(
        (), "Namespaces whose pods are no violations, separated by commas.", "The chart's admission.exemptNamespaces."
    )
    daemon_set_namespaces: tuple[str, ...] = setting(
        ("kube-system",),
        "Namespaces whose DaemonSets' pods are no violations, separated by commas.",
        "The chart's admission.daemonSetNamespaces: what a site runs on every node.",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All groups."""

    scope: Scope = field(default_factory=Scope)
    queue: Queue = field(default_factory=Queue)
    api: Api = field(default_factory=Api)
    watch: Watch = field(default_factory=Watch)
    lease: Lease = field(default_factory=Lease)
    admin: Admin = field(default_factory=Admin)
    log: Log = field(default_factory=Log)
    site: Site = field(default_factory=Site)
    progress: Progress = field(default_factory=Progress)
    audit: Audit = field(default_factory=Audit)


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "log.level": ("debug", "info", "warning", "error"),
    "log.format": ("text", "json"),
    "site.image_pull_policy": ("", "Always", "IfNotPresent", "Never"),
}
_IMAGES: Final = ("site.native_image", "site.vllm_image")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESOURCES = frozenset({"node.resources"})
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def variable(group: str, name: str, prefix: str = PREFIX) -> str:
    """The environment variable of one field."""
    return f"{prefix}{group}_{name}".upper()


def load(environ: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Settings:
    """Decode the environment; `overrides` (from flags) are by the same variable names and win.

    Raises:
        SettingsError: with every fault, not only the first.
    """
    settings, faults = decode(Settings, PREFIX, {**environ, **(overrides or {})})
    faults += _contradictions(settings)
    if faults:
        raise SettingsError(faults)
    return settings


def decode(kind: type[T], prefix: str, environ: Mapping[str, str]) -> tuple[T, list[str]]:
    """A dataclass of groups from the variables with that prefix, and what is wrong with them. The node agent's are read so too."""
    given = {name: value for name, value in environ.items() if name.startswith(prefix)}
    faults: list[str] = []
    groups: dict[str, Any] = {}
    for group in fields(kind):  # type: ignore[arg-type] # T is a dataclass of groups
        values: dict[str, object] = {}
        for item in fields(_group_type(group)):
            name = variable(group.name, item.name, prefix)
            text = given.pop(name, None)
            if text is None:
                continue
            try:
                values[item.name] = _decode(f"{group.name}.{item.name}", item, text.strip())
            except ValueError as error:
                faults.append(f"{name}={text!r}: {error}")
        groups[group.name] = _group_type(group)(**values)
    faults += [f"{name}: no such setting" for name in sorted(given)]
    return kind(**groups), faults


def _contradictions(settings: Settings) -> list[str]:
    """Faults that need two fields to see."""
    faults = []
    if settings.lease.renew * 3 > settings.lease.duration:
        faults.append("lease.renew must be at most a third of lease.duration, or one lost packet loses the lease")
    if settings.watch.dead_after < 2 * (settings.watch.server_timeout + settings.watch.grace):
        faults.append(
            "watch.dead_after must be at least twice watch.server_timeout + watch.grace, or a quiet kind fails the liveness probe"
        )
    if settings.queue.backoff_max < settings.queue.backoff_base:
        faults.append("queue.backoff_max must not be below queue.backoff_base")
    return faults


def _group_type(group: Field[Any]) -> type[Any]:
    kind = group.default_factory
    assert isinstance(kind, type), "every group's default is its class"
    return kind


def _decode(path: str, item: Field[Any], text: str) -> object:
    default = item.default
    if isinstance(default, bool):
        if text.lower() not in {"true", "false"}:
            raise ValueError("must be true or false")
        return text.lower() == "true"
    if isinstance(default, int | float):
        return _number(text, item, integral=isinstance(default, int))
    if isinstance(default, tuple):
        names = tuple(part.strip() for part in text.split(",") if part.strip())
        pattern, what = (_RESOURCE, "an extended resource") if path in _RESOURCES else (_NAMESPACE, "a namespace")
        wrong = [name for name in names if not pattern.fullmatch(name)]
        if wrong:
            raise ValueError(f"not {what}: {', '.join(wrong)}")
        return names
    if path in _IMAGES and text and (fault := images.fault(text)):
        raise ValueError(fault)
    if path in _CHOICES and text not in _CHOICES[path]:
        raise ValueError(f"must be one of {', '.join(choice or '(empty)' for choice in _CHOICES[path])}")
    return text


def _number(text: str, item: Field[Any], *, integral: bool) -> int | float:
    try:
        number = int(text) if integral else float(text)
    except ValueError:
        raise ValueError("must be a whole number" if integral else "must be a number") from None
    low, high = item.metadata["low"], item.metadata["high"]
    if not low <= number <= high:
        raise ValueError(f"must be between {low:g} and {high:g}")
    return number


def docs_table() -> str:
    """The operator's part of docs/settings.md."""
    lines = [
        "# Settings of the operator",
        "",
        "Generated by `python -m glm5_operator.settings`; edit operator/glm5_operator/settings.py instead.",
        "Each is an environment variable, read once at start.",
        "An unknown variable with the prefix or a value out of range stops the start; all faults are named at once.",
        *group_tables(Settings, PREFIX),
    ]
    return "\n".join(lines) + "\n"


def group_tables(settings: type[Any], prefix: str) -> list[str]:
    """One table for each group, in Markdown."""
    lines: list[str] = []
    for group in fields(settings):
        kind = _group_type(group)
        lines += [
            "",
            f"## {group.name}: {(kind.__doc__ or '').strip().rstrip('.')}",
            "",
            "| variable | default | unit | meaning | why this default |",
        ]
        lines.append("|---|---|---|---|---|")
        for item in fields(kind):
            default = (
                ",".join(item.default)
                if isinstance(item.default, tuple)
                else str(item.default).lower()
                if isinstance(item.default, bool)
                else item.default
            )
            meta = item.metadata
            shown = f"`{default}`" if default != "" else "(empty)"
            lines.append(f"| `{variable(group.name, item.name, prefix)}` | {shown} | {meta['unit']} | {meta['meaning']} | {meta['why']} |")
    return lines


if __name__ == "__main__":
    print(docs_table(), end="")  # noqa: T201 - the output is the point
