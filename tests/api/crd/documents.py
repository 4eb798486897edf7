"""Builders of GLM5Service, GLM5FinetuneJob and NPUPool documents: a small valid one, with what a test changes laid over it."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]

REMOVED = object()
"""As a value: the field is left out."""

TINY: Json = {"model": {"name": "tiny", "weights": "bf16", "source": "pvc://weights/tiny", "memory": "4Gi"}, "parallelism": {"tensor": 1}}
"""Changes that turn the document into a model without a recipe, on the native engine."""


def service(changes: Json | None = None, *more: Json, name: str = "chat") -> Json:
    """A GLM5Service for GLM-5.1 on engine vllm with the changes laid over its spec, field by field."""
    spec: Json = {"model": {"name": "GLM-5.1", "weights": "w8a8", "source": "pvc://weights/GLM-5.1-w8a8"}, "pool": "inference"}
    for change in (changes or {}, *more):
        spec = overlay(spec, change)
    return {"apiVersion": "glm5.dev/v1alpha1", "kind": "GLM5Service", "metadata": {"name": name}, "spec": spec}


def finetune(changes: Json | None = None, *, name: str = "tune") -> Json:
    """A GLM5FinetuneJob of an adapter on four cards with the changes laid over its spec, field by field."""
    spec: Json = {
        "model": {"name": "GLM-5.1", "source": "pvc://weights/GLM-5.1"},
        "method": "lora",
        "data": {"source": "pvc://data/qa.jsonl"},
        "pool": "training",
        "parallelism": {"npusPerNode": 4},
        "checkpoint": {"storage": "pvc://ckpt"},
        "output": "pvc://adapters/support",
    }
    return {
        "apiVersion": "glm5.dev/v1alpha1",
        "kind": "GLM5FinetuneJob",
        "metadata": {"name": name},
        "spec": overlay(spec, changes or {}),
    }


def pool(changes: Json | None = None, *, name: str = "inference") -> Json:
    """An NPUPool for inference, selected by label, with the changes laid over its spec."""
    spec: Json = overlay({"role": "Inference", "nodeSelector": {"npu": "a3"}}, changes or {})
    return {"apiVersion": "glm5.dev/v1alpha1", "kind": "NPUPool", "metadata": {"name": name}, "spec": spec}


def overlay(base: Json, change: Json) -> Json:
    """`base` with `change` over it: objects field by field, all else replaced; REMOVED removes."""
    result = copy.deepcopy(base)
    for key, value in change.items():
        if value is REMOVED:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = overlay(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result
