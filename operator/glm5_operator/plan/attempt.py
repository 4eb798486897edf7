"""One attempt of a fine-tuning job: its Job, training file and headless Service, or why there is none yet.

Called by the fine-tuning controller when an attempt is due. All cards or none: without room for every pod there is no Job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glm5_operator.api import names
from glm5_operator.api.finetune_status import FinetuneResolved
from glm5_operator.plan import findings, finetune_findings
from glm5_operator.plan.facts import Finding, Product
from glm5_operator.plan.gang import in_group, is_volcanos, pod_group, queue_of
from glm5_operator.plan.offer import offer_of
from glm5_operator.plan.places import places_of
from glm5_operator.plan.pod import quantity
from glm5_operator.plan.preflight import preflight
from glm5_operator.plan.product import GB
from glm5_operator.plan.recipe import recipe_of
from glm5_operator.plan.sizing import CPU_MILLIS, GIB, MEMORY_LEAST, MIB, SHM_LEAST, SHM_LIMIT, SHM_SHARE
from glm5_operator.plan.trainer import TrainerInput, trainer_pod
from glm5_operator.plan.trainer_guard import trainer_of
from glm5_operator.plan.training_file import training_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.plan.facts import Claim, FinetuneFacts, Manifest, NodeFacts, PoolFacts
    from glm5_operator.plan.offer import Offer

FULL_FACTOR = 8
"""Bytes of a trained parameter over those of its bf16 weight: fp32 weight, gradient and AdamW's two moments, 16 to 2."""


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """The answer for one attempt.

    Attributes:
        objects: ConfigMap and Job, in the order in which they are to be there; empty unless the attempt can begin now.
        resolved: the numbers for `status.resolved`; None when stalled before sizing.
        stalled: why nothing can be planned until spec or facts change.
        waits: why the attempt has to wait for cards.
        template: the pods of the attempt, also while it waits.
    """

    objects: tuple[Manifest, ...] = ()
    resolved: FinetuneResolved | None = None
    stalled: Finding | None = None
    waits: Finding | None = None
    template: Manifest | None = None


@dataclass(frozen=True, slots=True)
class _Room:
    """Nodes for the pods of an attempt."""

    able: int
    free: int
    claimed: int
    avoided: tuple[str, ...]


def plan_attempt(job: GLM5FinetuneJob, facts: FinetuneFacts, attempt: int) -> AttemptPlan:
    """Plan attempt number `attempt`. Raises nothing for user faults: they end in `stalled`."""
    offer = _usable_pool(job, facts.pool)
    if isinstance(offer, Finding):
        return AttemptPlan(stalled=offer)
    cards, nodes = job.spec.parallelism.npus_per_node, job.spec.nodes
    if offer.product is Product.A3 and cards != 1 and cards % 2:
        return AttemptPlan(stalled=finetune_findings.half_a_card(cards))
    if too_large := _too_large(job, offer):
        return AttemptPlan(stalled=too_large)
    unfit = preflight(facts.site.images.get("native", ""), "native", offer)
    if unfit.why is not None and len(offer.nodes) - len(unfit.unfit) < nodes:
        return AttemptPlan(stalled=unfit.why)
    facts = replace(facts, avoided=facts.avoided | unfit.unfit)
    room = _room(offer, nodes, cards, facts)
    if room.able < nodes:
        return AttemptPlan(stalled=finetune_findings.too_few_nodes(job.spec.pool, offer.resource, nodes, cards, room.able))
    planned = _planned(job, facts, offer, attempt, room)
    if planned.stalled is None and room.free < nodes and not _has_a_gang(job, planned, facts):
        waits = finetune_findings.waits_for_cards(
            job.spec.pool, offer.resource, nodes, cards, room.free, avoided=len(room.avoided), claimed=room.claimed
        )
        return replace(planned, objects=(), waits=waits)
    return planned


def rendezvous_service(job: GLM5FinetuneJob) -> Manifest:
    """The headless Service that gives each pod a name, also before it is ready."""
    name = job.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, names.rendezvous_name(name)),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.FINETUNE_LABEL: names.fit(name)},
            "ports": [
                {"name": "rendezvous", "port": names.RENDEZVOUS_PORT, "targetPort": names.RENDEZVOUS_PORT, "protocol": "TCP"},
            ],
        },
    }


