"""Sequences without a model, and what must hold of every plan that a scheduler makes for them."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from glm5_runtime.engine.blocks import PagePool
from glm5_runtime.engine.request import Request, SamplingParams
from glm5_runtime.engine.scheduler import Scheduler, Step
from glm5_runtime.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from glm5_runtime.config import ContextTier

PAGE = 4
LONGEST = 40
RIGHT = 1

_unlike = itertools.count(1000, 1000)
_numbers = itertools.count()


def new(
    prompt: int, name: str | None = None, *, first: int | None = None, max_tokens: int = 100, adapter: int = 0, **fields: object
) -> Sequence:
    """A prompt of so many tokens, counting up from `first`, or from where no other one begins. `fields`: the request's, or parameters."""
    start = next(_unlike) if first is None else first
    of_request = {key: fields.pop(key) for key in ("cache_salt", "priority", "client", "tier") if key in fields}
    params = SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]  # whatever the test names
    request = Request(name or f"s{next(_numbers)}", tuple(range(start, start + prompt)), params, **of_request)  # type: ignore[arg-type]  # the same
    return Sequence(request, lambda _: None, frozenset(), seed=0, adapter=adapter)


def scheduler(pages: int = 25, sequences: int = 3, budget: int = 12, tiers: Iterable[ContextTier] = ()) -> Scheduler:
    return Scheduler(PagePool(pages), PAGE, max_sequences=sequences, max_batched_tokens=budget, tiers=tuple(tiers))


def compute(plan: list[Step]) -> None:
    """What the runner and the engine do to a plan's sequences: everything scheduled is computed, complete ones get a token.

    The token is `RIGHT` each time, so drafts are right up to the first that is another.
    """
    for step in plan:
        completes, sequence = step.completes, step.sequence
        drafts, sequence.drafts = sequence.drafts, []
        sequence.computed += step.count - len(drafts)
        if completes:
            sequence.append(RIGHT)
        for _ in itertools.takewhile(RIGHT.__eq__, drafts):
            sequence.computed += 1
            sequence.append(RIGHT)


def run_until(scheduler: Scheduler, condition: Callable[[], object], steps: int = 100) -> int:
    """Steps it took."""
    for step in range(steps):
        if condition():
            return step
        compute(scheduler.schedule())
    raise AssertionError(f"did not happen in {steps} steps")


def check(scheduler: Scheduler, plan: list[Step], *, places: int, budget: int) -> None:
    """What must hold after every schedule, before the plan is computed."""
    _check_pages(scheduler, plan)
    assert len(scheduler.running) <= places
    assert sum(step.count for step in plan) <= budget
    assert len({id(step.sequence) for step in plan}) == len(plan)
    for step in plan:
        assert step.sequence in scheduler.running
        drafts = len(step.sequence.drafts)
        assert 0 < step.count <= step.sequence.pending + drafts
        assert not drafts or step.count == step.sequence.pending + drafts, "the runner computes all drafts or none"
        assert len(step.sequence.pages) * PAGE >= step.sequence.computed + step.count
    assert [s.rank for s in scheduler.running] == sorted(s.rank for s in scheduler.running if s.rank)
    planned = {step.sequence: step.count for step in plan}
    for tier in scheduler.tiers:
        own = [sequence for sequence in scheduler.running if sequence.tier is tier]
        assert (tier.running, tier.held) == (len(own), sum(len(sequence.pages) for sequence in own))
        half_read = [sequence for sequence in own if planned.get(sequence, 0) < sequence.pending]
        assert {*half_read} == {*tier.reading} == {sequence for sequence in own if sequence.reading}
        urgency = [sequence.request.priority for sequence in tier.reading]
        assert urgency == sorted(set(urgency), reverse=True), "a prompt half read stands before others that are no more urgent"


def _check_pages(scheduler: Scheduler, plan: list[Step]) -> None:
    """No page is lost, shared by different texts, or written while others read it."""
    waiting = scheduler.waiting
    assert sorted(s.number for s in (*scheduler.running, *waiting)) == sorted(s.number for s in scheduler.alive)
    holders = Counter(page for sequence in scheduler.alive for page in sequence.pages)
    assert 0 not in holders, "page 0 is for padding"
    assert len(holders) + scheduler.pool.free == scheduler.pool.count, "a page is lost"
    texts: dict[int, set[tuple[int, str, tuple[int, ...]]]] = {}
    for sequence in scheduler.alive:
        for place, page in enumerate(sequence.pages):
            text = sequence.adapter, sequence.request.cache_salt, tuple(sequence.tokens[: (place + 1) * PAGE])
            texts.setdefault(page, set()).add(text)
    assert all(len(texts[page]) == 1 for page, count in holders.items() if count > 1), "a page is shared by two that begin differently"
    for step in plan:
        written = step.sequence.pages[step.sequence.computed // PAGE :]
        assert all(holders[page] == 1 for page in written), "a page that others read would be written"
    assert not any(sequence.pages or sequence.computed or sequence.running for sequence in waiting)
