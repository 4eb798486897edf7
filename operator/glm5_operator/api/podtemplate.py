"""The podTemplate field: a pod template stored as the user wrote it, of which the CRD describes only what rules read.

Embedding the whole pod schema would make the CRD too big for client-side `kubectl apply` (262,144 bytes of annotation).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import JsonValue, WithJsonSchema

from .rules import IMAGE_RULES, POD_RULES, TRAINER_POD_RULES, validations


def _text(limit: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": limit}


def _open(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": properties}


def _strings(keys: int) -> dict[str, Any]:
    return {"type": "object", "maxProperties": keys, "additionalProperties": _text(256)}


_CONTAINERS: Final = {
    "type": "array",
    "maxItems": 16,
    "items": {**_open(name=_text(63), image={**_text(512), **validations(*IMAGE_RULES)}), "required": ["name"]},
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}


def _template(rules: tuple[str, ...]) -> dict[str, Any]:
    return {
        **_open(
            metadata=_open(labels=_strings(64)),
            spec=_open(
                nodeName=_text(253),
                restartPolicy=_text(16),
                automountServiceAccountToken={"type": "boolean"},
                nodeSelector=_strings(32),
                containers=_CONTAINERS,
                initContainers=_CONTAINERS,
            ),
        ),
        **validations(*rules),
    }


PodTemplate = Annotated[dict[str, JsonValue], WithJsonSchema(_template(POD_RULES))]
"""A `PodTemplateSpec` in part; merged strategically, lists by name."""

TrainerPodTemplate = Annotated[dict[str, JsonValue], WithJsonSchema(_template(TRAINER_POD_RULES))]
"""The same for pods that run once."""
