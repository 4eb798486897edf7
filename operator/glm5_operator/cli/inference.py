"""`glm5 inference`: one question or a conversation with a model on this machine, answered as it is produced.

Called by `app`. The engine is `engine.running`; this is a small client of its OpenAI endpoint.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.cli import output
from glm5_operator.cli.engine import EngineOptions, find_model, running
from glm5_operator.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

Message = dict[str, str]
_DATA: Final = "data:"


@dataclass(frozen=True)
class Session:
    """The options of one run."""

    model: str
    prompt: str | None
    chat: bool
    system: str | None
    max_tokens: int
    temperature: float
    device: str
    max_model_len: int | None
    start_timeout: float


def run_session(session: Session) -> None:
    """Start the engine, ask, print, stop the engine."""
    if session.chat and session.prompt is not None:
        raise CliError(ExitCode.USAGE, "ask one thing or talk", where="--prompt and --chat", remedy="give one of the two")
    question = _question(session)
    options = EngineOptions(find_model(session.model), session.device, session.max_model_len, session.start_timeout)
    with running(options, _Progress(options.model.name)) as client:
        messages: list[Message] = [] if session.system is None else [{"role": "system", "content": session.system}]
        if question is not None:
            _print_answer(client, session, [*messages, {"role": "user", "content": question}])
        else:
            _talk(client, session, messages)


def _question(session: Session) -> str | None:
    """What to ask; None means to talk."""
    if session.chat or (session.prompt is None and sys.stdin.isatty()):
        return None
    if session.prompt is not None and session.prompt != "-":
        return session.prompt
    return sys.stdin.read().strip()


def _talk(client: httpx.Client, session: Session, messages: list[Message]) -> None:
    """Questions and answers until end of file; Ctrl-C ends an answer, not the talk."""
    for question in _questions():
        messages.append({"role": "user", "content": question})
        answer = _print_answer(client, session, messages)
        messages.append({"role": "assistant", "content": answer})


def _questions() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - importing it gives `input` its line editing
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            return
        if line.strip():
            yield line


def _print_answer(client: httpx.Client, session: Session, messages: list[Message]) -> str:
    """Print an answer while it is produced; returns it whole."""
    parts: list[str] = []
    try:
        for part in _stream(client, session, messages):
            parts.append(part)
            sys.stdout.write(part)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not session.chat:
            raise
    sys.stdout.write("\n")
    return "".join(parts)


def _stream(client: httpx.Client, session: Session, messages: list[Message]) -> Iterator[str]:
    """The text of one answer, piece by piece; what the model thinks before it answers goes to standard error."""
    request = {"messages": messages, "stream": True, "max_tokens": session.max_tokens, "temperature": session.temperature}
    model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
    with client.stream("POST", "/v1/chat/completions", json={"model": model, **request}) as answer:
        if not answer.is_success:
            raise CliError(ExitCode.ENGINE, f"the engine refused the request: {_error_text(answer.read())}")
        thinking = False
        for event in _events(answer):
            if "error" in event:
                raise CliError(ExitCode.ENGINE, f"the engine failed in its answer: {event['error'].get('message')}")
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                    thinking = True
                    sys.stderr.write(thought)
                if text := delta.get("content"):
                    sys.stderr.write("\n" if thinking else "")
                    thinking = False
                    yield text


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event; ends at [DONE]."""
    for line in answer.iter_lines():
        data = line.removeprefix(_DATA).strip()
        if line.startswith(_DATA) and data == "[DONE]":
            return
        if line.startswith(_DATA):
            yield json.loads(data)
    raise CliError(ExitCode.ENGINE, "the answer broke off", remedy="ask again")


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode(errors="replace")


class _Progress:
    """Tells once in a while what the engine is doing: each text once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._last = ""

    def __call__(self, text: str) -> None:
        if text != self._last:
            self._last = text
            output.note(f"{self._model}: {text}")
