"""The tiny model's own tokenizer and GLM-5's template; files are written into the test's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_runtime.config import ModelConfig
from glm5_runtime.text.template import built_in
from glm5_runtime.text.tokens import TextTokenizer
from glm5_runtime.train.data.labels import Renderer

ROOT = Path(__file__).resolve().parents[4]
TINY = ROOT / "tests" / "fixtures" / "tiny-glm5"
FIXTURES = ROOT / "tests" / "fixtures" / "data"


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.from_dir(TINY)


@pytest.fixture(scope="session")
def renderer(tokenizer: TextTokenizer) -> Renderer:
    return Renderer(built_in("5"), tokenizer, ModelConfig.from_dir(TINY).eos_token_ids)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A file of these rows: objects are written as JSON, texts and bytes as they are."""

    def written(*rows: object, name: str = "train.jsonl") -> Path:
        lines = [row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row in rows]
        path = tmp_path / name
        path.write_bytes(b"\n".join(lines) + (b"\n" if lines else b""))
        return path

    return written
