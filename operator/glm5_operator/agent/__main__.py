"""`python -m glm5_operator.agent`: environment in, a running node agent out. Wiring only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from glm5_operator.agent import settings as settings_module
from glm5_operator.agent.apiserver import ApiError, ApiServer
from glm5_operator.agent.collect import Collector
from glm5_operator.agent.host import Host
from glm5_operator.agent.loop import Loop
from glm5_operator.agent.rare import Rare
from glm5_operator.agent.reset import Resets
from glm5_operator.agent.runner import Runner
from glm5_operator.settings import SettingsError

if TYPE_CHECKING:
    from glm5_operator.agent.settings import AgentSettings

EXIT_FAILED: Final = 1
EXIT_SETTINGS: Final = 2

log = logging.getLogger("glm5_operator.agent")


def main() -> int:
    """Run the agent until SIGTERM; the return value is the exit code."""
    try:
        settings = settings_module.load(os.environ)
    except SettingsError as error:
        sys.stderr.writelines(f"glm5-agent: {fault}\n" for fault in error.faults)
        return EXIT_SETTINGS
    logging.basicConfig(level=settings.log.level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells each request
    logging.getLogger("hpack").setLevel(logging.WARNING)
    try:
        asyncio.run(_run(settings))
    except (ApiError, OSError) as error:
        log.error("%s", error)
        return EXIT_FAILED
    return 0


async def _run(settings: AgentSettings) -> None:
    api = ApiServer.connect(settings.api, os.environ)
    runner = Runner(settings.node, settings.tool)
    host = Host(Path(settings.node.root))
    rare = Rare(settings, runner, host)
    loop = Loop(settings, Collector(settings, runner, host, rare), rare, api)
    resets = Resets(Path(settings.node.state), loop.look, command=runner.command("npu-smi"), changed=loop.tell)
    loop.resets = resets
    work = asyncio.create_task(loop.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await work
    finally:
        await resets.finished()  # a reset that was begun goes on; the pod's grace is long enough for it
        await api.close()


if __name__ == "__main__":
    sys.exit(main())
