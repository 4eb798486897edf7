"""A child process that prepares a grammar before the server does, and may run out of time or memory over it.

Run by `grammar_compiler`, one at a time. llguidance's own limits don't hold everything: a JSON schema with `multipleOf: 9999991` keeps it
busy for four minutes and takes 5.6 GB (measured with 1.9.1). Whoever gets through here has shown that he can be let in. Imports llguidance
only. Protocol, in JSON lines: `{"tokenizer", "vocab_size", "eos", "memory"}`, answered by `{}`; then for each `{"grammar"}` an `{"error",
"grammar"}`: empty when all is well, and the text to prepare. Ends with its standard input.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

MEMORY = 256 * 1024 * 1024
"""Bytes that preparing one grammar may take."""
LARK_OR_GBNF = "lark_or_gbnf"
"""Key of a part whose text is still to be made Lark."""
_STEPS = 8


def limits() -> LLParserLimits:
    """What a grammar may cost; smaller than llguidance's defaults where those are for one user. 20,000 lexer states take 40 MB."""
    return LLParserLimits(verbose_errors=False, max_lexer_states=20_000, max_grammar_size=200_000)


def prepare(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """The grammar at its beginning; `get_error()` of it says what is wrong."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits())


def make_tokenizer(tokenizer: str, vocab_size: int, eos: list[int]) -> LLTokenizer:
    """From the text of a tokenizer.json. `eos`: tokens that may end an answer whose grammar is complete."""
    return LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=eos or None)


def in_lark(grammar: str) -> str:
    """The grammar with all parts in Lark; raises ValueError."""
    parts = json.loads(grammar)
    for part in parts["grammars"]:
        if LARK_OR_GBNF in part:
            part["lark_grammar"] = any_to_lark(part.pop(LARK_OR_GBNF))
    return json.dumps(parts, ensure_ascii=False)


def try_out(tokenizer: LLTokenizer, grammar: str) -> str:
    """Prepare the grammar and follow it for a few tokens; what went wrong, or nothing."""
    matcher = prepare(tokenizer, grammar)
    for _ in range(_STEPS):
        mask = matcher.compute_bitmask() if not matcher.is_error() else b""
        first = next((place * 8 + (byte & -byte).bit_length() - 1 for place, byte in enumerate(mask) if byte), None)
        if first is None or matcher.is_stopped() or not matcher.consume_token(first):
            break
    error = matcher.get_error()
    return "no text can satisfy it" if error.startswith("NoExtension") else error


def _main() -> None:
    begins = json.loads(sys.stdin.readline())
    tokenizer = make_tokenizer(begins["tokenizer"], begins["vocab_size"], begins["eos"])
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + begins["memory"]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for line in sys.stdin:
        grammar, error = json.loads(line)["grammar"], ""
        try:
            grammar = in_lark(grammar)
        except Exception as fault:  # noqa: BLE001 - foreign code on a client's text
            error = f"not read as Lark or GBNF: {fault}"
        error = error or try_out(tokenizer, grammar)
        sys.stdout.write(json.dumps({"error": error[:2000], "grammar": grammar}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
