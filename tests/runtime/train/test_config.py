"""The training file: what is taken, what is refused with its path, what is only warned of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glm5_runtime.config import ConfigError
from glm5_runtime.train.config import TrainConfig, read_config

DOCS = Path(__file__).parents[3] / "docs"
SHORTEST = """
model: /weights/GLM-5.1
data: {files: [/data/qa.jsonl]}
checkpoint: {directory: /checkpoints}
output: /adapters/support
"""


def read(tmp_path: Path, more: str = "", text: str = SHORTEST) -> TrainConfig:
    path = tmp_path / "train.yaml"
    path.write_text(text + more)
    return read_config(path)


def test_the_shortest_file_means_what_the_requirements_call_default(tmp_path: Path) -> None:
    config = read(tmp_path)

    assert (config.method, config.lora.rank, config.lora.scale, config.lora.dropout) == ("lora", 16, 1.0, 0.1)
    assert config.lora.targets == ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
    assert (config.training.learning_rate, config.training.clip, config.training.gradient_accumulation) == (2e-4, 1.0, 1)
    assert config.warnings == []


def test_names_of_other_models_mean_their_parts_of_mla(tmp_path: Path) -> None:
    assert read(tmp_path, "lora: {targets: [q, v]}").lora.targets == ("q_b_proj", "kv_b_proj")


def test_numbers_are_read_as_kubectl_reads_them(tmp_path: Path) -> None:
    config = read(tmp_path, "training: {learning_rate: 2e-4, clip: 1, weight_decay: 1E-2}")

    assert (config.training.learning_rate, config.training.clip, config.training.weight_decay) == (2e-4, 1.0, 0.01)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("lora: {rank: 24}", "lora.rank: Input should be a multiple of 16, is '24'"),
        ("lora: {rank: 32, alpha: 16}", "lora: alpha 16 is less than rank 32"),
        ("lora: {ranks: 16}", "lora.ranks: unknown"),
        ("lora: {targets: [k_proj]}", "lora.targets.0: 'k_proj' is no module that takes an adapter; choose from q_a_proj"),
        ("lora: {targets: []}", "targets is empty"),
        ("lora: {dropout: 1}", "lora.dropout"),
        ("training: {gradient_accumulation: 5}", "training.gradient_accumulation: Input should be less than or equal to 4"),
        ("training: {epochs: 2, steps: 10}", "training: epochs and steps both say when to end"),
        ("training: {batch_size: 2, batch_tokens: 64}", "training: batch_size and batch_tokens both"),
        ("training: {learning_rate: .nan}", "training.learning_rate"),
        ("training: {schedule: cosin}", "training.schedule"),
        ("training: {dtype: bfloat16}", "training.dtype"),
        ("evaluation: {patience: 3}", "evaluation.patience needs rows to judge by"),
        ("method: full\nlora: {rank: 16}", "lora and merge belong to methods that train adapters"),
        ("method: qlora", "method: Input should be 'lora', 'full', 'grpo' or 'ppo'"),
        ("seed: 3", "seed: unknown"),
        ("output: /other", "the key 'output' stands here twice"),
        ("training: {seed: 1, seed: 2}", "the key 'seed' stands here twice"),
        ("training: [", "not YAML"),
        ("? [a]\n: b", "not YAML: a key must be text"),
        ("? {a: b}\n: b", "not YAML: a key must be text"),
        ("training: {seed: " + "9" * 5000 + "}", "holds a value that can't be read"),
        ("training: {seed: !!int x}", "holds a value that can't be read"),
        ("training: {steps: !!timestamp x}", "holds a value that can't be read"),
        ("training: {seed: 2020-13-45}", "holds a value that can't be read"),
        ("training: " + "[" * 20_000, "nested too deeply"),
        ("training: {steps: 1" + "0" * 400 + "}", "training.steps: Input should be less than or equal to 100000000"),
        ("training: {epochs: 100000000000}", "training.epochs: Input should be less than or equal to 10000"),
        ('deepspeed: "/a\\0b"', "deepspeed: a path holds no zero byte"),
        ("training: 3", "training: "),
    ],
)
def test_a_wrong_file_is_refused_with_the_field_and_what_is_wrong(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, more)

    assert str(caught.value).startswith(f"{tmp_path / 'train.yaml'}: ")
    assert said in str(caught.value)


def test_a_folder_that_the_result_would_wipe_out_is_refused_also_through_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    text = f"model: {tmp_path}/base\ndata: {{files: [/d/a, {tmp_path}/d/b]}}\ncheckpoint: {{directory: {tmp_path}/run/c}}\noutput: "

    for output, held in (
        ("base", f"model, {tmp_path}/base,"),
        ("run", f"checkpoint.directory, {tmp_path}/run/c,"),
        ("run/c/../c", f"checkpoint.directory, {tmp_path}/run/c,"),
        ("link/d", f"data.files, {tmp_path}/d/b,"),
        ("link", f"the training file, {tmp_path}/train.yaml,"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"output: {tmp_path}/{output} is or holds {held}")):
            read(tmp_path, text=f"{text}{tmp_path}/{output}\n")
    for output in ("base/adapter", "work/c/adapter", "work/cd", "based"):
        assert read(tmp_path, text=f"{text}{tmp_path}/{output}\n").output == tmp_path / output


def test_a_list_that_aliases_make_endless_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)), "training: {steps: *a29}"]

    with pytest.raises(ConfigError, match=r"training\.steps: Input should be a valid integer"):
        read(tmp_path, "\n".join(lines))


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text="model: /m\nlora: {rank: 3}\ntraining: {clip: -1, foo: 2}\n")

    for field in ("data: missing", "checkpoint: missing", "output: missing", "lora.rank", "training.clip", "training.foo: unknown"):
        assert field in str(caught.value)


@pytest.mark.parametrize("text", ["", "- model", "42", "null"])
def test_a_file_that_holds_no_settings_says_what_belongs_there(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="expected sections such as model, data, training"):
        read(tmp_path, text=text)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"model: \x00"])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.yaml").write_bytes(content)

    with pytest.raises(ConfigError, match=r"train\.yaml: not "):
        read_config(tmp_path / "train.yaml")


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ("training: {learning_rate: 3e-4}", ""),
        ("training: {learning_rate: 3.1e-4}", "learning_rate 0.00031 is above 3e-4"),
        ("training: {clip: 0.8}", ""),
        ("training: {clip: 1.2}", ""),
        ("training: {clip: 0.7}", "clip 0.7 is outside 0.8 to 1.2"),
        ("training: {clip: 1.3}", "clip 1.3 is outside"),
        ("training: {batch_size: 7}", "bf16 with batch_size 7 and data.max_length 2048 is not known to be stable"),
        ("training: {batch_size: 7, dtype: fp16}", ""),
        ("training: {batch_size: 8, dtype: bf16}", ""),
        ("lora: {targets: [q, up_proj]}", "lora.targets up_proj: dense layers' adapters"),
        ("lora: {targets: [experts]}", ""),
    ],
)
def test_what_is_unwise_is_a_warning_at_the_limits_of_the_requirements(tmp_path: Path, more: str, warned: str) -> None:
    warnings = read(tmp_path, more).warnings

    assert len(warnings) == bool(warned)
    assert all(warned in warning for warning in warnings)


def test_long_rows_in_bf16_are_warned_of(tmp_path: Path) -> None:
    text = SHORTEST.replace("files: [/data/qa.jsonl]", "files: [/data/qa.jsonl], max_length: 2049")

    assert "data.max_length 2049" in read(tmp_path, text=text).warnings[0]


@pytest.mark.parametrize("page", ["training.md", "training.zh-CN.md"])
def test_the_file_of_the_documentation_is_one_that_is_taken_without_a_warning(tmp_path: Path, page: str) -> None:
    example = re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[0]

    config = read(tmp_path, text=example)

    assert (config.lora.alpha, config.evaluation.patience, config.checkpoint.keep) == (32, 3, 3)
    assert config.warnings == []
