"""TRL's trainers on the same model, adapters and batches as `sides`: supervised fine-tuning, and GRPO with transformers' generation."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer, TrainerCallback

from benchmarks.train.sides import CLIP, RATE, Clock, adapted, padded
from benchmarks.train.text import TINY

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.train.sides import Batches

COMMON: dict[str, Any] = {  # as the other sides; TRL's own defaults would recompute activations and take bf16
    "learning_rate": RATE,
    "max_grad_norm": CLIP,
    "weight_decay": 0.01,
    "lr_scheduler_type": "constant",
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "train_sampling_strategy": "sequential",
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


class _Told(TrainerCallback):
    """Steps' ends on a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_end(self, *_: object, **__: object) -> None:
        self._clock()


def tokenizer() -> Any:  # noqa: ANN401 - transformers' own class
    """The model's, with a token to fill rows up with."""
    found = AutoTokenizer.from_pretrained(TINY)
    found.pad_token = "<|endoftext|>"
    return found


class TrlSft:
    """SFTTrainer on rows that are tokenised."""

    def __init__(self, attention: str = "sdpa") -> None:
        self._model = adapted(attention)

    def train(self, batches: Batches) -> float:
        """Seconds of all steps but the first."""
        size = len(batches[0])
        assert all(len(rows) == size for rows in batches)
        rows = []
        for batch in batches:
            made = padded(batch)
            for row, ids, labels in zip(batch, made["input_ids"].tolist(), made["labels"].tolist(), strict=True):
                rows.append({"input_ids": ids[: len(row.tokens)], "labels": labels[: len(row.tokens)]})
        with tempfile.TemporaryDirectory() as folder, Clock() as clock:
            config = SFTConfig(folder, per_device_train_batch_size=size, max_steps=len(batches), max_length=None, **COMMON)
            data = Dataset.from_list(rows)
            SFTTrainer(self._model, config, train_dataset=data, processing_class=tokenizer(), callbacks=[_Told(clock)]).train()
        assert len(clock.times) == len(batches)
        return clock.seconds


class TrlGrpo:
    """GRPOTrainer; `lengths` of all answers of the last run, in tokens."""

    def __init__(self, attention: str = "sdpa") -> None:
        self._model = adapted(attention)
        self.lengths: list[int] = []

    def train(self, prompts: Sequence[str], steps: int, group: int, new: int, score: Callable[[str], float]) -> Clock:
        """So many steps, each on all prompts with `group` answers of up to `new` tokens."""
        self.lengths = []

        def reward(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
            self.lengths += [len(ids) for ids in completion_ids]
            return [score(text) for text in completions]

        with tempfile.TemporaryDirectory() as folder, Clock() as clock:
            config = GRPOConfig(
                folder,
                per_device_train_batch_size=len(prompts) * group,
                num_generations=group,
                max_completion_length=new,
                max_steps=steps,
                beta=0.0,
                shuffle_dataset=False,
                **{name: value for name, value in COMMON.items() if name != "train_sampling_strategy"},
            )
            data = Dataset.from_list([{"prompt": prompt} for prompt in prompts] * steps)
            GRPOTrainer(self._model, reward, config, train_dataset=data, processing_class=tokenizer(), callbacks=[_Told(clock)]).train()
        return clock
