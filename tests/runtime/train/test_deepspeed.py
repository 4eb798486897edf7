"""DeepSpeed's JSON beside a training file: what is taken over, left open, ignored by name, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from glm5_runtime.config import ConfigError
from glm5_runtime.train.config import TrainConfig, TrainingConfig, read_config
from glm5_runtime.train.optimizer import adamw

Json = dict[str, Any]

HUGGING_FACE: Json = {  # the ZeRO-3 file of transformers' documentation, as thousands of repositories have it
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
WITH_NUMBERS: Json = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.9,
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "optimizer": {
        "type": "Adam",
        "params": {"lr": 5e-5, "betas": [0.9, 0.95], "eps": 1e-7, "weight_decay": 0.1, "torch_adam": True, "adam_w_mode": True},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 50, "total_num_steps": 1000, "warmup_type": "linear"},
    },
    "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": False},
    "zero_optimization": {"stage": 3},
}


def read(folder: Path, deepspeed: object, ranks: int = 1, **training: Any) -> TrainConfig:  # noqa: ANN401 - fields of the section
    (folder / "ds.json").write_text(deepspeed if isinstance(deepspeed, str) else json.dumps(deepspeed))
    raw = {
        "model": "m",
        "data": {"files": ["f"]},
        "checkpoint": {"directory": "c"},
        "output": "o",
        "deepspeed": str(folder / "ds.json"),
        "training": training,
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(raw))
    return read_config(folder / "train.yaml", ranks)


def said(folder: Path, deepspeed: object, **training: Any) -> str:  # noqa: ANN401 - as above
    with pytest.raises(ConfigError) as refused:
        read(folder, deepspeed, **training)
    return str(refused.value)


def test_auto_leaves_everything_to_the_training_file(tmp_path: Path) -> None:
    config = read(tmp_path, HUGGING_FACE, batch_size=16, learning_rate=1e-4, dtype="fp16", clip=1.1, epochs=2)

    assert config.training == TrainingConfig(
        batch_size=16, learning_rate=1e-4, dtype="fp16", clip=1.1, epochs=2, schedule="constant", sharding="fsdp"
    )


def test_what_has_no_meaning_here_is_named(tmp_path: Path) -> None:
    first, second, *_ = read(tmp_path, HUGGING_FACE).warnings

    assert first.startswith("deepspeed: ignored, without a meaning here: steps_per_print, wall_clock_breakdown, ")
    zero = [f"zero_optimization.{key}" for key in HUGGING_FACE["zero_optimization"] if key != "stage"]
    scaling = [f"fp16.{key}" for key in HUGGING_FACE["fp16"] if key != "enabled"]
    assert set(first.partition("here: ")[2].split(", ")) == {"steps_per_print", "wall_clock_breakdown", *zero, *scaling}
    assert second == "deepspeed: the rate rises along a line (scheduler.params.warmup_type linear)"


def test_numbers_are_taken_over(tmp_path: Path) -> None:
    config = read(tmp_path, WITH_NUMBERS, ranks=8)

    assert config.training == TrainingConfig(
        batch_size=64,
        gradient_accumulation=2,
        clip=0.9,
        dtype="bf16",
        learning_rate=1e-4,  # the schedule's: DeepSpeed writes it over the optimiser's
        betas=(0.9, 0.95),
        epsilon=1e-7,
        weight_decay=0.1,
        schedule="linear",
        warmup_steps=50,
        steps=1000,
        activation_checkpointing=True,
        sharding="fsdp",
    )
    group = adamw(torch.nn.Linear(2, 2), config.training).param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.9, 0.95), 1e-7)


def test_a_batch_for_each_card_is_multiplied_by_pieces_and_cards(tmp_path: Path) -> None:
    micro = {"train_micro_batch_size_per_gpu": 3}

    assert read(tmp_path, micro | {"gradient_accumulation_steps": 4}, ranks=8).training.batch_size == 96
    assert read(tmp_path, micro, ranks=2, gradient_accumulation=2).training.batch_size == 12


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"zero_optimization": {"stage": 0}}, {"sharding": "ddp"}),
        ({"zero_optimization": {"stage": 2}}, {"sharding": "fsdp"}),
        ({"fp16": {"enabled": True}}, {"dtype": "fp16"}),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": False}}, {"dtype": "fp32"}),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": "auto"}}, {}),
        (
            {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9, "warmup_num_steps": 3}}},
            {"steps": 9, "warmup_steps": 3},
        ),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}}, {"learning_rate": 3e-5}),
        ({"amp": {"enabled": False}, "elasticity": {"enabled": False}}, {}),
        ({}, {}),
    ],
    ids=str,
)
def test_each_part_alone(tmp_path: Path, part: Json, expected: Json) -> None:
    assert read(tmp_path, part).training == TrainingConfig(**expected)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"train_batchsize": 8}, "train_batchsize: unknown; is train_batch_size meant?"),
        ({"zero_optimization": {"stage": 3, "stage3_prefetch": 1}}, "zero_optimization.stage3_prefetch: unknown"),
        ({"fp16": {"enable": True}}, "fp16.enable: unknown; is enabled meant?"),
        ({"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}}, "optimizer.params.learning_rate: unknown"),
        ({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 5}}}, "scheduler.params.total_num_steps: unknown"),
        ({"optimizer": {"type": "Lamb"}}, "optimizer.type: 'Lamb' is not supported here; AdamW is"),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "optimizer.params.adam_w_mode: AdamW with this changed"),
        ({"scheduler": {"type": "OneCycle"}}, "scheduler.type: 'OneCycle' is not supported here"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-6}}}, "scheduler.params.warmup_min_lr: 1e-06 is not supported"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both are true; keep one"),
        ({"bf16": {"enabled": "yes"}}, "bf16.enabled: is 'yes', expected true, false or 'auto'"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: is 4, expected 0 to 3"),
        ({"zero_optimization": True}, "zero_optimization: is True, expected an object"),
        ({"compression_training": {"weight_quantization": {}}}, "compression_training: not supported here"),
        ({"train_micro_batch_size_per_gpu": 0}, "train_micro_batch_size_per_gpu: 0 rows in 1 pieces"),
        (
            {"gradient_accumulation_steps": 16},
            "training.gradient_accumulation (deepspeed: gradient_accumulation_steps): Input should be less",
        ),
        ({"gradient_clipping": 0}, "training.clip (deepspeed: gradient_clipping): Input should be greater than 0"),
        ("{", "not readable as JSON"),
        ("[" * 100_000, "not readable as JSON"),
        ({"scheduler": {"type": ["WarmupLR"]}}, "scheduler.type: ['WarmupLR'] is not supported here"),
        ([1], "holds no JSON object"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_unknown_or_would_be_learned_otherwise_is_refused_by_its_name(tmp_path: Path, part: object, message: str) -> None:
    assert message in said(tmp_path, part)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"batch_size": 8}, "train_batch_size: training.batch_size is 8 in the training file and 64 here; keep one, or say 'auto' here"),
        ({"dtype": "fp16"}, "bf16.enabled: training.dtype is 'fp16' in the training file and 'bf16' here"),
        ({"epochs": 2}, "scheduler.params.total_num_steps: the training file says the same by training.epochs"),
        ({"warmup": 0.1}, "scheduler.params.warmup_num_steps: the training file says the same by training.warmup"),
    ],
    ids=str,
)
def test_two_files_that_say_different_things_are_refused(tmp_path: Path, training: Json, message: str) -> None:
    assert message in said(tmp_path, WITH_NUMBERS, **training)


def test_all_faults_of_both_files_are_told_at_once(tmp_path: Path) -> None:
    message = said(tmp_path, {"nothing": 1, "optimizer": {"type": "Lion"}}, rate=3)

    assert all(part in message for part in ("nothing: unknown", "'Lion' is not supported", "training.rate: unknown"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    read(tmp_path, {})
    (tmp_path / "ds.json").unlink()

    with pytest.raises(ConfigError, match=r"ds\.json: not readable as JSON"):
        read_config(tmp_path / "train.yaml")
