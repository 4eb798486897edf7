"""The only code that talks to the API server: client, cache, apply, queue, lease, events.

Controllers use these names; nothing below `controllers` imports this package.
"""

from glm5_operator.kube.apply import Applier
from glm5_operator.kube.cache import Cache
from glm5_operator.kube.events import Events
from glm5_operator.kube.parts import Controllers, Parts
from glm5_operator.kube.types import ApiFailure, Applied, Key, Manifest, Outcome, OutcomeKind, Reconciler, Resource, key_of

__all__ = [
    "ApiFailure",
    "Applied",
    "Applier",
    "Cache",
    "Controllers",
    "Events",
    "Key",
    "Manifest",
    "Outcome",
    "OutcomeKind",
    "Parts",
    "Reconciler",
    "Resource",
    "key_of",
]
