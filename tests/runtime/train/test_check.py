"""`glm5-runtime train --check`: what a run would meet, before it takes a card; held to what training itself says of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glm5_runtime.cli import app
from glm5_runtime.train import command
from glm5_runtime.train.check import check
from tests.runtime.train.conftest import TINY
from tests.runtime.train.test_command import ending, write_run

Json = dict[str, Any]


def checked(config: Path) -> tuple[int, Json]:
    code = check(config, config.with_suffix(".json"))
    return code, ending(config)


def test_good_data_is_told_in_numbers_and_nothing_else_is_written(tmp_path: Path) -> None:
    code, found = checked(write_run(tmp_path))

    assert (code, found["outcome"]) == (0, "Succeeded")
    assert {name: found["data"][name] for name in ("read", "kept", "skipped")} == {"read": 6, "kept": 6, "skipped": 0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "train.json", "train.yaml"]


def test_bad_rows_are_named_by_line_and_told_in_numbers(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(rows.read_text() + "{\n" + '{"instruction": "no answer"}\n' + "[]\n" * 20)

    code, found = checked(config)

    assert (code, found["outcome"]) == (3, "DataError")
    assert f"{rows}:7: cut-line: " in found["message"]
    assert f"{rows}:8: " in found["message"]
    assert "17 more" in found["message"]
    assert (found["data"]["read"], found["data"]["kept"], found["data"]["skipped"]) == (28, 6, 22)
    assert config.with_suffix(".json").stat().st_size < 4096


RL = {
    "method": "grpo",
    "rl": {"max_new_tokens": 8, "reward": {"kind": "rule", "rule": "contains"}},
    "evaluation": {"share": 0.0},
    "lora": {"dropout": 0.0},
}
ONE = '{"instruction": "Who?", "output": "I."}\n'
PAIRS = '{"prompt": "Who?", "chosen": "I.", "rejected": "You."}\n'


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"data": {"max_length": 16}}, None),
        ({"model": "/nowhere"}, None),
        ({"lora": {"rank": 3}}, None),
        ({}, ""),
        ({}, "{\n"),
        ({}, PAIRS),
        ({"data": {"format": "openai"}}, None),
        ({"data": {"chat_template": "9"}}, None),
        ({"evaluation": {"share": 0.5}}, ONE),
        (RL, '{"text": "no conversation"}\n'),
        (RL | {"rl": {"max_new_tokens": 1 << 16}}, None),
    ],
    ids=str,
)
def test_it_refuses_what_training_refuses_with_the_same_code(tmp_path: Path, changes: Json, rows: str | None) -> None:
    config = write_run(tmp_path, **changes)
    if rows is not None:
        (tmp_path / "rows.jsonl").write_text(rows)

    code, found = checked(config)

    assert code == command.train(config, config.with_suffix(".train.json"))
    assert code in {2, 3}
    assert found["outcome"] == json.loads(config.with_suffix(".train.json").read_text())["outcome"]


def test_a_file_that_is_not_there_is_told_apart_from_bad_data_and_settings(tmp_path: Path) -> None:
    config = write_run(tmp_path, data={"files": ["/nowhere/rows.jsonl"]})

    code, found = checked(config)

    assert code == command.train(config, config.with_suffix(".train.json")) == 5
    assert (found["outcome"], "/nowhere/rows.jsonl can't be read" in found["message"]) == ("FileMissingError", True)
    assert json.loads(config.with_suffix(".train.json").read_text())["outcome"] == "FileMissingError"


def test_bad_rows_are_refused_by_the_name_that_the_training_file_has_for_lenience(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(rows.read_text() + "{\n")

    code, found = checked(config)

    assert code == 3
    assert found["message"].startswith("1 row can't be used; correct it, or leave it out with data.lenient; ")


def test_a_model_that_is_not_there_is_named_as_in_the_training_file(tmp_path: Path) -> None:
    code, found = checked(write_run(tmp_path, model=str(tmp_path / "nowhere")))

    assert (code, "--" in found["message"]) == (2, False)
    assert "model must name a checkpoint folder" in found["message"]


def test_what_lenience_leaves_out_is_told_and_no_fault(tmp_path: Path) -> None:
    config = write_run(tmp_path, data={"lenient": True})
    rows = tmp_path / "rows.jsonl"
    rows.write_text(rows.read_text() + "{\n")

    code, found = checked(config)

    assert (code, found["data"]["skipped"]) == (0, 1)


def test_the_command_line_checks_without_looking_for_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_DEVICE", "npu")
    monkeypatch.setenv("NPROC_PER_NODE", "4")
    config = write_run(tmp_path)

    answer = CliRunner().invoke(app, ["train", "--config", str(config), "--result", str(config.with_suffix(".json")), "--check"])

    assert answer.exit_code == 0, answer.output
    assert ending(config)["data"]["kept"] == 6


def test_modules_that_the_model_does_not_have_are_named_without_its_weights(tmp_path: Path) -> None:
    model = tmp_path / "dense"
    model.mkdir()
    for file in TINY.iterdir():
        if file.suffix == ".json" and not file.name.startswith("model"):
            (model / file.name).write_bytes(file.read_bytes())
    described = json.loads((TINY / "config.json").read_text())
    described |= {"mlp_layer_types": ["dense"] * described["num_hidden_layers"], "first_k_dense_replace": described["num_hidden_layers"]}
    (model / "config.json").write_text(json.dumps(described))

    code, found = checked(write_run(tmp_path, model=str(model), lora={"targets": ["experts"]}))

    assert (code, found["outcome"]) == (2, "ConfigError")
    assert "lora.targets: this model has none of experts" in found["message"]
    assert checked(write_run(tmp_path, model=str(model)))[0] == 0
