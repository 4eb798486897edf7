"""The training file: one YAML, decoded strictly, every fault told at once with its path. No torch here.

Read by the `train` command and by whoever writes such a file (the operator renders one). A field that this module doesn't know is an
error with its name; what is only unwise is a warning (`TrainConfig.warnings`).
"""

from __future__ import annotations

import math
import os
import re
import reprlib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from glm5_runtime.config import ConfigError
from glm5_runtime.train.deepspeed import Taken, read_deepspeed
from glm5_runtime.train.rl.config import RlConfig, faults
from glm5_runtime.train.section import Section as _Section

ATTENTION = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
DENSE = ("gate_proj", "up_proj", "down_proj")
EXPERTS = "experts"
TARGETS = (*ATTENTION, *DENSE, EXPERTS)
_USUAL_NAMES = {"q": "q_b_proj", "v": "kv_b_proj"}
"""What other models call q_proj and v_proj: in MLA the matrices that give the heads their queries, and their keys and values."""

_Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_MOST_STEPS, _MOST_EPOCHS = 100_000_000, 10_000
"""As in a GLM5FinetuneJob. The steps of all epochs are counted before the first one."""


def _target(name: str) -> str:
    name = _USUAL_NAMES.get(name, name)
    if name not in TARGETS:
        raise ValueError(f"{name!r} is no module that takes an adapter; choose from {', '.join(TARGETS)}, or q and v")
    return name


def _path(path: Path) -> Path:
    if "\0" in os.fsencode(path).decode(errors="replace"):
        raise ValueError("a path holds no zero byte")
    return path


_Path = Annotated[Path, AfterValidator(_path)]


class LoraConfig(_Section):
    """Which modules get an adapter, and of what size."""

    rank: int = Field(16, ge=16, le=1024, multiple_of=16)
    """Columns of the thin matrices. A multiple of 16: what the cards' matrix units take without padding."""
    alpha: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The adapter's output is multiplied by alpha / rank. Default: the rank. Less would slow learning down unseen."""
    dropout: _Share = 0.1
    """Share of each adapter's inputs that are dropped while training."""
    targets: tuple[Annotated[str, AfterValidator(_target)], ...] = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
    """Modules by their names in the checkpoint; `experts` are both matrices of all routed experts."""

    @property
    def scale(self) -> float:
        """What the adapter's output is multiplied by."""
        return (self.alpha or self.rank) / self.rank

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.alpha is not None and self.alpha < self.rank:
            raise ValueError(f"alpha {self.alpha:g} is less than rank {self.rank}: the adapter would be scaled down; raise alpha")
        if not self.targets:
            raise ValueError("targets is empty: nothing would be trained")
        return self


class DataConfig(_Section):
    """What is learned from."""

    files: tuple[_Path, ...] = Field(min_length=1)
    """JSON-lines files, read in this order."""
    max_length: int = Field(2048, ge=16, le=1 << 20)
    """Longest row, tokens."""
    long_rows: Literal["refuse", "cut"] = "refuse"
    """What becomes of longer ones. cut: the tokens behind max_length are left out."""
    format: Literal["auto", "alpaca", "sharegpt", "openai", "text"] = "auto"
    """auto: each row says its own by its keys; else rows of another format are refused."""
    chat_template: str = "auto"
    """As the server's: auto, a version, or a file."""
    model_version: Literal["5", "5.1", "5.2", "5.3"] | None = None
    """As the server's, where the checkpoint doesn't say it."""
    lenient: bool = False
    """Leave out rows that can't be used, and say so. Else one of them ends the run before it begins."""


