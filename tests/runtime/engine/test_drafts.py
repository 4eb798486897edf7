"""Guessing ahead on the real thread and model: the same text token for token, in fewer steps, and no guess where it can do harm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import ConfigError, EngineConfig, ModelConfig
from glm5_runtime.engine.load import load_engine, speculative_method
from glm5_runtime.engine.request import FinishReason, SamplingParams
from glm5_runtime.engine.steps import Steps
from glm5_runtime.model.batch import Chunk, build_batch
from glm5_runtime.model.cache import KVCache
from glm5_runtime.model.weights import load_decoder
from glm5_runtime.ops.interface import operators
from tests.runtime.engine.client import Client, encode, expected_rows, greedy, poll, question

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from glm5_runtime.engine.engine import Engine

MODES = [("mtp", 1), ("mtp", 3), ("ngram", 4)]


def _started(folder: Path, **changes: object) -> Engine:
    settings = {"max_sequences": 8, "max_batched_tokens": 256, "cache_tokens": 8192}
    engine = load_engine(folder, EngineConfig(**{**settings, **changes}))  # type: ignore[arg-type]  # whatever the test names
    engine.start()
    return engine


@pytest.fixture(scope="module", params=MODES, ids=str)
def drafting(request: pytest.FixtureRequest, tiny_dir: Path) -> Iterator[Client]:
    method, count = request.param
    engine = _started(tiny_dir, speculative_method=method, speculative_tokens=count)
    yield Client(engine)
    engine.stop()


def test_known_answers_come_token_for_token(drafting: Client) -> None:
    rows = [row for row in expected_rows() if row["kind"] in {"chat", "tool", "think"}][::5]
    streams = [drafting.send(encode(row["prompt"]), greedy(row["max_tokens"])) for row in rows]
    assert [stream.tokens() for stream in streams] == [row["tokens"] for row in rows]


@pytest.mark.parametrize("length", [256, 257, 258, 513])
def test_a_prompt_whose_last_token_is_left_for_the_next_step_gets_no_guesses_before_it_is_read(
    drafting: Client, client: Client, length: int
) -> None:
    prompt = (encode(f"{length} ") + encode("one two three, one two four, one two three. ") * 50)[:length]  # 256 fit in a step
    params = greedy(12, ignore_eos=True, logprobs=0)
    outputs = [user.send(prompt, params).all() for user in (client, drafting)]
    assert [[output.token for output in got] for got in outputs[1:]] == [[output.token for output in outputs[0]]]
    for plain, guessed in zip(*outputs, strict=True):
        assert plain.logprob is not None
        assert guessed.logprob is not None
        assert guessed.logprob.logprob == pytest.approx(plain.logprob.logprob, abs=1e-3)


@pytest.mark.parametrize(
    "params",
    [
        greedy(60, ignore_eos=True),
        greedy(60, ignore_eos=True, repetition_penalty=1.3, frequency_penalty=0.4),
        SamplingParams(max_tokens=60, temperature=1.0, seed=7, ignore_eos=True),
        SamplingParams(max_tokens=60, temperature=0.7, top_p=0.9, top_k=20, seed=8, ignore_eos=True, logprobs=2),
        SamplingParams(max_tokens=40, min_tokens=30, temperature=1.3, seed=9),
    ],
    ids=["greedy", "penalties", "drawn", "drawn with logprobs", "held back"],
)
def test_every_way_of_choosing_gives_the_text_it_gives_without_guesses(drafting: Client, client: Client, params: SamplingParams) -> None:
    prompts = [question(), question("What is MTP?"), encode("The river was wide and slow. " * 3)]
    plain = [client.send(prompt, params).all() for prompt in prompts]
    streams = [drafting.send(prompt, params) for prompt in prompts]
    for expected, stream in zip(plain, streams, strict=True):
        got = stream.all()
        assert [output.token for output in got] == [output.token for output in expected]
        assert got[-1].finish_reason is expected[-1].finish_reason
        if params.logprobs is not None:
            for ours, theirs in zip(got, expected, strict=True):
                assert ours.logprob is not None
                assert theirs.logprob is not None
                assert ours.logprob.logprob == pytest.approx(theirs.logprob.logprob, abs=1e-4)


def test_guesses_are_counted_and_the_first_are_often_right(drafting: Client) -> None:
    before = drafting.engine.stats()
    tokens = drafting.send(encode("The river was wide and slow. " * 3), greedy(120, ignore_eos=True)).tokens()
    after = drafting.engine.stats()

    rounds, accepted = after.drafts - before.drafts, [b - a for a, b in zip(before.accepted_drafts, after.accepted_drafts, strict=True)]
    assert len(tokens) == 120
    assert 0 < rounds <= after.draft_tokens - before.draft_tokens
    assert accepted[0] > 0.4 * rounds
    assert accepted == sorted(accepted, reverse=True)  # a guess counts only behind right ones
    assert sum(after.step_tokens) - sum(before.step_tokens) <= 121 - sum(accepted)  # each spares a step


def test_an_answer_ends_at_its_limit_and_at_its_stop_token_though_more_was_guessed(drafting: Client) -> None:
    text = encode("The river was wide and slow. " * 3)
    whole = drafting.send(text, greedy(30, ignore_eos=True)).tokens()
    for limit in range(1, 8):
        outputs = drafting.send(text, greedy(limit, ignore_eos=True))
        assert outputs.tokens() == whole[:limit]
        assert outputs.last().finish_reason is FinishReason.LENGTH
    stop = whole[12]
    stopped = drafting.send(text, greedy(30, ignore_eos=True, stop_token_ids=frozenset({stop})))
    assert stopped.tokens() == whole[: whole.index(stop) + 1]
    assert stopped.last().finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("method", "count"), MODES)
def test_a_crowded_cache_preempts_and_gives_the_same_text(method: str, count: int, tiny_dir: Path, client: Client) -> None:
    prompts = [encode(f"Number {place}. The river was wide and slow. ") for place in range(6)]
    expected = [client.send(prompt, greedy(100, ignore_eos=True)).tokens() for prompt in prompts]
    engine = _started(
        tiny_dir, speculative_method=method, speculative_tokens=count, cache_tokens=304, max_model_len=288, max_batched_tokens=64
    )
    try:
        crowd = Client(engine)
        streams = [crowd.send(prompt, greedy(100, ignore_eos=True)) for prompt in prompts]
        assert [stream.tokens() for stream in streams] == expected
        crowd.wait_until_idle()
        assert engine.stats().preemptions > 0
        assert engine.stats().kv_usage == 0.0
    finally:
        engine.stop()


def test_the_layer_guesses_what_the_reference_implementation_of_it_guesses(tiny_dir: Path) -> None:
    """The layer's own sum, written with transformers' parts: norms, projection, one decoder layer, norm and head."""
    from safetensors.torch import load_file
    from transformers import GlmMoeDsaConfig
    from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaModel, GlmMoeDsaRMSNorm

    config = ModelConfig.from_dir(tiny_dir).with_draft_layer()
    cpu = torch.device("cpu")
    decoder = load_decoder(config, tiny_dir, operators("cpu"), cpu, torch.float32)
    cache = KVCache.allocate(config, 16, 16, cpu, torch.float32)
    text = [token for row in expected_rows() if row["kind"] == "text" for token in row["tokens"]]
    tokens = text[:60]  # below index_topk: no choice to differ in
    pages = list(range(1, 10))
    assert decoder.mtp is not None
    with torch.inference_mode():
        hidden = decoder(build_batch([Chunk(tokens, 0, pages)], config, 16, cpu), cache)
        parts = [(0, 25), (25, 59)]
        ours = torch.cat(
            [
                decoder.mtp(
                    build_batch([Chunk(tokens[a + 1 : b + 1], a, pages)], config, 16, cpu),
                    decoder.embed_tokens,
                    hidden[a:b],
                    cache.layers[-1],
                )
                for a, b in parts
            ]
        )
        ours = decoder.mtp.logits(ours)

    prefix = f"model.layers.{config.num_hidden_layers}."
    weights = {
        name.removeprefix(prefix): value.float() for name, value in load_file(tiny_dir / "model.safetensors").items() if prefix in name
    }
    theirs_config = GlmMoeDsaConfig.from_pretrained(tiny_dir)
    theirs_config.num_hidden_layers = 1
    theirs_config.mlp_layer_types, theirs_config.indexer_types = ["sparse"], ["full"]
    theirs_config.layer_types = theirs_config.layer_types[:1]
    model = GlmMoeDsaModel(theirs_config).eval()
    named: dict[str, torch.Tensor] = {"norm.weight": weights["shared_head.norm.weight"]}
    for name, _ in model.layers[0].named_parameters():
        if name.endswith("experts.gate_up_proj"):
            both = [torch.cat([weights[f"mlp.experts.{e}.{part}_proj.weight"] for part in ("gate", "up")]) for e in range(8)]
            named[f"layers.0.{name}"] = torch.stack(both)
        elif name.endswith("experts.down_proj"):
            named[f"layers.0.{name}"] = torch.stack([weights[f"mlp.experts.{e}.down_proj.weight"] for e in range(8)])
        else:
            named[f"layers.0.{name}"] = weights[name]
    named["layers.0.mlp.gate.e_score_correction_bias"] = weights["mlp.gate.e_score_correction_bias"]
    missing = model.load_state_dict(named, strict=False)
    assert missing.missing_keys == ["embed_tokens.weight"]
    enorm, hnorm = GlmMoeDsaRMSNorm(128, 1e-5), GlmMoeDsaRMSNorm(128, 1e-5)
    enorm.weight.data, hnorm.weight.data = weights["enorm.weight"], weights["hnorm.weight"]
    with torch.inference_mode():
        embedded = decoder.embed_tokens(torch.tensor(tokens[1:]))
        both = torch.cat([enorm(embedded), hnorm(hidden[:-1])], dim=-1)
        states = model(inputs_embeds=(both @ weights["eh_proj.weight"].T).unsqueeze(0), use_cache=False).last_hidden_state[0]
        theirs = states @ weights["shared_head.head.weight"].T

    assert (ours - theirs).abs().max() < 1e-4
    agree = (ours[:-1].argmax(-1) == torch.tensor(tokens[2:])).float().mean()
    assert agree > 0.3  # it has learnt something of this text


def test_who_guesses_follows_from_the_checkpoint_and_can_be_named(tiny_dir: Path) -> None:
    with_layer = ModelConfig.from_dir(tiny_dir)
    without = with_layer.model_copy(update={"num_nextn_predict_layers": 0})
    wanted = EngineConfig(speculative_tokens=2)
    assert speculative_method(EngineConfig(), with_layer) is None
    assert [speculative_method(wanted, model) for model in (with_layer, without)] == ["mtp", "ngram"]
    assert speculative_method(wanted.model_copy(update={"speculative_method": "ngram"}), with_layer) == "ngram"
    with pytest.raises(ConfigError, match=r"num_nextn_predict_layers is 0.*use ngram"):
        speculative_method(wanted.model_copy(update={"speculative_method": "mtp"}), without)


def test_steps_must_have_room_for_every_sequences_guesses() -> None:
    with pytest.raises(ValueError, match=r"max_sequences take \(80\)"):
        EngineConfig(max_sequences=16, speculative_tokens=4, max_batched_tokens=79)


def test_the_first_token_takes_the_way_of_guesses_too(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks learn from it which exchanges a step has, and go on with them when memory runs out in one."""
    asked = []
    draft_logits = Steps.draft_logits
    monkeypatch.setattr(Steps, "draft_logits", lambda self, hidden: asked.append(len(hidden)) or draft_logits(self, hidden))
    engine = _started(tiny_dir, speculative_method="mtp", speculative_tokens=2)
    poll(lambda: engine.stats().tokens_since_start > 0, "the engine is warm")
    engine.stop()
    assert asked == [1]
    assert engine.stats().generation_tokens == 0


def test_a_broken_device_step_with_guesses_ends_its_requests_and_nothing_else(drafting: Client) -> None:
    """A glitch of the device, faked: the hidden states of one step are NaN."""
    decoder = drafting.engine._runner._steps.decoder
    stream = drafting.send(question(), replace(greedy(60), ignore_eos=True))
    for _ in range(5):
        stream.next()
    glitch = decoder.embed_tokens.register_forward_hook(lambda _module, _arguments, output: torch.full_like(output, torch.nan))
    last = stream.last()
    glitch.remove()
    drafting.wait_until_idle()

    assert last.finish_reason is FinishReason.ERROR
    assert "not finite" in str(last.error)
    row = next(row for row in expected_rows() if row["kind"] == "chat")
    assert drafting.send(encode(row["prompt"]), greedy(row["max_tokens"])).tokens() == row["tokens"]
