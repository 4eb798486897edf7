"""Prometheus metrics under vLLM's names and labels, so that queries for the series that are here work unchanged.

Written by `generation` and `app`, read by /metrics. Every series exists from the start with value 0: a counter that appears with its
first event hides that event from rate(). Token totals and gauges are the engine's own figures, read when scraped.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from glm5_runtime.engine.request import FinishReason
from glm5_runtime.engine.stats import STEP_TOKENS
from glm5_runtime.ops.kernels import fallbacks
from glm5_runtime.server import audit, hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from glm5_runtime.engine.stats import EngineStats
    from glm5_runtime.server.counts import Counts

LABELS = ("model_name", "engine")
REJECTIONS = ("queue_full", "draining", "loading", "unauthorized", "too_large", "invalid")
ADMISSION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")  # vLLM's; our queue has no limit of tokens

# vLLM's buckets (v1/metrics/buckets.py)
_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
FIRST_TOKEN = (*_SECONDS, 160.0, 640.0, 2560.0)
NEXT_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_SHORT = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
LATENCY = (*_SHORT, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
TOKENS = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5) if digit * 10**power <= 1_000_000)


class Metrics:
    """All metrics of one server."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats | None], counts: Counts, *, device: str = "cpu") -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        info = Gauge("glm5:runtime_info", "What serves, 1: device and version.", (*LABELS, "device", "version"), registry=self.registry)
        info.labels(**self._labels, device=device, version=version("glm5-ascend")).set(1)
        self.registry.register(_EngineCollector(stats, tuple(self._labels.values())))
        self.registry.register(_CountsCollector(counts, tuple(self._labels.values())))
        self._first_token = self._histogram("time_to_first_token_seconds", "Time from arrival to the first token.", FIRST_TOKEN)
        self._next_token = self._histogram("inter_token_latency_seconds", "Time between two tokens of one choice.", NEXT_TOKEN)
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Mean time per token after the first.", NEXT_TOKEN)
        self._latency = self._histogram("e2e_request_latency_seconds", "Time from arrival to the end.", LATENCY)
        self._decode = self._histogram("request_decode_time_seconds", "Time from the first token to the last.", LATENCY)
        self._queue = self._histogram("request_queue_time_seconds", "Time from arrival to the first step.", LATENCY)
        self._prefill = self._histogram("request_prefill_time_seconds", "Time from the first step to the first token.", LATENCY)
        self._inference = self._histogram("request_inference_time_seconds", "Time from the first step to the last token.", LATENCY)
        self._prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens by request.", TOKENS)
        self._generation_tokens = self._histogram("request_generation_tokens", "Produced tokens by request.", TOKENS)
        self._max_tokens = self._histogram("request_params_max_tokens", "max_tokens by request.", TOKENS)
        success = Counter("vllm:request_success", "Ended requests by reason.", (*LABELS, "finished_reason"), registry=self.registry)
        self._ended = {reason: success.labels(**self._labels, finished_reason=reason.value) for reason in FinishReason}
        refused = Counter("glm5:request_rejections", "Requests refused before the engine.", (*LABELS, "reason"), registry=self.registry)
        self._refused = {reason: refused.labels(**self._labels, reason=reason) for reason in REJECTIONS}
        queue = Counter("vllm:admission_rejections", "Requests refused by a full queue.", ("model_name", "reason"), registry=self.registry)
        self._queue_full, _ = [queue.labels(model_name, reason) for reason in ADMISSION_REASONS]
        audited = Counter("glm5:audit_lines", "Lines of the audit log.", (*LABELS, "outcome"), registry=self.registry)
        self._audited = {outcome: audited.labels(**self._labels, outcome=outcome) for outcome in audit.OUTCOMES}
        hooked = Counter("glm5:hook_records", "Records given to post-inference hooks.", (*LABELS, "outcome"), registry=self.registry)
        self._hooked = {outcome: hooked.labels(**self._labels, outcome=outcome) for outcome in hooks.OUTCOMES}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", text, LABELS, buckets=buckets, registry=self.registry).labels(**self._labels)

    def first_token(self, seconds: float) -> None:
        """A choice has produced its first token."""
        self._first_token.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A choice has produced another token."""
        self._next_token.observe(seconds)

    def finished(
        self, reason: FinishReason, *, prompt_tokens: int, tokens: int, max_tokens: int, seconds: float, decode_seconds: float | None
    ) -> None:
        """A choice has ended."""
        self._ended[reason].inc()
        self._latency.observe(seconds)
        self._prompt_tokens.observe(prompt_tokens)
        self._generation_tokens.observe(tokens)
        self._max_tokens.observe(max_tokens)
        if decode_seconds is not None:
            self._decode.observe(decode_seconds)
            if tokens > 1:
                self._per_token.observe(decode_seconds / (tokens - 1))

    def queued(self, seconds: float) -> None:
        """A choice that has ended had waited this long."""
        self._queue.observe(max(seconds, 0.0))

    def computed(self, *, prefill_seconds: float, inference_seconds: float) -> None:
        """A choice that has ended had produced tokens."""
        self._prefill.observe(prefill_seconds)
        self._inference.observe(inference_seconds)

    def rejected(self, reason: str) -> None:
        """A request was refused; `reason` is one of REJECTIONS."""
        self._refused[reason].inc()
        if reason == "queue_full":
            self._queue_full.inc()

    def audited(self, outcome: str) -> None:
        """A line of the audit log was written or lost; `outcome` is one of audit.OUTCOMES."""
        self._audited[outcome].inc()

    def hooked(self, outcome: str) -> None:
        """A record has been through a hook, or never got there; `outcome` is one of hooks.OUTCOMES."""
        self._hooked[outcome].inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Gauges and totals straight from the engine; zeros before it is loaded."""

    def __init__(self, stats: Callable[[], EngineStats | None], labels: tuple[str, ...]) -> None:
        self._stats = stats
        self._values = labels

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        gauges = {
            "num_requests_running": ("Requests in the running batch.", stats.running if stats else 0),
            "num_requests_waiting": ("Requests waiting for a place.", stats.waiting if stats else 0),
            "kv_cache_usage_perc": ("Share of the cache in use, 1 is full.", stats.kv_usage if stats else 0),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens read, those found in the prefix cache included.", stats.prompt_tokens if stats else 0),
            "generation_tokens": ("Tokens produced.", stats.generation_tokens if stats else 0),
            "prefix_cache_queries": ("Prompt tokens looked for in the prefix cache.", stats.prefix_queries if stats else 0),
            "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", stats.prefix_hits if stats else 0),
            "spec_decode_num_drafts": ("Steps of a request in which guessed tokens were checked.", stats.drafts if stats else 0),
            "spec_decode_num_draft_tokens": ("Guessed tokens checked.", stats.draft_tokens if stats else 0),
            "spec_decode_num_accepted_tokens": ("Guessed tokens that were right.", sum(stats.accepted_drafts) if stats else 0),
            "num_preemptions": ("Requests put back to make room.", stats.preemptions if stats else 0),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=LABELS)
            gauge.add_metric(self._values, float(value))
            yield gauge
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=LABELS)
            counter.add_metric(self._values, float(value))
            yield counter
        yield self._accepted_by_place(stats)
        yield self._waiting_by_reason(stats)
        yield self._step_tokens(stats)
        yield self._operator_fallbacks()
        yield self._adapters(stats)

    def _waiting_by_reason(self, stats: EngineStats | None) -> Metric:
        """All who wait here wait for a place or for pages; nothing is put off for another reason."""
        gauge = GaugeMetricFamily("vllm:num_requests_waiting_by_reason", "Requests waiting, by reason.", labels=(*LABELS, "reason"))
        gauge.add_metric((*self._values, "capacity"), float(stats.waiting if stats else 0))
        gauge.add_metric((*self._values, "deferred"), 0.0)
        return gauge

    def _accepted_by_place(self, stats: EngineStats | None) -> Metric:
        name, text = "vllm:spec_decode_num_accepted_tokens_per_pos", "Guessed tokens that were right, by their place."
        counter = CounterMetricFamily(name, text, labels=(*LABELS, "position"))
        for place, count in enumerate(stats.accepted_drafts if stats else ()):
            counter.add_metric((*self._values, str(place)), float(count))
        return counter

    def _operator_fallbacks(self) -> Metric:
        text = "Operator calls that ran in plain torch though the device is an NPU."
        counter = CounterMetricFamily("glm5:operator_fallbacks", text, labels=(*LABELS, "operator"))
        for operator, count in fallbacks.items():
            counter.add_metric((*self._values, operator), float(count))
        return counter

    def _adapters(self, stats: EngineStats | None) -> Metric:
        """As vLLM has it: names as labels, the time as value, and nothing where there are no adapters."""
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        gauge = GaugeMetricFamily("vllm:lora_requests_info", "Adapters with requests, at this Unix time.", labels=labels)
        if stats is not None and stats.max_adapters:
            gauge.add_metric((str(stats.max_adapters), ",".join(stats.waiting_adapters), ",".join(stats.running_adapters)), time.time())
        return gauge

    def _step_tokens(self, stats: EngineStats | None) -> Metric:
        counts = accumulate(stats.step_tokens if stats else (0,) * (len(STEP_TOKENS) + 1))
        bounds = [*(str(float(bound)) for bound in STEP_TOKENS), "+Inf"]
        histogram = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens computed in one step.", labels=LABELS)
        buckets = [(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)]
        histogram.add_metric(self._values, buckets, float(stats.step_tokens_sum if stats else 0))
        return histogram


class _CountsCollector(Collector):
    """Requests and failures by what answered; the model itself has the label `adapter` empty."""

    def __init__(self, counts: Counts, labels: tuple[str, ...]) -> None:
        self._counts = counts
        self._values = labels

    def collect(self) -> Iterable[Metric]:
        model_name = self._values[0]
        labels = (*LABELS, "adapter")
        requests = CounterMetricFamily("glm5:adapter_requests", "Ended requests by the adapter that answered.", labels=labels)
        failures = CounterMetricFamily("glm5:adapter_failures", "Those that the server or the engine failed on.", labels=labels)
        for name, count in self._counts.by_name.items():
            values = (*self._values, "" if name == model_name else name)
            requests.add_metric(values, float(count.requests))
            failures.add_metric(values, float(count.failures))
        return requests, failures
