"""Controllers: one file a kind, each observe → plan → apply → report, with no other logic.

Built by `app` through `build`, called by the queue's workers. Effects only through `kube`.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from glm5_operator.api import names
from glm5_operator.controllers import pool_metrics, training_metrics
from glm5_operator.controllers.adapters import Adapters
from glm5_operator.controllers.auditing import Auditor
from glm5_operator.controllers.deployment import Deployments
from glm5_operator.controllers.facts import Facts
from glm5_operator.controllers.finetune import FinetuneController
from glm5_operator.controllers.node import NodeController
from glm5_operator.controllers.plugins import Plugins
from glm5_operator.controllers.pool import PoolController
from glm5_operator.controllers.progress import ProgressPoller
from glm5_operator.controllers.remedies import Remedies
from glm5_operator.controllers.service import ServiceController
from glm5_operator.kube import Controllers, errors, kinds
from glm5_operator.kube.gangs import Gangs
from glm5_operator.plan.facts import Site
from glm5_operator.plan.pool_audit import Exempt
from glm5_operator.pods import PodReader
from glm5_operator.status.refusals import job_refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from glm5_operator.kube import Key, Parts, Resource
    from glm5_operator.settings import Settings
    from glm5_operator.status.causes import Cause

log = logging.getLogger(__name__)

__all__ = ["build", "site"]


def site(settings: Settings) -> Site:
    """The operator-wide defaults of planning, from the settings."""
    chosen = settings.site
    images = {"native": chosen.native_image, "vllm": chosen.vllm_image}
    return Site(images, chosen.cluster_domain, chosen.image_pull_policy, settings.progress.port)


def _pools(
    parts: Parts, facts: Facts, daemon_sets: Callable[[], Awaitable[list[Resource]]], resync: timedelta, recheck: timedelta
) -> PoolController:
    audit = parts.settings.audit
    exempt = Exempt(audit.exempt_namespaces, audit.daemon_set_namespaces)
    auditor = Auditor(parts.cache, parts.applier, facts, exempt, timedelta(seconds=audit.evict_after), parts.settings.lease.namespace)
    pool_metrics.register(parts.metrics, parts.cache)
    interval = timedelta(seconds=audit.interval)
    return PoolController(parts.cache, parts.applier, parts.events, facts, daemon_sets, resync, recheck, auditor, interval)


def build(parts: Parts) -> Controllers:
    """All controllers of this operator."""

    async def daemon_sets() -> list[Resource]:
        return [item async for page, _ in parts.client.pages(kinds.DAEMON_SET) for item in page]

    async def find_job(namespace: str, name: str) -> Resource | None:
        try:
            return await parts.client.get(kinds.JOB, namespace, name)
        except errors.NotFoundError:
            return None

    async def refusal(job: Resource) -> Cause | None:
        namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
        try:
            notes = await parts.client.events_about(namespace, uid, "FailedCreate")
        except errors.KubeError as error:
            log.debug("events of Job %s: %s", job["metadata"]["name"], error)
            return None
        return job_refusal(notes[-1], namespace) if notes else None

    facts = Facts(parts.cache, site(parts.settings))
    resync, recheck = timedelta(seconds=parts.settings.queue.resync), timedelta(seconds=parts.settings.queue.recheck)
    adapters = Adapters(parts.cache, parts.applier, PodReader())
    services = ServiceController(parts.cache, parts.applier, parts.events, facts, adapters, resync, recheck)
    pools = _pools(parts, facts, daemon_sets, resync, recheck)
    asking = parts.settings.progress
    interval, tell = timedelta(seconds=asking.interval), timedelta(seconds=asking.tell)
    poller = ProgressPoller(parts.cache, PodReader(), parts.wake, interval, tell, asking.port)

    def look_again_at(kind: str) -> None:
        for key in parts.cache.keys(kind):
            parts.wake(key)

    gangs = Gangs(parts.client, parts.settings.watch.discovery, partial(look_again_at, names.FINETUNE_KIND))
    training_metrics.register(parts.metrics, parts.cache)
    deployments = Deployments(parts.cache, parts.applier, parts.events, facts, adapters)
    finetunes = FinetuneController(
        parts.cache,
        parts.applier,
        parts.events,
        facts,
        find_job,
        resync,
        recheck,
        parts.metrics,
        poller.heard,
        gangs.installed,
        refusal,
        deployments,
    )

    plugins = Plugins(daemon_sets, parts.settings.watch.discovery, partial(look_again_at, names.NODE_KIND))
    watched, agents = parts.settings.scope.namespaces, parts.settings.lease.namespace
    nodes = NodeController(
        parts.cache,
        parts.applier,
        parts.events,
        facts,
        plugins.resets,
        Remedies(parts.metrics),
        resync,
        agents if not watched or agents in watched else None,
        whole_cluster=not watched,
        wake=parts.wake,
    )
    by_kind: dict[str, ServiceController | FinetuneController | PoolController | NodeController] = {
        names.SERVICE_KIND: services,
        names.FINETUNE_KIND: finetunes,
        names.POOL_KIND: pools,
        names.NODE_KIND: nodes,
    }

    async def give_up(key: Key, reason: str, now: datetime) -> None:
        await by_kind[key.kind].give_up(key, reason, now)

    return Controllers(by_kind, give_up, {"progress": poller.run, "gangs": gangs.run, "plugins": plugins.run})
