"""One step: scheduled chunks in, chosen tokens and logprobs out. What is computed on devices goes through `steps`.

Called by the engine thread only. Knows sequences, not queues.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from glm5_runtime.config import MAX_DRAFTS
from glm5_runtime.engine.draft import Seen
from glm5_runtime.engine.sampler import sample, token_logprobs, wanted_logprobs
from glm5_runtime.model.batch import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Rows

    from torch import Tensor

    from glm5_runtime.engine.draft import Drafter
    from glm5_runtime.engine.request import TokenLogprob
    from glm5_runtime.engine.scheduler import Step
    from glm5_runtime.engine.sequence import Sequence
    from glm5_runtime.engine.steps import StepRunner

LOGIT_ROWS = 256
"""Prompt rows whose logits are held at a time: 256 rows of GLM-5's vocabulary are 158 MB."""
NOT_FINITE = "the model's output is not finite (NaN or infinity); check the weights, the numbers in config.json and the device"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The next token of a sequence. `broken` says why there is none."""

    sequence: Sequence
    token: int
    logprob: TokenLogprob | None = None
    broken: str | None = None


class _Check(NamedTuple):
    """A sequence whose next token is chosen from `row`, and from the rows behind it as long as they follow from its drafts."""

    sequence: Sequence
    row: int
    drafts: list[int]


@dataclass(slots=True)
class DraftCounts:
    """Since the start: steps with drafts of a sequence, drafts in them, and how often the draft of each place was right."""

    rounds: int = 0
    tokens: int = 0
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DRAFTS)

    def drafted(self, checks: Rows[_Check]) -> None:
        """Drafts that are now checked."""
        for check in checks:
            self.rounds += bool(check.drafts)
            self.tokens += len(check.drafts)


class Runner:
    """The model behind `steps`, and whoever guesses ahead."""

    def __init__(self, steps: StepRunner, drafter: Drafter | None = None) -> None:
        self._steps, self._drafter = steps, drafter
        self.draft_counts = DraftCounts()

    def run(self, plan: Rows[Step]) -> Iterator[Chosen]:
        """Compute the plan's tokens and advance its sequences; then choose a token for those that are complete, more where drafts agree.

        Whoever iterates appends each token to its sequence, or removes the sequence, before asking for the next one.
        """
        plan = sorted(plan, key=lambda step: (step.count, step.sequence.adapter))  # those of one length are computed side by side
        hidden = self._steps.forward([_chunk(step) for step in plan])
        ends = list(accumulate(step.count for step in plan))
        checks: list[_Check] = []
        starts: list[int] = []
        for step, end in zip(plan, ends, strict=True):
            sequence = step.sequence
            starts.append(sequence.computed)
            if sequence.wants_prompt_logprobs:
                self._score_prompt(step, hidden[end - step.count : end])
            drafts, sequence.drafts = sequence.drafts, []
            sequence.computed += step.count - len(drafts)
            if sequence.pending == 0 and sequence.params.max_tokens > 0:
                checks.append(_Check(sequence, end - 1 - len(drafts), drafts))
        return self._finish(checks, hidden, list(zip(plan, starts, ends, strict=True)))

    def close(self) -> None:
        """The engine has ended."""
        self._steps.close()

    def _finish(self, checks: list[_Check], hidden: Tensor, computed: list[tuple[Step, int, int]]) -> Iterator[Chosen]:
        """Choose, then guess; `computed` says where each step's sequence began and where its rows end."""
        if checks:
            yield from self._choose(checks, hidden)
        if self._drafter is not None:
            seen = [
                Seen(step.sequence, start, hidden[end - step.count :][: step.sequence.computed - start])
                for step, start, end in computed
                if step.sequence.running and step.sequence.pending
            ]
            if seen:
                self._drafter.draft(seen)

    def _choose(self, checks: list[_Check], hidden: Tensor) -> Iterator[Chosen]:
        """Token after token, as long as the model's own choice is the one that was drafted."""
        rows = [row for check in checks for row in range(check.row, check.row + 1 + len(check.drafts))]
        logits = self._steps.logits(hidden if len(rows) == len(hidden) else hidden[rows])
        firsts = [0, *accumulate(1 + len(check.drafts) for check in checks)]
        going = [_Check(check.sequence, first, check.drafts) for check, first in zip(checks, firsts[:-1], strict=True)]
        place = 0
        self.draft_counts.drafted(checks)
        while going:
            at = [check.row + place for check in going]
            chosen = self._sample(logits if len(at) == len(logits) else logits[at], [check.sequence for check in going])
            agreed = []
            for check, choice in zip(going, chosen, strict=True):
                yield choice
                if place < len(check.drafts) and choice.token == check.drafts[place] and choice.broken is None:
                    self.draft_counts.accepted[place] += 1
                    if check.sequence.running:
                        check.sequence.computed += 1
                        agreed.append(check)
            going, place = agreed, place + 1

    def _sample(self, logits: Tensor, sequences: list[Sequence]) -> list[Chosen]:
        sums = logits.sum(dim=-1).tolist()  # finite only where all are; looking at each takes ten times as long
        finite = [isfinite(total) for total in sums]
        good = [row for row, is_finite in enumerate(finite) if is_finite]
        chosen = {row: Chosen(sequence, 0, broken=NOT_FINITE) for row, sequence in enumerate(sequences) if not finite[row]}
        tokens = sample(logits if all(finite) else logits[good], [sequences[row] for row in good]) if good else []
        wanted = wanted_logprobs(logits, dict(zip(good, tokens, strict=True)), sequences)
        chosen |= {row: Chosen(sequences[row], token, wanted.get(row)) for row, token in zip(good, tokens, strict=True)}
        return [chosen[row] for row in range(len(sequences))]

    def _score_prompt(self, step: Step, hidden: Tensor) -> None:
        """Logprobs of prompt tokens: row i judges token i + 1; the first token has nobody to judge it."""
        sequence = step.sequence
        top = sequence.params.prompt_logprobs
        assert top is not None, "asked for by wants_prompt_logprobs"
        scores = sequence.prompt_logprobs
        if not scores:
            scores.append(None)
        first = len(scores) - 1 - sequence.computed  # rows before were judged before a preemption
        last = min(step.count, sequence.prompt_length - 1 - sequence.computed)
        for start in range(max(first, 0), last, LOGIT_ROWS):
            end = min(start + LOGIT_ROWS, last)
            following = sequence.tokens[sequence.computed + start + 1 : sequence.computed + end + 1]
            scores.extend(token_logprobs(self._steps.logits(hidden[start:end]), following, top))


def _chunk(step: Step) -> Chunk:
    sequence, start = step.sequence, step.sequence.computed
    tokens = sequence.tokens[start : start + step.count]
    return Chunk(tokens + sequence.drafts if step.completes else tokens, start, sequence.pages, sequence.adapter, replica=sequence.replica)
