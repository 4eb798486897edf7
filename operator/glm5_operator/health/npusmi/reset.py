"""To be filled in: what `set -t reset` printed."""

from __future__ import annotations

from .readings import ResetOutcome, ResetTranscript


def parse_reset(text: str) -> ResetTranscript:
    """`npu-smi set -t reset`, standard output and standard error together."""
    return ResetTranscript(outcome=ResetOutcome.CUT, message=text[-200:])
