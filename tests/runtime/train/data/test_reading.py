"""Files through the whole way: four numbers, first bad lines, lengths; strict and lenient; the command that says so."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from glm5_runtime.cli import app
from glm5_runtime.train.data import reading
from glm5_runtime.train.data.example import Example
from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.data.reading import DataError, ReadingConfig, check, load, load_pairs
from glm5_runtime.train.data.report import SHOWN, Report
from tests.runtime.train.data.conftest import FIXTURES, TINY

LIMIT = ReadingConfig(2048)
LENIENT = ReadingConfig(2048, lenient=True)


def chat(question: str = "q", answer: str = "a", **fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]} | fields


PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}


def numbers(report: Report) -> tuple[int, int, int, dict[str, int]]:
    return report.read, report.kept, report.skipped, dict(report.reasons)


def lines(report: Report) -> list[int]:
    return [bad.line for bad in report.bad_lines]


# --- the cases' files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected", "bad"),
    [
        ("bom_crlf.jsonl", (3, 3, 0, {}), []),
        ("array_in_jsonl.jsonl", (3, 3, 0, {}), []),
        ("trailing_commas.jsonl", (3, 0, 3, {"trailing-comma": 3}), [1, 2, 3]),
        ("mixed_schemas.jsonl", (4, 4, 0, {}), []),
        ("null_then_string.jsonl", (41, 41, 0, {}), []),
        ("content_parts.jsonl", (4, 3, 1, {"message": 1}), [4]),
        ("role_orders.jsonl", (7, 4, 3, {"no-answer": 1, "role": 1, "no-messages": 1}), [5, 6, 7]),
        ("bad_bytes.jsonl", (7, 3, 4, {"not-utf8": 1, "nul-byte": 1, "two-rows": 1, "cut-line": 1}), [2, 3, 4, 5]),
    ],
)
def test_the_four_numbers_and_the_bad_lines_of_each_case(
    renderer: Renderer, name: str, expected: tuple[int, int, int, dict[str, int]], bad: list[int]
) -> None:
    report = check([FIXTURES / name], renderer, LIMIT)

    assert numbers(report) == expected
    assert lines(report) == bad
    assert bool(report.faults) == bool(bad)


def test_byte_order_marks_and_crlf_give_the_tokens_of_the_plain_file(renderer: Renderer, write: Callable[..., Path]) -> None:
    plain = write((FIXTURES / "bom_crlf.jsonl").read_text(encoding="utf-8-sig").replace("\r\n", "\n"))

    assert list(load([FIXTURES / "bom_crlf.jsonl"], renderer, LIMIT)[0]) == list(load([plain], renderer, LIMIT)[0])


def test_no_row_is_printed_as_python_would_print_it(renderer: Renderer) -> None:
    data, _ = load([FIXTURES / "content_parts.jsonl"], renderer, LENIENT)
    texts = [renderer.tokenizer.decode(example.tokens) for example in data]

    assert not any("None" in text or "[{'type'" in text for text in texts)
    assert "first part. second part." in texts[1]


def test_a_field_that_is_null_in_the_first_rows_and_text_later_is_used_where_it_is_text(renderer: Renderer) -> None:
    data, _ = load([FIXTURES / "null_then_string.jsonl"], renderer, LIMIT)
    systems = ["<|system|>" in renderer.tokenizer.decode(example.tokens) for example in data]

    assert systems == [False] * 40 + [True]


def test_a_conversation_without_a_last_answer_is_trained_up_to_its_last_one_and_counted(renderer: Renderer) -> None:
    data, report = load([FIXTURES / "role_orders.jsonl"], renderer, LENIENT)

    assert report.unanswered == 1
    assert report.examples == len(data) == 5  # the row with two answers in a row is two
    assert not any("unanswered" in renderer.tokenizer.decode(example.tokens) for example in data)


def test_a_row_that_was_there_before_is_counted(renderer: Renderer) -> None:
    assert check([FIXTURES / "bad_bytes.jsonl"], renderer, LIMIT).duplicates == 1


# --- strict and lenient -----------------------------------------------------------------------------------------------------


def test_one_bad_row_refuses_the_data_unless_it_may_be_left_out(renderer: Renderer, write: Callable[..., Path]) -> None:
    path = write(chat(), "{broken", chat("r"))

    with pytest.raises(DataError, match="1 row can't be used") as caught:
        load([path], renderer, LIMIT)
    data, report = load([path], renderer, LENIENT)

    assert lines(caught.value.report) == lines(report) == [2]
    assert [example.line for example in data] == [1, 3]


@pytest.mark.parametrize("config", [LIMIT, LENIENT])
@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ((), "0 rows"),
        (("", " \t"), "0 rows"),
        (("{broken",), "no row can be used"),
        (("<html>",), "html"),
        ((json.dumps(chat(), indent=1),), "one object a line"),
        (("[", json.dumps(chat())), "array"),
    ],
)
def test_no_lenience_makes_data_of_a_file_that_has_none(
    renderer: Renderer, write: Callable[..., Path], config: ReadingConfig, rows: tuple[object, ...], told: str
) -> None:
    report = check([write(*rows)], renderer, config)

    assert report.faults
    assert told.lower() in (report.as_table() + str(report.broken_files)).lower()


def test_a_broken_file_is_named_and_the_others_are_read(renderer: Renderer, write: Callable[..., Path]) -> None:
    report = check([write("<html>", name="page.jsonl"), write(chat()), Path("/nonexistent/x.jsonl")], renderer, LENIENT)

    assert [Path(bad.file).name for bad in report.broken_files] == ["page.jsonl", "x.jsonl"]
    assert report.kept == 1
    assert len(report.faults) == 2


def test_many_bad_rows_make_a_short_report_with_the_first_lines(renderer: Renderer, write: Callable[..., Path]) -> None:
    report = check([write(*["{broken"] * 1000)], renderer, LIMIT)

    assert report.reasons["not-json"] == 1000
    assert lines(report) == list(range(1, SHOWN + 1))
    assert len(report.as_table()) < 5000


def test_the_report_never_repeats_a_row_s_text(renderer: Renderer, write: Callable[..., Path]) -> None:
    rows = ['{"messages": "SECRET"', chat("SECRET <|user|>"), {"messages": [{"role": "user", "content": {"SECRET": 1}}]}, {"SECRET": 1}]
    report = check([write(*rows)], renderer, LIMIT)

    assert report.skipped == 4
    assert "SECRET" not in report.as_table() + json.dumps(report.as_json())


# --- kinds and formats ------------------------------------------------------------------------------------------------------


def test_pairs_and_conversations_in_one_file_are_refused_with_both_kinds_and_lines(renderer: Renderer, write: Callable[..., Path]) -> None:
    report = check([write(chat(), PAIR)], renderer, LIMIT)

    (bad,) = report.bad_lines
    assert (bad.line, bad.reason) == (2, "mixed")
    assert "preference pair" in bad.message
    assert "line 1 of train.jsonl is a conversation" in bad.message


def test_a_method_gets_the_kind_of_rows_that_it_learns_from(renderer: Renderer, write: Callable[..., Path]) -> None:
    pairs, chats = write(PAIR, PAIR | {"rejected": "c"}, name="pairs.jsonl"), write(chat())

    data, _ = load_pairs([pairs], renderer, LIMIT)

    assert len(data) == 2
    assert data[1].chosen.tokens == data[0].chosen.tokens != data[1].rejected.tokens
    assert data.lengths == [max(len(pair.chosen.tokens), len(pair.rejected.tokens)) for pair in data]
    with pytest.raises(DataError, match="preference pairs"):
        load([pairs], renderer, LIMIT)
    with pytest.raises(DataError, match="no preference pairs"):
        load_pairs([chats], renderer, LIMIT)


def test_a_pair_whose_answer_was_made_in_several_contexts_is_refused(renderer: Renderer, write: Callable[..., Path]) -> None:
    reply = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    report = check([write(PAIR | {"chosen": reply})], renderer, LIMIT)

    assert report.reasons == {"pair": 1}


def test_rows_of_another_format_than_the_one_asked_for_are_refused(renderer: Renderer, write: Callable[..., Path]) -> None:
    report = check([write(chat(), {"text": "t"})], renderer, ReadingConfig(2048, "openai"))

    assert numbers(report) == (2, 1, 1, {"format": 1})
    assert "text" in report.bad_lines[0].message


# --- length -----------------------------------------------------------------------------------------------------------------


def test_a_long_row_is_refused_with_its_length_or_cut(renderer: Renderer, write: Callable[..., Path]) -> None:
    path = write(chat("q", "word " * 100), chat())

    refused = check([path], renderer, ReadingConfig(32))
    data, cut = load([path], renderer, ReadingConfig(32, long_rows="cut"))

    assert (lines(refused), refused.too_long, refused.cut) == ([1], 1, 0)
    assert refused.bad_lines[0].reason == "too-long"
    assert (cut.too_long, cut.cut, cut.faults) == (1, 1, [])
    assert len(data[0].tokens) == 32
    assert data[0].trained[-1]  # no end is learned where the row was cut
    assert data[0].tokens[-1] != renderer.tokenizer.raw.token_to_id("<|user|>")


def test_a_row_of_which_only_the_prompt_would_be_left_is_refused(renderer: Renderer, write: Callable[..., Path]) -> None:
    report = check([write(chat("word " * 100, "a"))], renderer, ReadingConfig(32, long_rows="cut"))

    assert numbers(report) == (1, 0, 1, {"too-long": 1})


def test_a_row_of_exactly_the_longest_length_is_kept(renderer: Renderer, write: Callable[..., Path]) -> None:
    path = write(chat("word " * 20, "a"))
    (length,) = [len(example.tokens) for example in load([path], renderer, LIMIT)[0]]

    assert check([path], renderer, ReadingConfig(length)).kept == 1
    assert check([path], renderer, ReadingConfig(length - 1)).kept == 0


def test_lengths_and_tokens_add_up(renderer: Renderer, write: Callable[..., Path]) -> None:
    data, report = load([write(chat(), chat("word " * 60), {"text": "word " * 200})], renderer, LIMIT)

    assert report.tokens == sum(data.lengths) == sum(tokens for _, _, tokens in report.histogram())
    assert report.trained_tokens == sum(sum(example.trained) for example in data)
    computed = sum(-(-len(example.tokens) // 16) * 16 for example in data)
    assert report.as_json()["padding"] == pytest.approx(1 - report.tokens / computed, abs=1e-4)
    assert 0 < report.padding < 0.5
    assert report.examples == len(data) == sum(count for _, count, _ in report.histogram())
    assert all(length <= step for step, _, _ in report.histogram() for length in data.lengths if length <= step)


# --- memory and order -------------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_the_files_however_they_are_tokenised(
    renderer: Renderer, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [chat(f"q{index}") if index % 7 else "{broken" for index in range(50)]
    path = write(*rows)
    whole, report = load([path], renderer, LENIENT)

    monkeypatch.setattr(reading, "_BATCH_ROWS", 3)

    assert list(load([path], renderer, LENIENT)[0]) == list(whole)
    assert [example.line for example in whole] == [index + 1 for index in range(50) if index % 7]
    assert lines(report) == [index + 1 for index in range(50) if index % 7 == 0]


def test_the_examples_of_one_conversation_are_known_to_be_one_row_and_lines_of_another_file_are_others(
    renderer: Renderer, write: Callable[..., Path]
) -> None:
    def row(turns: int) -> dict[str, Any]:
        """Reasoning that past turns lose: each turn becomes an example of its own."""
        answer = {"role": "assistant", "reasoning_content": "hm", "content": "so"}
        return {"messages": [message for turn in range(turns) for message in ({"role": "user", "content": f"what {turn}?"}, answer)]}

    files = [write(row(3), row(1), name="a.jsonl"), write(row(2), name="b.jsonl"), write(row(1), name="c.jsonl")]

    data, _ = load(files, renderer, ReadingConfig(256))

    assert list(data.rows) == [0, 0, 0, 1, 2, 2, 3]
    assert [example.line for example in data] == [1, 1, 1, 2, 1, 1, 1]


def test_a_dataset_gives_back_what_was_put_in(renderer: Renderer, write: Callable[..., Path]) -> None:
    data, _ = load([write(chat("q"), chat("r"))], renderer, LIMIT)
    first = data[0]

    assert isinstance(first, Example)
    assert data[-2:] == [first, data[1]]
    assert {type(token) for token in first.tokens} == {int}
    assert {type(trained) for trained in first.trained} == {bool}
    with pytest.raises(IndexError):
        data[2]


def peak(path: Path, renderer: Renderer) -> int:
    tracemalloc.start()
    check([path], renderer, ReadingConfig(100_000))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return held


def test_a_check_of_a_file_four_times_as_large_holds_no_more(
    renderer: Renderer, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BATCH_ROWS", 16)
    rows = [chat("question " * 60, f"answer {index} " * 60) for index in range(400)]
    small, large = write(*rows[:100], name="small.jsonl"), write(*rows, name="large.jsonl")
    check([small], renderer, LIMIT)  # what is made once

    assert peak(large, renderer) < 1.5 * peak(small, renderer)


# --- the command ------------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", "--model", str(TINY), "--model-version", "5", *map(str, arguments)])


def test_the_command_says_0_for_good_data_1_for_bad_and_2_for_a_wrong_command(write: Callable[..., Path]) -> None:
    good, bad = write(chat(), name="good.jsonl"), write(chat(), "{broken", name="bad.jsonl")

    assert run(good).exit_code == 0
    refused = run(good, bad)
    assert refused.exit_code == 1
    assert "correct it, or leave it out with --lenient" in refused.output
    assert run(good, bad, "--lenient").exit_code == 0
    assert run("/nonexistent.jsonl").exit_code == 2
    assert run(good, "--format", "csv").exit_code == 2
    assert run(good, "--max-length", "0").exit_code == 2
    assert run(good, "--max-length", "2049").exit_code == 2
    assert CliRunner().invoke(app, ["check", str(good)]).exit_code == 2
    assert CliRunner().invoke(app, ["check", str(good), "--model", "/nonexistent"]).exit_code == 2


def test_the_command_prints_the_bad_lines_and_the_lengths(write: Callable[..., Path]) -> None:
    bad = write(chat(), "{broken")
    table = run(bad).output

    assert "rows read 2, kept 1, skipped 1" in table
    assert f"{bad}:2: not-json: " in table
    assert "≤ 64" in table
    assert "not usable: 1 row can't be used" in table


def test_the_command_prints_json_for_machines(write: Callable[..., Path]) -> None:
    found = json.loads(run(write(chat(), "{broken", {"text": "t"}), "--output", "json", "--format", "openai", "--max-length", 100).stdout)

    assert (found["ok"], found["rows_read"], found["rows_kept"], found["rows_skipped"]) == (False, 3, 1, 2)
    assert found["reasons"] == {"not-json": 1, "format": 1}
    assert [(bad["line"], bad["reason"]) for bad in found["first_bad_lines"]] == [(2, "not-json"), (3, "format")]
    assert found["max_length"] == 100
    assert found["lengths"] == [{"up_to": 64, "examples": 1, "tokens": found["tokens"]}]


def test_the_check_needs_no_torch() -> None:
    """It runs in an init container, and before cards are taken: nothing heavy."""
    code = (
        "import sys; sys.modules['torch'] = None; from typer.testing import CliRunner; from glm5_runtime.cli import app;"
        f"found = CliRunner().invoke(app, ['check', {str(FIXTURES / 'bom_crlf.jsonl')!r}, '--model', {str(TINY)!r}]);"
        "print(found.output, found.exception); sys.exit(found.exit_code)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
