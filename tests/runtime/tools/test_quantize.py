"""`glm5-runtime quantize`: the layout it writes, how far the result drifts, and that no failure leaves something that looks complete."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from glm5_runtime.cli import app
from glm5_runtime.config import ModelConfig
from glm5_runtime.model.cache import INT4
from glm5_runtime.model.checkpoint_files import Checkpoint, WeightsError
from glm5_runtime.model.quant import DESCRIPTION
from glm5_runtime.ops.thinned import SparseKV
from glm5_runtime.tools import quantize as maker
from glm5_runtime.tools.drift import measure
from glm5_runtime.tools.quantize import QuantizeError, quantize
from tests.support.serving import TINY

EXPERT = "model.layers.1.mlp.experts.3"


@pytest.fixture(scope="module")
def text() -> list[int]:
    """Real text of many times index_topk: the known answers after each other."""
    rows = json.loads((TINY / "expected.json").read_text())
    return [token for row in rows if row["kind"] == "text" for token in row["tokens"]]


# Bounds are what was measured and a third more. Up to index_topk tokens only arithmetic differs; beyond, near-ties of the indexer's choice
# fall another way, which weighs more than all roundings together.


@pytest.mark.parametrize(
    ("scheme", "bounds"),
    [("w8a8", (0.0005, 0.056, 0.87)), ("w4a8", (0.0026, 0.063, 0.84))],  # measured: 0.00037, 0.0421, 0.906 and 0.0019, 0.0473, 0.877
)
def test_a_quantised_model_stays_near_fp32_on_real_text(
    scheme: maker.Scheme, bounds: tuple[float, float, float], text: list[int], tmp_path: Path
) -> None:
    short_kl, kl, top1 = bounds
    quantize(TINY, tmp_path / "out", scheme)
    assert measure(TINY, tmp_path / "out", text[:64]).kl < short_kl
    drift = measure(TINY, tmp_path / "out", text)
    assert drift.kl < kl
    assert drift.top1 > top1


@pytest.mark.parametrize(
    ("cache", "short_kl", "kl", "top1"),
    [
        (torch.float32, 1e-9, 1e-9, 0.999),
        (torch.bfloat16, 6e-6, 0.0053, 0.97),  # measured: 3.9e-6, 0.0040, 0.985
        (torch.int8, 2.6e-5, 0.012, 0.94),  # measured: 1.9e-5, 0.0088, 0.959
        (INT4, 0.0106, 0.062, 0.85),  # measured: 0.0079, 0.0466, 0.889
    ],
    ids=["float32", "bfloat16", "int8", "int4"],
)
def test_a_cache_in_few_bits_stays_near_fp32_on_real_text(
    cache: torch.dtype, short_kl: float, kl: float, top1: float, text: list[int]
) -> None:
    assert measure(TINY, TINY, text[:64], cache).kl < short_kl
    drift = measure(TINY, TINY, text, cache)
    assert drift.kl < kl
    assert drift.top1 > top1


def test_a_long_context_seen_in_part_drifts_far_from_fp32_but_not_without_bounds(text: list[int]) -> None:
    """`--sparse-kv` scaled down to this text: index_topk of it is 64, so that most of what the model would read is out of sight."""
    sparse = SparseKV(0.25, begin=128, window=80)
    assert measure(TINY, TINY, text[:128], sparse=sparse).kl < 1e-9  # it has not begun
    drift = measure(TINY, TINY, text, sparse=sparse)
    assert 0.1 < drift.kl < 0.59  # measured: 0.4392
    assert drift.top1 > 0.46  # measured: 0.594


def test_a_sensitive_layer_can_stay_in_floats(text: list[int], tmp_path: Path) -> None:
    keep = ["model.layers.0.mlp.down_proj*"]
    plan = quantize(TINY, tmp_path / "out", "w8a8", keep)
    assert plan.kinds["model.layers.0.mlp.down_proj.weight"] == "FLOAT"
    assert plan.kinds["model.layers.0.mlp.up_proj.weight"] == "W8A8_DYNAMIC"
    assert measure(TINY, tmp_path / "out", text).kl < 0.03  # measured: 0.0222, half of what it is without


@pytest.mark.parametrize("pattern", ["model.layers.99.*", "lm_head.weight", ""])
def test_a_pattern_that_keeps_nothing_is_a_mistake(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(QuantizeError, match=r"--keep: .* names no tensor that would be quantised"):
        quantize(TINY, tmp_path / "out", "w8a8", ["model.layers.0.*", pattern])
    assert _left(tmp_path) == []


def test_the_layout_is_modelslims(tmp_path: Path) -> None:
    quantize(TINY, tmp_path / "out", "w4a8")
    checkpoint = Checkpoint(tmp_path / "out")
    described = json.loads((tmp_path / "out" / DESCRIPTION).read_text())
    assert described["model_quant_type"] == "W4A8_DYNAMIC"
    assert checkpoint.names <= described.keys()
    forms = {name.removeprefix(f"{EXPERT}."): checkpoint.form(name) for name in checkpoint.names if name.startswith(EXPERT)}
    assert forms == {
        "gate_proj.weight": ((48, 128), "I8"),
        "gate_proj.weight_scale": ((96, 1), "F32"),
        "gate_proj.weight_offset": ((96, 1), "F32"),
        "gate_proj.scale_bias": ((96, 1), "F32"),
        "up_proj.weight": ((48, 128), "I8"),
        "up_proj.weight_scale": ((96, 1), "F32"),
        "up_proj.weight_offset": ((96, 1), "F32"),
        "up_proj.scale_bias": ((96, 1), "F32"),
        "down_proj.weight": ((64, 96), "I8"),
        "down_proj.weight_scale": ((128, 1), "F32"),
        "down_proj.weight_offset": ((128, 1), "F32"),
        "down_proj.scale_bias": ((128, 16), "F32"),
    }
    assert described["model.layers.1.self_attn.o_proj.weight"] == "W8A8_DYNAMIC"
    kept = {"embed_tokens", "kv_b_proj", "weights_proj", "mlp.gate", "lm_head", "eh_proj", "layernorm", "indexer.wk", "shared_head"}
    assert all(described[name] == "FLOAT" for name in checkpoint.names if any(f"{part}.weight" in name for part in kept))


def test_floats_and_other_files_are_copied_as_they_are(tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(TINY, source)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "pytorch_model.bin").write_bytes(b"weights of another kind")
    (source / "model.safetensors.index.json.incomplete").write_bytes(b"")
    quantize(source, tmp_path / "out", "w8a8")
    out = tmp_path / "out"
    for name in ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not list(out.glob("*.bin")) + list(out.glob("*.incomplete"))
    before, after = load_file(source / "model.safetensors"), load_file(out / "model-00001-of-00001.safetensors")
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    assert out.stat().st_mode & 0o777 == 0o755


def test_a_large_model_becomes_many_files_that_load_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(TINY, tmp_path / "one", "w4a8")
    monkeypatch.setattr(maker, "FILE_BYTES", 300_000)
    seen: list[tuple[int, int]] = []
    plan = quantize(TINY, tmp_path / "many", "w4a8", on_tensor=lambda done, total: seen.append((done, total)))
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(files) == len(plan.files) > 5
    # A file is never larger than asked for, but for a tensor that is by itself.
    assert all(path.stat().st_size < 360_000 or len(names) == 1 for path, names in zip(files, plan.files, strict=True))
    assert seen[-1] == (len(plan.kinds), len(plan.kinds))
    one, many = Checkpoint(tmp_path / "one"), Checkpoint(tmp_path / "many")
    assert one.names == many.names
    assert all(torch.equal(one.read(name), many.read(name)) for name in one.names)


def test_memory_holds_one_output_file_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is handed to the disk before the next one's tensors are read."""
    monkeypatch.setattr(maker, "FILE_BYTES", 300_000)
    events: list[str] = []
    read, save = Checkpoint.read, maker.save_file
    monkeypatch.setattr(Checkpoint, "read", lambda self, name: (events.append("read"), read(self, name))[1])
    monkeypatch.setattr(maker, "save_file", lambda *args, **kwargs: (events.append("save"), save(*args, **kwargs))[1])
    plan = quantize(TINY, tmp_path / "out", "w8a8")
    assert events == [event for names in plan.files for event in ("read",) * len(names) + ("save",)]


