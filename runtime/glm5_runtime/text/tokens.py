"""Text to token ids and back: the checkpoint's tokenizer, incremental decoding, stop strings with hold-back.

Used by the endpoints (encode), by `choice` (decode) and by training. Knows nothing of HTTP or of chat.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from glm5_runtime.config import ConfigError, read_object

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from glm5_runtime.config import ModelConfig

# Special tokens of GLM that carry structure the parsers read; the rest of the special tokens never reaches a client.
MARKERS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 8  # tokens; UTF-8 needs four bytes at most, a longer wait means bytes that are no text
_LEAST_KNOWN = 0.9  # of the model's vocabulary; what it has beyond the tokenizer's is padding
_ENCODE_INLINE = 20_000  # characters; longer texts are encoded off the event loop (a few ms per 10,000)


class TextTokenizer:
    """A checkpoint's tokenizer.json with what a server needs around it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.raw = tokenizer
        # What the trainer of a checkpoint left set would cut prompts unseen, and fill up the texts of a batch with tokens.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.marker_ids = frozenset(token for token, entry in added.items() if entry.content in MARKERS)
        self.control_ids = self.special_ids - self.marker_ids  # no text of anybody's: they begin and end turns
        self._added = {token: entry.content for token, entry in added.items()}

    @classmethod
    def from_dir(cls, model_dir: Path) -> TextTokenizer:
        """Load `tokenizer.json` of a checkpoint; raises ConfigError."""
        path = model_dir / "tokenizer.json"
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # tokenizers raises bare Exception, without the file's name, whatever is wrong
            read_object(path)  # says what, unless it is JSON
            raise ConfigError(
                f"{path}: no tokenizer that this runtime can read ({error}); take it from the checkpoint's release"
            ) from error

    def check_model(self, config: ModelConfig, model_dir: Path) -> None:
        """Raise ConfigError where this is the tokenizer of another model: requests would be served, and every answer would be noise."""
        ids = self.raw.get_vocab(with_added_tokens=True).values()
        if max(ids) >= config.vocab_size:
            fault = f"has token ids up to {max(ids)}, and vocab_size is {config.vocab_size}"
        elif len(ids) < config.vocab_size * _LEAST_KNOWN:
            fault = f"knows {len(ids)} tokens, and vocab_size is {config.vocab_size}"
        elif unknown := sorted(config.eos_token_ids - self._added.keys()):
            fault = f"eos_token_id {unknown} of the model is none of its special tokens"
        else:
            return
        raise ConfigError(f"{model_dir / 'tokenizer.json'}: of another model: {fault}; take all files from one release")

    async def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Token ids of `text`; long texts don't stop the event loop."""
        if len(text) <= _ENCODE_INLINE:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Token ids of many texts at once, on all cores."""
        return [found.ids for found in self.raw.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)]

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        # `encode` would hold the interpreter lock for as long as it takes (0.5 s and more for 500,000 characters); the batch form lets go.
        return tuple(self.raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def fewest_tokens(self, characters: int) -> int:
        """A lower bound of a text's token count that costs nothing: refuses a huge prompt without encoding it."""
        return characters // self._longest_token

    @cached_property
    def _longest_token(self) -> int:
        return max(len(token) for token in self.raw.get_vocab(with_added_tokens=True))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of all ids, special tokens included."""
        return self.raw.decode(list(ids), skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token, also when they are only a part of a character."""
        if token in self._added:
            return self._added[token].encode()
        piece = self.raw.id_to_token(token)
        if piece is None:
            return b""
        try:
            return bytes(self._byte_of[character] for character in piece)
        except KeyError:
            return self.raw.decode([token], skip_special_tokens=False).encode()  # no byte-level vocabulary

    def token_text(self, token: int) -> str:
        """How a token is named in logprobs: its text, or its bytes when they are no text (OpenAI's `bytes:` form)."""
        raw = self.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        """Byte-level BPE writes bytes as visible characters: printable Latin-1 as itself, the rest from U+0100 on."""
        printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
        others = [byte for byte in range(256) if byte not in printable]
        return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class Detokenizer:
    """Text of a growing token sequence, given out in whole characters.

    `hidden`: ids that leave no text. The joined pieces equal the text of the whole sequence; a character that `max_tokens` cuts in
    half shows as one U+FFFD at the very end.
    """

    def __init__(self, tokenizer: TextTokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stream = DecodeStream(skip_special_tokens=False)
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        if token in self._hidden:
            return ""
        self._pending.append(token)
        text = self._step(token)
        if text is None and len(self._pending) < _LONGEST_CHARACTER:
            return ""
        if text is None:  # bytes that never become text: give them out and start over, or the wait would never end
            text = self._tokenizer.decode(self._pending)
            self._stream = DecodeStream(skip_special_tokens=False)
        self._pending.clear()
        return text

    def _step(self, token: int) -> str | None:
        try:
            return self._stream.step(self._tokenizer.raw, token)
        except Exception:  # noqa: BLE001 - tokenizers raises bare Exception for byte sequences it can't align; restart behind them
            text = self._tokenizer.decode(self._pending)
            self._stream = DecodeStream(skip_special_tokens=False)
            return text

    def flush(self) -> str:
        """What is left at the end: the readable part of a cut character's tokens, then one U+FFFD."""
        if not self._pending:
            return ""
        text = self._tokenizer.decode(self._pending)
        self._pending.clear()
        return text.rstrip(_REPLACEMENT) + _REPLACEMENT if text.endswith(_REPLACEMENT) else text


@dataclass
class StopStrings:
    """Finds the first stop string in a text that arrives in pieces, and never lets the start of one out."""

    stops: tuple[str, ...]
    include: bool = False
    _held: str = field(default="", init=False)

    def push(self, text: str, *, search: bool = True) -> tuple[str, str | None]:
        """(text that is safe to give out, the stop string found). Nothing may be pushed after a find.

        Only a stop string that ends in `text` counts, and none without `search`.
        """
        if not self.stops:
            return text, None
        old = len(self._held)
        self._held += text
        starts = {stop: self._held.find(stop, max(0, old - len(stop) + 1)) for stop in self.stops} if search else {}
        found = [(at, stop) for stop, at in starts.items() if at >= 0]
        if found:
            at, stop = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            return self._held[: at + len(stop) if self.include else at], stop
        keep = max(self._overlap(stop) for stop in self.stops)
        safe = self._held[: len(self._held) - keep]
        self._held = self._held[len(safe) :]
        return safe, None

    def flush(self) -> str:
        """The text held back when nothing more comes: it was no stop string after all."""
        text, self._held = self._held, ""
        return text

    def _overlap(self, stop: str) -> int:
        """Length of the longest start of `stop` that the held text ends with."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0
