"""What `npu-smi set -t reset` printed: whether it asks, was refused, failed or succeeded.

Texts: npu_chip_set.c and npu_set_print.c of the open driver. The tool's exit code is somebody else's business: it alone proves nothing.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from .readings import ResetOutcome, ResetRefusal, ResetTranscript
from .text import LONGEST_LINE, Line, split, take_error

_QUESTION: Final = re.compile(r".*(?:\(Y/N\)|\[y/n\]):?", re.IGNORECASE)
_EXPECTED: Final = re.compile(r"\s*Message *: *resetting \(about ([0-9]{1,6}) seconds\)")
_STATUS: Final = re.compile(r"\s*Status *: *(\S+)\s*")
_MESSAGE: Final = re.compile(r"\s*Message *: *(.+?)\s*")
_DONE: Final = re.compile(r"Reset (?:card|chip|server|vnpu) successfully\.")
_REFUSALS: Final = tuple(
    (reason, re.compile(pattern, re.IGNORECASE))
    for reason, pattern in (
        (ResetRefusal.NOT_ROOT, r"only by the root user|operation not permitted"),
        (ResetRefusal.ANOTHER_RESET, r"another user is resetting"),
        (ResetRefusal.NEEDS_HOST, r"cannot be executed on a"),
        (ResetRefusal.VIRTUAL_NPU, r"in the vnpu scenario"),
        (ResetRefusal.CARDS_BUSY, r"occupied by docker|(?:is|are) in use\b|device is used|process(?:es)? .*running"),
        (ResetRefusal.WRONG_CARD, r"invalid (?:card|chip) id|must input (?:parameter of chip id|card id)|only support reset chip 0"),
        (ResetRefusal.NO_ACCESS, r"dcmi (?:module|model) initialized? failed|cannot open shared object file"),
        (ResetRefusal.NOT_SUPPORTED, r"does not support|reset is not supported|command or option is not found|error parameter"),
        (ResetRefusal.ABORTED, r"user aborts reset"),
    )
)


def parse_reset(text: str) -> ResetTranscript:
    """Read the transcript: standard output, with standard error and our own answers in between or not."""
    lines = split(text)
    error, _ = take_error([line for line in lines if not _QUESTION.fullmatch(line.text)])
    filled = [line for line in lines if line.text.strip()]
    questions = [line for line in filled if _QUESTION.fullmatch(line.text)]
    reboots_all = any("reboot all devices" in line.text and "SMP system" not in line.text for line in questions)
    outcome, refusal, message = _outcome(filled)
    expected = next((found for line in filled if (found := _EXPECTED.match(line.text))), None)
    return ResetTranscript(
        error=error,
        outcome=outcome,
        refusal=refusal,
        message=message[:LONGEST_LINE],
        whole_node=reboots_all or "reset server" in message.casefold(),
        expected=timedelta(seconds=int(expected[1])) if expected else None,
        asked=len(questions),
        unanswered=bool(filled) and bool(questions) and filled[-1] is questions[-1],
    )


def _outcome(lines: list[Line]) -> tuple[ResetOutcome, ResetRefusal | None, str]:
    """A refusal goes before a status, and any Fail before an OK: success needs the status and the sentence, and nothing against them."""
    for line in lines:
        for reason, pattern in _REFUSALS:
            if pattern.search(line.text) and not _QUESTION.fullmatch(line.text):
                return ResetOutcome.REFUSED, reason, line.text.strip()
    words = [found[1] for line in lines if not line.cut and (found := _STATUS.fullmatch(line.text))]
    messages = [found[1] for line in lines if (found := _MESSAGE.fullmatch(line.text)) and not _EXPECTED.match(line.text)]
    last = messages[-1] if messages else ""
    if any(word != "OK" for word in words) or any("fail" in message.casefold() for message in messages):
        return ResetOutcome.FAILED, None, last
    if words and _DONE.fullmatch(last):
        return ResetOutcome.SUCCEEDED, None, last
    return ResetOutcome.CUT, None, last or (lines[-1].text.strip() if lines else "")