def test_4_bit_scales_lose_less_than_those_of_the_largest_value() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))

    def lost(scale: torch.Tensor) -> torch.Tensor:
        return ((weight / scale).round().clamp(-7, 7) * scale - weight).square().sum(dim=1)

    best, full = maker._best_scale(weight, 4), weight.abs().amax(dim=1, keepdim=True) / 7
    assert (lost(best) <= lost(full)).all()
    assert lost(best).sum() < 0.85 * lost(full).sum()


def test_a_channel_of_zeros_stays_zeros(tmp_path: Path) -> None:
    name = f"{EXPERT}.up_proj.weight"
    for kind in ("W8A8_DYNAMIC", "W4A8_DYNAMIC"):
        made = maker._convert(name, torch.zeros(4, 32), kind)
        assert not made[name].any()
        assert all(tensor.isfinite().all() for tensor in made.values())


# --- what stops it ----------------------------------------------------------------------------------------------------------


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_output_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(QuantizeError, match="exists already"):
        quantize(TINY, tmp_path / "out", "w8a8")
    assert _left(tmp_path / "out") == ["mine"]


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    quantize(TINY, tmp_path / "once", "w8a8")
    with pytest.raises(QuantizeError, match="is quantised already"):
        quantize(tmp_path / "once", tmp_path / "twice", "w8a8")
    assert _left(tmp_path) == ["once"]


