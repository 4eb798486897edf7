"""Moments for tests: time is a number here, and nobody waits for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def at(**passed: float) -> datetime:
    """`at(minutes=3)` is three minutes after everything began."""
    return BEGIN + timedelta(**passed)


def stamp(moment: datetime) -> str:
    """As Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
