"""One choice of an answer: tokens from the engine → text pieces with stop strings applied and log-probabilities named.

A plain state machine, fed by `generation`, read by the endpoints. No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glm5_runtime.engine.request import FinishReason
from glm5_runtime.text.tokens import Detokenizer, StopStrings

if TYPE_CHECKING:
    from glm5_runtime.engine.request import Output, TokenLogprob
    from glm5_runtime.text.tokens import TextTokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output of the engine adds to a choice. `finish` is set on the last piece."""

    text: str
    tokens: int = 0  # 1, or 0 for the end of a request that produced none
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop string or stop_token_id that ended it; None for the model's own end


@dataclass
class Choice:
    """Text state of one engine request."""

    tokenizer: TextTokenizer
    stop_token_ids: frozenset[int]
    stops: StopStrings
    hidden: frozenset[int]
    min_tokens: int = 0
    tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._text = Detokenizer(self.tokenizer, self.hidden)

    def feed(self, output: Output) -> Piece:
        """Take the next output; after a piece with `finish`, nothing may be fed."""
        ends_on_token = output.finish_reason is FinishReason.STOP and output.token is not None
        if output.token is not None:
            self.tokens += 1
        text = "" if output.token is None or ends_on_token else self._text.push(output.token)
        if output.finish_reason is not None:
            text += self._text.flush()
        safe, hit = self.stops.push(text, search=self.tokens > self.min_tokens)  # as vLLM does
        logprobs = () if output.logprob is None else (output.logprob,)
        count = 0 if output.token is None else 1
        if hit is not None:
            return Piece(safe, count, logprobs, output.prompt_logprobs, FinishReason.STOP, hit)
        if output.finish_reason is None:
            return Piece(safe, count, logprobs, output.prompt_logprobs)
        reason = output.token if ends_on_token and output.token in self.stop_token_ids else None
        return Piece(safe + self.stops.flush(), count, logprobs, output.prompt_logprobs, output.finish_reason, reason)
