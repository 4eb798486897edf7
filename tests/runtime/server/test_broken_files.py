"""Files of a checkpoint that can't be used are named at start, with what is wrong and the remedy; no client is ever blamed for them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm5_runtime.config import ConfigError, EngineConfig
from glm5_runtime.server.params import SamplingDefaults
from glm5_runtime.server.process import _load_model
from glm5_runtime.server.service import ServerSettings
from glm5_runtime.text.template import TemplateError, find_template
from glm5_runtime.text.tokens import TextTokenizer
from tests.support.serving import TINY

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 20217442\n"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The tiny model's small files."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path / name)
    return tmp_path


def template(folder: Path) -> object:
    return find_template(folder, "auto")


READERS: list[tuple[str, Callable[[Path], object]]] = [
    ("tokenizer.json", TextTokenizer.from_dir),
    ("tokenizer_config.json", template),
    ("chat_template.jinja", template),
    ("generation_config.json", SamplingDefaults.from_dir),
]
JSON_READERS = [(name, read) for name, read in READERS if name.endswith(".json")]


@pytest.mark.parametrize(("name", "read"), READERS, ids=[name for name, _ in READERS])
def test_a_git_lfs_pointer_is_recognised(checkpoint: Path, name: str, read: Callable[[Path], object]) -> None:
    (checkpoint / name).write_bytes(POINTER)

    with pytest.raises(ConfigError, match=rf"{name}: is a Git LFS pointer.*git lfs pull"):
        read(checkpoint)


@pytest.mark.parametrize(
    "content", [b"", b'{"added_tokens": [{"id": 1, "con', b"[1]", b"\xff\xfe{"], ids=["empty", "cut", "list", "binary"]
)
@pytest.mark.parametrize(("name", "read"), JSON_READERS, ids=[name for name, _ in JSON_READERS])
def test_a_file_that_was_not_downloaded_whole_is_named_with_the_remedy(
    checkpoint: Path, name: str, read: Callable[[Path], object], content: bytes
) -> None:
    (checkpoint / name).write_bytes(content)

    with pytest.raises(ConfigError, match=rf"{name}: .*download the file again"):
        read(checkpoint)


def test_a_template_that_is_no_text_is_named_with_the_remedy(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_bytes(b"\xff\xfe{")

    with pytest.raises(TemplateError, match=r"chat_template\.jinja: .*download the file again"):
        find_template(checkpoint, "auto")


def test_json_that_is_no_tokenizer_is_named_with_the_librarys_reason(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text('{"model": {"type": "Unheard"}}')

    with pytest.raises(ConfigError, match=r"tokenizer\.json: no tokenizer that this runtime can read \(.+\); take it from"):
        TextTokenizer.from_dir(checkpoint)


def _vocabulary_beyond_the_models(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["vocab"]["ZZZ"] = 5000


def _added_token_beyond_the_models(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 2048, "content": "<|new|>"})


def _half_a_vocabulary(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["vocab"] = {token: number for token, number in tokenizer["model"]["vocab"].items() if number < 1024}
    tokenizer["model"]["merges"] = []


def _no_role_tokens(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] != "<|user|>"]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (_vocabulary_beyond_the_models, "has token ids up to 5000, and vocab_size is 2048"),
        (_added_token_beyond_the_models, "has token ids up to 2048, and vocab_size is 2048"),
        (_half_a_vocabulary, "knows 1024 tokens, and vocab_size is 2048"),
        (_no_role_tokens, "eos_token_id [7] of the model is none of its special tokens"),
    ],
)
def test_the_tokenizer_of_another_model_ends_the_load_before_the_weights_are_read(
    checkpoint: Path, spoil: Callable[[dict[str, Any]], None], fault: str
) -> None:
    stored = json.loads((checkpoint / "tokenizer.json").read_text())
    spoil(stored)
    (checkpoint / "tokenizer.json").write_text(json.dumps(stored))

    with pytest.raises(ConfigError) as caught:
        _load_model(ServerSettings("tiny", checkpoint), EngineConfig())

    assert str(caught.value) == f"{checkpoint}/tokenizer.json: of another model: {fault}; take all files from one release"


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ({"top_p": 0, "repetition_penalty": 0}, ["top_p: ", "repetition_penalty: ", "is 0"]),
        ({"temperature": -1}, ["temperature: "]),
        ({"temperature": "0.7"}, ["temperature: "]),
        ({"temperature": True}, ["temperature: "]),
        ({"top_k": 2.5}, ["top_k: "]),
        ({"top_k": -7}, ["top_k: "]),
    ],
)
def test_defaults_that_every_request_would_fail_on_are_refused_at_start(
    checkpoint: Path, stored: dict[str, object], named: list[str]
) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps(stored))

    with pytest.raises(ConfigError, match=r"generation_config\.json") as caught:
        SamplingDefaults.from_dir(checkpoint)

    assert [part for part in named if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("stored", "defaults"),
    [
        ({}, SamplingDefaults()),
        ({"temperature": None, "eos_token_id": [1, 2], "do_sample": True}, SamplingDefaults()),
        ({"temperature": 1, "top_p": 0.95, "top_k": -1}, SamplingDefaults(temperature=1.0, top_p=0.95, top_k=-1)),
        ({"repetition_penalty": 1.1, "temperature": 0}, SamplingDefaults(repetition_penalty=1.1, temperature=0.0)),
    ],
)
def test_defaults_within_the_limits_of_requests_are_taken(checkpoint: Path, stored: dict[str, object], defaults: SamplingDefaults) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps(stored))

    assert SamplingDefaults.from_dir(checkpoint) == defaults
