"""The serving process: opens the port at once, loads the model beside it, drains on SIGTERM.

Called by the command line. The order of things:
1. The port opens; /health is healthy, /health/ready says Loading, requests get 503 with Retry-After.
2. The model loads in a thread of its own. A model that can't be loaded ends the process with code 1 and the reason as one of the last
   log lines, so that a restart count tells failure from a slow start.
3. Adapters of --adapters-file are tried once; the engine's own first token makes the server ready.
4. SIGTERM or SIGINT: readiness falls and new requests are refused at once; running ones get `drain_timeout` to finish; then the process
   ends with code 0. A second signal ends the wait. In Kubernetes a preStop sleep of a few seconds should come first, so that the Service
   has stopped sending by the time we refuse, and terminationGracePeriodSeconds must cover the sleep, the drain timeout and 15 s more.
5. An engine that dies has answered all its requests. Readiness falls at once, the answers get a few seconds to reach their clients, and the
   process ends with code 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from glm5_runtime.config import ConfigError, ModelConfig
from glm5_runtime.server.app import build_app
from glm5_runtime.server.aside import in_thread
from glm5_runtime.server.audit import AuditLog
from glm5_runtime.server.connections import Connection, Server, raise_limit
from glm5_runtime.server.hooks import Hook
from glm5_runtime.server.params import Limits, SamplingDefaults
from glm5_runtime.server.protocol import MAX_CHOICES
from glm5_runtime.server.service import Loaded, Service
from glm5_runtime.text.template import TemplateError, find_template
from glm5_runtime.text.tokens import TextTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5_runtime.config import EngineConfig
    from glm5_runtime.engine.engine import Engine
    from glm5_runtime.server.account import Listener
    from glm5_runtime.server.service import ServerSettings

logger = logging.getLogger(__name__)
_LOADING_NEWS = 10.0  # seconds between two lines while loading
_ENGINE_CHECK = 0.5  # seconds between two looks whether the engine is alive
_DEAD_DRAIN = 10.0  # seconds for its last answers
_ENGINE_STOP = 10.0  # seconds the engine gets to end its step
_KEEP_ALIVE = 75  # seconds; longer than gateways keep idle connections, else they send into one that we are closing
_QUEUED_CONNECTIONS = 1024  # not yet accepted; they take no descriptors
_LAST_WORDS = 3.0  # seconds for cut requests to be told so


def serve(settings: ServerSettings, engine_config: EngineConfig) -> int:
    """Serve until told to stop; returns the process's exit code."""
    code = uvloop.run(_Process(settings, engine_config).run())
    if any(thread.name in {"engine", "load"} for thread in threading.enumerate()):
        # A thread inside torch would be torn down with the interpreter and turn a clean end into a crash.
        logging.shutdown()
        os._exit(code)
    return code


