"""Files as people make them: encodings, line ends, arrays, pages saved as data, damaged rows; lines are physical ones."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_runtime.train.data import rows
from glm5_runtime.train.data.rows import MAX_ROW_BYTES, Fault, FileError, Row, read_rows
from tests.runtime.train.data.conftest import FIXTURES

GOOD = {"messages": [{"role": "user", "content": "第一题"}, {"role": "assistant", "content": "二"}]}
TEXT = json.dumps(GOOD, ensure_ascii=False)


def places(path: Path) -> list[tuple[int, str]]:
    """Line and outcome of each row."""
    return [(found.line, found.reason if isinstance(found, Fault) else "good") for found in read_rows(path)]


def refusal(path: Path) -> Fault:
    with pytest.raises(FileError) as caught:
        list(read_rows(path))
    return caught.value.fault


def test_a_byte_order_mark_crlf_and_blank_lines_change_nothing(write: Callable[..., Path]) -> None:
    marked = list(read_rows(FIXTURES / "bom_crlf.jsonl"))
    plain = (FIXTURES / "bom_crlf.jsonl").read_bytes().removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")

    assert marked == list(read_rows(write(plain)))
    assert [found.line for found in marked] == [1, 2, 3]
    assert "\\r" not in json.dumps([found.value for found in marked if isinstance(found, Row)])


def test_lines_are_counted_as_editors_count_them(write: Callable[..., Path]) -> None:
    inside = TEXT.replace("二", "a\u2028b\u0085c")  # line breaks to str.splitlines, not to a file

    assert places(write("", "  \t", inside, "", "{}", b"\xef\xbb\xbf" + TEXT.encode())) == [(3, "good"), (5, "good"), (6, "good")]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (TEXT.encode("utf-16"), "UTF-16"),
        (TEXT.encode("utf-16-le"), "UTF-16"),
        (TEXT.encode("utf-16-be"), "UTF-16"),
        (TEXT.encode("utf-32"), "UTF-32"),
        (f'{{"a": 1}}\n{TEXT}\n'.encode("gb18030"), "GB18030"),
        (b"\x1f\x8b\x08\x00rest", "gzip"),
        (b"PAR1rest", "Parquet"),
    ],
)
def test_another_encoding_is_refused_by_its_name_with_the_remedy(write: Callable[..., Path], content: bytes, named: str) -> None:
    fault = refusal(write(content))

    assert fault.reason == "encoding"
    assert named in fault.message


def test_every_encoding_of_the_fixture_is_refused_by_name(write: Callable[..., Path]) -> None:
    text = (FIXTURES / "bom_crlf.jsonl").read_text(encoding="utf-8-sig")

    assert "UTF-16" in refusal(write(text.encode("utf-16"))).message
    assert "GB18030" in refusal(write(text.encode("gb18030"))).message


def test_one_row_in_another_encoding_is_that_row_s_fault_alone(write: Callable[..., Path]) -> None:
    latin = '{"text": "déjà vu"}'.encode("latin-1")

    assert places(write(TEXT, TEXT.encode("gb18030"), latin, TEXT)) == [(1, "good"), (2, "not-utf8"), (3, "not-utf8"), (4, "good")]
    assert places(write(latin, TEXT)) == [(1, "not-utf8"), (2, "good")]


def test_each_kind_of_damage_is_named_with_its_line() -> None:
    assert places(FIXTURES / "bad_bytes.jsonl") == [
        (1, "good"),
        (2, "not-utf8"),
        (3, "nul-byte"),
        (4, "two-rows"),
        (5, "cut-line"),
        (6, "good"),
        (7, "good"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{'messages': []}", "not-json"),
        ('{"a": NaN}', "not-json"),
        ('{"a": 1,}', "not-json"),
        ('{"a": 1} tail', "not-json"),
        ('{"a": "\\ud83d"}', "not-json"),  # half a character: no tokenizer takes it
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "not-json"),
        ('{"a": 1},', "trailing-comma"),
        ('{"a": 1}, {"a": 2}', "two-rows"),
        ('{"a": 1}\r{"a": 2}', "line-ends"),
        ('"text"', "not-object"),
        ("3", "not-object"),
        ("null", "not-object"),
        ("instruction,output", "not-json"),
    ],
)
def test_a_row_that_is_no_object_is_a_fault_and_reading_goes_on(write: Callable[..., Path], line: str, reason: str) -> None:
    assert places(write(TEXT, line, TEXT)) == [(1, "good"), (2, reason), (3, "good")]


def test_commas_behind_rows_are_named_as_such() -> None:
    assert places(FIXTURES / "trailing_commas.jsonl") == [(1, "trailing-comma"), (2, "trailing-comma"), (3, "trailing-comma")]


def test_a_page_and_a_pointer_saved_as_data_are_recognised(write: Callable[..., Path]) -> None:
    assert refusal(write("", "<!DOCTYPE html>", "<html>404</html>")).reason == "html"
    assert refusal(write("version https://git-lfs.github.com/spec/v1", "oid sha256:1", "size 1")).reason == "lfs-pointer"


def test_one_object_over_several_lines_is_named_once(write: Callable[..., Path]) -> None:
    fault = refusal(write("", json.dumps(GOOD, indent=2)))

    assert (fault.line, fault.reason) == (2, "pretty-printed")
    assert "one object a line" in fault.message


def test_a_first_row_that_is_cut_is_no_object_over_several_lines(write: Callable[..., Path]) -> None:
    assert places(write('{"messages": [', TEXT)) == [(1, "cut-line"), (2, "good")]
    assert places(write('{"messages": [')) == [(1, "cut-line")]


@pytest.mark.parametrize("content", [b"", b"\n\n  \r\n", b"\xef\xbb\xbf", b"[]", b" [ ] \n"])
def test_a_file_without_rows_has_none(write: Callable[..., Path], content: bytes) -> None:
    assert places(write(content)) == []


# --- arrays -----------------------------------------------------------------------------------------------------------------


def test_an_array_is_read_with_the_lines_at_which_its_elements_begin(write: Callable[..., Path]) -> None:
    assert places(FIXTURES / "array_in_jsonl.jsonl") == [(2, "good"), (14, "good"), (26, "good")]
    assert places(write(f"[{TEXT}, {TEXT}]")) == [(1, "good"), (1, "good")]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_where_an_array_is_cut_into_windows_changes_nothing(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    files = [FIXTURES / "array_in_jsonl.jsonl", write(f"[1234, {TEXT},\r\n-5.5e10, {TEXT}, null, {{}}]")]
    whole = [list(read_rows(path)) for path in files]

    monkeypatch.setattr(rows, "_CHUNK", chunk)

    assert [list(read_rows(path)) for path in files] == whole


def test_an_element_that_is_no_object_is_a_fault_and_reading_goes_on(write: Callable[..., Path]) -> None:
    assert places(write("[1,", f"{TEXT},", '{"a": NaN},', '"x"]')) == [
        (1, "not-object"),
        (2, "good"),
        (3, "not-json"),
        (4, "not-object"),
    ]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (f"[{TEXT},\n{TEXT}", 3),
        (f"[{TEXT},\n]", 2),
        (f"[{TEXT}\n{TEXT}]", 2),
        (f"[{TEXT},\n{{broken}}]", 2),
        (f"[{TEXT}]\n\n[{TEXT}]", 3),
        (f"[{TEXT},\n{{'a': [", 2),
    ],
)
def test_an_array_that_breaks_ends_the_file_with_the_line(write: Callable[..., Path], content: str, line: int) -> None:
    fault = refusal(write(content))

    assert (fault.line, fault.reason) == (line, "array")


# --- size -------------------------------------------------------------------------------------------------------------------


def test_a_row_beyond_the_limit_is_refused_without_being_held(write: Callable[..., Path]) -> None:
    path = write(TEXT, '{"text": "' + "x" * (4 * MAX_ROW_BYTES) + '"}', TEXT)

    tracemalloc.start()
    found = places(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert found == [(1, "good"), (2, "too-large"), (3, "good")]
    assert peak < 3 * MAX_ROW_BYTES


@pytest.mark.parametrize("as_array", [False, True])
def test_memory_stays_far_below_the_size_of_the_file(write: Callable[..., Path], as_array: bool) -> None:
    row = json.dumps({"text": "x" * 1000})
    path = write("[" + ",\n".join([row] * 20_000) + "]") if as_array else write(*[row] * 20_000)

    tracemalloc.start()
    count = sum(1 for _ in read_rows(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 20_000
    assert peak < path.stat().st_size / 3
