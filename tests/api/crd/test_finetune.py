"""GLM5FinetuneJob on a real API server: what may change once it has started, types, printed columns, storage as sent."""

from __future__ import annotations

import pytest

from glm5_operator.api.finetune import GLM5FinetuneJob
from glm5_operator.api.finetune_rules import FIXED
from tests.api.crd.conftest import Api
from tests.api.crd.documents import REMOVED, Json, finetune
from tests.api.crd.finetune_cases import FIXED_CHANGES, FREE_CHANGES
from tests.api.crd.test_schema import _table
from tests.cluster.api import ApiCluster

pytestmark = pytest.mark.api

STARTED = {"startTime": "2026-01-01T00:00:00Z", "attempt": 1}

WRONG: dict[str, tuple[str, Json]] = {
    "an unknown field": ("spec.colour", finetune({"colour": "blue"})),
    "a deployment to no service": ("spec.deploy.service", finetune({"deploy": {"adapter": "support"}})),
    "a name of an adapter that is too long": (
        "spec.deploy.adapter",
        finetune({"deploy": {"service": "chat", "adapter": "a" * 65}}),
    ),
    "more than every answer right": (
        "spec.deploy.evaluate.leastExactMatch",
        finetune({"deploy": {"service": "chat", "adapter": "a", "evaluate": {"source": "pvc://d/a.jsonl", "leastExactMatch": 1.1}}}),
    ),
    "a method that there isn't": ("spec.method", finetune({"method": "dpo"})),
    "no method": ("spec.method", finetune({"method": REMOVED})),
    "no data": ("spec.data", finetune({"data": REMOVED})),
    "no checkpoints": ("spec.checkpoint", finetune({"checkpoint": REMOVED})),
    "no number of cards": ("spec.parallelism.npusPerNode", finetune({"parallelism": {"npusPerNode": REMOVED}})),
    "no card": ("spec.parallelism.npusPerNode", finetune({"parallelism": {"npusPerNode": 0}})),
    "a rank below 16": ("spec.lora.rank", finetune({"lora": {"rank": 0}})),
    "a target twice": ("spec.lora.targets[1]", finetune({"lora": {"targets": ["q", "q"]}})),
    "a rate as text": ("spec.training.learningRate", finetune({"training": {"learningRate": "2e-4"}})),
    "an unknown data format": ("spec.data.format", finetune({"data": {"format": "csv"}})),
    "an unknown number format": ("spec.training.dtype", finetune({"training": {"dtype": "fp8"}})),
    "more than half held back": ("spec.evaluation.share", finetune({"evaluation": {"share": 0.6}})),
    "no attempt": ("spec.policy.maxAttempts", finetune({"policy": {"maxAttempts": 0}})),
}


@pytest.mark.parametrize(("field", "document"), WRONG.values(), ids=WRONG)
def test_a_wrong_document_is_refused_at_its_field(api: Api, field: str, document: Json) -> None:
    verdict = api.create(document)
    assert not verdict.accepted
    assert any(field in f"{place} {message}" for place, message in verdict.causes), verdict.causes


def test_each_fixed_field_has_a_change_here() -> None:
    assert sorted(FIXED_CHANGES) == sorted(FIXED)


def test_a_started_job_keeps_what_its_checkpoints_depend_on_and_a_waiting_one_may_change(api: Api) -> None:
    assert api.create(finetune(), dry_run=False).accepted
    waiting = {name: api.update(finetune(change)).accepted for name, change in FIXED_CHANGES.items()}
    api.set_status(finetune(), STARTED)
    started = {name: api.update(finetune(change)) for name, change in FIXED_CHANGES.items()}

    assert waiting == dict.fromkeys(FIXED_CHANGES, True)
    assert {name for name, verdict in started.items() if verdict.accepted} == set()
    assert all("create another job" in message for verdict in started.values() for message in verdict.messages)


@pytest.mark.parametrize("change", FREE_CHANGES.values(), ids=FREE_CHANGES)
def test_how_long_and_how_often_a_job_tries_may_change_at_any_time(api: Api, change: Json) -> None:
    assert api.create(finetune({"policy": {"maxAttempts": 2}}), dry_run=False).accepted
    api.set_status(finetune(), STARTED)

    assert api.update(finetune({"policy": {"maxAttempts": 2}} | change)).accepted