def test_a_disk_without_room_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(QuantizeError, match=r"has 0\.0 GB free, the checkpoint needs 0\.0 GB"):
        quantize(TINY, tmp_path / "out", "w8a8")
    assert _left(tmp_path) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named_and_leave_nothing(value: float, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(TINY, source)
    tensors = load_file(TINY / "model.safetensors")
    tensors[f"{EXPERT}.up_proj.weight"][5, 7] = value
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"{EXPERT}\.up_proj\.weight' holds NaN or infinity"):
        quantize(source, tmp_path / "out", "w8a8")
    assert _left(tmp_path) == ["in"]


def test_a_run_that_is_killed_leaves_nothing_that_looks_like_a_checkpoint(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from glm5_runtime.tools import quantize as maker
maker.FILE_BYTES = 300_000
def on_tensor(done, total):
    if done == 60:
        print("half", flush=True)
        time.sleep(60)
maker.quantize(Path({str(TINY)!r}), Path({str(tmp_path / "out")!r}), "w8a8", on_tensor=on_tensor)
"""
    environ = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.unfinished-")
    assert not (left / "config.json").exists()  # written last: no engine takes the folder for a checkpoint
    quantize(TINY, tmp_path / "out", "w8a8")  # the name is free
    assert ModelConfig.from_dir(tmp_path / "out")


def test_an_interrupt_cleans_up(tmp_path: Path) -> None:
    def interrupt(done: int, _total: int) -> None:
        if done == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(TINY, tmp_path / "out", "w8a8", on_tensor=interrupt)
    assert _left(tmp_path) == []


# --- the command ------------------------------------------------------------------------------------------------------------


def _run(*argv: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["quantize", *argv], env={"COLUMNS": "200", "NO_COLOR": "1"})
    return result.exit_code, result.output


def test_the_command_says_what_it_made_and_how_far_it_drifts(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The river was wide and slow, and nobody on the bank knew who had built the bridge. " * 4)
    code, output = _run("--model", str(TINY), "--output", str(tmp_path / "out"), "--scheme", "w4a8", "--check", str(text))
    assert code == 0, output
    assert "0.00378 GB" in output
    assert "drift from fp32 over" in output


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--model", "/nowhere"], "/nowhere/config.json: not found"),
        (["--model", str(TINY), "--check", "/nowhere.txt"], "--check: /nowhere.txt can't be read"),
        (["--model", str(TINY), "--scheme", "w2a2"], "w2a2"),
    ],
)
def test_a_command_that_can_not_work_says_why_and_makes_nothing(argv: list[str], said: str, tmp_path: Path) -> None:
    code, output = _run(*argv, "--output", str(tmp_path / "out"))
    assert code == 2
    assert said in output
    assert "Traceback" not in output
    assert _left(tmp_path) == []


def test_a_fault_that_is_found_beforehand_has_no_dead_bar_above_it(tmp_path: Path) -> None:
    argv = ["quantize", "--model", "/nowhere", "--output", str(tmp_path / "out")]
    on_terminal = {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    assert CliRunner().invoke(app, argv, env=on_terminal).output.startswith("glm5-runtime quantize can't go on:")
