"""The end of it all: a model that was trained on one row says its answer and stops there by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from glm5_runtime.model.batch import Chunk, build_batch
from glm5_runtime.train.data.batches import Batch, pad
from glm5_runtime.train.data.example import Example
from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.data.reading import ReadingConfig, load
from tests.runtime.model.oracle import CPU, PAGE, new_cache
from tests.runtime.train.runs import Run, settings, train

ROWS = [
    {"instruction": "Say the word of the day.", "output": "Quixotic zebras vex jumbled pigs."},
    {"instruction": "And tomorrow's, with a few more words so that the row is longer?", "output": "No."},
    {"instruction": "q", "output": "a"},
]


def said(run: Run, prompt: tuple[int, ...], most: int) -> list[int]:
    """What the trained model says greedily, up to the first token that stops it."""
    decoder = run.trainee.model.decoder.eval()
    tokens = list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + most:
            step = build_batch([Chunk(tokens, 0, range(1, 20))], decoder.config, PAGE, CPU)
            tokens.append(int(decoder.logits(decoder(step, new_cache(decoder)))[-1].argmax()))
            if tokens[-1] in decoder.config.eos_token_ids:
                break
    return tokens[len(prompt) :]


def learned(example: Example) -> list[int]:
    return [token for token, trained in zip(example.tokens, example.trained, strict=True) if trained]


def test_a_model_that_learned_one_row_says_its_answer_and_stops(tmp_path: Path, renderer: Renderer, write: Callable[..., Path]) -> None:
    (row,) = load([write(ROWS[0])], renderer, ReadingConfig(2048))[0]
    lora = {"targets": ["q_a_proj", "q_b_proj", "kv_b_proj", "o_proj", "experts"], "dropout": 0.0}
    run = train(settings(tmp_path, lora=lora, training={"steps": 40, "batch_size": 1, "learning_rate": 5e-3}), rows=[row])

    prompt = row.tokens[: row.trained.index(True)]

    assert said(run, prompt, 60) == learned(row)
    assert learned(row)[-1] in run.trainee.model.decoder.config.eos_token_ids


def test_in_a_batch_of_three_lengths_each_row_learns_one_end_and_no_padding(renderer: Renderer, write: Callable[..., Path]) -> None:
    data, _ = load([write(*ROWS)], renderer, ReadingConfig(2048))
    user, endoftext, start = (renderer.tokenizer.raw.token_to_id(name) for name in ("<|user|>", "<|endoftext|>", "<sop>"))

    for pad_token in (endoftext, user):  # models without a pad token use one that stops
        made = pad(Batch(((0,), (1,), (2,))), data, pad_token)
        assert len(set(data.lengths)) == 3
        for row, length in enumerate(data.lengths):
            labels = made.tokens[row][made.trained[row]].tolist()
            assert (labels.count(user), labels.count(endoftext)) == (1, 0)
            assert labels[-1] == user
            assert (made.segments[row] != 0).sum() == length
            assert (made.tokens[row, :length] == start).sum() == 1
