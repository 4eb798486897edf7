"""Conversations → token ids and which of them are learned, by the rule of GLM-5's own training.

Called by `reading`. The text is what the server renders for the same conversation. Learned are reasoning, `</think>`, content and tool
calls of every answer, and the one token that ends it: the role token of whoever speaks next. Not learned are prompts, `<|assistant|>`, and
the `<think>` behind it, which the server supplies. Behind the last answer the token that would end it is added.

An answer that the whole conversation doesn't show as it was made gets an example of its own, which ends with it: reasoning that the
template leaves out of past turns, and an answer that another answer or a system message follows, where no token would say that it ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from glm5_runtime.config import ConfigError, ModelConfig
from glm5_runtime.text.errors import ConversationError
from glm5_runtime.text.template import find_template
from glm5_runtime.text.tokens import TextTokenizer
from glm5_runtime.train.data.example import Example
from glm5_runtime.train.data.formats import Conversation, Document, RowError, all_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from glm5_runtime.text.template import ChatTemplate

_SYSTEM, _USER, _ASSISTANT, _OBSERVATION = "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"
_THINK = "<think>"
_END = "<|endoftext|>"
_MOST_PARTS = 128
"""Examples of one row: each holds all that came before, so their size grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """One example as text. `answers`: for each answer in it whether it is learned, None for plain text, of which all is."""

    text: str
    answers: tuple[bool, ...] | None
    end: int
    """The token to add behind the text."""


class Renderer:
    """Template and tokenizer of a model, as the server uses them."""

    def __init__(self, template: ChatTemplate, tokenizer: TextTokenizer, stops: frozenset[int]) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self._ids = {name: self._id_of(name) for name in (_SYSTEM, _USER, _ASSISTANT, _OBSERVATION, _THINK, _END)}
        endless = [name for name in (_USER, _OBSERVATION, _END) if self._ids[name] not in stops]
        if endless:
            raise ConfigError(f"{', '.join(endless)} end an answer and are not in the model's eos_token_id: it would never stop")

    @classmethod
    def from_dir(cls, model_dir: Path, chat_template: str = "auto", version: str | None = None) -> Renderer:
        """What belongs to a checkpoint; raises ConfigError, TemplateError."""
        config = ModelConfig.from_dir(model_dir)
        tokenizer = TextTokenizer.from_dir(model_dir)
        tokenizer.check_model(config, model_dir)
        return cls(find_template(model_dir, chat_template, version), tokenizer, config.eos_token_ids)

    def _id_of(self, name: str) -> int:
        token = self.tokenizer.raw.token_to_id(name)
        if token is None:
            raise ConfigError(f"the tokenizer has no token {name}: it is not GLM-5's; take all files from one release")
        return token

    def document(self, document: Document) -> list[Rendered]:
        """Plain text: all of it is learned, and its end. Raises RowError."""
        self._refuse_control_tokens(document.text)
        return [Rendered(document.text, None, self._ids[_END])]

    def conversation(self, conversation: Conversation) -> list[Rendered]:
        """The examples of a conversation, most often one; raises RowError."""
        self._refuse_control_tokens(all_text(conversation))
        texts = _Texts(self.template, conversation)
        last = len(conversation.messages) - 1
        parts = _apart(conversation, texts)
        rest = conversation.answers.difference(*parts.values())
        if rest:
            parts[last] = parts.get(last, set()) | rest
        return [self._part(conversation, texts, end, learned) for end, learned in sorted(parts.items())]

    def _part(self, conversation: Conversation, texts: _Texts, end: int, learned: set[int]) -> Rendered:
        messages = conversation.messages[: end + 1]
        answers = tuple(index in learned for index, message in enumerate(messages) if message["role"] == "assistant")
        token = _OBSERVATION if messages[-1].get("tool_calls") else _USER
        return Rendered(texts[end], answers, self._ids[token])

    def _refuse_control_tokens(self, text: str) -> None:
        if found := self._control.search(text):
            why = "as a token it would end a turn or begin another one in the middle of a text"
            raise RowError("control-token", f"the row's own text holds {found.group()}: {why}; remove it")

    @cached_property
    def _control(self) -> re.Pattern[str]:
        names = (self.tokenizer.raw.id_to_token(token) for token in sorted(self.tokenizer.control_ids))
        return re.compile("|".join(re.escape(name) for name in names if name))

    # --- tokens ---------------------------------------------------------------------------------------------------------------

    def examples(self, rendered: Sequence[Rendered], lines: Sequence[int]) -> list[Example | RowError]:
        """Token ids and labels, all texts in one call: tokenizers use all cores for that and hold no lock."""
        plain = [index for index, each in enumerate(rendered) if each.answers is None]
        ids = self.tokenizer.encode_all([each.text for each in rendered], add_special_tokens=False)
        if plain:  # as /v1/completions reads a text
            texts = self.tokenizer.encode_all([rendered[index].text for index in plain], add_special_tokens=True)
            for index, tokens in zip(plain, texts, strict=True):
                ids[index] = tokens
        return [self._example(each, tokens, line) for each, tokens, line in zip(rendered, ids, lines, strict=True)]

    def _example(self, rendered: Rendered, ids: list[int], line: int) -> Example | RowError:
        tokens = (*ids, rendered.end)
        if rendered.answers is None:
            return Example(tokens, (*(token not in self.tokenizer.control_ids for token in ids), True), line)
        trained = [False] * len(tokens)
        starts = [at for at, token in enumerate(tokens) if token == self._ids[_ASSISTANT]]
        if len(starts) != len(rendered.answers):
            return RowError("template", f"the chat template writes {len(starts)} turns for {len(rendered.answers)} answers")
        turns = {self._ids[name] for name in (_SYSTEM, _USER, _ASSISTANT, _OBSERVATION)}
        for start, learned in zip(starts, rendered.answers, strict=True):
            if not learned:
                continue
            first = start + 1 + (tokens[start + 1] == self._ids[_THINK])
            end = next(at for at in range(first, len(tokens)) if tokens[at] in turns)
            trained[first : end + 1] = [True] * (end + 1 - first)
        return Example(tokens, tuple(trained), line)


