"""A GLM5Service and facts become its desired objects.

Called by the service controller and by `glm5 plan`. The order of refusals is the order in which a user would fix them: pool, model, image,
source, podTemplate.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.api.common import format_duration
from glm5_operator.api.service import Resolved
from glm5_operator.plan import findings, reading
from glm5_operator.plan.adapters import adapters_file, plan_adapters, refused
from glm5_operator.plan.children import client_service, deployment, disruption_budget
from glm5_operator.plan.facts import Finding
from glm5_operator.plan.offer import offer_of
from glm5_operator.plan.pod import PodInput, pod_template, quantity, revision_of
from glm5_operator.plan.preflight import preflight
from glm5_operator.plan.recipe import CARDS_PER_NODE
from glm5_operator.plan.rollout import choose_rollout
from glm5_operator.plan.sizing import Hardware, Sizing, size
from glm5_operator.plan.source import model_files
from glm5_operator.plan.vllm import vllm_image

if TYPE_CHECKING:
    from glm5_operator.api.service import GLM5Service, GLM5ServiceSpec
    from glm5_operator.plan.adapters import AdaptersPlan
    from glm5_operator.plan.facts import Manifest, PoolFacts, Product, ServiceFacts, Site
    from glm5_operator.plan.offer import Offer

READ_BYTES_PER_SECOND: Final = 250 * 10**6
"""Weights from network storage: reports say 27 to 30 s a shard of 5 GB at worst, and twice that speed as a rule."""
STARTUP_BASE: Final = timedelta(minutes=5)
STARTUP_LIMIT: Final = timedelta(minutes=60)


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """The whole answer for one service.

    Attributes:
        objects: desired children; empty when stalled, which means "keep what is there, change nothing".
        resolved: the numbers for `status.resolved` (the model of the API); None when stalled before sizing.
        stalled: why nothing can be planned until spec or facts change.
        warnings: worth an event or a condition, never a stop.
        revision: hash of the pod template, as on the pods' label `glm5.dev/revision`; empty when stalled.
        endpoint: base URL inside the cluster, ending in /v1.
        startup: time a replica may take to produce its first token; zero when stalled before sizing.
        adapters: of a service with adapterStorage; None for others, and when stalled.
    """

    objects: tuple[Manifest, ...]
    resolved: Resolved | None
    stalled: Finding | None
    warnings: tuple[Finding, ...]
    revision: str
    endpoint: str = ""
    startup: timedelta = timedelta(0)
    adapters: AdaptersPlan | None = None


@dataclass(frozen=True, slots=True)
class _Draft:
    """A service with its pool, sizes and image: everything before its objects."""

    service: GLM5Service
    facts: ServiceFacts
    offer: Offer
    sizing: Sizing
    image: str
    startup: timedelta

    @property
    def spec(self) -> GLM5ServiceSpec:
        return self.service.spec


def plan_service(service: GLM5Service, facts: ServiceFacts) -> ServicePlan:
    """Plan the children of `service`. Raises nothing for user faults: they end in `stalled`."""
    draft = _draft(service, facts)
    if isinstance(draft, Finding):
        return _stalled(draft)
    lacking = _lacks_cards(draft) or _does_not_run(draft)
    if lacking:
        return _stalled(lacking, draft)
    pod = _pod(draft)
    if isinstance(pod, Finding):
        return _stalled(pod, draft)
    return _planned(draft, pod)


def startup_timeout(spec: GLM5ServiceSpec, sizing: Sizing, card_bytes: int) -> timedelta:
    """Time until the first token: as stated, else from the bytes to read.

    Of weights of unknown size only this is sure: they fit on the cards. Main memory says nothing, engines read shard by shard through it;
    engine `native` alone, which runs small models on one card, is measured by it, on top of five minutes in which a full card is read.
    """
    if spec.startup is not None and spec.startup.timeout is not None:
        return spec.startup.timeout
    unknown = sizing.memory_bytes if spec.engine_name == "native" else sizing.cards * card_bytes
    size_bytes = unknown if sizing.weights_bytes is None else sizing.weights_bytes
    longest = (STARTUP_LIMIT - STARTUP_BASE) // timedelta(seconds=1)  # capped as a number: a timedelta doesn't hold every quantity
    return STARTUP_BASE + timedelta(seconds=min(longest, size_bytes // READ_BYTES_PER_SECOND))


def endpoint_of(service: GLM5Service, cluster_domain: str) -> str:
    """Base URL for OpenAI clients inside the cluster."""
    namespace = service.metadata.namespace or "default"
    return f"http://{names.client_service_name(service.metadata.name)}.{namespace}.svc.{cluster_domain}:{names.ENGINE_PORT}/v1"


def _draft(service: GLM5Service, facts: ServiceFacts) -> _Draft | Finding:
    offer = _usable_pool(service, facts.pool)
    if isinstance(offer, Finding):
        return offer
    sizing = size(service.spec, Hardware(offer.product, _whole_node(offer), offer.card_bytes))
    if isinstance(sizing, Finding):
        return sizing
    image = _image(service.spec, facts.site, offer.product)
    if isinstance(image, Finding):
        return image
    if (adapters := refused(service.spec)) is not None:
        return adapters
    return _Draft(service, facts, offer, sizing, image, startup_timeout(service.spec, sizing, offer.card_bytes))


def _usable_pool(service: GLM5Service, facts: PoolFacts | None) -> Offer | Finding:
    name, namespace = service.spec.pool, service.metadata.namespace or "default"
    if facts is None:
        return findings.pool_not_found(name)
    pool = facts.pool
    if pool.metadata.deletion_timestamp is not None:
        return findings.pool_terminating(name)
    if pool.spec.role != "Inference":
        return findings.wrong_role(name, pool.spec.role)
    if pool.spec.namespaces is not None and namespace not in pool.spec.namespaces:
        return findings.namespace_not_allowed(name, namespace)
    return offer_of(facts)


def _image(spec: GLM5ServiceSpec, site: Site, product: Product | None) -> str | Finding:
    if spec.engine is not None and spec.engine.image is not None:
        return spec.engine.image
    image = site.images.get(spec.engine_name)
    if not image:
        return findings.image_missing(spec.engine_name)
    if spec.engine_name == "native":
        return image
    return findings.product_unknown(spec.pool) if product is None else vllm_image(image, product)


def _whole_node(offer: Offer) -> int:
    """Cards of a node with all of them well: what a server of the product has, or more where a node offers more."""
    server = CARDS_PER_NODE.get(offer.product, 0) if offer.product else 0
    return max(server, offer.largest_node)


def _lacks_cards(draft: _Draft) -> Finding | None:
    """A replica that no node of the pool could ever hold. One that waits for cards in use is the scheduler's business."""
    offer, sizing = draft.offer, draft.sizing
    if offer.room(sizing.cards) > 0:
        return None
    # More than a whole node has is a matter of several nodes; less, of what these nodes offer now.
    if sizing.nodes > 1 and offer.largest_node > 0:
        model = f"{draft.spec.model.name} {draft.spec.model.weights}"
        return findings.needs_several_nodes(model, sizing.cards, sizing.nodes, _whole_node(offer))
    return findings.not_enough_cards(offer.pool.metadata.name, offer.resource, sizing.cards, offer.largest_node)


