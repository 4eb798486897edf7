"""The whole lower half: requests in, tokens out, on the real thread and the real model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from glm5_runtime.config import EngineConfig, parse_tiers
from glm5_runtime.engine.errors import EngineDead, QueueFull
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.request import FinishReason, Request, SamplingParams
from tests.runtime.engine.client import Client, Stream, ask, encode, expected_rows, greedy, poll, question

if TYPE_CHECKING:
    from pathlib import Path

    from glm5_runtime.engine.engine import Engine
    from glm5_runtime.engine.request import Output, TokenLogprob

WHO = question()
ANSWER = expected_rows()[0]["tokens"]


def _rows(*kinds: str) -> list[tuple[str, tuple[int, ...], list[int], int]]:
    return [(row["kind"], encode(row["prompt"]), row["tokens"], row["max_tokens"]) for row in expected_rows() if row["kind"] in kinds]


def test_known_answers_come_token_for_token_in_full_batches(client: Client) -> None:
    rows = _rows("chat", "tool", "think")
    streams = [client.send(prompt, greedy(limit)) for _, prompt, _, limit in rows]
    wrong = [index for index, (stream, row) in enumerate(zip(streams, rows, strict=True)) if stream.tokens() != row[2]]
    assert wrong == []
    assert len(rows) == 119


def test_plain_text_agrees_up_to_the_first_near_tie(client: Client) -> None:
    rows = _rows("text")
    streams = [client.send(prompt, greedy(limit, logprobs=2)) for _, prompt, _, limit in rows]
    compared = 0
    for stream, (_, _, expected, _) in zip(streams, rows, strict=True):
        outputs = stream.all()
        near_tie = next((index for index, output in enumerate(outputs) if _lead(output) < 1e-3), None)
        got = [output.token for output in outputs][:near_tie]
        assert got == expected[:near_tie]  # without a near tie: all tokens, and as many
        compared += len(got)
    assert compared >= 0.9 * sum(len(expected) for _, _, expected, _ in rows), "too many near ties to have shown anything"


def _lead(output: Output) -> float:
    """By how much the best token was ahead of the second best, as log-probability."""
    assert output.logprob is not None
    (_, best), (_, second) = output.logprob.top
    return best - second


def test_a_request_answers_the_same_alone_and_in_company(client: Client) -> None:
    rows = _rows("chat")[::15][:8]
    alone = [client.send(prompt, greedy(limit)).tokens() for _, prompt, _, limit in rows]
    together = [stream.tokens() for stream in [client.send(prompt, greedy(limit)) for _, prompt, _, limit in rows]]
    assert together == alone == [expected for _, _, expected, _ in rows]


def test_each_token_is_one_output_and_the_stop_token_is_the_last(client: Client) -> None:
    outputs = client.send(WHO, greedy(100)).all()
    assert [output.token for output in outputs] == ANSWER
    assert outputs[-1].token == 7
    assert [output.finish_reason for output in outputs] == [None] * (len(ANSWER) - 1) + [FinishReason.STOP]


def test_max_tokens_ends_with_length(client: Client) -> None:
    stream = client.send(WHO, greedy(5))
    assert stream.tokens() == ANSWER[:5]
    assert stream.last().finish_reason is FinishReason.LENGTH


def test_no_tokens_asked_for_none_produced(client: Client) -> None:
    (output,) = client.send(WHO, greedy(0)).all()
    assert (output.token, output.finish_reason, output.prompt_logprobs) == (None, FinishReason.LENGTH, None)


def test_own_stop_ids_stop_too(client: Client) -> None:
    stream = client.send(WHO, greedy(100, stop_token_ids=frozenset({ANSWER[4]})))
    assert stream.tokens() == ANSWER[:5]
    assert stream.last().finish_reason is FinishReason.STOP


def test_ignoring_the_end_goes_on_past_it_but_own_stop_ids_still_stop(client: Client) -> None:
    assert len(client.send(WHO, greedy(80, ignore_eos=True)).tokens()) == 80
    assert client.send(WHO, greedy(80, ignore_eos=True, stop_token_ids=frozenset({7}))).tokens() == ANSWER


def test_min_tokens_holds_the_end_back(client: Client) -> None:
    tokens = client.send(WHO, greedy(100, min_tokens=70)).tokens()
    assert len(tokens) >= 70
    assert not {0, 7, 9} & set(tokens[:69])


def test_a_seed_repeats_its_answer_in_any_company(client: Client) -> None:
    params = SamplingParams(max_tokens=40, temperature=1.5, top_p=0.95, seed=11, ignore_eos=True)
    first = client.send(WHO, params).tokens()
    crowd = [client.send(question("Hello"), SamplingParams(max_tokens=60, temperature=2.0)) for _ in range(6)]
    assert client.send(WHO, params).tokens() == first
    assert all(stream.last().finish_reason for stream in crowd)
    assert client.send(WHO, SamplingParams(max_tokens=40, temperature=1.5, top_p=0.95, seed=12, ignore_eos=True)).tokens() != first


def test_requests_without_a_seed_differ(client: Client) -> None:
    params = SamplingParams(max_tokens=20, temperature=2.0, ignore_eos=True)
    assert client.send(WHO, params).tokens() != client.send(WHO, params).tokens()


def test_logprobs_come_with_every_token(client: Client) -> None:
    for output in client.send(WHO, greedy(100, logprobs=3)).all():
        entry = output.logprob
        assert entry is not None
        assert (entry.token, entry.rank, len(entry.top)) == (output.token, 1, 3)
        assert entry.top[0] == (output.token, entry.logprob)
        assert -5 < entry.logprob <= 0


def test_no_logprobs_unless_asked_for(client: Client) -> None:
    assert all(output.logprob is None for output in client.send(WHO, greedy(3)).all())


def _prompt_logprobs(client: Client, prompt: tuple[int, ...], max_tokens: int, top: int = 2) -> tuple[TokenLogprob | None, ...]:
    first = client.send(prompt, greedy(max_tokens, prompt_logprobs=top)).all()[0]
    assert first.prompt_logprobs is not None
    return first.prompt_logprobs


def test_echo_judges_every_prompt_token_as_if_it_had_been_produced(client: Client) -> None:
    produced = client.send(WHO, greedy(100, logprobs=2)).all()
    whole = (*WHO, *ANSWER)
    scores = _prompt_logprobs(client, whole, max_tokens=0)
    assert len(scores) == len(whole)
    assert scores[0] is None
    for score, output in zip(scores[len(WHO) :], produced, strict=True):
        assert score is not None
        assert output.logprob is not None
        assert (score.token, score.rank) == (output.token, 1)
        assert score.logprob == pytest.approx(output.logprob.logprob, abs=1e-4)


def test_a_prompt_longer_than_a_step_is_judged_whole(client: Client) -> None:
    prompt = (WHO * 60)[:700]  # three steps of 256
    scores = _prompt_logprobs(client, prompt, max_tokens=1)
    assert [None if score is None else score.token for score in scores] == [None, *prompt[1:]]


def test_a_prompt_of_one_token_has_nobody_to_judge_it(client: Client) -> None:
    assert _prompt_logprobs(client, (WHO[0],), max_tokens=1) == (None,)


def test_prompt_logprobs_come_once(client: Client) -> None:
    outputs = client.send(WHO, greedy(5, prompt_logprobs=0)).all()
    assert [output.prompt_logprobs is not None for output in outputs] == [True, False, False, False, False]


def test_an_abort_frees_its_place_and_says_so(client: Client) -> None:
    request = ask(WHO, greedy(1500, ignore_eos=True))
    stream = client.submit(request)
    stream.next()
    client.engine.abort(request.id)
    assert stream.last().finish_reason is FinishReason.ABORT
    client.wait_until_idle()
    assert client.engine.stats().kv_usage == 0.0


def test_whoever_reads_the_last_word_finds_the_place_free(client: Client) -> None:
    seen: list[tuple[float, bool]] = []

    def sink(output: Output) -> None:
        if output.finish_reason is not None:
            stats = client.engine.stats()
            seen.append((stats.kv_usage, stats.has_work))

    client.engine.submit(ask(WHO, greedy(3)), sink)
    poll(lambda: bool(seen), "the last output")
    assert seen == [(0.0, False)]


def test_a_waiting_request_can_be_aborted(client: Client) -> None:
    running = [ask(WHO, greedy(1500, ignore_eos=True)) for _ in range(8)]
    streams = [client.submit(request) for request in running]
    waiting = ask(WHO, greedy(10))
    late = client.submit(waiting)
    client.engine.abort(waiting.id)
    assert [output.finish_reason for output in late.all()] == [FinishReason.ABORT]
    for request in running:
        client.engine.abort(request.id)
    assert {stream.last().finish_reason for stream in streams} == {FinishReason.ABORT}


def _round(engine: Engine) -> None:
    """What the thread of an engine that isn't started would do: one turn of its loop."""
    with torch.inference_mode():
        assert engine._take_commands()
        engine._step()


@pytest.mark.parametrize(("rounds", "read", "produced"), [(0, 0, 0), (3, 48, 0), (10, 100, 4)], ids=["arriving", "half read", "answering"])
def test_two_rounds_after_an_abort_its_pages_are_free_while_others_go_on(tiny_dir: Path, rounds: int, read: int, produced: int) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=2, max_batched_tokens=17, cache_tokens=4096, max_model_len=256))
    client, pool = Client(engine), engine._scheduler.pool  # type: ignore[union-attr]  # one scheduler, no replicas
    other = client.send(WHO, greedy(40, ignore_eos=True))
    _round(engine)
    held, gone = pool.count - pool.free, ask((WHO * 60)[:100], greedy(100, ignore_eos=True))
    stream = client.submit(gone)
    for _ in range(rounds):
        _round(engine)
    sequence = engine._scheduler.find(gone.id)
    assert (sequence is None) == (rounds == 0)
    if sequence:
        assert (min(sequence.computed, 100), sequence.produced) == (read, produced)
        assert pool.count - pool.free > held

    engine.abort(gone.id)
    _round(engine)
    _round(engine)

    assert engine._scheduler.find(gone.id) is None
    assert stream.last().finish_reason is FinishReason.ABORT
    (left,) = engine._scheduler.alive
    assert pool.count - pool.free == len(left.pages)
    while engine.stats().has_work:
        _round(engine)
    assert len(other.tokens()) == 40
    assert engine.stats().kv_usage == 0.0
    engine.stop()


def test_a_small_tiers_request_ends_while_large_ones_fill_their_own(tiny_dir: Path) -> None:
    tiers = parse_tiers("64:0.5")
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=4, max_model_len=512, max_batched_tokens=64, context_tiers=tiers))
    client = Client(engine)
    large = [client.send((WHO * 60)[row : row + 200], greedy(300, ignore_eos=True)) for row in range(6)]
    for _ in range(20):
        _round(engine)
    stats = engine.stats()
    assert stats.waiting > 0, "there are more large ones than places for them"
    assert stats.generation_tokens > 0

    request = ask(WHO, greedy(8))
    small = client.submit(request)
    for _ in range(2 + 8):
        _round(engine)

    assert engine._scheduler.find(request.id) is None
    assert small.tokens() == ANSWER[:8]
    assert engine.stats().running == stats.running
    assert all(len(sequence.tokens) < 500 for sequence in engine._scheduler.alive)
    assert len(engine._scheduler.alive) == len(large)
    engine.stop()
    assert {stream.last().finish_reason for stream in large} == {FinishReason.ABORT}


def test_aborting_what_is_not_there_is_nothing(client: Client) -> None:
    client.engine.abort("nobody")
    assert client.send(WHO, greedy(100)).tokens() == ANSWER


def test_an_exact_fit_is_served_and_one_token_more_is_refused_with_the_numbers(client: Client) -> None:
    prompt = (WHO * 200)[:2045]
    assert len(client.send(prompt, greedy(3, ignore_eos=True)).tokens()) == 3
    refused = client.send(prompt, greedy(4)).last()
    assert refused.finish_reason is FinishReason.ERROR
    assert refused.error is not None
    assert all(number in refused.error for number in ("2045", "2049", "2048", "at most 3 tokens"))


def test_a_second_request_with_a_living_id_is_refused(client: Client) -> None:
    first = client.submit(Request("same", WHO, greedy(300, ignore_eos=True)))
    second = client.submit(Request("same", WHO, greedy(3)))
    assert second.last().finish_reason is FinishReason.ERROR
    assert len(first.tokens()) == 300


@pytest.mark.parametrize(
    ("prompt", "params", "word"),
    [
        ((), greedy(1), "no tokens"),
        ((2048,), greedy(1), "token id 2048"),
        ((-1,), greedy(1), "token id -1"),
        (WHO, greedy(-1), "max_tokens is -1"),
        (WHO, SamplingParams(max_tokens=1, temperature=math.nan), "temperature is nan"),
        (WHO, SamplingParams(max_tokens=1, temperature=math.inf), "temperature is inf"),
        (WHO, SamplingParams(max_tokens=1, temperature=-0.1), "temperature is -0.1"),
        (WHO, SamplingParams(max_tokens=1, top_p=1.01), "top_p"),
        (WHO, SamplingParams(max_tokens=1, top_k=-1), "top_k"),
        (WHO, SamplingParams(max_tokens=1, top_k=10**400), "top_k"),
        (WHO, SamplingParams(max_tokens=1, min_p=math.nan), "min_p"),
        (WHO, SamplingParams(max_tokens=1, repetition_penalty=0.0), "repetition_penalty"),
        (WHO, SamplingParams(max_tokens=1, frequency_penalty=math.inf), "frequency_penalty"),
        (WHO, SamplingParams(max_tokens=1, presence_penalty=-math.inf), "presence_penalty"),
        (WHO, SamplingParams(max_tokens=1, logprobs=100_000), "logprobs"),
        (WHO, SamplingParams(max_tokens=1, prompt_logprobs=-1), "prompt_logprobs"),
        (WHO, SamplingParams(max_tokens=1, min_tokens=-1), "min_tokens"),
        (WHO, SamplingParams(max_tokens=1, logit_bias={99999999: 5.0, -1: 5.0}), "[-1, 99999999]"),
        (WHO, SamplingParams(max_tokens=1, logit_bias={3: math.nan}), "logit_bias of token 3"),
        (WHO, SamplingParams(max_tokens=1, stop_token_ids=frozenset({2048})), "stop_token_ids"),
    ],
)
def test_what_cannot_be_served_is_answered_with_the_reason_and_the_next_is_served(
    prompt: tuple[int, ...], params: SamplingParams, word: str, client: Client
) -> None:
    request = ask(prompt, params)
    (output,) = client.submit(request).all()
    assert output.finish_reason is FinishReason.ERROR
    assert output.error == client.engine.refusal(request)
    assert output.error is not None
    assert word in output.error
    assert client.send(WHO, greedy(4)).tokens() == ANSWER[:4]


def test_statistics_count_tokens_and_progress(client: Client) -> None:
    before = client.engine.stats()
    client.send(WHO, greedy(6)).all()
    client.wait_until_idle()
    after = client.engine.stats()
    assert after.prompt_tokens - before.prompt_tokens == len(WHO)
    assert after.generation_tokens - before.generation_tokens == 6
    assert after.tokens_since_start == after.generation_tokens + 1  # the warm-up's
    assert after.last_progress > before.last_progress


def test_a_full_queue_is_refused_with_its_limit_and_opens_again(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=1, max_queue=2, max_model_len=64))
    client = Client(engine)
    streams = [client.send(WHO, greedy(4)) for _ in range(3)]  # not started: all of them wait
    with pytest.raises(QueueFull, match=r"full \(2 requests\)") as caught:
        client.send(WHO, greedy(4))
    assert caught.value.limit == 2
    assert engine.stats().waiting == 3
    engine.start()
    assert [stream.tokens() for stream in streams] == [ANSWER[:4]] * 3
    assert client.send(WHO, greedy(4)).tokens() == ANSWER[:4]
    engine.stop()


def test_a_queue_that_one_client_fills_still_takes_the_first_request_of_another(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=1, max_queue=2, max_model_len=64))
    client = Client(engine)

    def send(name: str, who: str) -> Stream:
        return client.submit(Request(name, WHO, greedy(2), client=who))

    streams = [send(f"crowd {n}", "crowd") for n in range(3)]
    streams.append(send("first", "other"))
    for name, who in (("fourth", "crowd"), ("second", "other"), ("late", "a third")):
        with pytest.raises(QueueFull):
            send(name, who)
    engine.start()

    assert all(stream.last().finish_reason is FinishReason.LENGTH for stream in streams)
    client.wait_until_idle()
    engine.stop()
    assert not engine._of_client


def test_stopping_answers_everyone_and_shuts_the_door(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=1, max_model_len=2000))
    client = Client(engine)
    engine.start()
    running, waiting = (client.send(WHO, greedy(1900, ignore_eos=True)) for _ in range(2))
    running.next()
    engine.stop()
    assert running.last().finish_reason is FinishReason.ABORT
    assert [output.finish_reason for output in waiting.all()] == [FinishReason.ABORT]
    assert not engine.stats().alive
    with pytest.raises(EngineDead):
        client.send(WHO, greedy(1))


def test_an_engine_stopped_before_it_started_answers_too(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig())
    stream = Client(engine).send(WHO, greedy(1))
    engine.stop()
    assert stream.last().finish_reason is FinishReason.ABORT


def test_preempted_requests_answer_as_if_nothing_had_happened(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=6, max_model_len=96, cache_tokens=160))
    client = Client(engine)
    prompts = [prompt for _, prompt, _, _ in _rows("chat")[:40:8]]
    scored = greedy(60, prompt_logprobs=0, ignore_eos=True)
    drawn = SamplingParams(max_tokens=60, temperature=1.0, seed=5, ignore_eos=True)
    engine.start()
    streams = [*(client.send(prompt, scored) for prompt in prompts), client.send(WHO, drawn)]
    crowded = [stream.tokens() for stream in streams]
    poll(lambda: not engine.stats().has_work, "all is done")
    assert engine.stats().preemptions > 0
    assert engine.stats().kv_usage == 0.0
    assert engine.stats().prompt_tokens == sum(len(prompt) for prompt in prompts) + len(WHO)
    assert [len(stream.outputs[0].prompt_logprobs or ()) for stream in streams[:-1]] == [len(prompt) for prompt in prompts]
    assert crowded == [client.send(*request).tokens() for request in [*((prompt, scored) for prompt in prompts), (WHO, drawn)]]
    engine.stop()


def test_a_listener_that_fails_loses_its_request_only(client: Client) -> None:
    calls = []

    def broken(output: object) -> None:
        calls.append(output)
        raise BrokenPipeError("gone")

    other = client.send(WHO, greedy(60))
    client.engine.submit(ask(WHO, greedy(1000, ignore_eos=True)), broken)
    assert other.tokens() == ANSWER
    client.wait_until_idle()
    assert len(calls) == 1


def test_the_engine_starts_with_a_token_of_its_own(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(max_model_len=64))
    assert (engine.stats().tokens_since_start, engine.stats().alive) == (0, False)
    engine.start()
    poll(lambda: engine.stats().tokens_since_start == 1, "the warm-up token")
    assert engine.stats().generation_tokens == 0
    engine.stop()


def test_streams_end_with_one_last_word(client: Client) -> None:
    streams = [client.send(WHO, greedy(limit)) for limit in range(12)]
    for stream in streams:
        stream.all()
    client.wait_until_idle()
    assert all(stream.is_silent for stream in streams)
