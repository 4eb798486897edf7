"""The three sides of supervised fine-tuning: our loop, a plain one on transformers and PEFT, TRL's trainer. Same rows, same batches.

Each trains adapters of rank 16 on the default modules in fp32, with AdamW, clipping and dropout, and tells when its steps ended. Batches
have rows of about one length, as our loop makes them, so that padding costs the others little.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
import transformers
from peft import LoraConfig as PeftConfig
from peft import get_peft_model

from benchmarks.train.text import TINY
from glm5_runtime.train.build import build
from glm5_runtime.train.checkpoint import Checkpoints
from glm5_runtime.train.config import LoraConfig, TrainConfig
from glm5_runtime.train.loop import Trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.progress import Progress

    Batches = Sequence[Sequence[Example]]

RATE, CLIP, DROPOUT, RANK = 2e-4, 1.0, 0.1, 16


@dataclass
class Clock:
    """When each step ended; also one of our loop's reporters."""

    times: list[float] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, progress: Progress | None = None) -> None:
        """A step has ended."""
        self.times.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        """From the end of the first step to that of the last: the first one makes what later ones find ready."""
        return self.times[-1] - self.times[0]


@dataclass(frozen=True)
class _Once:
    """The same batches for every epoch, as our loop asks for them."""

    batches: Batches

    def epoch(self, _number: int) -> Batches:
        return self.batches


def settings(folder: Path, steps: int, **training: Any) -> TrainConfig:  # noqa: ANN401 - fields of the section
    """Our training file."""
    return TrainConfig.model_validate(
        {
            "model": TINY,
            "data": {"files": ["rows.jsonl"]},
            "lora": {"rank": RANK, "alpha": RANK, "dropout": DROPOUT},
            "training": {
                "steps": steps,
                "dtype": "fp32",
                "device": "cpu",
                "learning_rate": RATE,
                "clip": CLIP,
                "schedule": "constant",
                **training,
            },
            "checkpoint": {"directory": folder / "checkpoints", "every_steps": 1 << 20},
            "output": folder / "adapter",
        }
    )


class Ours:
    """This project's loop."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self._trainee = build(settings(Path(folder), 1), torch.device("cpu"))

    def train(self, batches: Batches) -> float:
        """Seconds of all steps but the first."""
        with tempfile.TemporaryDirectory() as folder, Clock() as clock:
            config = settings(Path(folder), len(batches))
            checkpoints = Checkpoints(config.checkpoint.directory, 1)
            Trainer(self._trainee.model, config, _Once(batches), [], checkpoints, report=clock).run()
        return clock.seconds


def adapted(attention: str) -> Any:  # noqa: ANN401 - PEFT's own class
    """The checkpoint in transformers with PEFT's adapters on the same modules as ours."""
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32, attn_implementation=attention)
    model.config.use_cache = False
    return get_peft_model(model, peft_config())


def peft_config() -> PeftConfig:
    """As `settings`."""
    modules = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]
    return PeftConfig(r=RANK, lora_alpha=RANK, lora_dropout=DROPOUT, target_modules=modules, task_type="CAUSAL_LM")


def padded(rows: Sequence[Example]) -> dict[str, torch.Tensor]:
    """A batch as transformers takes it, [B, longest]: filled up on the right, labels -100 where nothing is learned."""
    width = max(len(row.tokens) for row in rows)
    made = {name: torch.full((len(rows), width), filler) for name, filler in (("input_ids", 0), ("attention_mask", 0), ("labels", -100))}
    for at, row in enumerate(rows):
        size = len(row.tokens)
        made["input_ids"][at, :size] = torch.tensor(row.tokens)
        made["attention_mask"][at, :size] = 1
        made["labels"][at, :size] = torch.tensor(
            [token if trained else -100 for token, trained in zip(row.tokens, row.trained, strict=True)]
        )
    return made


class Peft:
    """A plain loop as PEFT's documentation has it."""

    def __init__(self, attention: str = "sdpa") -> None:
        self._model = adapted(attention).train()

    def train(self, batches: Batches) -> float:
        """Seconds of all steps but the first."""
        trained = [each for each in self._model.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01)
        with Clock() as clock:
            for rows in batches:
                optimizer.zero_grad()
                self._model(**padded(rows)).loss.backward()
                torch.nn.utils.clip_grad_norm_(trained, CLIP)
                optimizer.step()
                clock()
        return clock.seconds


def full_checkpoints(model_dir: Path, batches: Batches, every: int) -> list[float]:
    """When each step of full training of that model ended, with a checkpoint after every so many."""
    with tempfile.TemporaryDirectory() as folder, Clock() as clock:
        config = settings(Path(folder), len(batches))
        changed = {
            "model": model_dir,
            "method": "full",
            "lora": LoraConfig(),
            "checkpoint": config.checkpoint.model_copy(update={"every_steps": every}),
        }
        config = config.model_copy(update=changed)
        model = build(config, torch.device("cpu")).model
        Trainer(model, config, _Once(batches), [], Checkpoints(config.checkpoint.directory, 1), report=clock).run()
    return clock.times