class _Texts(dict[int, str]):
    """The conversation up to a message as the template renders it, each made once."""

    def __init__(self, template: ChatTemplate, conversation: Conversation) -> None:
        super().__init__()
        self._template, self._conversation = template, conversation

    def __missing__(self, end: int) -> str:
        messages, options = self._conversation.messages[: end + 1], self._conversation.options
        try:
            text = self._template.render(messages, tools=self._conversation.tools, options=options, add_generation_prompt=False)
        except ConversationError as error:
            raise RowError("template", error.message) from error
        return self.setdefault(end, text)


def _apart(conversation: Conversation, texts: _Texts) -> dict[int, set[int]]:
    """Answers that need an example of their own: the message it ends with → the answers learned there. Raises RowError for too many."""
    messages = conversation.messages
    last = len(messages) - 1
    ends = _ends_of_rounds(messages)
    found: dict[int, set[int]] = {}
    rounds: set[int] = set()  # ends of rounds whose reasoning the whole conversation no longer shows
    for answer in sorted(conversation.answers - {last}):
        end = ends[answer]
        if messages[answer + 1]["role"] in ("assistant", "system"):
            found[answer] = {answer}
        elif end < last and _reasons(messages[answer]) and not texts[last].startswith(texts[end]):
            rounds.add(end)
            found.setdefault(end, set()).add(answer)
        if len(found) > _MOST_PARTS:
            raise RowError("too-long", f"more than {_MOST_PARTS} answers need a context of their own; divide the conversation")
    for answer in conversation.answers.difference(*found.values()):  # those without reasoning around them
        if ends[answer] in rounds:
            found[ends[answer]].add(answer)
    return found


def _ends_of_rounds(messages: list[dict[str, Any]]) -> list[int]:
    """For each message the last answer before the user speaks again."""
    ends = [-1] * len(messages)
    end = -1  # none yet
    for index in range(len(messages) - 1, -1, -1):
        role = messages[index]["role"]
        if role == "user":
            end = -1
        elif role == "assistant" and end < 0:
            end = index
        ends[index] = end
    return ends


def _reasons(message: dict[str, Any]) -> bool:
    return bool(message.get("reasoning_content", "").strip()) or "</think>" in message["content"]
