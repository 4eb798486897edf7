"""Who computes what in the next step. Pure: no tensor, no clock, no thread.

One token budget a step. Running sequences that decode come first, then prompts: each context tier gets its part of what is left, and what
a tier doesn't need goes to the others. In a tier one prompt at a time is read piece by piece; while it is, others that can be read whole
in half of the tier's tokens go beside it, so a long document delays no short question. `queues` says in which order they wait.

Pages that hold a prompt's beginning already are shared; a sequence whose beginning is being read by another waits for it (n answers to one
prompt read it once). All pages of a prompt are taken when it is admitted. When pages run out while decoding, the newest of the least urgent
running sequences gives its pages up and is computed again later (preemption by recompute); a request that finds no room makes less urgent
ones do the same. One sequence of full length always fits the cache, so the first in line always advances.
"""

from __future__ import annotations

from bisect import insort
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from glm5_runtime.engine.queues import Client, make_tiers

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from glm5_runtime.config import ContextTier
    from glm5_runtime.engine.blocks import PageName, PagePool
    from glm5_runtime.engine.queues import Tier
    from glm5_runtime.engine.sequence import Sequence

Plan = dict["Sequence", int]


class Step(NamedTuple):
    """`count` next tokens of a sequence to compute in this step."""

    sequence: Sequence
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls

    @property
    def completes(self) -> bool:
        """Whether all tokens are computed after it, so that the next one can be chosen."""
        return self.count >= self.sequence.pending