class TrainingConfig(_Section):
    """The optimisation itself."""

    epochs: int | None = Field(None, ge=1, le=_MOST_EPOCHS)
    """Passes over the data. Default: 3, unless steps are given."""
    steps: int | None = Field(None, ge=1, le=_MOST_STEPS)
    """Optimiser steps, instead of epochs."""
    batch_size: int = Field(8, ge=1)
    """Rows of one step, those of all cards together, so that a run is the same on any number of them."""
    batch_tokens: int | None = Field(None, ge=16)
    """Instead of batch_size: as many rows of about one length as have so many tokens, those that fill them up included."""
    packing: bool = False
    """Lay whole rows behind one another up to data.max_length, and count those as rows of a batch. Tokens see only their own row.
    Else a batch has rows of about one length."""
    gradient_accumulation: int = Field(1, ge=1, le=4)
    """Pieces that a card's rows of a step are computed in, one after the other. More than 4: lower the batch instead."""
    learning_rate: _Rate = 2e-4
    """At the end of the warm-up."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate goes on after the warm-up: to zero along a cosine or a line, or not at all."""
    warmup: _Share = 0.03
    """Share of the steps over which the rate rises from zero."""
    warmup_steps: int | None = Field(None, ge=0, le=_MOST_STEPS)
    """Instead of warmup: so many steps."""
    betas: tuple[_Share, _Share] = (0.9, 0.999)
    """What AdamW keeps of its two means after each step."""
    epsilon: _Rate = 1e-8
    """What AdamW adds to the root that it divides by."""
    weight_decay: float = Field(0.01, ge=0, lt=1, allow_inf_nan=False)
    """Of matrices; vectors (norms, biases) are left alone."""
    clip: _Rate = 1.0
    """Longest gradient: a longer one is shortened to it."""
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Type of the computation. What is trained, and what decides choices, stays fp32; fp16 scales the loss."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the layer again: a third more time, a fraction of the memory."""
    seed: int = Field(0, ge=0, lt=1 << 32)
    """Of initial values, order and dropout: the same seed gives the same run."""
    device: Literal["auto", "cpu", "npu", "cuda"] = "auto"
    """auto: as the variable GLM5_DEVICE says, else the accelerator that torch finds, else the CPU."""
    sharding: Literal["fsdp", "ddp"] = "fsdp"
    """With several ranks. fsdp: each holds a part of the model and of the optimiser's state, layer by layer. ddp: each holds all of it."""
    rendezvous_timeout: int = Field(600, ge=1, le=86400)
    """Seconds for all ranks to come; then the run ends and names those that are missing."""
    exchange_timeout: int = Field(1800, ge=10, le=86400)
    """Seconds for one exchange between ranks: what a rank that hangs costs. Longer than writing the result takes."""

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps both say when to end; keep one")
        if self.batch_tokens is not None and "batch_size" in self.model_fields_set:
            raise ValueError("batch_size and batch_tokens both say how large a batch is; keep one")
        if self.warmup_steps is not None and "warmup" in self.model_fields_set:
            raise ValueError("warmup and warmup_steps both say how long the rate rises; keep one")
        return self

    def rising(self, total: int) -> int:
        """Steps of so many over which the rate rises."""
        return math.ceil(self.warmup * total) if self.warmup_steps is None else self.warmup_steps


class EvaluationConfig(_Section):
    """Rows that are held back, and what their loss decides."""

    share: float = Field(0.0, ge=0, le=0.5, allow_inf_nan=False)
    """Of the files' rows, chosen by the seed; all examples of a row are on one side. 0: nothing is held back."""
    every_steps: int = Field(100, ge=1)
    """Steps between two evaluations; one more at the end."""
    patience: int | None = Field(None, ge=1)
    """Stop after so many evaluations in a row without a better loss. Default: never."""
    least_gain: float = Field(0.0, ge=0, allow_inf_nan=False)
    """What a loss must be lower by to count as better."""


class CheckpointConfig(_Section):
    """Where a run goes on after a fault."""

    directory: _Path
    """Folder for the checkpoints of this run alone."""
    every_steps: int = Field(100, ge=1)
    """Steps between two: what a fault costs at most."""
    keep: int = Field(3, ge=1)
    """Newest ones that stay. The second is there for the case that the newest is damaged."""


class TrainConfig(_Section):
    """One training run."""

    model: _Path
    """Checkpoint folder of the base model."""
    method: Literal["lora", "full", "grpo", "ppo"] = "lora"
    """lora: thin matrices beside the frozen model. full: every parameter but the indexer's. grpo, ppo: the same matrices, by rewards."""
    data: DataConfig
    lora: LoraConfig = LoraConfig()
    rl: RlConfig | None = None
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig
    output: _Path
    """Folder of the result: an adapter in PEFT's format, or a checkpoint."""
    merge: bool = False
    """With lora: write a whole checkpoint with the adapter added to the weights, not the adapter."""
    deepspeed: _Path | None = None
    """A DeepSpeed JSON, for what the section training leaves open."""
    _notes: tuple[str, ...] = PrivateAttr(())
    """What of it is without a meaning here, or done in another way."""

    @model_validator(mode="after")
    def _sections_fit_the_method(self) -> Self:
        if self.method == "full" and {"lora", "merge"} & self.model_fields_set:
            raise ValueError("lora and merge belong to methods that train adapters; remove them or change the method")
        if found := self._rl_faults():
            raise ValueError("; ".join(found))
        if self.evaluation.patience is not None and not self.evaluation.share:
            raise ValueError("evaluation.patience needs rows to judge by: set evaluation.share")
        return self

    def _rl_faults(self) -> list[str]:
        if not self.is_rl:
            return [] if self.rl is None else ["rl belongs to methods grpo and ppo; remove it or change the method"]
        if self.rl is None:
            return [f"method {self.method} needs the section rl"]
        not_there = {
            "lora.dropout: old and new log-probabilities would differ by chance; leave it out": "dropout" in self.lora.model_fields_set
            and self.lora.dropout > 0,
            "evaluation.share: rows aren't held back with grpo and ppo; leave it out": self.evaluation.share > 0,
            "training.batch_tokens and training.packing: a batch of grpo and ppo is so many prompts, batch_size": (
                self.training.batch_tokens is not None or self.training.packing
            ),
        }
        return [message for message, applies in not_there.items() if applies] + faults(self.rl, self.method)

    @property
    def is_rl(self) -> bool:
        """Whether it learns from its own answers."""
        return self.method in {"grpo", "ppo"}

    @property
    def has_adapters(self) -> bool:
        """Whether thin matrices are trained, beside a frozen model."""
        return self.method != "full"

    @property
    def warnings(self) -> list[str]:
        """What is allowed and has been seen to go wrong."""
        training, length = self.training, self.data.max_length
        dense = [name for name in self.lora.targets if name in DENSE]
        found = {
            f"training.learning_rate {training.learning_rate:g} is above 3e-4; losses may jump": training.learning_rate > 3e-4,
            f"training.clip {training.clip:g} is outside 0.8 to 1.2": not 0.8 <= training.clip <= 1.2,
            f"training.dtype bf16 with batch_size {training.batch_size} and data.max_length {length} is not known to be stable;"
            " take fp16, a batch of 8 or more, and at most 2048 tokens": training.dtype == "bf16"
            and (training.batch_size < 8 or length > 2048),
            f"lora.targets {', '.join(dense)}: dense layers' adapters make a model forget more, and PEFT can't load them for this one": (
                self.has_adapters and bool(dense)
            ),
        }
        return [*self._notes, *(message for message, applies in found.items() if applies)]


