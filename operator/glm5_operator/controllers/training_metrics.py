"""Metrics of fine-tuning jobs: gauges read from their statuses when somebody scrapes, and ended attempts as they end.

Registered by `controllers.build`. What was told to the status is what a dashboard shows, so both say the same; a job that is deleted
takes its gauges with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.metrics import Column
from glm5_operator.status.conditions import moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from glm5_operator.kube import Cache
    from glm5_operator.metrics import Metrics

_LABELS: Final = ("namespace", "name")
_COLUMNS: Final[dict[str, Column]] = {
    "attempt": Column("glm5_finetune_attempt", "Number of the newest attempt."),
    "failures": Column("glm5_finetune_failures", "Ended attempts that count against policy.maxAttempts."),
    "step": Column("glm5_finetune_step", "Optimiser steps done."),
    "totalSteps": Column("glm5_finetune_steps", "Optimiser steps of the whole run."),
    "epoch": Column("glm5_finetune_epoch", "Passes over the data done."),
    "loss": Column("glm5_finetune_loss", "Training loss at the last step that was told."),
    "evaluationLoss": Column("glm5_finetune_evaluation_loss", "Loss of the rows that are held back."),
    "reward": Column("glm5_finetune_reward", "Mean reward of the answers at the last step that was told, with grpo and ppo."),
    "eta": Column("glm5_finetune_eta_timestamp_seconds", "When the run will have ended at its present pace, in seconds since 1970."),
    "learningRate": Column("glm5_finetune_learning_rate", "Learning rate at the last step that was told."),
    "tokensPerSecond": Column("glm5_finetune_tokens_per_second", "Tokens that all cards together learn from in a second."),
    "checkpoint": Column("glm5_finetune_checkpoint_step", "Step of the newest complete checkpoint."),
    "cardsHeld": Column("glm5_finetune_cards_held", "Cards that its pods hold now."),
    "overflows": Column("glm5_finetune_overflows_total", "Steps that were left out because fp16 gradients overflowed.", counts=True),
}
"""By field of the status."""


def register(metrics: Metrics, cache: Cache) -> None:
    """One row a job."""
    metrics.live_table(_COLUMNS.values(), _LABELS, lambda: _rows(cache))


def count_ended(metrics: Metrics, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Count the attempts whose end a status tells and the one before it didn't."""
    known = {item.get("attempt") for item in before.get("history") or ()}
    for item in after.get("history") or ():
        if item.get("attempt") not in known:
            metrics.attempts_ended.labels(item["cause"]).inc()
    if after.get("outcome") == "Succeeded" and not before.get("outcome"):
        metrics.attempts_ended.labels("Succeeded").inc()


def _rows(cache: Cache) -> Iterator[tuple[tuple[str, ...], Mapping[str, float]]]:
    for job in cache.list(names.FINETUNE_KIND):
        status = job.get("status") or {}
        numbers = {field: _number(status.get(field)) for field in _COLUMNS}
        yield (
            (job["metadata"]["namespace"], job["metadata"]["name"]),
            {_COLUMNS[field].name: number for field, number in numbers.items() if number is not None},
        )


def _number(value: object) -> float | None:
    if isinstance(value, dict):
        value = value.get("step")
    if isinstance(value, str):
        when = moment(value)
        return when.timestamp() if when else None
    return float(value) if isinstance(value, int | float) else None
