"""What the device computes in a step, behind one door: the runner asks, and whether one rank computes it or many is decided here.

`Steps` is the model and its cache in one process, computed as it comes (eager). `RankSteps` is one rank's part of it: every rank is asked
for the same, in the same order, and its exchanges with the others happen inside the decoder. `engine.team` does the asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from glm5_runtime.engine.buckets import AS_THEY_COME
from glm5_runtime.model.batch import Chunk, build_batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from torch import Tensor

    from glm5_runtime.engine.adapter_parts import AdapterPart
    from glm5_runtime.engine.buckets import Buckets
    from glm5_runtime.model.batch import Batch
    from glm5_runtime.model.cache import KVCache
    from glm5_runtime.model.decoder import Decoder
    from glm5_runtime.model.mtp import DraftLayer

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "error code is 207001")  # the last is CANN's ACL_ERROR_RT_MEMORY_ALLOCATION


class StepRunner(Protocol):
    """What the runner knows of the model: chunks in, hidden states and logits out, on the runner's device."""

    def forward(self, chunks: Rows[Chunk]) -> Tensor:
        """The chunks' hidden states, [N, hidden], chunk after chunk; their rows are in the cache afterwards."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, hidden] → [M, vocabulary] fp32."""

    def draft(self, chunks: Rows[Chunk], hidden: Tensor) -> Tensor:
        """The draft layer's hidden states of tokens, each seen with the hidden state before it: both [N, hidden]."""

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """The draft layer's own: [M, hidden] → [M, vocabulary]."""

    def close(self) -> None:
        """The engine has ended."""


class Steps:
    """The whole model in this process. `buckets` are for a runner that compiles; this one takes every shape as it comes."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        device: torch.device,
        adapters: AdapterPart | None = None,
        buckets: Buckets = AS_THEY_COME,
    ) -> None:
        self.decoder, self.cache, self.device, self.adapters, self.buckets = decoder, cache, device, adapters, buckets

    def forward(self, chunks: Rows[Chunk], everyone: Rows[Chunk] | None = None) -> Tensor:
        """See StepRunner. `everyone`: the chunks of all data ranks, rank after rank."""
        hidden: Tensor = self.decoder(self._batch(chunks, everyone), self.cache)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """See StepRunner."""
        return self.decoder.logits(hidden)

    def draft(self, chunks: Rows[Chunk], hidden: Tensor) -> Tensor:
        """See StepRunner."""
        drafted: Tensor = self._layer(self._batch(chunks), self.decoder.embed_tokens, hidden, self.cache.layers[-1])
        return drafted

    def draft_logits(self, hidden: Tensor) -> Tensor:
        """See StepRunner."""
        return self._layer.logits(hidden)

    def close(self) -> None:
        """Nothing to end."""

    def _batch(self, chunks: Rows[Chunk], everyone: Rows[Chunk] | None = None) -> Batch:
        return build_batch(chunks, self.decoder.config, self.cache.page_size, self.device, everyone=everyone)

    @property
    def _layer(self) -> DraftLayer:
        assert self.decoder.mtp is not None, "loaded when drafts are wanted"
        return self.decoder.mtp


class RankSteps:
    """One rank's part of the methods of `Steps`. What it returns is of use on rank 0 only, and the text says what failed if memory ran out.

    A rank that is out of memory takes part in the step's remaining exchanges all the same: the others wait for it there. What comes of the
    step is worthless then, and rank 0 fails its requests. Anything else that fails here ends the rank, and the others with it.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps, self._ranks = steps, steps.decoder.ranks
        self._scripts: dict[str, list[tuple[str, int]]] = {}
        self._idle = [Chunk((0,), 0, (steps.cache.pages,))]  # the last page is nobody's: ranks without work compute a token there

    def run(self, name: str, work: Rows[Chunk] | int, hidden: Tensor | None) -> tuple[Tensor | None, str | None]:
        """`forward` and `draft` of chunks, `logits` and `draft_logits` of so many rows. Rank 0 has the hidden states that they take."""
        return self._rows(name, work, hidden) if isinstance(work, int) else self._chunks(name, work, hidden)

    def _chunks(self, name: str, chunks: Rows[Chunk], hidden: Tensor | None) -> tuple[Tensor | None, str | None]:
        """Hidden states of all data ranks' chunks, in the order given."""
        ranks = self._ranks
        parts = [[chunk for chunk in chunks if chunk.replica == number] or self._idle for number in range(ranks.data_size)]
        counts = tuple(sum(len(chunk.tokens) for chunk in part) for part in parts)
        order = self._order(chunks, counts)

        def work() -> Tensor:
            own = parts[ranks.data_rank]
            if name == "forward":
                everyone = None if ranks.data_size == 1 else [chunk for part in parts for chunk in part]
                return ranks.gather(self._steps.forward(own, everyone))
            given = ranks.share(self._given(hidden, len(order)), everyone=True)
            if ranks.data_size > 1:  # in order of rank, and then this one's
                start = sum(counts[: ranks.data_rank])
                given = given.new_zeros(sum(counts), given.shape[1]).index_copy_(0, order, given)[start : start + counts[ranks.data_rank]]
            return ranks.gather(self._steps.draft(own, given))

        result, failure = self._together(name, counts, work)
        return (result if result is None or ranks.data_size == 1 else result[order]), failure

    def _rows(self, name: str, count: int, hidden: Tensor | None) -> tuple[Tensor | None, str | None]:
        """Rank 0 and those that hold the model with it compute logits; data ranks beside them have nothing to do."""
        ranks = self._ranks
        if ranks.data_rank > 0:
            return None, None

        def work() -> Tensor:
            rows = ranks.share(self._given(hidden, count))
            return self._steps.logits(rows) if name == "logits" else self._steps.draft_logits(rows)

        return self._together(name, (count,) * ranks.data_size, work)

    def _given(self, hidden: Tensor | None, count: int) -> Tensor:
        """Rank 0's hidden states, elsewhere room for them."""
        if hidden is not None:
            return hidden.contiguous()
        return torch.empty(count, self._steps.decoder.config.hidden_size, device=self._steps.device, dtype=self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return self._steps.decoder.norm.weight.dtype

    def _order(self, chunks: Rows[Chunk], counts: tuple[int, ...]) -> Tensor:
        """Row of each token of the chunks among those of all data ranks, which come rank by rank."""
        following = [sum(counts[:number]) for number in range(len(counts))]
        rows: list[int] = []
        for chunk in chunks:
            start = following[chunk.replica]
            following[chunk.replica] += len(chunk.tokens)
            rows += range(start, following[chunk.replica])
        return torch.tensor(rows, device=self._steps.device)

    def _together(self, name: str, counts: tuple[int, ...], work: Callable[[], Tensor]) -> tuple[Tensor | None, str | None]:
        """The rank's part; when memory runs out in it, its exchanges at least. The first step of a kind shows which there are."""
        self._ranks.begin(counts)
        try:
            result = work()
        except RuntimeError as error:
            if name not in self._scripts or not is_out_of_memory(error):
                raise
            failure = str(error)  # and not the error, which would hold the step's tensors
        else:
            self._scripts.setdefault(name, list(self._ranks.done))
            return result, None
        self._ranks.finish(self._scripts[name], torch.empty(0, device=self._steps.device, dtype=self._dtype))
        return None, failure


def is_out_of_memory(error: RuntimeError) -> bool:
    """CPU and NPU raise plain RuntimeErrors for it, told apart only by their text."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(words in text for words in _OUT_OF_MEMORY)
