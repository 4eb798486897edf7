"""Which errors say that another rank is gone, and which that this rank's own card failed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from glm5_runtime.engine.team import RankLost
from glm5_runtime.train.distributed.ranks import loss_in

PLOG = Path(__file__).parents[3] / "fixtures" / "plog"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"),
        RuntimeError("[..]/third_party/gloo/transport/tcp/pair.cc: Read error: Connection reset by peer"),
        RuntimeError((PLOG / "hccl_ei0006.txt").read_text()),
        RuntimeError("HcclAllreduce: EI0006 getting socket times out; EZ9999 inner error"),
        RankLost("rank 3 (node rank 1) never came"),
        dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"),
    ],
    ids=["closed", "reset", "ei0006", "ei0006-and-inner", "never-came", "store"],
)
def test_a_rank_that_cannot_be_reached_is_lost(error: Exception) -> None:
    assert loss_in(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The Inner error is reported as above. current working operator name is HcclAllreduce. error code is 507015, EZ9999"),
        RuntimeError((PLOG / "vector_core_507035.txt").read_text()),
        RuntimeError("hccl: uncorrectable memory error 80E01801"),
        ValueError("gloo is a word in somebody's data"),
        RuntimeError("shapes [2, 3] and [4] don't fit"),
    ],
    ids=["aicore-in-exchange", "vector-core", "memory-of-the-card", "no-runtime-error", "other"],
)
def test_what_is_this_ranks_own_fault_is_not_taken_for_anothers(error: Exception) -> None:
    assert loss_in(error) is None
