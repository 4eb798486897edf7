"""What answers are worth: rules on texts, a service on this machine, another checkpoint."""

from __future__ import annotations

import json
import math
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pydantic import ValidationError

from glm5_runtime.config import ConfigError, ModelConfig
from glm5_runtime.train.rl.config import HttpReward, ModelReward, RlConfig, RuleReward
from glm5_runtime.train.rl.rewards import ByModel, ByRule, ByService, RewardError, scores_of
from glm5_runtime.train.rl.rollout import Answer, Prompt
from tests.runtime.train.rl.runs import CPU, TINY, renderer, rolling, rows_of, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Served = tuple[str, list[Any]]
USER = 7
"""The token that ends an answer."""


def answer(said: str, reference: str = "</think>42", question: str = "What?", ended: bool = True) -> Answer:
    tokenizer = renderer().tokenizer
    ids = [tokenizer.encode_all([text], add_special_tokens=False)[0] for text in (question, reference, said)]
    made = Answer(Prompt(tuple(ids[0]), tuple(ids[1]), 1), 0, [*ids[2], USER] if ended else ids[2])
    made.ended = ended
    return made


# --- rules ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "said", "passes"),
    [
        ({"rule": "exact"}, "</think>42", True),
        ({"rule": "exact"}, "6 times 7 is 41</think> 42\n", True),
        ({"rule": "exact"}, "42</think>41", False),
        ({"rule": "exact"}, "</think>421", False),
        ({"rule": "contains"}, "</think>It is 42.", True),
        ({"rule": "contains"}, "42</think>It is.", False),
        ({"rule": "contains", "pattern": "is"}, "</think>It is 41.", True),
        ({"rule": "starts-with", "pattern": "It"}, "</think> It is", True),
        ({"rule": "starts-with", "pattern": "It"}, "</think>So It is", False),
        ({"rule": "regex", "pattern": r"^\d+$"}, "</think>7", True),
        ({"rule": "regex", "pattern": r"^\d+$"}, "</think>seven", False),
        ({"rule": "regex", "pattern": r"answer:(.*)"}, "</think>My answer: 42", True),
        ({"rule": "regex", "pattern": r"answer:(.*)"}, "</think>My answer: 41", False),
        ({"rule": "regex", "pattern": r"answer:(x)?"}, "</think>My answer: 42", False),
        ({"rule": "exact"}, "42", True),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_rule_looks_at_what_stands_behind_the_reasoning(rule: dict[str, str], said: str, passes: bool, ended: bool) -> None:
    score = ByRule(RuleReward.model_validate({"kind": "rule", **rule}), renderer().tokenizer)

    assert score([answer(said, ended=ended)]) == [float(passes)]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": "regex"}, "needs a pattern"),
        ({"rule": "regex", "pattern": "(("}, "no regular expression"),
        ({"rule": "contains", "pattern": ""}, "every answer would pass"),
        ({"rule": "equals"}, "Input should be 'exact'"),
    ],
)
def test_a_rule_that_nothing_can_be_looked_for_with_is_refused(rule: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RuleReward.model_validate({"kind": "rule", **rule})


def test_each_token_of_an_answer_costs_the_penalty() -> None:
    short, long = answer("</think>42"), answer("</think>42 and more words behind it")
    config = RlConfig(length_penalty=0.01)

    scores = scores_of([short, long], lambda answers: [1.0] * len(answers), config)

    assert scores == pytest.approx([1 - 0.01 * len(short.tokens), 1 - 0.01 * len(long.tokens)])


def test_a_score_that_is_no_number_ends_the_run() -> None:
    with pytest.raises(RewardError, match="a score is nan"):
        scores_of([answer("x")], lambda _: [math.nan], RlConfig())


# --- a service --------------------------------------------------------------------------------------------------------------


@contextmanager
def service(reply: Callable[[int, list[dict[str, str]]], tuple[int, bytes] | tuple[int, bytes, int] | None]) -> Iterator[Served]:
    """Its URL and what it was sent; `reply` is given the request's number and body; None: it never replies.

    A third number is the length that it announces; it is silent where that is more.
    """
    got: list[Any] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            got.append(body)
            said = reply(len(got), body)
            if said is None:
                over.wait(30)
                return
            status, text, *announced = said
            self.send_response(status)
            self.send_header("content-length", str(*announced or [len(text)]))
            self.end_headers()
            self.wfile.write(text)
            if announced:
                over.wait(30)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score", got
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def asking(url: str, timeout: float = 20.0, retries: int = 2) -> ByService:
    return ByService(HttpReward(kind="http", url=url, timeout=timeout, retries=retries), renderer().tokenizer, pause=0.001)


def test_a_service_gets_texts_and_its_numbers_are_the_scores() -> None:
    with service(lambda _, body: (200, json.dumps([len(each["answer"]) for each in body]).encode())) as (url, got):
        scores = asking(url)([answer("</think>1"), answer("</think>12", ended=False)])

    assert scores == [9.0, 10.0]
    assert got == [[{"prompt": "What?", "answer": f"</think>{said}", "reference": "</think>42"} for said in ("1", "12")]]


def test_a_service_that_is_busy_is_asked_again() -> None:
    with service(lambda number, _: (503, b"") if number == 1 else (429, b"") if number == 2 else (200, b"[0.5]")) as (url, got):
        assert asking(url)([answer("x")]) == [0.5]

    assert len(got) == 3


@pytest.mark.parametrize(
    ("reply", "message", "requests"),
    [
        ((500, b""), "3 tries ended with status 500", 3),
        ((404, b""), "1 tries ended with status 404", 1),
        (None, "3 tries ended with no reply within 0.1 s", 3),
        ((200, b"{}"), "a list of 1 numbers, it is a dict", 1),
        ((200, b"[1, 2]"), "a list of 1 numbers, it is a list of 2", 1),
        ((200, b'["good"]'), "'good' in the reply is no number", 1),
        ((200, b"[true]"), "'True' in the reply is no number", 1),
        ((200, b"<html>"), "is not JSON", 1),
    ],
)
def test_a_service_without_scores_ends_the_run_with_what_it_said(reply: tuple[int, bytes] | None, message: str, requests: int) -> None:
    with service(lambda _, __: reply) as (url, got), pytest.raises(RewardError, match=message):
        asking(url, timeout=0.1 if reply is None else 20.0)([answer("x")])

    assert len(got) == requests


def test_a_service_that_stops_in_the_middle_of_its_reply_is_given_up() -> None:
    with service(lambda _, __: (200, b"[", 100)) as (url, got), pytest.raises(RewardError, match=r"no reply within 0\.3 s"):
        asking(url, timeout=0.3, retries=1)([answer("x")])

    assert len(got) == 2


def test_a_service_that_is_not_there_ends_the_run() -> None:
    with service(lambda _, __: (200, b"[1]")) as (url, _):
        pass

    with pytest.raises(RewardError, match="the last of 2 tries ended with ConnectError"):
        asking(url, retries=1)([answer("x")])


# --- another checkpoint -----------------------------------------------------------------------------------------------------


def test_another_checkpoint_scores_by_the_mean_log_probability_of_an_answer(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    with rolling(settings(tmp_path), rows) as made:
        answers = made.rollouts.sample([Prompt.of(row) for row in rows], 0)
    score = ByModel(ModelReward(kind="model", checkpoint=TINY), ModelConfig.from_dir(TINY), CPU)

    scores = score(answers)

    # The checkpoint is that of the untrained policy, whose sampler said the same of its answers.
    assert scores == pytest.approx([sum(each.log_probs) / len(each.log_probs) for each in answers], abs=2e-4)
    noise = [Answer(each.prompt, each.group, [(token * 31) % 2000 + 20 for token in each.tokens]) for each in answers]
    assert max(score(noise)) < min(scores)


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(json.loads((TINY / "config.json").read_text()) | {"vocab_size": 4096}))

    with pytest.raises(ConfigError, match=r"rl\.reward\.checkpoint .* 4096 tokens, the model 2048"):
        ByModel(ModelReward(kind="model", checkpoint=tmp_path), ModelConfig.from_dir(TINY), torch.device("cpu"))