class _Yaml(yaml.SafeLoader):
    """YAML as kubectl reads it: `2e-4` is a number, and no key stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands here twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Yaml.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+"), list("-+.0123456789"))


def read_config(path: Path, ranks: int = 1) -> TrainConfig:
    """The training file; raises ConfigError with every fault found. Relative paths count from the working folder.

    `ranks`: those of the whole run, by which a DeepSpeed JSON may multiply its batch.
    """
    try:
        raw = yaml.load(path.read_text(), _Yaml)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable ({error})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, AttributeError) as error:  # of PyYAML's constructors: a date with a month 13, an integer of 5000 digits
        raise ConfigError(f"{path}: holds a value that can't be read ({error})") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds a {type(raw).__name__}, expected sections such as model, data, training")
    taken = _with_deepspeed(raw, ranks)
    faults = [f"{raw['deepspeed']}: {fault}" for fault in taken.faults]
    try:
        config = TrainConfig.model_validate(raw)
    except ValidationError as error:
        faults += [_say(dict(fault), taken.origins) for fault in error.errors()]
        raise ConfigError(f"{path}: " + "; ".join(faults)) from error
    if faults := faults + _lost_by_output(path, config):
        raise ConfigError(f"{path}: " + "; ".join(faults))
    config._notes = tuple(taken.warnings)
    return config


def _lost_by_output(path: Path, config: TrainConfig) -> list[str]:
    """What is read or kept in the folder that the result takes the place of."""
    output = config.output.resolve()
    needed = [("model", config.model), ("checkpoint.directory", config.checkpoint.directory), ("the training file", path)]
    needed += [("data.files", each) for each in config.data.files]
    return [
        f"output: {config.output} is or holds {name}, {each}, and the result takes the place of all of it; name a folder of its own"
        for name, each in needed
        if each.resolve().is_relative_to(output)
    ]


def _with_deepspeed(raw: dict[str, Any], ranks: int) -> Taken:
    """Put what the DeepSpeed JSON says where the file says nothing; what was found in it."""
    name, stated = raw.get("deepspeed"), raw.get("training") or {}
    if not isinstance(name, str) or not isinstance(stated, dict):
        return Taken()
    taken = read_deepspeed(Path(name), stated, ranks)
    raw["training"] = taken.training | stated
    return taken


def _say(fault: dict[str, Any], origins: dict[str, str]) -> str:
    """One fault with the field's path, and with the key of the DeepSpeed JSON that it came from."""
    field = ".".join(map(str, fault["loc"]))
    if fault["loc"][:1] == ("training",) and len(fault["loc"]) > 1 and fault["loc"][1] in origins:
        field += f" (deepspeed: {origins[str(fault['loc'][1])]})"
    if fault["type"] == "extra_forbidden":
        return f"{field}: unknown; remove it or correct its name"
    if fault["type"] == "missing":
        return f"{field}: missing"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{field}: {message}" if field else message
    return f"{field}: {message}, is {_shown(fault['input'])[:80]!r}"


def _shown(value: object) -> str:
    """By its beginning: aliases of YAML make a few bytes an endless list."""
    return reprlib.repr(value) if isinstance(value, dict | list) else str(value)
