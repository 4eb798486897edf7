"""Texts cut to what a field of the AscendNode takes: one too long has the whole report refused. Called by `collect` and `rare`."""

from __future__ import annotations

from typing import Final

MOST_WORD: Final = 128
MOST_TEXT: Final = 512
"""Characters, as `api.node_facts` has them."""


def word(text: str | None) -> str | None:
    """A version, an address, a word of a tool; None of an empty one."""
    return _printable(text)[:MOST_WORD] or None if text else None


def message(text: str) -> str:
    """Words of a tool or about it."""
    clean = _printable(text)
    return clean if len(clean) <= MOST_TEXT else clean[: MOST_TEXT - 3] + "..."


def _printable(text: str) -> str:
    """Without control characters, which garbage is full of."""
    return "".join(character if character.isprintable() else " " for character in text[: 2 * MOST_TEXT]).strip()