class Scheduler:
    """Waiting and running sequences and their pages."""

    def __init__(
        self,
        pool: PagePool,
        page_size: int,
        max_sequences: int,
        max_batched_tokens: int,
        *,
        prefix_cache: bool = True,
        tiers: Rows[ContextTier] = (),
    ) -> None:
        self.running: list[Sequence] = []  # most urgent first, then in order of admission
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.pool = pool
        self.tiers = make_tiers(tiers, max_sequences, pool.count, page_size)
        self._page_size = page_size
        self._max_sequences = max_sequences
        self._max_batched_tokens = max_batched_tokens
        self._prefix_cache = prefix_cache
        self._clients: dict[str, Client] = {}
        self._alive: dict[str, Sequence] = {}
        self._promised: dict[PageName, Sequence] = {}  # full pages of prompts being read
        self._added = self._admitted = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self._alive)

    @property
    def usage(self) -> float:
        """Share of the pages held, 0..1."""
        return self.pool.usage

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences without a place, tier by tier in the order in which they are due."""
        return [sequence for tier in self.tiers for sequence in tier.line]

    @property
    def alive(self) -> list[Sequence]:
        """All sequences, in order of arrival."""
        return list(self._alive.values())

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; nobody else has its id. A client without others starts with as many tokens as whoever has had fewest."""
        request = sequence.request
        longest = len(request.prompt) + request.params.max_tokens
        sequence.tier = next(
            (tier for tier in self.tiers if (tier.name == request.tier if request.tier else tier.length >= longest)), self.tiers[-1]
        )
        client = self._clients.get(request.client)
        if client is None:
            client = self._clients[request.client] = Client(min((other.served for other in self._clients.values()), default=0))
        client.alive += 1
        sequence.client = client
        sequence.number = self._added = self._added + 1
        self._alive[request.id] = sequence
        sequence.tier.line.add(sequence)

    def remove(self, sequence: Sequence, *, spoiled: bool = False) -> None:
        """Forget a finished or aborted sequence and free its pages at once; `spoiled`: what they hold is good for nobody."""
        del self._alive[sequence.request.id]
        sequence.client.alive -= 1
        if not sequence.client.alive:
            del self._clients[sequence.request.client]
        if not sequence.running:
            sequence.tier.line.remove(sequence)
            return
        if spoiled:
            self.pool.forget(sequence.pages)
        self._stop(sequence, spoiled=spoiled)

    def find(self, request_id: str) -> Sequence | None:
        """The sequence of a request, wherever it is."""
        return self._alive.get(request_id)

    def known(self, sequence: Sequence) -> int:
        """Pages of a new sequence's beginning that are in the cache."""
        return len(self._known_pages(sequence))

    def schedule(self) -> list[Step]:
        """The next step's work; empty only when there is none."""
        plan: Plan = {}
        self._decode(plan)
        self._read_prompts(plan, self._max_batched_tokens - sum(plan.values()))
        for sequence, count in plan.items():
            sequence.client.served += count
        return [Step(*each) for each in plan.items()]

    def _decode(self, plan: Plan) -> None:
        """Everyone whose prompt is read. Planned from the front and preempted from the back, so nobody who is planned loses pages."""
        running, size, index = self.running, self._page_size, 0
        while index < len(running):
            sequence = running[index]
            if sequence.computed >= (sequence.named + 1) * size:
                self._name_pages(sequence)
            if not sequence.reading:
                if len(sequence.tokens) > len(sequence.pages) * size and not self._make_room(sequence):
                    continue  # it was preempted itself, and the next one stands here
                if sequence.drafts:
                    self._fit_drafts(sequence)
                plan[sequence] = len(sequence.tokens) - sequence.computed + len(sequence.drafts)
            index += 1

    def _make_room(self, sequence: Sequence) -> bool:
        """Take the page for the next token, from the last in rank if need be; False when that was the sequence itself.

        Nobody gives for another tier while its own has no more than its part.
        """
        if len(sequence.tokens) > sequence.tier.length:
            self._move_up(sequence)
        tier = sequence.tier
        missing = self._pages_for(sequence) - len(sequence.pages)
        while missing + tier.kept_pages() > self.pool.free:
            victim = next(last for last in reversed(self.running) if last.tier is tier or last.tier.held > last.tier.pages)
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.pages.extend(self.pool.take(missing))
        tier.held += missing
        return True

    def _fit_drafts(self, sequence: Sequence) -> None:
        """Drafts are worth a page that lies free, not one that another would miss; those without a row are dropped."""
        tier, size = sequence.tier, self._page_size
        missing = -(-(len(sequence.tokens) + len(sequence.drafts)) // size) - len(sequence.pages)
        if 0 < missing <= self.pool.free - tier.kept_pages():
            sequence.pages.extend(self.pool.take(missing))
            tier.held += missing
        del sequence.drafts[len(sequence.pages) * size - len(sequence.tokens) :]

    def _move_up(self, sequence: Sequence) -> None:
        """An answer that outgrows its tier goes on in the next one: a tier is a way to be served, no length to be cut at."""
        old, new = sequence.tier, next(tier for tier in self.tiers if tier.length >= len(sequence.tokens))
        for tier, sign in ((old, -1), (new, 1)):
            tier.running += sign
            tier.held += sign * len(sequence.pages)
        sequence.tier = new

    def _read_prompts(self, plan: Plan, left: int) -> None:
        """First each tier's part of the tokens left, then what the others haven't used."""
        active = [tier for tier in self.tiers if tier.reading or tier.line]
        whole = sum(tier.share for tier in active)
        parts = [(tier, int(left * tier.share / whole)) for tier in active] if len(active) > 1 else []
        for tier, part in parts:
            left -= self._read(tier, part, plan)
        for tier in active:
            left -= self._read(tier, left, plan)

    def _read(self, tier: Tier, limit: int, plan: Plan) -> int:
        """Plan up to `limit` prompt tokens of a tier; how many it took."""
        left = limit
        if tier.reading and tier.reading[-1].pending - plan.get(tier.reading[-1], 0) > left:
            left -= self._admit(tier, left // 2, plan, beside=tier.reading[-1])
        while tier.reading and left:
            reading = tier.reading[-1]
            rest = reading.pending - plan.get(reading, 0)
            count = min(rest, left)
            plan[reading] = plan.get(reading, 0) + count
            left -= count
            if count == rest:
                tier.reading.pop().reading = False
        if not tier.reading:
            left -= self._admit(tier, left, plan)
        return limit - left

    def _admit(self, tier: Tier, limit: int, plan: Plan, beside: Sequence | None = None) -> int:
        """Give places to waiting sequences, in their order, while places, pages and tokens last; how many tokens they take.

        `beside` a prompt that is being read only such as can be read to their end, and more urgent ones. Who finds no room holds up those
        behind: pages must gather for it.
        """
        spent, admitted = 0, []
        for sequence in tier.line if limit else ():
            if spent == limit or (tier.is_over and any(other.owed and other.line for other in self.tiers if other is not tier)):
                break
            if sequence.awaits in self._promised:
                continue
            known = self._known_pages(sequence)
            count = len(sequence.tokens) - len(known) * self._page_size
            if beside is not None and count > limit - spent and sequence.request.priority >= beside.request.priority:
                continue
            if self._is_coming(sequence, len(known)):
                continue
            if not self._fits(sequence, known, plan):
                tier.owed = not tier.is_over
                break
            tier.owed = False
            admitted.append(sequence)
            self._begin(sequence, known)
            plan[sequence] = min(count, limit - spent)
            spent += plan[sequence]
            if plan[sequence] < count:
                tier.reading.append(sequence)
                sequence.reading = True
                break
        for sequence in admitted:
            tier.line.remove(sequence)
            if sequence.rank is None:
                self._admitted += 1
                sequence.rank = (sequence.request.priority, self._admitted)
            insort(self.running, sequence, key=_rank)
        return spent

    def _fits(self, sequence: Sequence, known: list[int], plan: Plan) -> bool:
        """Whether there are a place and the pages, after preempting less urgent ones of the tier if that is what it takes."""
        tier = sequence.tier
        missing = self._pages_for(sequence) - len(known)
        while sum(
            other.running for other in self.tiers
        ) + tier.kept_places() >= self._max_sequences or missing + tier.kept_pages() > self.pool.free - self.pool.unheld(known):
            last = next((last for last in reversed(self.running) if last.tier is tier), None)
            if last is None or last.request.priority <= sequence.request.priority:
                return False
            self._preempt(last)
            plan.pop(last, None)
        return True

    def _known_pages(self, sequence: Sequence) -> list[int]:
        """Pages that hold the sequence's beginning."""
        return self.pool.find(self._shareable(sequence))

    def _shareable(self, sequence: Sequence) -> list[PageName]:
        """Names of pages it need not compute. Its last token is always computed: somebody has to say what comes next."""
        if not self._prefix_cache or sequence.wants_prompt_logprobs:  # rows that aren't computed have no logits
            return []
        return sequence.page_names(self._page_size)[: (len(sequence.tokens) - 1) // self._page_size]

    def _is_coming(self, sequence: Sequence, known: int) -> bool:
        """Whether the page behind the known ones is being read by another of the tier; then `awaits` is the last such page."""
        owned = takewhile(lambda name: self._is_read_in(sequence.tier, name), self._shareable(sequence)[known:])
        sequence.awaits = None
        for sequence.awaits in owned:
            pass
        return sequence.awaits is not None

    def _is_read_in(self, tier: Tier, name: PageName) -> bool:
        return name in self._promised and self._promised[name].tier is tier

    def _begin(self, sequence: Sequence, known: list[int]) -> None:
        """Share the known pages and take the others of the prompt."""
        self.pool.share(known)
        sequence.named = len(known)
        sequence.computed = len(known) * self._page_size
        sequence.pages = known + self.pool.take(self._pages_for(sequence) - len(known))
        sequence.running, sequence.awaits = True, None
        sequence.tier.running += 1
        sequence.tier.held += len(sequence.pages)
        if not self._prefix_cache:
            return
        for name in sequence.page_names(self._page_size)[len(known) :]:
            self._promised.setdefault(name, sequence)
        if not sequence.wants_prompt_logprobs and sequence.scheduled is None:  # as vLLM counts: not those that were preempted
            self.prefix_queries += len(sequence.tokens)
            self.prefix_hits += sequence.computed

    def _name_pages(self, sequence: Sequence) -> None:
        """Let others find what was completed."""
        full = sequence.computed // self._page_size
        if self._prefix_cache:
            names = sequence.page_names(self._page_size)
            for place in range(sequence.named, full):
                self.pool.name(sequence.pages[place], names[place])
            self._break_promises(sequence, names[sequence.named : full])
        sequence.named = full

    def _break_promises(self, sequence: Sequence, names: list[PageName]) -> None:
        for name in names:
            if self._promised.get(name) is sequence:
                del self._promised[name]

    def _preempt(self, sequence: Sequence) -> None:
        self._stop(sequence)
        sequence.computed = sequence.named = 0
        sequence.drafts.clear()
        sequence.tier.line.put_back(sequence)
        self.preemptions += 1

    def _stop(self, sequence: Sequence, *, spoiled: bool = False) -> None:
        """Take place and pages from a running sequence."""
        tier = sequence.tier
        if sequence.reading:
            tier.reading.remove(sequence)
            sequence.reading = False
        if not spoiled:
            self._name_pages(sequence)
        if self._prefix_cache:
            self._break_promises(sequence, sequence.page_names(self._page_size)[sequence.named :])
        self.running.remove(sequence)
        sequence.running = False
        tier.running -= 1
        tier.held -= len(sequence.pages)
        self.pool.give_back(sequence.pages)

    def _pages_for(self, sequence: Sequence) -> int:
        """Pages that all its tokens fill, computed or not."""
        return -(-len(sequence.tokens) // self._page_size)


def _rank(sequence: Sequence) -> tuple[int, int]:
    assert sequence.rank is not None, "set when it is admitted"
    return sequence.rank
