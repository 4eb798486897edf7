"""`glm5-runtime evaluate`: its numbers are training's own, measured on a real server; what it can't ask or read ends it with a reason.

What is faked: for retries and replies that no server of ours gives, the server, by one that answers from a list.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from glm5_runtime.text.template import built_in
from glm5_runtime.text.tokens import TextTokenizer
from glm5_runtime.tools import evaluate as tool
from glm5_runtime.tools.evaluate import EvaluationConfig
from glm5_runtime.tools.evaluation_rows import read_held_out
from glm5_runtime.train import command
from glm5_runtime.train.data import reading
from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.source import split
from tests.runtime.model.oracle import trained
from tests.runtime.train.rows import peft_loss
from tests.support.served import Served, served
from tests.support.serving import TINY

if TYPE_CHECKING:
    from collections.abc import Callable

QUESTIONS = [
    ("Which colour is the sky?", "Green."),
    ("Who wrote the long book?", "An old man."),
    ("How many legs has a chair?", "Four."),
    ("Where does the river go?", "To the harbour."),
    ("When does the shop open?", "At nine."),
    ("Why is the road closed?", "Too much snow."),
]
SHARE = 0.34


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.from_dir(TINY)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions(path: Path) -> Path:
    return write_rows(path, [{"instruction": question, "output": answer} for question, answer in QUESTIONS])


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, list[int]]:
    """Its folder, training's own loss on the rows that it held back, and these rows' lines."""
    folder = tmp_path_factory.mktemp("training")
    data = questions(folder / "rows.jsonl")
    raw = {
        "model": str(TINY),
        "data": {"files": [str(data)], "max_length": 256},
        "lora": {"rank": 16, "alpha": 32, "dropout": 0},
        "training": {"steps": 24, "batch_size": 4, "dtype": "fp32", "learning_rate": 1e-2, "device": "cpu"},
        "evaluation": {"share": SHARE, "every_steps": 24},
        "checkpoint": {"directory": str(folder / "checkpoints"), "every_steps": 24},
        "output": str(folder / "adapters" / "support"),
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(raw))
    assert command.train(folder / "train.yaml", folder / "trained.json") == 0
    rows, _ = reading.load([data], Renderer.from_dir(TINY), reading.ReadingConfig(256))
    _, held = split(rows.rows, SHARE, 0)
    loss: float = json.loads((folder / "trained.json").read_text())["evaluation_loss"]
    return folder / "adapters" / "support", loss, [rows[index].line for index in held]


async def evaluated(server: Served, data: Path, *flags: str, **environ: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, result and what it said, as a process."""
    result = data.with_suffix(".result")
    names = ("--model", "support", "--base", "glm-5", "--checkpoint", str(TINY), "--data", str(data), "--result", str(result))
    arguments = ("-m", "glm5_runtime.cli", "evaluate", "--url", str(server.client.base_url), *names, *flags)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ | environ
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, json.loads(result.read_text()), said.decode()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
async def test_loss_and_exact_matches_on_a_real_server_are_trainings_own(tmp_path: Path, adapter: tuple[Path, float, list[int]]) -> None:
    """Over two ranks, with an adapter that came by the file and has half of the model's requests."""
    folder, expected, lines = adapter
    every = questions(tmp_path / "every.jsonl")
    rows = every.read_text().splitlines(keepends=True)
    held = tmp_path / "held.jsonl"
    held.write_text("".join(rows[line - 1] for line in lines))
    file = tmp_path / "adapters.json"
    file.write_text(json.dumps({"adapters": [{"name": "support", "path": str(folder), "share": 0.5}]}))
    flags = ("--enable-lora", "--adapters-file", str(file), "--tensor-parallel-size", "2", "--device", "cpu")
    async with served(tmp_path, *flags, GLM5_API_KEY="secret") as server:
        waiting = asyncio.create_task(evaluated(server, held, GLM5_API_KEY="secret"))  # while the server still loads
        await server.until("/health/ready", 200)
        code, result, said = await waiting
        assert code == 0, said
        assert (await server.client.get("/health/adapters")).json()["adapters"][0]["state"] == "Loaded"
        assert result["adapter"]["loss"] == pytest.approx(expected, abs=1e-3)
        examples, _ = reading.load([held], Renderer.from_dir(TINY), reading.ReadingConfig(256))
        tokens = sum(sum(example.trained[1:]) for example in examples)
        plain = await asyncio.to_thread(lambda: peft_loss(trained(TINY).requires_grad_(False), examples).item() / tokens)
        assert result["base"]["loss"] == pytest.approx(plain, abs=1e-3)
        assert (result["outcome"], result["rows"], result["tokens"]) == ("Succeeded", len(lines), tokens)

        code, result, said = await evaluated(server, every, GLM5_API_KEY="secret")
        assert code == 0, said
        assert result["adapter"]["exact_match"] >= 0.5  # of four rows in six that it has learned
        assert result["base"]["exact_match"] == 0
        assert "12 of 12 answers" in said

        code, result, _ = await evaluated(server, held, GLM5_API_KEY="wrong")
        assert (code, result["outcome"]) == (2, "ConfigError")
        assert "API key" in result["message"]