def _does_not_run(draft: _Draft) -> Finding | None:
    """No node of the pool can run the image. Where some can, that is a warning: a driver is updated node by node."""
    found = preflight(draft.image, draft.spec.engine_name, draft.offer)
    return found.why if found.none_fits else None


def _pod(draft: _Draft) -> Manifest | Finding:
    files = model_files(draft.spec.model.source, draft.spec.model.name)
    if isinstance(files, Finding):
        return files
    site = draft.facts.site
    return pod_template(
        PodInput(
            service=draft.service,
            pool=draft.offer.pool,
            resource=draft.offer.resource,
            sizing=draft.sizing,
            files=files,
            image=draft.image,
            pull_policy=site.image_pull_policy,
            startup=draft.startup,
        )
    )


def _planned(draft: _Draft, pod: Manifest) -> ServicePlan:
    service, offer, sizing = draft.service, draft.offer, draft.sizing
    revision = revision_of(pod)
    pod["metadata"]["labels"][names.REVISION_LABEL] = revision
    rollout = choose_rollout(draft.spec.rollout, offer, draft.spec.replicas, sizing.cards, draft.facts.own_held)
    budget = disruption_budget(service)
    adapters = plan_adapters(service, draft.facts.adapters)
    objects = (
        *((adapters_file(service, adapters),) if adapters else ()),  # first: pods find it there when they start
        deployment(service, pod, rollout, draft.startup),
        client_service(service),
        *((budget,) if budget else ()),
    )
    room = offer.room(sizing.cards)
    crowded = (findings.replicas_exceed_pool(offer.pool.metadata.name, draft.spec.replicas, room),) if draft.spec.replicas > room else ()
    uneven = preflight(draft.image, draft.spec.engine_name, offer).why
    return ServicePlan(
        objects=objects,
        resolved=_resolved(draft, pod),
        stalled=None,
        warnings=(*sizing.warnings, *crowded, *((uneven,) if uneven else ()), *_left_out(adapters)),
        revision=revision,
        endpoint=endpoint_of(service, draft.facts.site.cluster_domain),
        startup=draft.startup,
        adapters=adapters,
    )


def _left_out(adapters: AdaptersPlan | None) -> list[Finding]:
    return [Finding("AdapterWaits", f"adapter {one.name}: {one.left_out}") for one in adapters.adapters if one.left_out] if adapters else []


def _stalled(finding: Finding, draft: _Draft | None = None) -> ServicePlan:
    return ServicePlan(
        objects=(),
        resolved=_resolved(draft) if draft else None,
        stalled=finding,
        warnings=draft.sizing.warnings if draft else (),
        revision="",
        startup=draft.startup if draft else timedelta(0),
    )


def _resolved(draft: _Draft, pod: Manifest | None = None) -> Resolved:
    """The numbers of the pod that runs: a podTemplate may have another image and more memory than the plan. Without a pod, of the draft."""
    sizing, offer = draft.sizing, draft.offer
    merged = pod or {}
    return Resolved(
        engine=draft.spec.engine_name,
        image=str((reading.engine_of(merged) or {}).get("image", draft.image)),
        product=offer.product,
        resource_name=offer.resource,
        recipe=sizing.recipe.family if sizing.recipe else None,
        nodes=sizing.nodes,
        cards=sizing.cards,
        tensor=sizing.shape.tensor,
        pipeline=sizing.shape.pipeline,
        data=sizing.shape.data,
        expert=sizing.expert,
        max_tokens=sizing.max_tokens,
        max_sequences=sizing.max_sequences,
        max_batched_tokens=sizing.max_batched_tokens,
        memory=quantity(reading.memory_of(merged) or sizing.memory_bytes),
        shm=quantity(reading.shm_of(merged) or sizing.shm_bytes),
        startup_timeout=format_duration(draft.startup),
    )
