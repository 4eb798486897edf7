"""The operator's own metrics, one object that is passed around.

Used by `kube` and `app`; served at /metrics. Must not know Kubernetes or keep state beyond its counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.metrics_core import Metric

Rows = Iterable[tuple[tuple[str, ...], Mapping[str, float]]]
"""Values of the labels, and by name of a column its number; what isn't known is left out."""
_REMEDY_SECONDS: Final = (1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


class Metrics:
    """Counters and histograms, each named for what a dashboard asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Histogram(
            "glm5_operator_reconcile_seconds",
            "Time of one reconcile, by kind and result (done, again, retry, stalled, error).",
            ["kind", "result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.queue_wait = Histogram(
            "glm5_operator_queue_wait_seconds",
            "From when a key was due until a worker took it.",
            ["kind"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.queue_depth = Gauge("glm5_operator_queue_depth", "Keys that are due and wait for a worker.", registry=self.registry)
        self.queue_delayed = Gauge(
            "glm5_operator_queue_delayed",
            "Keys that wait for a time: settling, backing off or to be looked at again.",
            registry=self.registry,
        )
        self.queue_running = Gauge("glm5_operator_queue_running", "Keys that a worker has.", registry=self.registry)
        self.given_up = Counter(
            "glm5_operator_given_up_total", "How often an object used up its budget of failures.", ["kind"], registry=self.registry
        )
        self.api_requests = Counter(
            "glm5_operator_api_requests_total",
            "Requests to the API server by verb, kind and HTTP code (or timeout, error, guarded).",
            ["verb", "kind", "code"],
            registry=self.registry,
        )
        self.api_seconds = Histogram(
            "glm5_operator_api_request_seconds",
            "Time of requests to the API server, watches excluded.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.watch_events = Counter(
            "glm5_operator_watch_events_total",
            "Watch events by kind; news are those that changed the cache (or malformed: none could be read).",
            ["kind", "news"],
            registry=self.registry,
        )
        self.relist_repairs = Counter(
            "glm5_operator_relist_repairs_total",
            "Differences that a relist found and the watch had missed.",
            ["kind"],
            registry=self.registry,
        )
        self.apply_conflicts = Counter(
            "glm5_operator_apply_conflicts_total",
            "Fields taken back from another manager, by kind of object.",
            ["kind"],
            registry=self.registry,
        )
        self.applies_skipped = Counter(
            "glm5_operator_applies_skipped_total", "Applies that weren't needed, by kind of object.", ["kind"], registry=self.registry
        )
        self.events = Counter(
            "glm5_operator_events_total",
            "Kubernetes Events by fate (sent, repeated, limited, dropped, failed).",
            ["fate"],
            registry=self.registry,
        )
        self.attempts_ended = Counter(
            "glm5_finetune_attempts_ended_total",
            "Attempts of fine-tuning jobs that ended, by cause; Succeeded for those that ended well.",
            ["cause"],
            registry=self.registry,
        )
        self._of_remedies()
        self.leader = Gauge("glm5_operator_leader", "1 while this process may write.", registry=self.registry)
        self.loop_lag = Gauge("glm5_operator_event_loop_lag_seconds", "How late the event loop ran its last timer.", registry=self.registry)

    def _of_remedies(self) -> None:
        self.remedy_steps = Counter(
            "glm5_remedy_steps_total",
            "Steps of nodes' remedies by step and reason; dry: only told.",
            ["step", "reason", "dry"],
            registry=self.registry,
        )
        self.resets = Counter(
            "glm5_resets_total",
            "Resets of cards by what the node agent said of them (Succeeded, Failed, Refused, Unknown), or Unanswered.",
            ["result"],
            registry=self.registry,
        )
        self.fault_to_quiesced = Histogram(
            "glm5_fault_to_quiesced_seconds",
            "From when a source told a fault until its pods were to be out of traffic.",
            buckets=_REMEDY_SECONDS,
            registry=self.registry,
        )
        self.fault_to_back = Histogram(
            "glm5_fault_to_back_seconds",
            "From the first step of a remedy until the node was in service again.",
            buckets=_REMEDY_SECONDS,
            registry=self.registry,
        )

    def live_gauge(self, name: str, help_text: str, labels: Iterable[str], read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """A gauge that is read when scraped, for what other objects know anyway."""
        self.registry.register(_LiveGauge(name, help_text, tuple(labels), read))

    def live_table(self, columns: Iterable[Column], labels: Iterable[str], read: Callable[[], Rows]) -> None:
        """Metrics that are read together when scraped. An object that is gone has no row, and so no metric."""
        self.registry.register(LiveTable(columns, labels, read))

    def exposition(self) -> bytes:
        """The text format, for /metrics."""
        return generate_latest(self.registry)


@dataclass(frozen=True, slots=True)
class Column:
    """One metric of a table; a counter's name ends in `_total`."""

    name: str
    help_text: str
    counts: bool = False


class LiveTable(Collector):
    """Several metrics with the same labels, read together when scraped. The node agent has one of its own."""

    def __init__(self, columns: Iterable[Column], labels: Iterable[str], read: Callable[[], Rows]) -> None:
        self._columns, self._labels, self._read = tuple(columns), tuple(labels), read

    def describe(self) -> Iterable[Metric]:
        """Without values: registering must not read anything."""
        return self._families().values()

    def collect(self) -> Iterable[Metric]:
        """One sample for each number of each row."""
        families = self._families()
        for labels, numbers in self._read():
            for name, number in numbers.items():
                families[name].add_metric(list(labels), number)
        return families.values()

    def _families(self) -> dict[str, GaugeMetricFamily | CounterMetricFamily]:
        return {
            column.name: (CounterMetricFamily if column.counts else GaugeMetricFamily)(column.name, column.help_text, labels=self._labels)
            for column in self._columns
        }


class _LiveGauge(Collector):
    def __init__(self, name: str, help_text: str, labels: tuple[str, ...], read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        self._name, self._help, self._labels, self._read = name, help_text, labels, read

    def describe(self) -> Iterable[Metric]:
        """Without values: registering must not read anything."""
        return [GaugeMetricFamily(self._name, self._help, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """One sample for each key of the mapping."""
        family = GaugeMetricFamily(self._name, self._help, labels=self._labels)
        for values, number in self._read().items():
            family.add_metric(list(values), number)
        return [family]
