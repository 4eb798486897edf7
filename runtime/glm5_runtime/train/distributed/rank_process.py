"""The beginning and the end of a process that is a rank: its cores, its tie to the launcher, and a way out that waits for nobody.

Called by the command line, before torch is imported and after everything is done.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from glm5_runtime.config import ConfigError
from glm5_runtime.train.distributed import affinity
from glm5_runtime.train.distributed.placement import CORES, LAUNCHER, RANK

if TYPE_CHECKING:
    from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1


def begin(environ: Mapping[str, str]) -> None:
    """End when the launcher does, also when that is killed; run on the cores that it has chosen. Raises ConfigError without a launcher."""
    if not environ.get(LAUNCHER, "").isdecimal() or CORES not in environ:
        raise ConfigError(f"{RANK} is for ranks that the launcher has started; unset it")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(environ[LAUNCHER]):  # it ended before the line above
        os._exit(128 + signal.SIGKILL)
    affinity.bind(affinity.parse_list(environ[CORES]))


def end(code: int) -> NoReturn:
    """What is written is written; threads that still wait for other ranks (gloo's, a writer of checkpoints) end with the process."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def hccl_environment(meeting: float, exchange: float, environ: Mapping[str, str]) -> dict[str, str]:
    """Time-outs of HCCL in its own words, the same for all ranks as it asks for; what the user has set stays. Seconds."""
    wanted = {
        "HCCL_CONNECT_TIMEOUT": min(7200, max(120, round(meeting))),
        "HCCL_EXEC_TIMEOUT": round(exchange),
        "HCCL_EVENT_TIMEOUT": round(exchange) + 60,  # must be the longer one
    }
    return {name: str(value) for name, value in wanted.items() if name not in environ}
