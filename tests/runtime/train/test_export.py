"""What a run leaves behind: loaded by PEFT and by our engine it computes what the trained model computed, and says the same text."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from glm5_runtime.config import EngineConfig, ModelConfig
from glm5_runtime.engine.load import load_engine
from glm5_runtime.model.batch import Chunk, build_batch
from glm5_runtime.train.build import build
from glm5_runtime.train.export import ExportError, adapter_tensors, export_adapter
from glm5_runtime.train.merge import export_checkpoint
from tests.runtime.engine.client import TINY, Client, ask, encode, greedy, poll
from tests.runtime.model.oracle import CPU, PAGE, _stable, logits_of, new_cache, ours, trained
from tests.runtime.train.rows import make_rows
from tests.runtime.train.runs import settings, train

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from tests.runtime.train.runs import Run

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft 0.21 beside transformers 5.24

ALL = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "experts"]
PROMPT = encode("The river was wide and slow, and nobody had ever")
LONG = [3, 4, *range(40, 140), 300]


def trained_run(folder: Path, targets: list[str], **changes: Any) -> Run:  # noqa: ANN401 - sections of the file
    lora = {"targets": targets, "alpha": 64, "dropout": 0.0}
    return train(settings(folder, lora=lora, training={"steps": 8, "learning_rate": 1e-2}, **changes), rows=make_rows([40, 60, 30, 80]))


def exported(run: Run, folder: Path) -> Path:
    config = run.trainer._config
    export_adapter(folder, run.trainee.places, config.lora, run.trainee.model.decoder.config, "tiny-glm5")
    return folder


def logits_of_training(run: Run, tokens: list[int]) -> Tensor:
    """The trained model itself, as it is in memory."""
    decoder = run.trainee.model.decoder.eval()
    cache = new_cache(decoder)
    with torch.no_grad():
        return decoder.logits(decoder(build_batch([Chunk(tokens, 0, range(1, 20))], decoder.config, PAGE, CPU), cache))


@pytest.mark.parametrize(
    "targets", [["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"], ["experts"], ALL], ids=["default", "experts", "all"]
)
def test_peft_loads_the_adapter_and_computes_what_was_trained(tmp_path: Path, targets: list[str]) -> None:
    run = trained_run(tmp_path, targets)
    folder = exported(run, tmp_path / "adapter")

    model = PeftModel.from_pretrained(trained(TINY), str(folder)).eval()
    with torch.no_grad(), _stable():
        theirs = model(torch.tensor([LONG]), use_cache=False).logits[0]

    mine = logits_of_training(run, LONG)
    base = logits_of_base(LONG)
    assert float((theirs - mine).abs().max()) < 1e-3
    assert float((base - mine).abs().max()) > 0.5


def logits_of_base(tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return logits_of(ours(TINY), tokens)


def test_our_engine_says_with_the_adapter_what_peft_says(tmp_path: Path) -> None:
    run = trained_run(tmp_path, ALL)
    folder = exported(run, tmp_path / "adapter")
    model = PeftModel.from_pretrained(trained(TINY), str(folder)).eval()
    tokens = list(PROMPT)
    with torch.no_grad(), _stable():
        for _ in range(24):
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    config = EngineConfig(
        max_sequences=2, max_batched_tokens=64, cache_tokens=2048, max_loras=1, max_lora_rank=16, lora_modules=(("tuned", folder),)
    )
    engine = load_engine(TINY, config)
    engine.start()
    poll(lambda: engine.stats().tokens_since_start > 0, "the engine is warm")
    try:
        client = Client(engine)
        tuned = client.submit(replace(ask(PROMPT, greedy(24, ignore_eos=True)), adapter="tuned")).tokens()
        plain = client.send(PROMPT, greedy(24, ignore_eos=True)).tokens()
    finally:
        engine.stop()

    assert tuned == tokens[len(PROMPT) :]
    assert plain != tuned


def test_the_files_are_those_of_peft(tmp_path: Path) -> None:
    run = trained_run(tmp_path, ALL)
    folder = tmp_path / "adapter"
    file = export_adapter(folder, run.trainee.places, run.trainer._config.lora, run.trainee.model.decoder.config, "tiny-glm5")

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (16, 64, "tiny-glm5")
    assert config["lora_dropout"] == 0.0  # PEFT takes none with fused experts
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    at = "base_model.model.model.layers.1.mlp.experts"
    assert tensors[f"{at}.base_layer.lora_A.weight"].shape == (8 * 16, 128)
    assert tensors[f"{at}.base_layer.lora_B.weight"].shape == (192, 16 * 8)
    assert tensors[f"{at}.lora_A.weight"].shape == (8 * 16, 96)
    assert file.sha256 == hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_an_adapter_with_nan_is_not_published_and_an_older_one_stays(tmp_path: Path) -> None:
    run = trained_run(tmp_path, ["o_proj"])
    folder = exported(run, tmp_path / "adapter")
    before = (folder / "adapter_model.safetensors").read_bytes()
    module, name = next(iter(run.trainee.places.values()))
    module.adapters[name].up.data[0, 0] = math.nan

    with pytest.raises(ExportError, match=r"layers\.0\.self_attn\.o_proj\.lora_B\.weight holds NaN"):
        exported(run, folder)

    assert (folder / "adapter_model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "checkpoints"]


def test_a_second_export_takes_the_place_of_the_first(tmp_path: Path) -> None:
    run = trained_run(tmp_path, ["o_proj"])
    folder = exported(run, tmp_path / "adapter")
    (folder / "stray").write_text("")
    module, name = next(iter(run.trainee.places.values()))
    module.adapters[name].up.data += 1

    exported(run, folder)

    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    written = load_file(folder / "adapter_model.safetensors")
    assert all(torch.equal(written[key], tensor) for key, tensor in adapter_tensors(run.trainee.places).items())


@pytest.mark.parametrize("targets", [ALL, ["gate_proj", "up_proj", "down_proj"]], ids=["all", "dense"])
def test_a_merged_checkpoint_computes_what_was_trained(tmp_path: Path, targets: list[str]) -> None:
    run = trained_run(tmp_path, targets)

    export_checkpoint(tmp_path / "merged", TINY, run.trainee)

    with torch.inference_mode():
        merged = logits_of(ours(tmp_path / "merged"), LONG[:60])
    mine = logits_of_training(run, LONG[:60])
    assert float((merged - mine).abs().mean()) < 0.1 * float((logits_of_base(LONG[:60]) - mine).abs().mean())  # bf16 in the file
    assert {path.name for path in (tmp_path / "merged").iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}


def test_full_training_writes_a_checkpoint_with_every_trained_number(tmp_path: Path) -> None:
    config = settings(tmp_path, method="full", training={"steps": 3, "learning_rate": 1e-3, "dtype": "bf16"})
    run = train(config)

    export_checkpoint(tmp_path / "out", TINY, run.trainee)

    before, after = load_file(TINY / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in before.items()} == {name: tensor.shape for name, tensor in after.items()}
    assert sum(torch.equal(before[name], after[name]) for name in before) < len(before) / 2
    written = ours(tmp_path / "out")
    for name, parameter in run.trainee.model.decoder.named_parameters():
        plain = name.replace("parametrizations.", "").removesuffix(".original")
        assert torch.equal(written.get_parameter(plain), parameter.detach().to(torch.bfloat16).float()), name


def test_a_base_without_the_trained_tensors_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path)
    trainee = build(config, CPU)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((TINY / "config.json").read_text())

    with pytest.raises(ExportError, match=r"has no tensor model\.layers\.0"):
        export_checkpoint(tmp_path / "out", other, trainee)

    assert not (tmp_path / "out").exists()
    assert ModelConfig.from_dir(other).vocab_size == 2048
