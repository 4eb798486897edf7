"""Answers of the policy as it is now: our own engine around the very decoder that is trained, in this process.

Called by the step. Weights are shared, not copied: the engine's thread computes while the trainer waits for answers, and waits while the
trainer computes. A step's requests share pages with each other alone, so the prompt of a group is read once and nothing of older weights
is found again. Seeds follow from the step's number: a resumed run makes the same answers.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from glm5_runtime.config import ConfigError, EngineConfig
from glm5_runtime.engine.load import engine_around
from glm5_runtime.engine.request import FinishReason, Request, SamplingParams
from glm5_runtime.engine.runner import NOT_FINITE
from glm5_runtime.train.faults import NotFinite
from glm5_runtime.train.rl.packing import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_runtime.config import ModelConfig
    from glm5_runtime.engine.request import Output
    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.rl.config import RlConfig

MOST_AT_ONCE = 64
"""Answers made side by side; more wait for their place."""
_MEMORY_SHARE = 0.5
"""Of the device's, that may be in use when the cache has been taken: the rest is for the update's activations."""
_SILENCE_SECONDS = 600.0
"""Without a token of any answer: the engine stands still, and nobody would ever know."""


class RolloutFailed(Exception):  # noqa: N818 - as the engine's own
    """The engine made no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row without its last answer, and that one: the `reference`, without the token that ends it."""

    tokens: tuple[int, ...]
    reference: tuple[int, ...]
    line: int

    @classmethod
    def of(cls, example: Example) -> Prompt:
        """Raises ConfigError for a row without a prompt."""
        trained = example.trained
        end = len(trained)
        while end and not trained[end - 1]:
            end -= 1
        start = end
        while start and trained[start - 1]:
            start -= 1
        if start == 0:
            raise ConfigError(f"data.files: line {example.line} has no prompt: reinforcement learning needs conversations, not plain text")
        return cls(example.tokens[:start], example.tokens[start : end - 1], example.line)


def longest_answer(config: RlConfig, longest_prompt: int, model: ModelConfig) -> int:
    """Tokens of prompt and answer together, at most; raises ConfigError when they are more than the model takes."""
    longest = longest_prompt + config.max_new_tokens
    if longest > (limit := model.max_model_len):
        raise ConfigError(
            f"rl.max_new_tokens: {config.max_new_tokens} behind the longest prompt of {longest_prompt} tokens are more than the"
            f" {limit} of the model"
        )
    return longest


@dataclass(slots=True)
class Answer:
    """What the policy said to a prompt: its tokens with the one that ended it, and what each one's log-probability was."""

    prompt: Prompt
    group: int
    """Which prompt of the batch it belongs to."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    ended: bool = False
    """Whether it ended by itself, not by max_new_tokens."""

    @property
    def length(self) -> int:
        """Tokens with the prompt."""
        return len(self.prompt.tokens) + len(self.tokens)

    @property
    def row(self) -> Row:
        """Its place in a table."""
        return Row(len(self.prompt.tokens), self.length, self.group, self.prompt.line)

    @property
    def text_tokens(self) -> list[int]:
        """Without the token that ended it."""
        return self.tokens[:-1] if self.ended else self.tokens


class Rollouts:
    """An engine that makes answers, until it is closed."""

    def __init__(self, decoder: Decoder, config: RlConfig, seed: int, *, longest_prompt: int, at_once: int) -> None:
        """Takes the cache's memory. `longest_prompt`: tokens; `at_once`: answers of a step. Raises ConfigError when they don't fit."""
        longest = longest_answer(config, longest_prompt, decoder.config)
        at_once = min(at_once, MOST_AT_ONCE)
        settings = EngineConfig(max_model_len=longest, max_sequences=at_once, max_queue=1 << 20, memory_fraction=_MEMORY_SHARE)
        self._config, self._seed = config, seed
        self._engine = engine_around(decoder, settings)
        self._engine.start()

    def close(self) -> None:
        """End the engine after what it computes now."""
        self._engine.stop()

    def sample(self, prompts: Sequence[Prompt], step: int) -> list[Answer]:
        """A group of answers for each prompt, group after group; the decoder in evaluation mode. Raises RolloutFailed, NotFinite."""
        ended: queue.SimpleQueue[Output] = queue.SimpleQueue()
        answers: dict[str, Answer] = {}
        with self._engine.together():
            for group, prompt in enumerate(prompts):
                for place in range(self._config.group):
                    name = f"{step}/{group}/{place}"
                    answer = answers[name] = Answer(prompt, group)
                    params = self._params(((self._seed * 1_000_003 + step) * 10_007 + group) * 1009 + place)
                    self._engine.submit(Request(name, prompt.tokens, params, cache_salt=str(step)), partial(_take, answer, ended))
        for _ in answers:
            self._wait(ended, answers)
        return list(answers.values())

    def _params(self, seed: int) -> SamplingParams:
        config = self._config
        return SamplingParams(config.max_new_tokens, temperature=config.temperature, seed=seed, logprobs=0, scaled_logprobs=True)

    @staticmethod
    def _wait(ended: queue.SimpleQueue[Output], answers: dict[str, Answer]) -> None:
        """Until one more answer has ended."""
        made = -1
        while made < (made := sum(len(each.tokens) for each in answers.values())):
            try:
                output = ended.get(timeout=_SILENCE_SECONDS)
            except queue.Empty:
                continue
            if output.finish_reason in {FinishReason.ERROR, FinishReason.ABORT}:
                message = f"answer {output.request_id} (step/prompt/answer): {output.error}"
                raise NotFinite(message) if output.error == NOT_FINITE else RolloutFailed(message)
            return
        raise RolloutFailed(f"the engine has made no token for {_SILENCE_SECONDS:g} s")


def _take(answer: Answer, ended: queue.SimpleQueue[Output], output: Output) -> None:
    """One token, in the engine's thread; the trainer's is woken by the last one alone, for two threads at work slow each other."""
    if output.token is not None and output.logprob is not None:
        answer.tokens.append(output.token)
        answer.log_probs.append(output.logprob.logprob)
    if output.finish_reason is not None:
        answer.ended = output.finish_reason is FinishReason.STOP
        ended.put(output)
