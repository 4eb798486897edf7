"""Wiring: which event wakes which key, and the order in which the parts start and stop.

Called by `__main__`. Holds no logic of any object: that is in the controllers. The order is: see the CRDs, watch and list until the
cache is complete (a standby stops here, warm), take the lease, work; on SIGTERM finish, release the lease, leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import socket
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

import kopf
from aiohttp import web

from glm5_operator.controllers.wake import woken_by
from glm5_operator.kube import kinds
from glm5_operator.kube.apply import Applier
from glm5_operator.kube.cache import Cache
from glm5_operator.kube.client import Client, load_configuration
from glm5_operator.kube.errors import KubeError
from glm5_operator.kube.events import Events
from glm5_operator.kube.health import Health
from glm5_operator.kube.lease import LeaderLease, LeaseLostError
from glm5_operator.kube.parts import Controllers, Parts
from glm5_operator.kube.queue import Backoff, WorkQueue
from glm5_operator.kube.relist import Relist
from glm5_operator.kube.stream import Streams
from glm5_operator.kube.types import Key
from glm5_operator.kube.watching import WatchSession, registry_for, settings_for
from glm5_operator.kube.wire import allow_depth
from glm5_operator.kube.workers import Workers
from glm5_operator.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from glm5_operator.kube.kinds import Kind
    from glm5_operator.kube.types import Resource
    from glm5_operator.settings import Settings

log = logging.getLogger(__name__)

_TICK: Final = 0.5
_CRD_POLL: Final = 2.0
_STOP_LIMIT: Final = 5.0


class Operator:
    """All parts of one process."""

    def __init__(
        self, settings: Settings, client: Client, lease_client: Client, metrics: Metrics, lost: Callable[[Exception], NoReturn]
    ) -> None:
        self.settings = settings
        self._lost = lost
        self.metrics = metrics
        self.client = client
        self.lease = LeaderLease(lease_client, settings.lease, settings.lease.identity or socket.gethostname())
        self.cache = Cache()
        self.events = Events(client, metrics)
        self.applier = Applier(client, self.cache, metrics, self._wake)
        queue = settings.queue
        self.queue = WorkQueue(
            Backoff(queue.backoff_base, queue.backoff_max, queue.budget, queue.recheck),
            random.Random(),  # noqa: S311 - jitter, no secret
        )
        self.health = Health(settings.watch.dead_after, queue.timeout, time.monotonic())
        self.relist = Relist(
            client,
            self.cache,
            metrics,
            kinds=kinds.CACHED,
            namespaces=settings.scope.namespaces,
            changed=lambda resource, _deleted: self._wake(resource),
        )
        self.workers: Workers | None = None
        self._beside: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self.working = False
        self.stop = asyncio.Event()

    def staff(self, controllers: Controllers) -> None:
        """Give the queue its reconcilers."""
        limits = self.settings.queue
        self._beside = controllers.beside
        self.workers = Workers(
            self.queue, controllers.reconcilers, self.metrics, limit=limits.workers, timeout=limits.timeout, give_up=controllers.give_up
        )

    def news(self, kind: Kind, event: str | None, resource: Mapping[str, Any]) -> None:
        """One watch event: into the cache, and if the cache didn't know that yet, wake who cares."""
        self.health.sign_of_life(kind.name, time.monotonic(), resource["metadata"].get("namespace") or "")
        if resource.get("kind") != kind.name:
            resource = {**resource, "kind": kind.name}  # some of a kind, kept under a name of their own
        known = self.cache.drop(resource) if event == "DELETED" else self.cache.put(resource)
        self.metrics.watch_events.labels(kind.name, "true" if known else "false").inc()
        if known:
            self._wake(resource)

    async def lead(self) -> None:
        """Wait for a complete cache, then for the lease; then work until the lease is lost."""
        assert self.workers is not None, "staff() comes first"
        await self.relist.warm()
        self.health.synced = True
        log.info("the cache is complete")
        if self.settings.lease.enabled:
            await self.lease.acquire()
        self.metrics.leader.set(1)
        self.working = True
        for kind in (kinds.POOL, *kinds.OWNERS):
            for key in self.cache.keys(kind.name):
                self.workers.add(key)
        for key in self.cache.keys(kinds.NODE.name):
            self.workers.add(Key(kinds.ASCEND_NODE.name, "", key.name))
        async with asyncio.TaskGroup() as group:
            group.create_task(self.workers.run(), name="workers")
            group.create_task(self.events.run(), name="events")
            for name, run in self._beside.items():
                group.create_task(run(), name=name)
            if self.settings.lease.enabled:
                group.create_task(self._hold(), name="lease")

    async def _hold(self) -> None:
        try:
            await self.lease.hold()
        except LeaseLostError as error:
            self._lost(error)

    async def tick(self) -> None:
        """Measure how late the event loop is."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            self.metrics.loop_lag.set(max(0.0, now - before - _TICK))
            self.health.tick(now)

    async def wait_for_crds(self) -> None:
        """Kopf looks for its kinds once, at start; ours must be served by then."""
        wanted = {kind.plural for kind in (kinds.POOL, kinds.ASCEND_NODE, *kinds.OWNERS)}
        path = f"/apis/{kinds.SERVICE.api_version}"
        while True:
            try:
                served = {item.get("name") for item in (await self.client.raw_get(path)).get("resources") or ()}
                if wanted <= served:
                    return
                log.warning("waiting for the CustomResourceDefinitions: %s are not served", ", ".join(sorted(wanted - served)))
            except KubeError as error:
                log.warning("waiting for the CustomResourceDefinitions: %s", error)
            await asyncio.sleep(_CRD_POLL)

    def admin(self) -> web.Application:
        """Probes and metrics."""

        async def healthz(_: web.Request) -> web.Response:
            return _verdict(self.health.live_faults(time.monotonic(), self.queue, working=self.working))

        async def readyz(_: web.Request) -> web.Response:
            return _verdict(self.health.ready_faults(time.monotonic()))

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(body=self.metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

        application = web.Application()
        application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
        return application

    def wake(self, key: Key) -> None:
        """Have one object looked at soon."""
        if self.workers is not None:
            self.workers.add(key, self.settings.queue.settle)

    def _wake(self, resource: Resource) -> None:
        if self.workers is not None:
            for key, delay in woken_by(self.cache, resource, self.settings.queue.settle):
                self.workers.add(key, delay)


def _verdict(faults: list[str]) -> web.Response:
    return web.Response(text="ok\n") if not faults else web.Response(status=503, text="\n".join(faults) + "\n")


async def run(
    settings: Settings, build: Callable[[Parts], Controllers], lost: Callable[[Exception], NoReturn], kubeconfig: str | None = None
) -> None:
    """Run until SIGTERM or SIGINT. `lost` is called when the lease is lost, and must end the process at once."""
    allow_depth()
    metrics = Metrics()
    lease_client = Client(await load_configuration(kubeconfig), settings.api, metrics)
    client = Client(await load_configuration(kubeconfig), settings.api, metrics)
    operator = Operator(settings, client, lease_client, metrics, lost)
    if settings.lease.enabled:
        client.guard_writes(operator.lease.guard)
    operator.staff(build(Parts(operator.cache, operator.applier, operator.events, settings, client, metrics, operator.wake)))
    metrics.live_gauge(
        "glm5_operator_watch_age_seconds",
        "Since a kind's watch last gave a sign of life.",
        ["kind"],
        lambda: operator.health.watch_ages(time.monotonic()),
    )
    metrics.live_gauge(
        "glm5_operator_objects", "Objects by kind, condition and status.", ["kind", "condition", "status"], operator.cache.condition_counts
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(lease_client.close)
        stack.push_async_callback(client.close)
        await _serve_admin(operator, stack)
        await _run_tasks(operator, stack)


async def _serve_admin(operator: Operator, stack: contextlib.AsyncExitStack) -> None:
    # A connection that is kept is a task, and kopf would wait 5 s for it to end.
    runner = web.AppRunner(operator.admin(), access_log=None, keepalive_timeout=0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, operator.settings.admin.host, operator.settings.admin.port)
    await site.start()
    log.info("probes and metrics at %s", ", ".join(f"http://{address[0]}:{address[1]}" for address in runner.addresses))


async def _run_tasks(operator: Operator, stack: contextlib.AsyncExitStack) -> None:
    """Start everything, wait for the first to end or for the signal to stop, end in order."""
    operator.health.tick(time.monotonic())
    _take_signals(operator.stop)
    stopping = asyncio.create_task(operator.stop.wait(), name="stop")
    starting = asyncio.create_task(operator.wait_for_crds(), name="wait for CRDs")
    ticking = asyncio.create_task(operator.tick(), name="tick")
    await asyncio.wait({stopping, starting, ticking}, return_when=asyncio.FIRST_COMPLETED)
    if not operator.stop.is_set():
        stop_kopf = asyncio.Event()
        relisting = asyncio.create_task(operator.relist.run(operator.settings.watch.relist), name="relist")
        leading = asyncio.create_task(operator.lead(), name="lead")
        session = _watch_session(operator, stack)
        streaming = asyncio.create_task(_watch_streams(operator, session), name="streams")
        watching = asyncio.create_task(_watch_by_kopf(operator, session, stop_kopf), name="kopf")
        try:
            endless = {ticking, relisting, leading, streaming, watching}
            done, _ = await asyncio.wait({stopping, *endless}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()  # raises what ended it
                raise RuntimeError(f"{task.get_name()} ended by itself")
            log.info("stopping")
        finally:
            await _cancel(leading)
            await operator.lease.release()  # only now: nothing of ours writes any more
            await _cancel(ticking, relisting, streaming)  # before kopf: it waits for all tasks that it finds in the loop
            stop_kopf.set()
            await asyncio.wait({watching}, timeout=_STOP_LIMIT)
            await _cancel(watching)
    await _cancel(stopping, starting, ticking)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_STOP_LIMIT)


def _take_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


def _watch_session(operator: Operator, stack: contextlib.AsyncExitStack) -> WatchSession:
    """The session of all watches, each of which must show signs of life from now on."""
    settings = operator.settings
    for kind in kinds.WATCHED:
        for namespace in kind.places(settings.scope.namespaces):
            operator.health.expect(kind.name, time.monotonic(), namespace)
    session = WatchSession(
        operator.client.configuration,
        operator.metrics,
        kinds.WATCHED,
        opened=lambda kind, namespace: operator.health.sign_of_life(kind, time.monotonic(), namespace),
        listed=operator.relist.request,
    )
    stack.push_async_callback(session.close)
    return session


async def _watch_streams(operator: Operator, session: WatchSession) -> None:
    settings, login = operator.settings, session.login()
    await Streams(
        login.aiohttp_session,
        login.server,
        settings.watch,
        kinds.STREAMED,
        settings.scope.namespaces,
        news=operator.news,
        malformed=lambda kind: operator.metrics.watch_events.labels(kind.name, "malformed").inc(),
    ).run()


async def _watch_by_kopf(operator: Operator, session: WatchSession, stop: asyncio.Event) -> None:
    settings = operator.settings
    existing = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry_for(kinds.BY_KOPF, operator.news, session.login),
        settings=settings_for(settings.api, settings.watch),
        standalone=True,
        clusterwide=not settings.scope.namespaces,
        namespaces=settings.scope.namespaces,
        stop_flag=stop,
    )
    _take_signals(operator.stop)  # kopf has just taken them; we stop in an order of our own
    await kopf.run_tasks(tasks, ignored=existing)
