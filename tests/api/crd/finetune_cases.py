"""One row a CEL rule of GLM5FinetuneJob: a document that the API server takes and one that it refuses because of this rule and no other."""

from __future__ import annotations

from tests.api.crd.case import Case
from tests.api.crd.documents import REMOVED, Json, finetune


def _started(document: Json) -> Json:
    return {**document, "status": {"startTime": "2026-01-01T00:00:00Z"}}


def _training(**fields: object) -> Json:
    return finetune({"training": dict(fields)})


RULE: Json = {"kind": "rule", "rule": "contains", "pattern": "yes"}


def _by_rewards(**fields: object) -> Json:
    return finetune({"method": "grpo", "rl": {"reward": RULE}, "parallelism": {"npusPerNode": 1}, **fields})


FINETUNE_CASES = [
    Case("finetune-name", finetune(name="a" * 63), finetune(name="tune.1"), "at most 63 lower-case letters"),
    Case(
        "finetune-fixed",
        before=_started(finetune()),
        accepted=finetune(
            {
                "policy": {"suspend": True, "maxAttempts": 5, "deadline": "3h", "ttlAfterFinished": "1h"},
                "podTemplate": {"metadata": {"labels": {"team": "a"}}},
            }
        ),
        rejected=finetune({"training": {"learningRate": 1e-4}}),
        says="create another job",
    ),
    Case("finetune-section", finetune({"lora": {"rank": 32}}), finetune({"method": "full", "lora": {}}), "set method to lora"),
    Case("finetune-rl", _by_rewards(), finetune({"method": "ppo", "parallelism": {"npusPerNode": 1}}), "need the section rl"),
    Case(
        "finetune-rl-card",
        _by_rewards(parallelism={"nodes": 1, "npusPerNode": 1}),
        _by_rewards(parallelism={"nodes": 2, "npusPerNode": 1}),
        "on one card",
    ),
    Case("finetune-rl-rows", _by_rewards(evaluation={"share": 0}), _by_rewards(evaluation={"share": 0.1}), "no rows are held back"),
    Case("finetune-rl-packing", _by_rewards(training={"packing": False}), _by_rewards(training={"packing": True}), "training.packing"),
    Case("finetune-rl-dropout", _by_rewards(lora={"dropout": 0}), _by_rewards(lora={"dropout": 0.1}), "remove lora.dropout"),
    Case("finetune-grpo", _by_rewards(rl={"reward": RULE, "group": 2}), _by_rewards(rl={"reward": RULE, "lam": 1}), "has no values"),
    Case(
        "finetune-ppo",
        _by_rewards(method="ppo", rl={"reward": RULE, "lam": 1, "group": 1}),
        _by_rewards(method="ppo", rl={"reward": RULE, "divideBySpread": True}),
        "belongs to method grpo",
    ),
    Case(
        "reward-rule",
        _by_rewards(rl={"reward": {"kind": "rule", "rule": "regex", "pattern": "^[0-9]+$"}}),
        _by_rewards(rl={"reward": {"kind": "rule", "rule": "regex"}}),
        "regex needs a pattern",
    ),
    Case(
        "reward-http",
        _by_rewards(rl={"reward": {"kind": "http", "url": "http://scores:80/score", "timeout": 5, "retries": 0}}),
        _by_rewards(rl={"reward": {"kind": "rule", "timeout": 5}}),
        "belong to kind http",
    ),
    Case(
        "reward-url",
        _by_rewards(rl={"reward": {"kind": "http", "url": "https://scores.example.com"}}),
        _by_rewards(rl={"reward": {"kind": "http", "url": "ftp://scores"}}),
        "reward.url must be",
    ),
    Case("finetune-merge", finetune({"merge": True}), finetune({"method": "full", "merge": False}), "an adapter to merge"),
    Case(
        "finetune-memory",
        finetune({"model": {"name": "tiny", "memory": "4Gi"}}),
        finetune({"model": {"name": "tiny"}}),
        "state model.memory",
    ),
    Case(
        "finetune-length-of-model",
        finetune({"data": {"maxLength": 202752}}),
        finetune({"data": {"maxLength": 202768}}),
        "GLM-5.1 at most 202752",
    ),
    Case(
        "finetune-batch-reaches-cards",
        finetune({"parallelism": {"nodes": 2, "npusPerNode": 4}}),
        finetune({"parallelism": {"nodes": 3, "npusPerNode": 4}}),
        "one a card",
    ),
    Case(
        "finetune-folders",
        finetune({"output": "pvc://ckpt/out"}),
        finetune({"output": "pvc://ckpt/a", "checkpoint": {"storage": "pvc://ckpt/a"}}),
        "three folders",
    ),
    Case(
        "data-scheme",
        finetune({"data": {"source": "hostpath:///data/qa.jsonl"}}),
        finetune({"data": {"source": "s3://data/qa.jsonl"}}),
        "must start with pvc://",
    ),
    Case(
        "data-file",
        finetune({"data": {"source": "pvc://my.data/a/qa.jsonl"}}),
        finetune({"data": {"source": "pvc://data"}}),
        "must name a file",
    ),
    Case(
        "data-path",
        finetune({"data": {"source": "pvc://data/qa..jsonl"}}),
        finetune({"data": {"source": "pvc://data/../qa.jsonl"}}),
        "may not contain `..`",
    ),
    Case("data-length", finetune({"data": {"maxLength": 16}}), finetune({"data": {"maxLength": 2047}}), "multiple of 16"),
    Case("lora-rank", finetune({"lora": {"rank": 48}}), finetune({"lora": {"rank": 24}}), "multiple of 16"),
    Case("lora-alpha", finetune({"lora": {"alpha": 16}}), finetune({"lora": {"rank": 64, "alpha": 63.5}}), "at least lora.rank"),
    Case(
        "lora-targets",
        finetune({"lora": {"targets": ["q", "v", "experts"]}}),
        finetune({"lora": {"targets": ["q_proj"]}}),
        "kv_a_proj_with_mqa",
    ),
    Case("lora-dropout", finetune({"lora": {"dropout": 0}}), finetune({"lora": {"dropout": 1}}), "less than 1"),
    Case("training-accumulation", _training(gradientAccumulation=4), _training(gradientAccumulation=5), "at most 4"),
    Case("training-end", _training(steps=10), _training(steps=10, epochs=1), "keep one"),
    Case("training-batch", _training(batchTokens=16), _training(batchTokens=16, batchSize=8), "keep one"),
    Case("training-rate", _training(learningRate=1), _training(learningRate=0), "for example 2e-4"),
    Case("training-warmup", _training(warmup=0), _training(warmup=1.0), "share of the steps"),
    Case("training-decay", _training(weightDecay=0.999), _training(weightDecay=1), "weightDecay"),
    Case("training-clip", _training(clip=0.1), _training(clip=0), "above 0"),
    Case(
        "evaluation-patience",
        finetune({"evaluation": {"share": 0.1, "patience": 3}}),
        finetune({"evaluation": {"share": 0, "patience": 3}}),
        "set evaluation.share",
    ),
    Case(
        "storage-claim",
        finetune({"checkpoint": {"storage": "pvc://ckpt"}}),
        finetune({"checkpoint": {"storage": "hostpath:///ckpt"}}),
        "pvc://CLAIM/FOLDER",
    ),
    Case(
        "storage-path",
        finetune({"checkpoint": {"storage": "pvc://ckpt/a/b"}}),
        finetune({"checkpoint": {"storage": "pvc://ckpt/a/../b"}}),
        "checkpoint.storage",
    ),
    Case("output-folder", finetune({"output": "pvc://adapters/a/b"}), finetune({"output": "pvc://adapters"}), "pvc://CLAIM/FOLDER"),
    Case("output-path", finetune({"output": "pvc://adapters/.hidden"}), finetune({"output": "pvc://adapters/./x"}), "the path of output"),
    Case("policy-deadline", finetune({"policy": {"deadline": "1m"}}), finetune({"policy": {"deadline": "59s"}}), "between 1m and 8760h"),
    Case(
        "policy-ttl",
        finetune({"policy": {"ttlAfterFinished": "0s"}}),
        finetune({"policy": {"ttlAfterFinished": "8761h"}}),
        "between 0s and 8760h",
    ),
    Case(
        "pod-never-restarts",
        finetune({"podTemplate": {"spec": {"restartPolicy": "Never"}}}),
        finetune({"podTemplate": {"spec": {"restartPolicy": "OnFailure"}}}),
        "must be Never",
    ),
]

FIXED_CHANGES: dict[str, Json] = {
    "model": {"model": {"source": "pvc://weights/other"}},
    "method": {"method": "full"},
    "data": {"data": {"maxLength": 1024}},
    "lora": {"lora": {"rank": 32}},
    "rl": {"method": "grpo", "rl": {"reward": RULE}, "parallelism": {"npusPerNode": 1}},
    "training": {"training": {"epochs": 2}},
    "evaluation": {"evaluation": {"share": 0.1}},
    "pool": {"pool": "other"},
    "parallelism": {"parallelism": {"npusPerNode": 2}},
    "checkpoint": {"checkpoint": {"keep": 2}},
    "output": {"output": "pvc://adapters/other"},
    "merge": {"merge": True},
}
"""A change of each field that a started job keeps."""

FREE_CHANGES: dict[str, Json] = {
    "suspend": {"policy": {"suspend": True}},
    "attempts": {"policy": {"maxAttempts": 9}},
    "deadline": {"policy": {"deadline": "9h"}},
    "ttl": {"policy": {"ttlAfterFinished": "1h"}},
    "podTemplate": {"podTemplate": {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": "8"}}}]}}},
    "no policy": {"policy": REMOVED},
}