def outcome_record(job: GLM5FinetuneJob, outcome: Mapping[str, str]) -> Manifest:
    """How the job ended, beside its status: with either of them nothing runs again."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, names.outcome_name(job.metadata.name)),
        "data": dict(outcome),
    }


def claim_of(job_object: Mapping[str, Any], resource: str, bound: int) -> tuple[str, int, int]:
    """Pool, pods without a node, and cards of each, of a Job of ours (or one that carries our label: nothing is taken for granted)."""
    spec = job_object.get("spec") or {}
    pod = (spec.get("template") or {}).get("spec") or {}
    trainer: Mapping[str, Any] = next(iter(pod.get("containers") or ()), {})
    cards = str(((trainer.get("resources") or {}).get("limits") or {}).get(resource) or "0")
    pool = str((pod.get("nodeSelector") or {}).get(names.POOL_LABEL) or "")
    wanted = 0 if spec.get("suspend") else int(spec.get("parallelism") or 0)  # Kueue has yet to give it any
    return pool, max(0, wanted - bound), int(cards) if cards.isdigit() else 0


def _usable_pool(job: GLM5FinetuneJob, facts: PoolFacts | None) -> Offer | Finding:
    name, namespace = job.spec.pool, job.metadata.namespace or "default"
    if facts is None:
        return findings.pool_not_found(name)
    pool = facts.pool
    if pool.metadata.deletion_timestamp is not None:
        return findings.pool_terminating(name)
    if pool.spec.role != "Training":
        return findings.needs_training_role(name, pool.spec.role)
    if pool.spec.namespaces is not None and namespace not in pool.spec.namespaces:
        return findings.namespace_not_allowed(name, namespace)
    return offer_of(facts)


def _room(offer: Offer, nodes: int, cards: int, facts: FinetuneFacts) -> _Room:
    """Nodes that could hold a pod, and those that can now. Nodes whose cards failed are left out unless there are too few others."""
    able = [node for node in offer.nodes if node.allocatable.get(offer.resource, 0) >= cards]
    others = [node for node in able if node.name not in facts.avoided]
    avoided = tuple(sorted(node.name for node in able if node.name in facts.avoided)) if len(others) >= nodes else ()
    chosen = others if avoided else able
    free = sorted((_free(node, offer.resource) for node in chosen if node.ready and node.schedulable), reverse=True)
    left = _without(free, facts.claims)
    having = sum(count >= cards for count in left)
    return _Room(len(able), having, sum(count >= cards for count in free) - having, avoided)


def _without(free: list[int], claims: Iterable[Claim]) -> list[int]:
    """Free cards of each node when every claim has taken its part, from the emptiest nodes: the worst that may happen."""
    left = list(free)
    for claim in claims:
        left.sort(reverse=True)
        for place in range(min(claim.pods, len(left))):
            left[place] -= claim.cards
    return left


def _free(node: NodeFacts, resource: str) -> int:
    return max(0, node.allocatable.get(resource, 0) - node.held)


def _planned(job: GLM5FinetuneJob, facts: FinetuneFacts, offer: Offer, attempt: int, room: _Room) -> AttemptPlan:
    memory = _memory(job)
    if isinstance(memory, Finding):
        return AttemptPlan(stalled=memory)
    if not facts.site.images.get("native"):
        return AttemptPlan(stalled=finetune_findings.trainer_image_missing())
    places = places_of(job)
    if isinstance(places, Finding):
        return AttemptPlan(stalled=places)
    shm = min(SHM_LIMIT, max(SHM_LEAST, memory // SHM_SHARE // MIB * MIB))
    cpu = _cpu_millis(job)
    pod = trainer_pod(TrainerInput(job, attempt, offer.pool, offer.resource, places, facts.site, memory, shm, cpu, room.avoided))
    if isinstance(pod, Finding):
        return AttemptPlan(stalled=pod)
    resolved = FinetuneResolved(
        image=str((trainer_of(pod) or {}).get("image", "")),
        product=offer.product,
        resource_name=offer.resource,
        nodes=job.spec.nodes,
        cards=job.spec.cards,
        memory=quantity(memory),
        shm=quantity(shm),
    )
    objects = [_config(job, attempt, training_file(job.spec, places))]
    if is_volcanos(pod, facts):
        metadata = _metadata(job, names.attempt_name(job.metadata.name, attempt), attempt)
        cards = (offer.resource, job.spec.parallelism.npus_per_node)
        objects.append(pod_group(job, metadata, cpu_millis=cpu, memory=memory, cards=cards))
        pod = in_group(pod, metadata["name"])
    return AttemptPlan((*objects, _job(job, attempt, pod, queue_of(job, facts))), resolved, template=pod)


def _has_a_gang(job: GLM5FinetuneJob, planned: AttemptPlan, facts: FinetuneFacts) -> bool:
    """Somebody else sees to it that all pods get their cards or none."""
    return bool(queue_of(job, facts)) or (planned.template is not None and is_volcanos(planned.template, facts))


def _config(job: GLM5FinetuneJob, attempt: int, text: str) -> Manifest:
    metadata = _metadata(job, names.config_name(job.metadata.name, attempt), attempt)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": {names.CONFIG_FILE: text}}


def _job(job: GLM5FinetuneJob, attempt: int, pod: Manifest, queue: str) -> Manifest:
    """Never retried by its own controller: what the next attempt looks like is decided by why this one ended.

    With a queue of Kueue it begins suspended, and Kueue sets it going.
    """
    metadata = _metadata(job, names.attempt_name(job.metadata.name, attempt), attempt)
    if queue:
        metadata["labels"][names.KUEUE_QUEUE_LABEL] = queue
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            **({"suspend": True} if queue else {}),
            "completionMode": "Indexed",
            "completions": job.spec.nodes,
            "parallelism": job.spec.nodes,
            "backoffLimit": 0,
            # A pod that is being deleted hasn't failed yet: else all others would be told to end at once, within their short grace, and
            # the checkpoint that it was asked for, which all ranks write together, would come to nothing.
            "podReplacementPolicy": "Failed",
            "template": pod,
        },
    }


def _metadata(job: GLM5FinetuneJob, name: str, attempt: int | None = None) -> Manifest:
    labels = names.finetune_labels(job.metadata.name)
    if attempt is not None:
        labels[names.ATTEMPT_LABEL] = str(attempt)
    return {"name": name, "namespace": job.metadata.namespace or "default", "labels": labels}


def _too_large(job: GLM5FinetuneJob, offer: Offer) -> Finding | None:
    """A known model whose numbers alone are more than all the cards' memory: the run could only end out of memory."""
    recipe = recipe_of(job.spec.model.name)
    if recipe is None:
        return None
    needed = recipe.weights["bf16"].total * (FULL_FACTOR if job.spec.method == "full" else 1)
    if needed <= job.spec.cards * offer.card_bytes:
        return None
    return finetune_findings.model_too_large(job.spec.model.name, job.spec.method, job.spec.cards, needed // GB, offer.card_bytes // GB)


def _memory(job: GLM5FinetuneJob) -> int | Finding:
    """Main memory of one pod, in bytes: as stated, else by its cards as for serving the model."""
    stated = job.spec.memory_bytes
    if stated is not None:
        return stated if stated >= MEMORY_LEAST else findings.memory_too_small(stated, MEMORY_LEAST)
    recipe = recipe_of(job.spec.model.name)
    if recipe is None:
        return finetune_findings.trainer_memory_not_stated(job.spec.model.name)
    return (recipe.host.shm_gib + recipe.host.gib_per_card * job.spec.parallelism.npus_per_node) * GIB


def _cpu_millis(job: GLM5FinetuneJob) -> int:
    recipe = recipe_of(job.spec.model.name)
    return (recipe.host.cpu_per_card * 1000 if recipe else CPU_MILLIS) * job.spec.parallelism.npus_per_node
