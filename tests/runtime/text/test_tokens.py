"""Incremental text: whole characters, joined equal to the whole, stop strings at any cut."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from glm5_runtime.text.tokens import Detokenizer, StopStrings, TextTokenizer
from tests.support.serving import EXPECTED, TINY

TOKENIZER = TextTokenizer.from_dir(TINY)


def pieces_of(ids: list[int], hidden: frozenset[int] = frozenset()) -> list[str]:
    text = Detokenizer(TOKENIZER, hidden)
    return [*(text.push(token) for token in ids), text.flush()]


@given(st.text(max_size=60))
def test_pieces_of_any_text_join_to_the_text_and_none_holds_half_a_character(text: str) -> None:
    pieces = pieces_of(TOKENIZER.raw.encode(text, add_special_tokens=False).ids)

    assert "".join(pieces) == TOKENIZER.decode(TOKENIZER.raw.encode(text, add_special_tokens=False).ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 2047), max_size=60))
def test_any_token_sequence_ends_in_time_and_waits_for_at_most_one_character(ids: list[int]) -> None:
    text = Detokenizer(TOKENIZER, frozenset())
    waiting = 0
    for token in ids:
        waiting = 0 if text.push(token) else waiting + 1
        assert waiting < 8
    text.flush()


def test_bytes_that_never_become_text_do_not_pile_up() -> None:
    byte = TOKENIZER.raw.encode("é", add_special_tokens=False).ids[0]
    started = time.process_time()

    pieces = pieces_of([byte] * 5000)

    assert sum(map(len, pieces)) >= 5000
    assert time.process_time() - started < 2


def test_a_cut_character_is_one_replacement_at_the_end() -> None:
    ids = TOKENIZER.raw.encode("客😊", add_special_tokens=False).ids

    texts = {count: "".join(pieces_of(ids[:count])) for count in range(1, len(ids) + 1)}

    assert texts[len(ids)] == "客😊"
    assert all(text.rstrip("\ufffd") in {"", "客", "客😊"} and text.count("\ufffd") <= 1 for text in texts.values())


def test_hidden_tokens_leave_no_text_and_break_no_character() -> None:
    ids = TOKENIZER.raw.encode("不客气", add_special_tokens=False).ids

    assert "".join(pieces_of([7, *ids[:2], 9, *ids[2:], 7], TOKENIZER.special_ids - TOKENIZER.marker_ids)) == "不客气"
    assert "".join(pieces_of([10, 7, 11], TOKENIZER.special_ids - TOKENIZER.marker_ids)) == "<think></think>"


def test_bytes_of_tokens_add_up_to_the_bytes_of_the_text() -> None:
    for row in EXPECTED[::10]:
        assert b"".join(map(TOKENIZER.token_bytes, row["tokens"])).decode(errors="replace") == TOKENIZER.decode(row["tokens"])


def test_a_part_of_a_character_is_named_by_its_bytes() -> None:
    parts = [TOKENIZER.token_text(token) for token in TOKENIZER.raw.encode("😊", add_special_tokens=False).ids]

    assert any(part.startswith("bytes:\\x") for part in parts)


def test_the_fewest_tokens_of_a_text_are_never_more_than_its_tokens() -> None:
    for row in EXPECTED:
        assert TOKENIZER.fewest_tokens(len(row["text"])) <= len(TOKENIZER.raw.encode(row["text"]).ids)


# Stop strings


def run_stops(stops: tuple[str, ...], pieces: list[str], *, include: bool = False) -> tuple[str, str | None]:
    matcher, out = StopStrings(stops, include), ""
    for piece in pieces:
        safe, hit = matcher.push(piece)
        out += safe
        if hit is not None:
            return out, hit
    return out + matcher.flush(), None


def reference(stops: tuple[str, ...], text: str) -> tuple[str, bool]:
    """The first complete stop string, by looking at the whole text."""
    hits = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(hits)], True) if hits else (text, False)


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("abc", max_size=30))
def test_text_letter_by_letter_stops_before_the_first_stop_string_to_complete(stops: list[str], text: str) -> None:
    out, hit = run_stops(tuple(stops), list(text))

    completed = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    assert (hit is not None) == bool(completed)
    if completed:
        assert text[: completed[0]].startswith(out)
        assert not any(stop in out for stop in stops)
    else:
        assert out == text


@given(st.text("ab", min_size=1, max_size=4), st.text("abc", max_size=30))
def test_with_one_stop_string_the_cut_of_the_text_does_not_matter(stop: str, text: str) -> None:
    assert run_stops((stop,), list(text))[0] == run_stops((stop,), [text])[0] == reference((stop,), text)[0]


def test_a_stop_string_that_completes_where_none_counts_is_text_and_one_that_only_begins_there_stops() -> None:
    matcher = StopStrings(("ab", "xabcd"))

    assert matcher.push("ab xab", search=False) == ("ab ", None)
    assert matcher.push("c") == ("", None)
    assert matcher.push("-") == ("xabc-", None)
    assert matcher.push("a", search=False) == ("", None)
    assert matcher.push("b") == ("", "ab")


def test_nothing_is_held_back_that_can_no_longer_match() -> None:
    matcher = StopStrings(("<end>",))

    assert matcher.push("a<e") == ("a", None)
    assert matcher.push("x<") == ("<ex", None)
    assert matcher.flush() == "<"


@pytest.mark.parametrize("piece", ["a" * 20_000, "ab" * 10_000])
def test_a_long_piece_with_many_hostile_stops_is_quick(piece: str) -> None:
    stops = tuple("a" * 255 + chr(ord("b") + index) for index in range(16))
    started = time.process_time()

    for _ in range(50):
        StopStrings(stops).push(piece)

    assert time.process_time() - started < 1.5


def test_what_a_trainer_left_set_in_the_file_neither_cuts_nor_fills_up_texts(tmp_path: Path) -> None:
    left = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    left.enable_padding(pad_id=0, pad_token="<|endoftext|>")
    left.enable_truncation(4)
    left.save(str(tmp_path / "tokenizer.json"))
    texts = ["short", "a text of more than four tokens", ""]

    found = TextTokenizer.from_dir(tmp_path).encode_all(texts, add_special_tokens=False)

    assert found == TOKENIZER.encode_all(texts, add_special_tokens=False) == [list(TOKENIZER.raw.encode(text).ids) for text in texts]
