"""The command line: what it accepts, all faults at once, what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glm5_runtime.cli import ArgumentFaults, app, parse_serve, read_key
from tests.support.serving import TINY

EVERY_FLAG = [
    *("serve", "--model", "/models/glm", "--served-model-name", "GLM-5.1", "--host", "0.0.0.0", "--port", "8000"),
    *("--device", "auto", "--dtype", "bfloat16", "--max-model-len", "40960", "--max-sequences", "16", "--max-batched-tokens", "8192"),
    *("--max-queue", "64", "--max-request-bytes", "1000000", "--drain-timeout", "300s", "--chat-template", "5.1"),
    *("--model-version", "5.1", "--prefix-cache", "off", "--seed", "7", "--log-level", "info"),
    *("--page-size", "32", "--speculative-tokens", "2", "--speculative-method", "mtp"),
    *("--memory-fraction", "0.8", "--memory-reserve", "2Gi", "--memory-limit", "28G", "--context-tiers", "4k:0.5,16k"),
    *("--tensor-parallel-size", "4", "--data-parallel-size", "2", "--enable-expert-parallel"),
    *("--enable-lora", "--max-loras", "4", "--max-lora-rank", "32", "--lora-dir", "/adapters"),
    *("--adapters-file", "/etc/glm5/adapters/adapters.json"),
    *("--lora-modules", "support=/adapters/support", "--lora-modules", "law=/adapters/law"),
    *("--kv-cache-dtype", "int8", "--sparse-kv", "0.3", "--check-weights"),
    *("--audit-log", "-", "--post-inference-hook", "cat -n", "--post-inference-hook", "https://hooks.example/glm"),
]


def run(*argv: str, **environ: str) -> tuple[int, str]:
    """Exit code and all output of the command in this process; for commands that end before they serve."""
    result = CliRunner().invoke(app, list(argv), env={"GLM5_API_KEY": None, "COLUMNS": "200", "NO_COLOR": "1"} | environ)
    return result.exit_code, result.output


def test_every_flag_of_the_contract_is_read_without_touching_a_file() -> None:
    assert parse_serve(EVERY_FLAG).model_dump() == {
        "model": Path("/models/glm"),
        "served_model_name": "GLM-5.1",
        "host": "0.0.0.0",
        "port": 8000,
        "device": "auto",
        "dtype": "bfloat16",
        "kv_cache_dtype": "int8",
        "sparse_kv": 0.3,
        "max_model_len": 40960,
        "max_sequences": 16,
        "max_batched_tokens": 8192,
        "max_queue": 64,
        "max_request_bytes": 1_000_000,
        "drain_timeout": 300.0,
        "chat_template": "5.1",
        "model_version": "5.1",
        "memory_fraction": 0.8,
        "memory_reserve": 2 << 30,
        "memory_limit": 28_000_000_000,
        "context_tiers": ({"length": 4096, "share": 0.5}, {"length": 16384, "share": None}),
        "prefix_cache": "off",
        "page_size": 32,
        "speculative_tokens": 2,
        "speculative_method": "mtp",
        "tensor_parallel_size": 4,
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
        "check_weights": True,
        "enable_lora": True,
        "max_loras": 4,
        "max_lora_rank": 32,
        "lora_modules": (("support", Path("/adapters/support")), ("law", Path("/adapters/law"))),
        "lora_dir": Path("/adapters"),
        "adapters_file": Path("/etc/glm5/adapters/adapters.json"),
        "seed": 7,
        "log_level": "info",
        "audit_log": "-",
        "post_inference_hook": ("cat -n", "https://hooks.example/glm"),
    }


def test_only_the_model_is_required_and_its_folder_names_it() -> None:
    arguments = parse_serve(["serve", "--model", "/models/GLM-5.1"])

    assert (arguments.served_model_name, arguments.port, arguments.drain_timeout, arguments.device) == ("GLM-5.1", 8000, 300.0, "auto")


@pytest.mark.parametrize(
    ("text", "seconds"), [("300s", 300), ("5m", 300), ("1h", 3600), ("500ms", 0.5), ("1m30s", 90), ("0s", 0), ("1.5s", 1.5)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_serve(["serve", "--model", "/m", "--drain-timeout", text]).drain_timeout == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("28G", 28 * 10**9), ("28GB", 28 * 10**9), ("1.5Gi", 3 << 29), ("512MiB", 512 << 20), ("30000000000", 3 * 10**10), ("0", 0)],
)
def test_memory_has_units(text: str, size: int) -> None:
    assert parse_serve(["serve", "--model", "/m", "--memory-reserve", text]).memory_reserve == size


def test_the_memory_limit_comes_from_ascend_max_mem_unless_the_flag_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_MAX_MEM", "28G")

    assert parse_serve(["serve", "--model", "/m"]).memory_limit == 28 * 10**9
    assert parse_serve(["serve", "--model", "/m", "--memory-limit", "30G"]).memory_limit == 30 * 10**9


def test_more_context_tiers_than_there_are_places_are_refused() -> None:
    with pytest.raises(ArgumentFaults, match="--context-tiers: too many for --max-sequences 2"):
        parse_serve(["serve", "--model", "/m", "--max-sequences", "2", "--context-tiers", "4k,8k"])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--drain-timeout", text) for text in ("300", "5x", "-5s", "s", "", "25h", "1s 2s")),
        *(("--port", text) for text in ("0", "65536", "abc", "8000.5", "-1")),
        *(("--max-sequences", text) for text in ("0", "1e9", "many")),
        *(("--post-inference-hook", text) for text in ("", "no-such-program-here -x", "cat 'open", "http:///path", "ftp://host/")),
        ("--audit-log", ""),
        *(("--memory-reserve", text) for text in ("-1", "2 G", "many", "28", "2iB", "")),
        *(("--memory-fraction", text) for text in ("0", "1.1", "half")),
        ("--memory-limit", "28"),
        *(("--context-tiers", text) for text in ("", "4k,4096", "16k,4k", "4k:1", "4k:0.0", "4k:0.5,8k:0.5", "0", "4g", "4k,", "4k:-1")),
        ("--max-queue", "-1"),
        ("--max-request-bytes", "10"),
        ("--max-model-len", "0"),
        ("--seed", "-1"),
        ("--device", "gpu"),
        ("--dtype", "int8"),
        ("--kv-cache-dtype", "int2"),
        *(("--sparse-kv", text) for text in ("0.19", "0", "1.1", "nan", "yes", "")),
        ("--log-level", "loud"),
        ("--served-model-name", "a b"),
        ("--served-model-name", ""),
        ("--host", ""),
    ],
)
def test_a_wrong_value_is_named_by_its_flag(flag: str, value: str) -> None:
    with pytest.raises(ArgumentFaults) as caught:
        parse_serve(["serve", "--model", "/m", flag, value])

    (fault,) = caught.value.faults
    assert fault.startswith(f"{flag}: ")


@pytest.mark.parametrize(
    "argv", [["serve", "--model"], ["serve", "--model", "/m", "--unknown", "1"], ["serve", "--model", "/m", "extra"], ["dance"], []]
)
def test_what_is_no_command_line_is_refused(argv: list[str]) -> None:
    with pytest.raises(ArgumentFaults):
        parse_serve(argv)


@pytest.mark.parametrize(("text", "ratio"), [("off", None), ("on", 0.25), ("0.2", 0.2), ("1", 1.0)])
def test_sparse_kv_is_off_on_or_a_share(text: str, ratio: float | None) -> None:
    assert parse_serve(["serve", "--model", "/m", "--sparse-kv", text]).sparse_kv == ratio


def test_fewer_batched_tokens_than_sequences_are_refused() -> None:
    with pytest.raises(ArgumentFaults, match="--max-batched-tokens: 4 is less than --max-sequences 8"):
        parse_serve(["serve", "--model", "/m", "--max-batched-tokens", "4", "--max-sequences", "8"])


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    code, output = run(
        *("serve", "--model", str(tmp_path), "--port", "x", "--max-queue", "-1", "--chat-template", "7", "--drain-timeout", "5"),
        *("--model-version", "4"),
        GLM5_API_KEY=" ",
    )

    assert code == 2
    for fault in (
        "--port:",
        "--max-queue:",
        "--chat-template: 7",
        "--model-version:",
        "--drain-timeout:",
        "GLM5_API_KEY:",
        "tokenizer.json",
        "safetensors",
        "model_type",
    ):
        assert fault in output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "/nowhere"], "--model: /nowhere is not a folder"),
        ([], "--model: Field required"),
        (["--model", str(TINY), "--max-model-len", "2049"], "--max-model-len: 2049 is more than the checkpoint's 2048"),
        (["--model", str(TINY), "--context-tiers", "1k,4k"], "--context-tiers: 4k (4096 tokens) is longer than this model serves, 2048"),
        (["--model", str(TINY), "--device", "npu"], "--device npu can't be used here"),
    ],
)
def test_what_can_be_known_before_the_start_is_said_before_the_start(flags: list[str], said: str) -> None:
    code, output = run("serve", *flags)

    assert code == 2
    assert said in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--lora-dir", "/adapters"], "--lora-dir: needs --enable-lora"),
        (["--adapters-file", "/f"], "--adapters-file: needs --enable-lora"),
        (["--lora-modules", "a=/a"], "--lora-modules: needs --enable-lora"),
        (["--enable-lora", "--lora-modules", "/a"], "--lora-modules: must be a name and a folder, such as support=/adapters/support"),
        (["--enable-lora", "--lora-modules", "../x=/a"], "--lora-modules: must be a name and a folder, such as support=/adapters/support"),
        (["--enable-lora", "--lora-modules", "a=/a", "--lora-modules", "a=/b"], "--lora-modules: a is there twice"),
        (["--enable-lora", "--lora-modules", "glm=/a"], "--lora-modules: glm is the name of the model itself"),
        (
            ["--enable-lora", "--max-loras", "1", "--lora-modules", "a=/a", "--lora-modules", "b=/b"],
            "--lora-modules: 2 adapters are more than --max-loras 1",
        ),
    ],
)
def test_flags_of_adapters_that_do_not_fit_together_are_refused(flags: list[str], fault: str) -> None:
    with pytest.raises(ArgumentFaults) as refused:
        parse_serve(["serve", "--model", "/models/glm", *flags])

    assert refused.value.faults == (fault,)


def test_the_device_comes_from_the_environment_unless_the_flag_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM5_DEVICE", "cpu")

    assert parse_serve(["serve", "--model", "/m"]).device == "cpu"
    assert parse_serve(["serve", "--model", "/m", "--device", "npu"]).device == "npu"


def test_a_card_that_cannot_be_used_ends_the_command_before_it_serves() -> None:
    code, output = run("serve", "--model", str(TINY), ASCEND_VISIBLE_DEVICES="3")

    assert code == 2
    for said in ("ASCEND_VISIBLE_DEVICES=3", "driver:", "CANN:", "torch_npu:", "GLM5_DEVICE=cpu"):
        assert said in output


@pytest.mark.parametrize(("raw", "key"), [(None, None), ("abc", "abc"), ("abc\n", "abc")])
def test_the_key_comes_from_the_environment(raw: str | None, key: str | None) -> None:
    assert read_key({} if raw is None else {"GLM5_API_KEY": raw}) == key


@pytest.mark.parametrize("raw", ["", " \n", "a b", "schlüssel"])
def test_a_key_that_is_set_and_unusable_is_a_fault_not_an_open_door(raw: str) -> None:
    with pytest.raises(ArgumentFaults, match="GLM5_API_KEY"):
        read_key({"GLM5_API_KEY": raw})


def test_version_and_help_are_printed() -> None:
    code, version = run("--version")
    assert (code, version.split()[0]) == (0, "glm5-runtime")
    code, text = run("serve", "--help")
    assert code == 0
    for flag in EVERY_FLAG:
        assert not flag.startswith("--") or flag in text
    assert "tokens" in text
    assert "bytes" in text


def test_reading_arguments_imports_neither_torch_nor_the_server() -> None:
    script = (
        f"import sys; from glm5_runtime.cli import parse_serve; parse_serve({EVERY_FLAG!r});"
        "print([name for name in ('torch', 'uvicorn', 'tokenizers') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ))

    assert done.stdout.strip() == "[]"
