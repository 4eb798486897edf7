"""Every training file that the operator can render is one that the runtime reads, with the same meaning; and both know the same exit codes.

The two packages don't know each other: this test stands between them. Nothing is faked; nothing is started.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glm5_operator.api.finetune import DataFormat, Dtype, LongRows, Method, Schedule, Sharding
from glm5_operator.api.finetune_rl import Aggregation, Estimator, RewardRule
from glm5_operator.api.finetune_rules import TARGETS
from glm5_operator.plan.check import HOPELESS, check_objects
from glm5_operator.plan.finetune_findings import advice
from glm5_operator.plan.places import Places, places_of
from glm5_operator.plan.training_file import training_file
from glm5_operator.status.ends import Cause, pod_end
from glm5_runtime.cli import app
from glm5_runtime.train import command
from glm5_runtime.train.config import TrainConfig, read_config
from tests.support.runs import failed
from tests.unit.plan.test_attempt import child, job, plan, trainer_of

Json = dict[str, Any]


def read(spec: Json, folder: Path) -> TrainConfig:
    text = child(plan(job(spec)), "ConfigMap")["data"]["train.yaml"]
    file = folder / "train.yaml"
    file.write_text(text)
    return read_config(file)


def test_a_short_job_leaves_every_default_to_the_runtime(tmp_path: Path) -> None:
    config = read({}, tmp_path)

    assert config.model_fields_set == {"model", "method", "data", "checkpoint", "output"}
    assert (config.model, config.output) == (Path("/models/tiny"), Path("/output/support"))
    assert config.data.files == (Path("/data/qa.jsonl"),)
    assert config.checkpoint.directory == Path("/checkpoints/tune-01234567")


EVERYTHING: Json = {
    "data": {"source": "pvc://data/qa.jsonl", "maxLength": 1024, "longRows": "cut", "format": "openai", "lenient": True},
    "lora": {"rank": 64, "alpha": 96, "dropout": 0, "targets": ["q", "experts"]},
    "training": {
        "steps": 100,
        "batchSize": 16,
        "gradientAccumulation": 2,
        "learningRate": 1e-5,
        "schedule": "constant",
        "warmup": 0,
        "weightDecay": 0,
        "clip": 1,
        "dtype": "fp16",
        "activationCheckpointing": True,
        "packing": True,
        "sharding": "ddp",
        "seed": 7,
    },
    "evaluation": {"share": 0.1, "everySteps": 50, "patience": 3, "leastGain": 0.01},
    "checkpoint": {"storage": "pvc://ckpt", "everySteps": 50, "keep": 2},
    "merge": True,
}


def test_every_field_reaches_the_runtime_with_its_value(tmp_path: Path) -> None:
    config = read(EVERYTHING, tmp_path)

    assert (config.data.max_length, config.data.long_rows, config.data.format, config.data.lenient) == (1024, "cut", "openai", True)
    assert (config.lora.rank, config.lora.alpha, config.lora.dropout) == (64, 96, 0)
    assert config.lora.targets == ("q_b_proj", "experts")
    training = config.training
    assert (training.steps, training.batch_size, training.gradient_accumulation, training.learning_rate) == (100, 16, 2, 1e-5)
    assert (training.schedule, training.warmup, training.weight_decay, training.clip) == ("constant", 0, 0, 1)
    assert (training.dtype, training.activation_checkpointing, training.seed) == ("fp16", True, 7)
    assert (training.packing, training.sharding) == (True, "ddp")
    evaluation = config.evaluation
    assert (evaluation.share, evaluation.every_steps, evaluation.patience, evaluation.least_gain) == (0.1, 50, 3, 0.01)
    assert (config.checkpoint.every_steps, config.checkpoint.keep, config.merge) == (50, 2, True)


BY_REWARDS: Json = {
    "method": "ppo",
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


def test_every_field_of_learning_by_rewards_reaches_the_runtime_with_its_value(tmp_path: Path) -> None:
    config = read(BY_REWARDS, tmp_path)

    assert config.rl is not None
    found = config.rl.model_dump(by_alias=False, exclude_unset=True)
    stated = {re.sub("([A-Z])", lambda match: f"_{match[1].lower()}", name): value for name, value in BY_REWARDS["rl"].items()}
    assert found == stated


@pytest.mark.parametrize(
    "rl",
    [
        *({"reward": {"kind": "rule", "rule": rule, "pattern": "x"}} for rule in RewardRule.__args__),  # type: ignore[attr-defined] # a Literal
        *({"reward": {"kind": "rule"}, "aggregation": way} for way in Aggregation.__args__),  # type: ignore[attr-defined]
        *({"reward": {"kind": "rule"}, "kl": {"coefficient": 1, "estimator": way}} for way in Estimator.__args__),  # type: ignore[attr-defined]
        {"reward": {"kind": "rule"}, "divideBySpread": False},
    ],
)
def test_each_choice_of_learning_by_rewards_is_one_of_the_runtime(rl: Json, tmp_path: Path) -> None:
    assert read({"method": "grpo", "rl": rl}, tmp_path).is_rl


def test_a_batch_may_be_stated_in_tokens(tmp_path: Path) -> None:
    assert read({"training": {"batchTokens": 4096}}, tmp_path).training.batch_tokens == 4096


def test_the_model_version_follows_from_the_name(tmp_path: Path) -> None:
    wanted = job({"model": {"name": "GLM-5.2", "source": "pvc://w/x"}})
    places = places_of(wanted)
    assert isinstance(places, Places)
    file = tmp_path / "train.yaml"
    file.write_text(training_file(wanted.spec, places))

    assert read_config(file).data.model_version == "5.2"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (Method, "method"),
        (Schedule, "training.schedule"),
        (Dtype, "training.dtype"),
        (Sharding, "training.sharding"),
        (LongRows, "data.longRows"),
        (DataFormat, "data.format"),
    ],
)
def test_each_value_of_a_choice_is_one_of_the_runtime(values: Any, key: str, tmp_path: Path) -> None:  # noqa: ANN401 - a Literal
    section, _, field = key.rpartition(".")
    for value in values.__args__:
        base: Json = {"data": {"source": "pvc://data/sets/qa.jsonl"}}
        if value in {"grpo", "ppo"}:
            base["rl"] = {"reward": {"kind": "rule"}}
        spec = base | ({section: {**base.get(section, {}), field: value}} if section else {field: value})
        read(spec, tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_is_one_of_the_runtime(target: str, tmp_path: Path) -> None:
    assert len(read({"lora": {"targets": [target]}}, tmp_path).lora.targets) == 1


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"training": {"learningRate": 4e-4}},
        {"training": {"clip": 1.3}},
        {"training": {"batchSize": 4}},
        {"training": {"batchSize": 4, "dtype": "fp32"}},
        {"data": {"source": "pvc://data/qa.jsonl", "maxLength": 4096}},
        {"lora": {"targets": ["up_proj"]}},
    ],
)
def test_what_the_operator_advises_against_the_runtime_warns_of(spec: Json, tmp_path: Path) -> None:
    assert len(advice(job(spec, parallelism={"npusPerNode": 1}).spec)) == len(read(spec, tmp_path).warnings)


def test_the_exit_codes_have_the_causes_that_the_runtime_means() -> None:
    expected = {
        "ConfigError": Cause.CONFIGURATION,
        "TemplateError": Cause.CONFIGURATION,
        "WeightsError": Cause.CONFIGURATION,
        "DataError": Cause.DATA,
        "NotFinite": Cause.NUMERICAL,
        "CheckpointError": Cause.STORAGE,
        "ExportError": Cause.STORAGE,
        "FileMissingError": Cause.STORAGE,
        "RankLost": Cause.RANK_LOST,
        "Superseded": Cause.SUPERSEDED,
        "RewardError": Cause.REWARD,
        "Interrupted": Cause.UNKNOWN,
    }
    found = {}
    for kind, code in command.EXIT_CODES.items():
        end = pod_end(failed(code=code, word={"outcome": kind.__name__, "message": "m"}), node_is_lost=False)
        found[kind.__name__] = end.cause if end else None

    assert found == expected


def test_the_command_is_one_that_the_runtime_has() -> None:
    trainer = trainer_of(plan(job()))
    assert trainer["command"] == ["glm5-runtime", "train"]
    answer = CliRunner().invoke(app, ["train", *trainer["args"]])

    # No such file on this machine: the arguments were read, the file wasn't.
    assert answer.exit_code == 2
    assert "/etc/glm5/train.yaml: not readable" in answer.output + str(answer.stderr)


def test_the_check_is_a_command_that_the_runtime_has_and_its_hopeless_codes_are_those_of_settings_and_data() -> None:
    template = plan(job()).template
    assert template is not None
    _, made = check_objects(job(), template)
    container = made["spec"]["template"]["spec"]["containers"][0]
    answer = CliRunner().invoke(app, ["train", *container["args"]])

    assert answer.exit_code == 2
    assert "/etc/glm5/train.yaml: not readable" in answer.output + str(answer.stderr)
    codes = {
        code for kind, code in command.EXIT_CODES.items() if kind.__name__ in {"ConfigError", "TemplateError", "WeightsError", "DataError"}
    }
    assert set(HOPELESS) == codes
