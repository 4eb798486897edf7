"""The ranks of a run as the loop, checkpoints and export see them: sums, and agreement about what files say and where errors are.

Built by `rendezvous.join`; `ALONE` is a run in one process, for which everything here is free. Whatever one rank finds out (a file, an
error, a wish to stop) is told to all before anybody acts on it: ranks that decide differently wait for each other for ever.
"""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from glm5_runtime.engine.team import RankLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from torch import Tensor

T = TypeVar("T")
_LOST = re.compile(r"gloo|connection (was )?(likely )?(closed|reset|refused)|broken pipe|hccl|nccl|EI00|EJ00", re.IGNORECASE)
"""In what torch.distributed says when it can't reach a rank."""
OWN_CARD = re.compile(
    r"\b(507(01\d|020|03[3-6]|04[2-9]|05[034]|899|90[0-2])|561103|80[BCDEF][0-9A-F]{5}|8C[0-9A-F]{6}|EI0012|EE9999|EZ9999)\b"
)
_OTHER = re.compile(r"\bE[IJ]000\d\b|time ?out", re.IGNORECASE)
"""A card that fails in an exchange is named together with HCCL. It is this rank's, unless HCCL says that it waited for another in vain.
The codes are those for which the operator tries another card (its `runtime_errors.yaml`): tests/contract holds them equal."""


class Ranks:
    """This process among `size`; `group` is a gloo group for objects, None when it is alone."""

    def __init__(self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> None:
        self.rank, self.size, self.group, self._timeout = rank, size, group, timeout

    @property
    def is_first(self) -> bool:
        """Whether it is the one that tells people, and writes what is written once."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.group is None

    def beside(self) -> Ranks:
        """The same ranks, for a thread of its own: what it exchanges never meets what others do."""
        if self.group is None:
            return self
        return Ranks(self.rank, self.size, dist.new_group(backend="gloo", timeout=self._timeout), self._timeout)

    def sum(self, values: Tensor) -> Tensor:
        """Of all ranks, in place, on their device."""
        if self.group is not None:
            dist.all_reduce(values)
        return values

    def agree(self, work: Callable[[], T]) -> T:
        """What rank 0's `work` gives, or raises, for all."""
        if self.group is None:
            return work()
        box: list[Any] = [_outcome(work)] if self.is_first else [None]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return _given(box[0])  # type: ignore[no-any-return] # a broadcast forgets the type

    def each(self, work: Callable[[], T]) -> list[T]:
        """What every rank's `work` gives, in their order. Where one raises, all raise the first rank's error."""
        if self.group is None:
            return [work()]
        boxes: list[Any] = [None] * self.size
        dist.all_gather_object(boxes, _outcome(work), group=self.group)
        return [_given(box) for box in boxes]


ALONE = Ranks()


def _outcome(work: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, work()
    except Exception as error:  # noqa: BLE001 - raised again on every rank
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - an error of whatever kind that can't be sent
            return False, RuntimeError(f"{type(error).__name__}: {error}")
        return False, error


def _given(box: tuple[bool, Any]) -> Any:  # noqa: ANN401 - what `work` gave
    is_good, value = box
    if not is_good:
        raise value
    return value


def loss_in(error: BaseException) -> str | None:
    """What the error says about a rank that can't be reached; None when it is about something else."""
    for each in causes(error):
        if isinstance(each, RankLost):
            return str(each)
        said = str(each)
        if not isinstance(each, RuntimeError) or isinstance(each, torch.OutOfMemoryError):
            continue
        if OWN_CARD.search(said) and not _OTHER.search(said):
            return None
        if _LOST.search(said):
            return " ".join(said.split())[:300]
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what caused it, also on other ranks."""
    while error is not None:
        yield error
        if isinstance(error, CheckpointException):
            for failure, _ in error.failures.values():
                yield from causes(failure)
        error = error.__cause__ or error.__context__
