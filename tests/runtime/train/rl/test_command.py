"""`glm5-runtime train` with grpo and ppo as a process: prompts in, an adapter out, and how it ends otherwise."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from glm5_runtime.config import ConfigError, ModelConfig
from glm5_runtime.model.adapter_files import read_adapter
from glm5_runtime.train.config import read_config
from tests.runtime.train.conftest import TINY
from tests.runtime.train.rl.runs import CPU, NO_E
from tests.runtime.train.test_command import ending, run, started, until, write_run

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, method: str = "grpo", **changes: Any) -> Path:  # noqa: ANN401 - any section of the file
    """As for rows, without what is held back."""
    sections: dict[str, Any] = {
        "method": method,
        "rl": {"group": 4, "max_new_tokens": 8, "reward": NO_E},
        "training": {"steps": 3},
        "checkpoint": {"every_steps": 1},
    }
    for section, values in changes.items():
        sections[section] = sections.get(section, {}) | values if isinstance(values, dict) else values
    path = write_run(folder, **sections)
    content = yaml.safe_load(path.read_text())
    del content["evaluation"]
    path.write_text(yaml.safe_dump(content))
    return path


def adapter(path: Path) -> dict[str, torch.Tensor]:
    found = read_adapter(path, ModelConfig.from_dir(TINY), ["tiny-glm5"], 16, device=CPU, dtype=torch.float32)
    return {f"{name}.{kind}": getattr(pair, kind) for name, pair in found.pairs.items() for kind in ("down", "up")}


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_a_run_ends_with_an_adapter_that_the_engine_loads_and_tells_its_rewards(tmp_path: Path, method: str) -> None:
    code, said, end = run(write(tmp_path, method))

    assert code == 0, said
    assert end["outcome"] == "Succeeded"
    assert 0 <= end["rl"]["reward"] <= 1
    assert end["step"] == 3
    assert " reward 0." in said
    assert any(bool(tensor.any()) for name, tensor in adapter(tmp_path / "adapter").items() if name.endswith(".up"))


def test_sigterm_ends_after_the_step_and_the_next_run_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    changes = {"training": {"steps": 6}, "checkpoint": {"every_steps": 100}}
    code, said, _ = run(write(tmp_path / "whole", **changes))
    assert code == 0, said
    config = write(tmp_path / "cut", **changes)
    with started(config) as process:
        until(process, "step 2/6")
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 143, told
    assert ending(config)["outcome"] == "Interrupted"

    code, said, _ = run(config)

    assert code == 0, said
    assert "resumed from" in said
    whole, resumed = adapter(tmp_path / "whole" / "adapter"), adapter(tmp_path / "cut" / "adapter")
    assert all(bool((resumed[name] == tensor).all()) for name, tensor in whole.items())


def test_several_ranks_are_refused_with_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "2")

    code, said, _ = run(write(tmp_path))

    assert code == 2
    assert "method: grpo runs in one process, and this would be 2 ranks" in said


def test_a_service_of_rewards_that_is_away_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    reward = {"kind": "http", "url": "http://127.0.0.1:9/score", "retries": 0, "timeout": 5}

    code, said, end = run(write(tmp_path, rl={"reward": reward}))

    assert code == 8, said
    assert end["outcome"] == "RewardError"
    assert end["message"].startswith("rl.reward.url: the service gave no scores")


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("grpo", {"rl": {"gamma": 0.9}}, "rl.gamma belongs to method ppo"),
        ("ppo", {"rl": {"divide_by_spread": False}}, "rl.divide_by_spread belongs to method grpo"),
        ("grpo", {"rl": {"group": 1}}, "rl.group: grpo compares answers"),
        ("grpo", {"lora": {"dropout": 0.1}}, "lora.dropout: old and new log-probabilities would differ"),
        ("grpo", {"training": {"packing": True}}, "training.batch_tokens and training.packing: a batch of grpo and ppo"),
        ("grpo", {"rl": {"reward": {"kind": "rule", "rule": "regex", "pattern": "(("}}}, "is no regular expression"),
        ("lora", {}, "rl belongs to methods grpo and ppo"),
        ("grpo", {"rl": None}, "method grpo needs the section rl"),
        ("grpo", {"evaluation": {"share": 0.1}}, "evaluation.share: rows aren't held back"),
    ],
)
def test_sections_that_do_not_fit_the_method_are_refused_with_the_field(
    tmp_path: Path, method: str, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, method, **changes)
    content = yaml.safe_load(path.read_text())
    content["evaluation"] = changes.get("evaluation", {})
    if content["rl"] is None:
        del content["rl"]
    path.write_text(yaml.safe_dump(content))

    with pytest.raises(ConfigError) as caught:
        read_config(path)

    assert message in str(caught.value)
