"""`glm5-runtime evaluate`: how well a served adapter does on held-out rows, beside the model it belongs to.

Asks a running server and nothing else: the loss comes from log-probabilities of the rows' own tokens, exact matches from greedy answers.
Both are asked for by name with `canary: false`, so that shares of the traffic mix nothing in. What the server can't do at the moment
(starting, busy, gone for a while) is asked again; everything else ends the evaluation.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2

from glm5_runtime.config import ConfigError
from glm5_runtime.text.template import TemplateError
from glm5_runtime.tools.evaluation_rows import RowsError, read_held_out
from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.data.reading import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from glm5_runtime.tools.evaluation_rows import HeldOut, Question
    from glm5_runtime.train.data.example import Example

EXIT_CODES: dict[type[Exception], int] = {ConfigError: 2, TemplateError: 2, DataError: 3, RowsError: 3}
"""2: the settings are wrong. 3: the data can't be used. Others: 1."""
_AT_ONCE = 4
"""Requests side by side; the server has others to answer."""
_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
_AGAIN = frozenset({429, 502, 503, 504})
_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0, 15.0)
"""Seconds before a request is sent again: one and a half minutes in all, longer than a server needs to change places."""
_ROUNDING = 1e-3
"""What the logarithm of a probability may be above zero, by rounding."""
_SHOWN = 300
_LONGEST_MESSAGE = 1000
"""Characters: the result is also a container's last words, of which a kubelet keeps 4096 bytes."""


class EvaluationError(Exception):
    """The server can't be asked; the message says why."""


@dataclass(frozen=True)
class EvaluationConfig:
    """What is evaluated. `model`: the adapter's name; `base`: that of the model. `key`: the API key, if the server wants one."""

    url: str
    model: str
    base: str
    checkpoint: Path
    data: Path
    most_rows: int
    key: str | None = None
    chat_template: str = "auto"
    model_version: str | None = None


@dataclass
class Score:
    """Of one model. `loss_sum`: negative log-likelihood of the learned tokens, nats."""

    loss_sum: float = 0.0
    tokens: int = 0
    matches: int = 0
    questions: int = 0

    def as_json(self) -> dict[str, float | None]:
        """Mean loss over tokens, part of the questions that were answered exactly; None where there are no questions."""
        return {"loss": self.loss_sum / self.tokens, "exact_match": self.matches / self.questions if self.questions else None}


def evaluate(config: EvaluationConfig, told: Callable[[int, int], None]) -> tuple[int, dict[str, Any]]:
    """Exit code and result. `told` is called with what is done and all that there is to do."""
    try:
        return 0, {"outcome": "Succeeded", **asyncio.run(_evaluate(config, told))}
    except Exception as error:  # noqa: BLE001 - whoever started this reads of any end in the result
        code = next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
        is_ours = code != 1 or isinstance(error, EvaluationError)
        return code, {"outcome": type(error).__name__, "message": (str(error) if is_ours else repr(error))[:_LONGEST_MESSAGE]}


async def _evaluate(config: EvaluationConfig, told: Callable[[int, int], None]) -> dict[str, Any]:
    renderer = Renderer.from_dir(config.checkpoint, config.chat_template, config.model_version)
    headers = {} if config.key is None else {"authorization": f"Bearer {config.key}"}
    async with httpx2.AsyncClient(base_url=config.url, headers=headers, timeout=_TIMEOUT) as client:
        server = _Server(client)
        context = await server.context((config.base, config.model))
        held_out = await asyncio.to_thread(read_held_out, config.data, renderer, context, config.most_rows)
        scores = await _scores(server, (config.base, config.model), held_out.rows, told)
    base, adapter = (scores[name].as_json() for name in (config.base, config.model))
    tokens = scores[config.base].tokens
    return {"rows": len(held_out.rows), "too_long": held_out.too_long, "tokens": tokens, "base": base, "adapter": adapter}


