"""A rank without torch, for tests of the launcher: it begins as a real one, says that it is there, and ends as it is told.

    plain_rank.py FOLDER PLAN --result FILE

PLAN is JSON: for each rank what it does: a number to exit with; "wait" for SIGTERM, which is code 143; "lost" to exit with 6 once rank 1 of
the folder is gone; "hang" for ever.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from glm5_runtime.train.distributed import rank_process


def main(folder: Path, plan: dict[str, object], result: Path) -> None:
    rank_process.begin(os.environ)
    rank = os.environ["GLM5_RANK"]
    signal.signal(signal.SIGTERM, lambda *_: rank_process.end(143))
    (folder / f"there-{rank}.part").write_text(f"{os.getpid()} {sorted(os.sched_getaffinity(0))} {os.environ['OMP_NUM_THREADS']}")
    (folder / f"there-{rank}.part").rename(folder / f"there-{rank}")
    what = plan[rank]
    while len(list(folder.glob("there-*"))) < len(plan) or what in {"wait", "hang"}:
        time.sleep(0.02)
    if what == "lost":
        pid = int((folder / "there-1").read_text().split()[0])
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.02)
        what = 6
    result.write_text(json.dumps({"outcome": "Told", "message": f"rank {rank} says {what}"}))
    (folder / f"given-{rank}").write_text(" ".join(sys.argv[5:]))
    rank_process.end(int(str(what)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[4]))
