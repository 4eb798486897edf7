"""`glm5 inference` with this project's own runtime and the trained test model: nothing is faked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "fixtures" / "tiny-glm5"
GLM5 = Path(sys.executable).with_name("glm5")


@pytest.mark.parametrize("words", [("--prompt", "Who are you?"), ()], ids=["a prompt", "standard input"])
def test_the_model_answers_a_question_from_the_terminal(words: tuple[str, ...]) -> None:
    command = [str(GLM5), "inference", "--model", str(MODEL), "--device", "cpu", *words]
    done = subprocess.run(command, input="Who are you?", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("I am tiny-glm5")


def test_a_checkpoint_that_is_cut_short_is_told_in_the_engines_words(tmp_path: Path) -> None:
    for path in MODEL.iterdir():
        if path.is_file():
            data = path.read_bytes()
            (tmp_path / path.name).write_bytes(data[: len(data) // 2] if path.suffix == ".safetensors" else data)
    command = [str(GLM5), "inference", "--model", str(tmp_path), "--device", "cpu", "--prompt", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 8
    assert "error: the engine ended with code" in done.stderr.splitlines()[-1]
    assert "model.safetensors" in done.stderr.splitlines()[-1]