@dataclass
class _Process:
    settings: ServerSettings
    engine_config: EngineConfig
    exit_code: int = 0
    engine: Engine | None = None
    stop_asked: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> int:
        self._take_signals()
        try:
            door = _listen(self.settings.host, self.settings.port)
        except OSError as error:
            logger.error("can't listen on %s port %d: %s", self.settings.host, self.settings.port, error.strerror)
            return 1
        service, most = Service(self.settings), raise_limit()
        try:
            service.listeners += _listeners(service)
        except OSError as error:
            logger.error("--audit-log: %s can't be written: %s", self.settings.audit_log, error.strerror)
            return 1
        server = Server(
            uvicorn.Config(
                build_app(service),
                http=partial(Connection, most=most),  # type: ignore[arg-type]  # it is only called
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=int(_LAST_WORDS),
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[door]))
        watching = asyncio.create_task(service.watch.run())
        loading = asyncio.create_task(self._load(service))
        stopping = asyncio.create_task(self.stop_asked.wait())
        guarding = asyncio.create_task(self._end_with_the_engine())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await self._drain(service)
            server.should_exit = True
        await serving
        await asyncio.gather(*(listener.close(_LAST_WORDS) for listener in service.listeners))
        for task in (watching, loading, stopping, guarding):
            task.cancel()
        logger.info("stopped code=%d", self.exit_code)
        return self.exit_code

    def _take_signals(self) -> None:
        def handle() -> None:
            (self.hurry if self.stop_asked.is_set() else self.stop_asked).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, handle)

    async def _load(self, service: Service) -> None:
        started = time.monotonic()
        logger.info("loading model=%s dir=%s device=%s", self.settings.model_name, self.settings.model_dir, self.engine_config.device)
        try:
            loading = asyncio.ensure_future(in_thread(lambda: _load_model(self.settings, self.engine_config), "load"))
            while not (await asyncio.wait({loading}, timeout=_LOADING_NEWS))[0]:
                logger.info("still loading seconds=%d", time.monotonic() - started)
            loaded, self.engine = loading.result()
            if service.adapters_file is not None and loaded.adapters is not None:
                await service.adapters_file.start(loaded.adapters)
        except (ConfigError, TemplateError) as error:
            self._give_up(str(error))
        except Exception as error:
            logger.debug("the load failed", exc_info=True)
            self._give_up(f"{type(error).__name__}: {error}")
        else:
            service.attach(loaded)
            seconds, context = time.monotonic() - started, loaded.limits.max_model_len
            logger.info("loaded seconds=%.1f template=%r context=%d", seconds, loaded.template.origin, context)
            if service.adapters_file is not None:
                await service.adapters_file.run()

    def _give_up(self, why: str) -> None:
        logger.error("the model can't be loaded: %s", why)
        self.exit_code = 1
        self.stop_asked.set()

    async def _end_with_the_engine(self) -> None:
        """Ask for the end when the engine is dead; only a new process has a new one."""
        while self.engine is None or self.engine.stats().alive:  # noqa: ASYNC110 - a thread that ends signals nobody
            await asyncio.sleep(_ENGINE_CHECK)
        if not self.stop_asked.is_set():
            logger.error("the engine has died, the reason stands above; the process ends for a restart")
            self.exit_code, self.settings = 1, replace(self.settings, drain_timeout=min(_DEAD_DRAIN, self.settings.drain_timeout))
            self.stop_asked.set()

    async def _drain(self, service: Service) -> None:
        service.drain()
        if service.active:
            logger.info("draining requests=%d timeout=%gs", service.active, self.settings.drain_timeout)
            await _first(self.settings.drain_timeout, service.idle, self.hurry)
        if service.active:
            logger.warning("drain ended early, requests=%d are cut", service.active)
        if self.engine is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ENGINE_STOP):
                    await in_thread(self.engine.stop, "stop")
        if service.active:
            await _first(_LAST_WORDS, service.idle)


def _listeners(service: Service) -> Iterator[Listener]:
    """Who is told of requests; raises OSError when the audit log can't be written."""
    settings = service.settings
    if settings.audit_log is not None:
        begins = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": "start", "model": settings.model_name}
        yield AuditLog(settings.audit_log, service.metrics.audited, first=begins)
    for target in settings.post_inference_hooks:
        yield Hook(target, service.metrics.hooked)


def _listen(host: str, port: int) -> socket.socket:
    """An open socket; raises OSError. uvicorn would end the process from within instead of saying so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_QUEUED_CONNECTIONS)


def _load_model(settings: ServerSettings, engine_config: EngineConfig) -> tuple[Loaded, Engine]:
    """Read everything a checkpoint has, cheap things first so that a wrong file is reported before the weights are read."""
    template = find_template(settings.model_dir, settings.chat_template, settings.model_version)
    tokenizer = TextTokenizer.from_dir(settings.model_dir)
    tokenizer.check_model(ModelConfig.from_dir(settings.model_dir), settings.model_dir)
    defaults = SamplingDefaults.from_dir(settings.model_dir)
    from glm5_runtime.engine.load import load_engine  # noqa: PLC0415 - torch takes seconds to import; the port is open meanwhile

    engine = load_engine(settings.model_dir, engine_config)
    engine.start()
    limits = Limits(
        max_model_len=engine.max_model_len,
        vocab_size=engine.model_config.vocab_size,
        max_choices=min(MAX_CHOICES, engine_config.max_sequences + engine_config.max_queue),
        eos_token_ids=engine.model_config.eos_token_ids,
        tiers=engine.tiers,
    )
    return Loaded(engine, tokenizer, template, limits, defaults, engine.adapters), engine


async def _first(seconds: float, *events: asyncio.Event) -> None:
    """Wait until one of `events` has come or the time is over."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
