"""Parts that replies of several endpoints share: usage, log-probabilities, finish reasons. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glm5_runtime.text.tokens import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_runtime.engine.request import TokenLogprob
    from glm5_runtime.text.tokens import TextTokenizer

_LOWEST = -9999.0  # JSON has no minus infinity; OpenAI and vLLM say this instead


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int | None = None) -> dict[str, Any]:
    """OpenAI's usage object."""
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    if reasoning_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return counts


def chat_logprobs(tokenizer: TextTokenizer, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities in the chat form."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        return {"token": tokenizer.token_text(token), "logprob": _finite(logprob), "bytes": list(tokenizer.token_bytes(token))}

    return {"content": [one(entry.token, entry.logprob) | {"top_logprobs": [one(*other) for other in entry.top]} for entry in entries]}


class CompletionLogprobs:
    """Log-probabilities in the completion form; keeps the text offset of the next token. `hidden`: tokens that leave no text."""

    def __init__(self, tokenizer: TextTokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._text = Detokenizer(tokenizer, hidden)
        self._offset = 0

    def prompt(self, entries: Sequence[TokenLogprob | None], tokens: Sequence[int], text: str) -> dict[str, Any]:
        """The lists for an echoed prompt, whose `text` stands in front of the answer; its first token has no probability."""
        reply = self._lists(entries, tokens, Detokenizer(self._tokenizer, frozenset()))
        self._offset = len(text)
        return reply

    def add(self, entries: Sequence[TokenLogprob], tokens: Sequence[int]) -> dict[str, Any]:
        """The lists for the next tokens of the answer."""
        return self._lists(entries, tokens, self._text)

    def _lists(self, entries: Sequence[TokenLogprob | None], tokens: Sequence[int], growing: Detokenizer) -> dict[str, Any]:
        reply: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for entry, token in zip(entries, tokens, strict=True):
            reply["tokens"].append(self._tokenizer.token_text(token))
            reply["text_offset"].append(self._offset)
            reply["token_logprobs"].append(None if entry is None else _finite(entry.logprob))
            reply["top_logprobs"].append(None if entry is None else self._top(entry))
            self._offset += len(growing.push(token))  # parts of a character add nothing before it is whole
        return reply

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        pairs = ((entry.token, entry.logprob), *entry.top)
        return {self._tokenizer.token_text(token): _finite(logprob) for token, logprob in pairs}


def join_logprobs(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several log-probability objects of one choice as one."""
    joined: dict[str, Any] = {}
    for part in parts:
        for key, values in part.items():
            joined.setdefault(key, []).extend(values)
    return joined


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST
