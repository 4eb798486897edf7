"""What stands in front of the endpoints: key, loading, draining; and /metrics, /version, /v1/models behind or beside it."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.engine.request import FinishReason
from glm5_runtime.server.counts import Counts
from glm5_runtime.server.metrics import Metrics
from glm5_runtime.server.service import ServerSettings, Service
from glm5_runtime.text.tokens import TextTokenizer
from tests.support import serving
from tests.support.scripted_engine import ScriptedEngine
from tests.support.serving import MODEL, PING, ask, error_of, events_of, joined, until

CHAT = "/v1/chat/completions"
KEY = "secret-key-0123"


async def test_without_the_key_only_probes_and_metrics_answer(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving.asgi_client(serving.make_service(engine, api_key=KEY)) as client:
        wrong: list[dict[bytes, bytes]] = [
            {},
            *({b"authorization": value.encode()} for value in (KEY, f"Bearer {KEY}x", f"Basic {KEY}", "Bearer é")),
        ]
        for headers in [*wrong, {b"x-api-key": KEY.encode()}]:
            for path in ("/v1/models", "/version", "/v1/nothing", "/health/"):
                assert (await client.get(path, headers=headers)).status_code == 401
            refused = await client.post(CHAT, json=PING, headers=headers)
            assert (refused.status_code, error_of(refused)["type"]) == (401, "authentication_error")
            assert refused.headers["www-authenticate"] == "Bearer"
        assert [(await client.get(path)).status_code for path in ("/health", "/health/ready", "/metrics")] == [200] * 3
        for scheme in ("Bearer", "bearer"):
            assert (await client.post(CHAT, json=PING, headers={"authorization": f"{scheme} {KEY}"})).status_code == 200
    assert KEY not in caplog.text


async def test_while_loading_probes_tell_loading_from_failure_and_requests_are_told_to_wait() -> None:
    async with serving.asgi_client(Service(ServerSettings(MODEL, Path("nowhere")))) as client:
        assert (await client.get("/health")).json() == {"status": "healthy"}
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "Loading")
        refused = await client.post(CHAT, json=PING)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "loading")
        assert int(refused.headers["retry-after"]) > 0
        assert (await client.get("/version")).status_code == 200
        assert "vllm:num_requests_running" in (await client.get("/metrics")).text


async def test_a_draining_server_refuses_new_requests_and_finishes_running_ones(engine: Engine) -> None:
    service = serving.make_service(engine)
    async with serving.asgi_client(service) as client:
        running = asyncio.create_task(client.post(CHAT, json=ask("Count to ten.")))
        await until(lambda: engine.stats().running > 0)

        service.draining = True

        assert (await client.get("/health/ready")).json()["reason"] == "Draining"
        refused = await client.post(CHAT, json=PING)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert (await running).json()["choices"][0]["finish_reason"] == "stop"
        assert (await client.get("/health")).status_code == 200


async def test_models_and_version_are_told(client: httpx.AsyncClient) -> None:
    (card,) = (await client.get("/v1/models")).json()["data"]

    assert (card["id"], card["max_model_len"]) == (MODEL, serving.CONTEXT)
    assert (await client.get(f"/v1/models/{MODEL}")).json() == card
    assert error_of(await client.get("/v1/models/other"))["code"] == "model_not_found"
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", (await client.get("/version")).json()["version"])


def sample(text: str, name: str, **labels: str) -> float:
    """The value of one series."""
    wanted = {"model_name": MODEL, "engine": "0"} | labels
    for line in text.splitlines():
        match = re.fullmatch(re.escape(name) + r"\{(.*)\} (\S+)", line)
        if match and dict(re.findall(r'(\w+)="([^"]*)"', match[1])) == wanted:
            return float(match[2])
    raise AssertionError(f"no series {name} {wanted}")


VLLM_SERIES = [
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total"),
    *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    *(
        f"vllm:{name}_count"
        for name in (
            *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
            *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
            *("request_decode_time_seconds", "request_inference_time_seconds", "iteration_tokens_total"),
            *("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens"),
        )
    ),
]


# What vLLM 0.32 exposes (v1/metrics/loggers.py), and why some of it isn't here yet.
OF_VLLM = {
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc", "engine_sleep_state"),
    *("lora_requests_info", "prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits"),
    *("request_success", "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
    *("spec_decode_num_accepted_tokens_per_pos", "admission_rejections", "time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "request_params_max_tokens", "iteration_tokens_total"),
}
NOT_YET = {
    "engine_sleep_state": "there is no sleep mode",
}


def test_every_metric_of_vllm_is_exposed_or_left_out_for_a_reason() -> None:
    text = Metrics(MODEL, lambda: None, Counts()).render().decode()
    exposed = {line.split()[2].removeprefix("vllm:") for line in text.splitlines() if line.startswith("# TYPE vllm:")}
    exposed = {name for name in exposed if not name.endswith("_created")}

    assert {name if name in OF_VLLM else name.removesuffix("_total") for name in exposed} == OF_VLLM - NOT_YET.keys()


# vLLM's buckets (v1/metrics/buckets.py), whole: dashboards work quantiles out of them.
OF_FIRST_TOKEN = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
OF_NEXT_TOKEN = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
OF_LATENCY = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
BUCKETS = {
    "time_to_first_token_seconds": OF_FIRST_TOKEN,
    **dict.fromkeys(("inter_token_latency_seconds", "request_time_per_output_token_seconds"), OF_NEXT_TOKEN),
    **{f"request_{part}_time_seconds": OF_LATENCY for part in ("queue", "prefill", "decode", "inference")},
    "e2e_request_latency_seconds": OF_LATENCY,
    "iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
}


@pytest.mark.parametrize(("name", "bounds"), BUCKETS.items(), ids=BUCKETS)
def test_histograms_have_vllms_buckets(name: str, bounds: str) -> None:
    lines = Metrics(MODEL, lambda: None, Counts()).render().decode().splitlines()

    found = [re.findall(r'le="([^"]+)"', line)[0] for line in lines if line.startswith(f"vllm:{name}_bucket{{")]

    assert [float(bound) for bound in found] == [*(float(bound) for bound in bounds.split()), math.inf]


async def test_every_series_is_there_at_0_before_the_first_request() -> None:
    async with serving.asgi_client(Service(ServerSettings(MODEL, Path("nowhere")))) as client:
        text = (await client.get("/metrics")).text

    assert [sample(text, name) for name in VLLM_SERIES] == [0.0] * len(VLLM_SERIES)
    assert [sample(text, "vllm:request_success_total", finished_reason=reason) for reason in ("stop", "length", "abort", "error")] == [
        0.0
    ] * 4
    assert sample(text, "glm5:request_rejections_total", reason="queue_full") == 0
    assert [sample(text, "vllm:num_requests_waiting_by_reason", reason=reason) for reason in ("capacity", "deferred")] == [0.0] * 2
    for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
        assert f'vllm:admission_rejections_total{{model_name="{MODEL}",reason="{reason}"}} 0.0' in text  # as vLLM, without `engine`
    assert sample(text, "glm5:runtime_info", device="cpu", version=version("glm5-ascend")) == 1
    assert sample(text, "vllm:time_to_first_token_seconds_bucket", le="2560.0") == 0


async def test_metrics_count_what_happened(engine: Engine) -> None:
    async with serving.asgi_client(serving.make_service(engine)) as client:
        before = (await client.get("/metrics")).text
        done = (await client.post(CHAT, json=ask("Hi"))).json()
        await client.post(CHAT, json=ask("Hi", max_tokens=2))
        await client.post(CHAT, json=ask("Hi", temperature=9))
        after = (await client.get("/metrics")).text

    def grown(name: str, **labels: str) -> float:
        return sample(after, name, **labels) - sample(before, name, **labels)

    assert grown("vllm:request_success_total", finished_reason="stop") == 1
    assert grown("vllm:request_success_total", finished_reason="length") == 1
    assert grown("vllm:prompt_tokens_total") == 2 * done["usage"]["prompt_tokens"]
    assert grown("vllm:generation_tokens_total") == done["usage"]["completion_tokens"] + 2
    assert grown("vllm:time_to_first_token_seconds_count") == 2
    assert grown("vllm:request_queue_time_seconds_count") == grown("vllm:request_prefill_time_seconds_count") == 2
    parts = grown("vllm:request_prefill_time_seconds_sum") + grown("vllm:request_decode_time_seconds_sum")
    assert grown("vllm:request_inference_time_seconds_sum") == pytest.approx(parts)
    assert 0 < grown("vllm:request_queue_time_seconds_sum") + parts <= grown("vllm:e2e_request_latency_seconds_sum")
    computed = 2 * done["usage"]["prompt_tokens"] + (done["usage"]["completion_tokens"] - 1) + (2 - 1)  # the last token is never read
    assert grown("vllm:iteration_tokens_total_sum") == computed
    assert grown("vllm:iteration_tokens_total_bucket", le="1.0") == done["usage"]["completion_tokens"] - 1 + 1
    assert grown("vllm:inter_token_latency_seconds_count") == done["usage"]["completion_tokens"] - 1 + 1
    assert grown("vllm:request_params_max_tokens_sum") == serving.CONTEXT - done["usage"]["prompt_tokens"] + 2
    assert grown("glm5:request_rejections_total", reason="invalid") == 1


@pytest.mark.parametrize("method", ["mtp", "ngram"])
async def test_metrics_count_guesses_and_the_right_ones_by_their_place(method: str) -> None:
    engine = serving.tiny_engine(speculative_tokens=3, speculative_method=method)
    async with serving.asgi_client(serving.make_service(engine)) as client:
        text = "The river was wide and slow. " * 3
        reply = await client.post("/v1/completions", json={"model": MODEL, "prompt": text, "max_tokens": 60, "temperature": 0})
        engine.stop()  # an answer is out before its last step is counted
        assert reply.status_code == 200
        shown = (await client.get("/metrics")).text

    stats, name = engine.stats(), "vllm:spec_decode_num_"
    by_place = [sample(shown, f"{name}accepted_tokens_per_pos_total", position=str(place)) for place in range(3)]
    assert by_place == [*stats.accepted_drafts]
    assert by_place[0] > by_place[2], "places can be told apart"
    assert by_place[2] > 0 or method == "ngram"
    assert sample(shown, f"{name}accepted_tokens_total") == sum(by_place)
    assert sample(shown, f"{name}drafts_total") == stats.drafts > 0
    assert sample(shown, f"{name}draft_tokens_total") == stats.draft_tokens >= sum(by_place)
    assert 'position="3"' not in shown


# A17 over HTTP: answers that the tiny model does not give


@pytest.mark.parametrize(
    ("text", "finish", "thinking", "message"),
    [
        ("The answer is 42.", FinishReason.STOP, True, {"content": "The answer is 42."}),
        ("The answer is 42.", FinishReason.LENGTH, True, {"content": "", "reasoning": "The answer is 42."}),
        ("X</think>Y", FinishReason.STOP, True, {"content": "Y", "reasoning": "X"}),
        ("The answer is 42.", FinishReason.STOP, False, {"content": "The answer is 42."}),
    ],
)
async def test_an_answer_is_never_lost_in_reasoning(
    tokenizer: TextTokenizer, text: str, finish: FinishReason, thinking: bool, message: dict[str, str]
) -> None:
    tokens = tokenizer.raw.encode(text, add_special_tokens=False).ids
    engine = ScriptedEngine(tokens, finish, stop_token=7 if finish is FinishReason.STOP else None)
    request = ask("?", enable_thinking=thinking)

    async with serving.asgi_client(serving.make_service(engine)) as client:
        whole = (await client.post(CHAT, json=request)).json()
        stream = events_of((await client.post(CHAT, json=request | {"stream": True})).text)

    got = whole["choices"][0]["message"]
    assert {key: got[key] for key in got if key in {"content", "reasoning"}} == message
    assert joined(stream) == message["content"]
    assert whole["choices"][0]["finish_reason"] == stream[-1]["choices"][0]["finish_reason"] == finish.value
    assert whole["usage"]["completion_tokens"] == len(tokens) + (finish is FinishReason.STOP)
    assert (whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0) == thinking


async def test_reasoning_can_be_left_out(client: httpx.AsyncClient) -> None:
    request = ask("Who are you?", enable_thinking=True, include_reasoning=False)

    whole = (await client.post(CHAT, json=request)).json()
    stream = await client.post(CHAT, json=request | {"stream": True})

    assert set(whole["choices"][0]["message"]) == {"role", "content"}
    assert "reasoning" not in stream.text.replace("reasoning_tokens", "")
    assert joined(events_of(stream.text)) == whole["choices"][0]["message"]["content"]