async def _scores(server: _Server, names: Sequence[str], rows: Sequence[HeldOut], told: Callable[[int, int], None]) -> dict[str, Score]:
    """Ask for every row of every model, a few at a time."""
    scores = {name: Score() for name in names}
    waiting = [(name, row) for row in rows for name in names]
    total, done = len(waiting), 0
    told(0, total)

    async def work() -> None:
        nonlocal done
        while waiting:
            name, row = waiting.pop()
            await _ask(server, name, row, scores[name])
            done += 1
            told(done, total)

    waiting.reverse()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())
    except ExceptionGroup as several:
        raise several.exceptions[0] from None  # the others failed of the same, or were ended by it
    return scores


async def _ask(server: _Server, name: str, row: HeldOut, score: Score) -> None:
    for example in row.examples:
        loss = await server.loss(name, example)
        score.loss_sum += loss
        score.tokens += sum(example.trained[1:])
    if row.question is not None:
        choice = await server.answer(name, row.question)  # first: `+=` would add to the count from before the wait
        score.questions += 1
        score.matches += row.question.is_answered_by(choice)


class _Server:
    """A running server, asked over HTTP."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def context(self, names: Sequence[str]) -> int:
        """Tokens of the longest row; raises ConfigError for a name that isn't served."""
        cards = {card["id"]: card for card in (await self._send("GET", "/v1/models"))["data"]}
        if missing := [name for name in names if name not in cards]:
            raise ConfigError(f"the server has no {', '.join(map(repr, missing))}; it has {', '.join(map(repr, cards))}")
        return int(cards[names[0]]["max_model_len"])

    async def loss(self, name: str, example: Example) -> float:
        """Negative log-likelihood of the example's learned tokens, summed, nats."""
        body = {"prompt": list(example.tokens), "echo": True, "logprobs": 0, "max_tokens": 0}
        (choice,) = await self._choices("/v1/completions", name, body)
        logprobs = choice["logprobs"]["token_logprobs"]
        if len(logprobs) != len(example.tokens):
            raise EvaluationError(f"the server gives {len(logprobs)} log-probabilities for {len(example.tokens)} tokens")
        learned = [logprob for logprob, is_learned in zip(logprobs[1:], example.trained[1:], strict=True) if is_learned]
        if strange := [each for each in learned if not isinstance(each, int | float) or not math.isfinite(each) or each > _ROUNDING]:
            raise EvaluationError(f"{name!r} gives {str(strange[0])[:_SHOWN]} for a log-probability; its weights may hold NaN or infinity")
        return -math.fsum(learned)

    async def answer(self, name: str, question: Question) -> dict[str, Any]:
        """The choice of a greedy answer."""
        (choice,) = await self._choices("/v1/chat/completions", name, question.body)
        return choice

    async def _choices(self, path: str, name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        reply = await self._send("POST", path, {"model": name, "temperature": 0, "canary": False} | body)
        if reply["model"] != name:
            raise EvaluationError(f"a request for {name!r} was answered by {reply['model']!r}; the server is older than the evaluation")
        choices: list[dict[str, Any]] = reply["choices"]
        return choices

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The reply's JSON. Raises EvaluationError, ConfigError."""
        trouble = ""
        for pause in (*_PAUSES, None):
            try:
                response = await self._client.request(method, path, json=body)
            except httpx2.TransportError as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    reply: dict[str, Any] = response.json()
                    return reply
                trouble = f"{response.status_code}: {_said(response)}"
                if response.status_code in {401, 403, 404}:
                    raise ConfigError(f"{path}: {trouble}")
                if response.status_code not in _AGAIN:
                    raise EvaluationError(f"{path}: {trouble}")
            if pause is not None:
                await asyncio.sleep(pause)
        raise EvaluationError(f"{path}: given up after {sum(_PAUSES):.0f} s: {trouble}")


def _said(response: httpx2.Response) -> str:
    """The message of an error, OpenAI's shape or any."""
    try:
        return str(json.loads(response.text)["error"]["message"])[:_SHOWN]
    except (ValueError, KeyError, TypeError):
        return response.text[:_SHOWN]
