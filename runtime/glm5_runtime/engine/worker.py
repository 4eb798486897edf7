"""A rank that isn't the first: loads its part of the model, then computes what rank 0 asks, until that says so or ends.

`python -m glm5_runtime.engine.worker FD FD`, started by `engine.team`: the spec is a line of JSON on standard input, steps come on the
first FD, adapters on the second.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch

from glm5_runtime.config import ConfigError
from glm5_runtime.engine.adapter_parts import answer
from glm5_runtime.engine.load import load_steps
from glm5_runtime.engine.steps import RankSteps
from glm5_runtime.engine.team import READY, RankSpec
from glm5_runtime.model.checkpoint_files import WeightsError

if TYPE_CHECKING:
    from glm5_runtime.engine.adapter_parts import Taken

log = logging.getLogger(__name__)


def follow(spec: RankSpec, channel: Connection, adapters: Connection) -> int:
    """Serve rank 0; returns the process's exit code."""

    def agree(tokens: int, taken: list[Taken]) -> int:
        channel.send((tokens, taken))
        least: int = channel.recv()
        return least

    try:
        channel.send(READY)
        steps = load_steps(spec.model_dir, spec.config, spec.rank, spec.rendezvous, agree)
        if steps.adapters is not None:
            threading.Thread(target=answer, args=(steps.adapters, adapters), name="adapters", daemon=True).start()
        part = RankSteps(steps)
        with torch.inference_mode():
            while (request := channel.recv()) is not None:
                name, work = request
                channel.send(part.run(name, work, hidden=None)[1])
    except (ConfigError, WeightsError) as error:
        channel.send(ConfigError(f"rank {spec.rank}: {error}"))
        return 1
    except (EOFError, BrokenPipeError):
        log.error("rank 0 is gone")
        return 1
    except Exception:
        log.exception("rank %d has failed", spec.rank)
        return 1
    return 0


def _end_with_parent() -> None:
    """Nothing more comes on standard input; it ends when the parent does, even while this process waits for a device."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


def main() -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; rank 0 ends in order and tells us
    spec = RankSpec.model_validate_json(sys.stdin.buffer.readline())
    form = f"%(asctime)s.%(msecs)03dZ %(levelname)s rank={spec.rank} %(name)s %(message)s"
    logging.basicConfig(level=spec.log_level, format=form, datefmt="%Y-%m-%dT%H:%M:%S", force=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = follow(spec, *(Connection(int(number)) for number in sys.argv[1:3]))
    logging.shutdown()
    os._exit(code)  # threads of torch.distributed may wait for ranks that are gone


if __name__ == "__main__":
    main()
