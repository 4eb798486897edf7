"""What a podTemplate may not change about a trainer's pod, with where the wish belongs instead. The counterpart of `guard` for training.

Called by `merge` with the pod as planned and as the podTemplates made it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.plan.guard import Loss, card_losses, token_losses
from glm5_operator.plan.reading import object_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5_operator.plan.facts import Manifest

_TRAINER: Final = f"spec.containers[{names.TRAINER_CONTAINER}]"
_CARDS: Final = "the plan decides the number of cards, and the trainer has them all; state spec.parallelism instead"
RENDEZVOUS_ENV: Final = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "GLM5_ATTEMPT", "JOB_COMPLETION_INDEX")


def first_training_loss(planned: Manifest, after: Manifest, resource: str) -> Loss | None:
    """The first guarantee of `planned` that `after` breaks; None when all hold. `resource` names the NPU resource."""
    return next(
        chain(
            _pod_losses(planned, after), token_losses(after), card_losses(planned, after, resource, _CARDS), _trainer_losses(planned, after)
        ),
        None,
    )


def _pod_losses(planned: Manifest, after: Manifest) -> Iterator[Loss]:
    spec, of_plan = object_at(after, "spec"), object_at(planned, "spec")
    for path, why in (
        ("metadata.labels", "these labels select the run's pods; use a prefix of your own"),
        ("spec.nodeSelector", "it pins the pod to its pool; choose the pool with spec.pool"),
    ):
        kept, found = object_at(planned, *path.split(".")), object_at(after, *path.split("."))
        yield from ((f"{path}[{key}]", why) for key, value in kept.items() if found.get(key) != value)
    for field, why in (
        ("nodeName", "it would bypass the scheduler and the card allocation; select nodes in the NPUPool"),
        ("restartPolicy", "a rank that failed ends its attempt; leave it out"),
        ("subdomain", "the ranks find each other by it; leave it out"),
        ("hostname", "the ranks find each other by the Job's; leave it out"),
        ("affinity", "it keeps the ranks on nodes of their own; select nodes in the NPUPool"),
        ("terminationGracePeriodSeconds", "a failed attempt has to be gone within 10 s; leave it out"),
    ):
        if spec.get(field) != of_plan.get(field):
            yield f"spec.{field}", why
    tolerations = of_plan["tolerations"]
    if tolerations != spec.get("tolerations", [])[: len(tolerations)]:
        yield "spec.tolerations", "the first one lets the pod onto its pool; add yours, they come after it"


def _trainer_losses(planned: Manifest, after: Manifest) -> Iterator[Loss]:
    old, new = trainer_of(planned), trainer_of(after)
    if new is None or old is None:
        yield _TRAINER, "it is the trainer; leave it in place"
        return
    for field in ("command", "args"):
        if new.get(field) != old.get(field):
            yield f"{_TRAINER}.{field}", "the operator starts the trainer with the training file; state fields of the spec"
    for name in RENDEZVOUS_ENV:
        if _variable(new, name) != _variable(old, name):
            yield f"{_TRAINER}.env[{name}]", "the ranks find each other by it; remove it"


def trainer_of(pod: Manifest) -> Manifest | None:
    """The trainer's container of a pod template."""
    containers = object_at(pod, "spec").get("containers", [])
    return next((entry for entry in containers if entry["name"] == names.TRAINER_CONTAINER), None)


def _variable(container: Manifest, name: str) -> Manifest | None:
    entries = container.get("env")
    return next((entry for entry in entries if entry.get("name") == name), None) if isinstance(entries, list) else None
