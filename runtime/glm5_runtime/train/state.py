"""Where a run stands, apart from its tensors: small, and kept as JSON in every checkpoint."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class TrainState(BaseModel):
    """Changed by the loop after every step."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    step: int = 0
    """Steps done, those left out included."""
    epoch: int = 0
    batch: int = 0
    """The next batch of this epoch."""
    tokens: int = 0
    overflows: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    evaluations_without_gain: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    scaler: dict[str, Any] = {}
    """What GradScaler remembers."""
    run: dict[str, Any] = {}
    """What a resume must agree with: method, adapters, base model."""
