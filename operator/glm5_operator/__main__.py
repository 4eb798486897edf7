"""`glm5-operator`: flags and environment in, a running operator (or a clean-up before its removal) out. Nothing else here.

A lost lease ends it without any clean-up: somebody else may be writing already, and whatever this process still had in mind is stale.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NoReturn

from glm5_operator import settings as settings_module
from glm5_operator.settings import SettingsError, variable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_operator.settings import Log, Settings

EXIT_FAILED: Final = 1
EXIT_SETTINGS: Final = 2
EXIT_LEASE_LOST: Final = 75  # "try again later", as sysexits.h has it

log = logging.getLogger("glm5_operator")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="glm5-operator", description="Reconciles GLM5Service and NPUPool. All settings: docs/settings.md")
    parser.add_argument(
        "command",
        nargs="?",
        choices=("run", "cleanup"),
        default="run",
        help="cleanup takes the operator's labels and taints off all nodes.",
    )
    parser.add_argument("--version", action="version", version=version("glm5-ascend"))
    parser.add_argument("--kubeconfig", help="Default: the pod's service account, else $KUBECONFIG or ~/.kube/config.")
    parser.add_argument("--namespace", action="append", help="Reconcile only this namespace; may be repeated. Default: all.")
    parser.add_argument("--workers", help="Objects reconciled side by side.")
    parser.add_argument("--log-level", help="debug, info, warning or error.")
    parser.add_argument("--log-format", help="text or json.")
    parser.add_argument("--admin-port", help="Port of /healthz, /readyz and /metrics; 0 takes a free one.")
    return parser


def _settings(arguments: argparse.Namespace) -> Settings:
    flags = {
        variable("scope", "namespaces"): ",".join(arguments.namespace) if arguments.namespace else None,
        variable("queue", "workers"): arguments.workers,
        variable("log", "level"): arguments.log_level,
        variable("log", "format"): arguments.log_format,
        variable("admin", "port"): arguments.admin_port,
    }
    return settings_module.load(os.environ, {name: value for name, value in flags.items() if value is not None})


def _set_up_logging(settings: Log) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter() if settings.format == "json" else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    # kopf logs each watch and each handler at debug and info; its warnings and errors (failed requests) are wanted.
    for name in ("kopf", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the operator; the return value is the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        settings = _settings(arguments)
    except SettingsError as error:
        for fault in error.faults:
            sys.stderr.write(f"glm5-operator: {fault}\n")
        return EXIT_SETTINGS
    _set_up_logging(settings.log)

    # After the settings: a wrong one should be answered at once, and these take most of a second.
    from glm5_operator.controllers.cleanup import CleanupError
    from glm5_operator.kube.client import CredentialsError
    from glm5_operator.kube.errors import KubeError

    try:
        asyncio.run(_command(arguments, settings))
    except (CredentialsError, CleanupError, KubeError) as error:
        log.error("%s", error)
        return EXIT_FAILED
    return 0


async def _command(arguments: argparse.Namespace, settings: Settings) -> None:
    from glm5_operator import app, controllers
    from glm5_operator.controllers.cleanup import cleanup

    if arguments.command == "cleanup":
        await cleanup(settings, arguments.kubeconfig)
    else:
        await app.run(settings, controllers.build, _leave_at_once, arguments.kubeconfig)


def _leave_at_once(error: Exception) -> NoReturn:
    """No clean-up: it would take time and might write."""
    log.critical("the lease is lost, ending at once: %s", error)
    logging.shutdown()
    os._exit(EXIT_LEASE_LOST)


if __name__ == "__main__":
    sys.exit(main())
