"""Chat templates: finds the one to use, renders conversations to prompts.

Called at start (`find_template`), by the chat endpoint and by training (`ChatTemplate.render`). Templates come from the checkpoint, from
this package or from a file the operator of the server named, never from a request; they still run in jinja2's immutable sandbox, since
checkpoints are downloaded. The environment is the one of transformers' `apply_chat_template`, so that a checkpoint's template sees what it
expects.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glm5_runtime.config import ConfigError, pointer_fault, read_object
from glm5_runtime.text.errors import ConversationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)
BUILT_IN = ("5", "5.1", "5.2", "5.3")
RENDER_SECONDS = 10.0  # of computing, for one conversation; the built-in templates take up to 5 s for 100,000 messages
# What foreign template code raises on a conversation its author did not think of
_TEMPLATE_FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "self"})  # beside the names that the environment gives


class TemplateError(ValueError):
    """The template itself can't be used; said at start, before any conversation."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template and where it came from."""

    template: jinja2.Template
    origin: str

    @classmethod
    def compile(cls, source: str, origin: str) -> ChatTemplate:
        """Compile `source`; raises TemplateError with the line at fault."""
        try:
            return cls(_environment().from_string(source), origin)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template {origin}, line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_last: bool = False,
        seconds: float = RENDER_SECONDS,
    ) -> str:
        """The prompt of a conversation.

        `continue_last`: the last message is an unfinished answer; the prompt ends with its text instead of opening a new turn. `options`
        are the template's own switches (enable_thinking, reasoning_effort, clear_thinking, …). Raises ConversationError.
        """
        options = options or {}
        reserved = sorted((_RESERVED | self.template.globals.keys()) & options.keys())
        if reserved:
            raise ConversationError(f"chat_template_kwargs must not set {', '.join(reserved)}", "chat_template_kwargs")
        walked = _TimedMessages(messages, time.thread_time() + seconds)
        try:
            text = self.template.render(
                messages=walked, tools=tools or None, add_generation_prompt=add_generation_prompt and not continue_last, **options
            )
        except _TemplateRefusal as refusal:
            raise ConversationError(f"the model's chat template refuses this conversation: {refusal}", "messages") from None
        except _TooSlow:
            why = f"the model's chat template needs more than {seconds:g} s for these {len(messages)} messages; send fewer"
            raise ConversationError(why, "messages") from None
        except _TEMPLATE_FAULTS as error:
            raise ConversationError(
                f"the model's chat template can't render this conversation ({type(error).__name__})", "messages"
            ) from error
        return _cut_after(text, messages[-1]["content"]) if continue_last else text


def find_template(model_dir: Path, choice: str, version: str | None = None) -> ChatTemplate:
    """The template for `choice`: `auto` (the checkpoint's own, else the one of `version`), a built-in version, or a file's path.

    Without a version it is guessed, and the log says so: a wrong one answers, only worse.
    """
    if choice in BUILT_IN:
        return built_in(choice)
    if choice != "auto":
        return _from_file(choice)
    own = _of_checkpoint(model_dir)
    if own is not None:
        return own
    if version is not None:
        return built_in(version)
    guess, why = _guess_version(model_dir)
    logger.warning("the checkpoint has no chat template; guessed GLM-%s from %s; --model-version says it for certain", guess, why)
    return built_in(guess)


@functools.cache
def built_in(version: str) -> ChatTemplate:
    """One of this package's templates: the version's rules in front of the body they share."""
    folder = resources.files("glm5_runtime.text").joinpath("templates")
    source = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in (f"glm-{version}.jinja", "common.jinja"))
    return ChatTemplate.compile(source, f"built-in {version}")


def _of_checkpoint(model_dir: Path) -> ChatTemplate | None:
    file = model_dir / "chat_template.jinja"
    if file.is_file():
        return ChatTemplate.compile(_text_of(file), "chat_template.jinja of the checkpoint")
    config = model_dir / "tokenizer_config.json"
    if not config.is_file():
        return None
    stored = read_object(config).get("chat_template")
    if isinstance(stored, list):  # several named templates: transformers picks the one called default
        named = [entry for entry in stored if isinstance(entry, dict)]
        stored = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    if not isinstance(stored, str):
        return None
    return ChatTemplate.compile(stored, "tokenizer_config.json of the checkpoint")


def _text_of(file: Path) -> str:
    try:
        content = file.read_bytes()
        if fault := pointer_fault(file, content):
            raise ConfigError(fault)
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"{file}: not readable as text ({error}); download the file again") from error


def _from_file(path: str) -> ChatTemplate:
    try:
        with open(path, encoding="utf-8") as file:
            return ChatTemplate.compile(file.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"--chat-template {path} can't be read: {error}") from error


def _guess_version(model_dir: Path) -> tuple[str, str]:
    """GLM-5's version and what it was guessed from.

    config.json tells 5.2 and later (a larger rope base) from 5 and 5.1, and nothing more, so a name decides within each pair; without one
    the older of the pair is taken. Whether the newer model answers as well to the older one's prompts was not measured.
    """
    config = read_object(model_dir / "config.json")
    name = f"{config.get('_name_or_path', '')} {model_dir.resolve().name}".lower()
    for version in ("5.3", "5.2", "5.1"):
        if f"glm-{version}" in name or f"glm{version}" in name:
            return version, "its name"
    rope = config.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, dict) else config.get("rope_theta")
    return "5.2" if isinstance(theta, int | float) and theta > 1_000_000 else "5", "rope_theta in config.json"


class _TooSlow(Exception):  # noqa: N818 - an event
    """The time for one conversation is over."""


class _TimedMessages(list[Any]):
    """Messages that stop whoever walks over them when time is up.

    A template can't be interrupted from outside, and one with a loop over all messages within such a loop would take hours for a long
    conversation. What a template copies into a list of its own is not watched; the walk that made it is.
    """

    def __init__(self, messages: Iterable[Any], until: float) -> None:
        super().__init__(messages)
        self._until = until

    def __iter__(self) -> Iterator[Any]:
        for message in super().__iter__():
            self._check()
            yield message

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as in list
        self._check()
        found = super().__getitem__(index)
        return _TimedMessages(found, self._until) if isinstance(index, slice) else found

    def _check(self) -> None:
        if time.thread_time() > self._until:
            raise _TooSlow


class _TemplateRefusal(Exception):  # noqa: N818 - raised by the template's author through raise_exception
    """The template called raise_exception."""


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes HTML characters, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise _TemplateRefusal(str(message)[:200])


def _cut_after(text: str, content: str) -> str:
    """End the prompt right behind the last message's text, with the blanks it ended in (templates strip them)."""
    wanted = content.strip()
    at = text.rfind(wanted)
    if at < 0:
        raise ConversationError("the model's chat template changes the last assistant message, so it can't be continued", "messages")
    blanks = content[len(content.rstrip()) :] if wanted else ""
    return text[: at + len(wanted)] + blanks


def opens_thinking(prompt: str) -> bool:
    """Whether generation starts inside a thinking block that the prompt opened."""
    turn = prompt[prompt.rfind("<|assistant|>") + 1 :]
    return turn.rfind("<think>") > turn.rfind("</think>")