EVERYTHING: Json = {
    "model": {"memory": "64Gi"},
    "data": {"maxLength": 1024, "longRows": "cut", "format": "openai", "lenient": True},
    "lora": {"rank": 64, "alpha": 64, "dropout": 0.05, "targets": ["q_b_proj", "o_proj"]},
    "training": {
        "epochs": 3,
        "batchSize": 8,
        "gradientAccumulation": 2,
        "learningRate": 2e-4,
        "schedule": "linear",
        "warmup": 0.1,
        "weightDecay": 0.01,
        "clip": 1,
        "dtype": "fp16",
        "activationCheckpointing": True,
        "seed": 7,
    },
    "evaluation": {"share": 0.1, "everySteps": 50, "patience": 3, "leastGain": 0.01},
    "parallelism": {"nodes": 2, "npusPerNode": 4},
    "checkpoint": {"everySteps": 50, "keep": 2},
    "merge": False,
    "deploy": {
        "service": "chat",
        "adapter": "support",
        "evaluate": {"source": "pvc://data/held.jsonl", "tolerance": 0.1, "leastExactMatch": 0.5},
        "canary": {"share": 0.1, "time": "5m", "mostFailures": 0.02, "leastRequests": 20},
    },
    "policy": {"maxAttempts": 3, "suspend": False, "deadline": "12h", "ttlAfterFinished": "24h"},
    "podTemplate": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "GLM5_DEVICE", "value": "cpu"}]}]}},
}


def test_a_spec_with_every_field_is_stored_as_it_was_sent_and_read_by_the_model(api: Api) -> None:
    sent = finetune(EVERYTHING)
    assert {*sent["spec"], "rl"} == {field.alias for field in GLM5FinetuneJob.model_fields["spec"].annotation.model_fields.values()}  # type: ignore[union-attr]
    stored = api.create(sent, dry_run=False).body
    assert stored["spec"] == sent["spec"]
    read = GLM5FinetuneJob.parse(stored)
    assert (read.spec.cards, read.spec.nodes, read.spec.memory_bytes) == (8, 2, 64 * 2**30)


BY_REWARDS: Json = {
    "method": "ppo",
    "parallelism": {"npusPerNode": 1},
    "rl": {
        "group": 4,
        "maxNewTokens": 256,
        "temperature": 0.8,
        "epochs": 2,
        "minibatches": 4,
        "clipLow": 0.1,
        "clipHigh": 0.3,
        "kl": {"coefficient": 0.01, "estimator": "k1"},
        "entropy": 0.001,
        "aggregation": "seq-mean-token-mean",
        "lengthPenalty": 0.001,
        "gamma": 0.99,
        "lam": 1,
        "valueWeight": 1,
        "valueClip": 0.5,
        "reward": {"kind": "http", "url": "http://scores:8080/score", "timeout": 5, "retries": 1},
    },
}


def test_a_job_that_learns_by_rewards_is_stored_as_it_was_sent_and_read_by_the_model(api: Api) -> None:
    sent = finetune(BY_REWARDS)
    stored = api.create(sent, dry_run=False).body
    assert stored["spec"] == sent["spec"]
    assert GLM5FinetuneJob.parse(stored).spec.cards == 1


def test_a_short_job_gets_no_default(api: Api) -> None:
    assert api.create(finetune(), dry_run=False).body["spec"] == finetune()["spec"]


def test_kubectl_get_says_whether_it_runs_which_step_of_how_many_its_loss_and_why_not(installed: ApiCluster, api: Api) -> None:
    assert api.create(finetune(), dry_run=False).accepted
    at = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [
        {"type": "Ready", "status": "False", "reason": "Training", "message": "all 1 ranks run", **at},
        {"type": "Training", "status": "True", "reason": "Training", **at},
    ]
    api.set_status(finetune(), {**STARTED, "step": 120, "totalSteps": 900, "loss": 1.2345, "cardsHeld": 4, "conditions": conditions})
    row = _table(installed.kubectl("-n", api.namespace, "get", "glm5ft", "-o", "wide"))[0]
    assert row.pop("AGE")
    assert row == {
        "NAME": "tune",
        "MODEL": "GLM-5.1",
        "TRAINING": "True",
        "STEP": "120",
        "STEPS": "900",
        "LOSS": "1.2345",
        "ATTEMPT": "1",
        "READY": "False",
        "REASON": "Training",
        "METHOD": "lora",
        "POOL": "training",
        "CARDS": "4",
        "CHECKPOINT": "",
        "MESSAGE": "all 1 ranks run",
    }