# --- rows -------------------------------------------------------------------------------------------------------------------


def test_rows_beyond_the_context_are_counted_and_left_out_and_the_rest_is_cut_to_the_wanted_number(
    tmp_path: Path, renderer: Renderer
) -> None:
    rows = [{"instruction": "Hi", "output": "Hello"}, {"instruction": "Hi", "output": "Hello " * 200}]
    rows += [{"instruction": f"Hi {number}", "output": "Hello"} for number in range(5)]
    found = read_held_out(write_rows(tmp_path / "rows.jsonl", rows), renderer, 64, 4)
    assert (len(found.rows), found.too_long) == (4, 1)


@pytest.mark.parametrize("version", ["5", "5.1", "5.2", "5.3"])
@pytest.mark.parametrize("thought", ["", "Let me see."], ids=["plain", "thinking"])
def test_a_question_is_asked_with_the_beginning_of_what_was_learned(tmp_path: Path, version: str, thought: str) -> None:
    """Whatever a version's template puts in front of an answer."""
    renderer = Renderer(built_in(version), TextTokenizer.from_dir(TINY), frozenset(range(2048)))
    answer = {"role": "assistant", "content": "Hello"} | ({"reasoning_content": thought} if thought else {})
    rows = [{"messages": [{"role": "user", "content": "Hi"}, answer]}]
    (row,) = read_held_out(write_rows(tmp_path / "rows.jsonl", rows), renderer, 512, 4).rows
    assert row.question is not None
    options = row.question.body["chat_template_kwargs"]
    prompt = renderer.template.render(row.question.body["messages"], tools=[], options=options, add_generation_prompt=True)
    ids = renderer.tokenizer.encode_all([prompt], add_special_tokens=False)[0]
    (example,) = row.examples
    assert example.tokens[: len(ids)] == tuple(ids)


def choice(content: str | None, *calls: tuple[str, str], finish: str = "stop") -> dict[str, Any]:
    called = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"message": {"content": content, "tool_calls": called}, "finish_reason": finish}


def test_an_answer_is_right_by_its_text_and_its_calls_and_its_end(tmp_path: Path, renderer: Renderer) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": "x", "n": 1}'}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    user = {"role": "user", "content": "Hi"}
    rows = [
        {"messages": [user, {"role": "assistant", "content": "<think>hm</think>\nHello "}]},
        {"messages": [user, {"role": "assistant", "tool_calls": [call]}], "tools": tools},
        {"text": "Once upon a time."},
        {"messages": [user, {"role": "assistant", "content": "A"}, user, {"role": "assistant", "content": "B", "weight": 0}]},
    ]
    said, called, text, unweighted = read_held_out(write_rows(tmp_path / "rows.jsonl", rows), renderer, 512, 9).rows
    assert text.question is None
    assert unweighted.question is None
    assert said.question is not None
    assert called.question is not None
    assert said.question.is_answered_by(choice(" Hello\n"))
    assert not said.question.is_answered_by(choice("Hello", finish="length"))
    assert not said.question.is_answered_by(choice("Hello", ("look", "{}")))
    assert not said.question.is_answered_by(choice("hello"))
    assert called.question.body["tools"] == tools
    assert called.question.is_answered_by(choice(None, ("look", '{"n": 1, "at": "x"}'), finish="tool_calls"))
    assert not called.question.is_answered_by(choice(None, ("look", '{"n": 2, "at": "x"}'), finish="tool_calls"))


# --- a server that answers from a list --------------------------------------------------------------------------------------

MODELS = {"data": [{"id": name, "max_model_len": 256} for name in ("chat", "support")]}


def _reply(request: httpx2.Request) -> dict[str, Any]:
    """Each token's log-probability is minus a thousandth of its id."""
    body = json.loads(request.content)
    if request.url.path == "/v1/completions":
        logprobs = [None, *(-token / 1000 for token in body["prompt"][1:])]
        return {"model": body["model"], "choices": [{"logprobs": {"token_logprobs": logprobs}}]}
    return {"model": body["model"], "choices": [choice("Green.")]}


class Listed:
    """Answers with what is listed first, then as a server does."""

    def __init__(self, *first: httpx2.Response | Exception) -> None:
        self._first = list(first)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.content:
            self.asked.append(json.loads(request.content))
        if self._first:
            answer = self._first.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        reply = MODELS if request.url.path == "/v1/models" else _reply(request)
        return httpx2.Response(200, json=reply)


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "_PAUSES", (0.0, 0.0))


def ask(
    server: Callable[[httpx2.Request], httpx2.Response], data: Path, monkeypatch: pytest.MonkeyPatch, model: str = "support"
) -> tuple[int, dict[str, Any]]:
    whole = httpx2.AsyncClient
    monkeypatch.setattr(httpx2, "AsyncClient", lambda **given: whole(**given, transport=httpx2.MockTransport(server)))
    return tool.evaluate(EvaluationConfig("http://chat:8000", model, "chat", TINY, data, 200), lambda *_: None)


@pytest.mark.usefixtures("paused")
def test_a_server_that_is_busy_or_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Listed(httpx2.ConnectError("refused"), httpx2.Response(503, json={"error": {"message": "loading"}}))
    data = questions(tmp_path / "rows.jsonl")
    examples, _ = reading.load([data], Renderer.from_dir(TINY), reading.ReadingConfig(256))
    learned = [token for example in examples for token, is_learned in zip(example.tokens, example.trained, strict=True) if is_learned]

    code, result = ask(server, data, monkeypatch)
    assert code == 0
    assert result["adapter"] == {"loss": pytest.approx(sum(learned) / len(learned) / 1000), "exact_match": pytest.approx(1 / 6)}
    assert all(body["canary"] is False and body["temperature"] == 0 for body in server.asked)


@pytest.mark.usefixtures("paused")
@pytest.mark.parametrize(
    ("first", "ending", "message"),
    [
        ([httpx2.ConnectError("refused")] * 9, (1, "EvaluationError"), "given up after 0 s: ConnectError: refused"),
        ([httpx2.Response(500, text="oops")], (1, "EvaluationError"), "/v1/models: 500: oops"),
        ([httpx2.Response(401, json={"error": {"message": "the API key"}})], (2, "ConfigError"), "/v1/models: 401: the API key"),
        ([httpx2.Response(200, json={"data": []})], (2, "ConfigError"), "the server has no 'chat', 'support'"),
        ([httpx2.Response(200, json=MODELS), httpx2.Response(400, text="no")], (1, "EvaluationError"), "400: no"),
        ([httpx2.Response(200, json={"nothing": 1})], (1, "KeyError"), "data"),
        ([httpx2.Response(200, json=MODELS), httpx2.Response(200, json={"model": "x"})], (1, "EvaluationError"), "was answered by 'x'"),
    ],
)
def test_what_can_not_be_asked_ends_it_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[Any], ending: tuple[int, str], message: str
) -> None:
    code, result = ask(Listed(*first), questions(tmp_path / "rows.jsonl"), monkeypatch)
    assert (code, result["outcome"]) == ending
    assert message in result["message"]


@pytest.mark.parametrize("lie", ["NaN", "-Infinity", "Infinity", "0.5", "null", '"x"'])
def test_a_loss_that_is_no_number_is_told_and_never_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    def lying(request: httpx2.Request) -> httpx2.Response:
        reply = MODELS if request.url.path == "/v1/models" else _reply(request)
        if request.url.path == "/v1/completions" and reply["model"] == "support":
            reply["choices"][0]["logprobs"]["token_logprobs"][-1] = "lie"
        return httpx2.Response(200, text=json.dumps(reply).replace('"lie"', lie))

    code, result = ask(lying, questions(tmp_path / "rows.jsonl"), monkeypatch)

    assert (code, result["outcome"]) == (1, "EvaluationError")
    assert "'support' gives " in result["message"]


@pytest.mark.parametrize(
    ("rows", "outcome", "message"),
    [
        ([], "DataError", ""),
        ([{"instruction": "Hi"}], "DataError", ""),
        ([{"instruction": "Hi", "chosen": "a", "rejected": "b"}], "DataError", "preference pairs"),
        ([{"instruction": "Hi", "output": "word " * 300}], "RowsError", "all 1 rows are longer than the 256 tokens"),
    ],
)
def test_data_that_can_not_be_used_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], outcome: str, message: str
) -> None:
    code, result = ask(Listed(), write_rows(tmp_path / "rows.jsonl", rows), monkeypatch)
    assert (code, result["outcome"]) == (3, outcome)
    assert message in result["message"]


async def test_answers_that_come_while_others_are_waited_for_all_count(tmp_path: Path, renderer: Renderer) -> None:
    """Rows are asked for several at a time; a count read before the wait and written after it would lose those in between."""
    rows = read_held_out(questions(tmp_path / "rows.jsonl"), renderer, 256, 200).rows

    class Prompt(tool._Server):
        async def loss(self, name: str, example: object) -> float:
            return 0.5

        async def answer(self, name: str, question: Any) -> dict[str, Any]:  # noqa: ANN401 - the rows' own type
            await asyncio.sleep(0)  # a turn of the loop, which every real request takes
            return {"finish_reason": "stop", "message": {"content": question.content}}

    async with httpx2.AsyncClient() as client:
        scores = await tool._scores(Prompt(client), ("support",), rows, lambda _done, _total: None)

    assert scores["support"].as_json()["exact_match"] == 1.0
