"""The house rules that no linter holds: sizes, calls of the pure packages, reasons beside exceptions. Every tracked Python file is read."""

from __future__ import annotations

import ast
import math
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_FILE_LINES = 500
MOST_FUNCTION_LINES = 80
P90_FUNCTION_LINES = 40


def tracked(*folders: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "--", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in listed if name.endswith(".py") and "tests/fixtures" not in name and (ROOT / name).exists()]


def functions(path: Path) -> list[tuple[str, int]]:
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_no_file_is_longer_than_500_lines() -> None:
    long = {str(p.relative_to(ROOT)): n for p in tracked() if (n := len(p.read_text().splitlines())) > MOST_FILE_LINES}

    assert long == {}


def test_no_function_is_longer_than_80_lines_and_most_are_under_40() -> None:
    sizes = [item for path in tracked("operator", "runtime") for item in functions(path)]

    assert [item for item in sizes if item[1] > MOST_FUNCTION_LINES] == []
    ordered = sorted(size for _, size in sizes)
    assert ordered[math.ceil(0.9 * len(ordered)) - 1] <= P90_FUNCTION_LINES


def test_every_source_module_says_what_it_is_for() -> None:
    silent = [str(p.relative_to(ROOT)) for p in tracked("operator", "runtime") if not ast.get_docstring(ast.parse(p.read_text()))]

    assert silent == []


def test_there_is_at_least_as_much_test_as_source() -> None:
    assert lines(tracked("tests")) >= lines(tracked("operator", "runtime"))


# --- pure packages ----------------------------------------------------------------------------------------------------------

PURE = tuple(f"operator/glm5_operator/{package}" for package in ("api", "health", "plan", "status"))
# Modules with a clock or I/O in their name can't be imported there at all: the contracts in pyproject.toml.
CLOCKS = {"now", "utcnow", "today"}
INPUT_AND_OUTPUT = {"open", "print", "input"}


def impure_calls(source: str) -> list[str]:
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [name for name in calls if name.rpartition(".")[2] in CLOCKS or name in INPUT_AND_OUTPUT]


def test_pure_packages_read_no_clock_and_open_no_file() -> None:
    found = {str(path.relative_to(ROOT)): impure_calls(path.read_text()) for path in tracked(*PURE)}

    assert len(found) > 20
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.mark.parametrize("source", ["datetime.now(UTC)", "datetime.datetime.utcnow()", "date.today()", "open('x')", "print(1)"])
def test_a_clock_or_a_file_is_found_by_whatever_name_it_is_called(source: str) -> None:
    assert len(impure_calls(source)) == 1


# --- exceptions have their reason beside them -------------------------------------------------------------------------------

REASONED = re.compile(r"# noqa: [A-Z]+\d+(, [A-Z]+\d+)*\s+\W*\w+")


def comments(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        yield from ((token.start[0], token.string) for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT)


def test_every_noqa_says_which_rule_and_why() -> None:
    noqas = [(f"{path.relative_to(ROOT)}:{line}", text) for path in tracked() for line, text in comments(path) if "noqa" in text]

    assert len(noqas) > 10
    assert [(place, text) for place, text in noqas if not REASONED.search(text)] == []


def fixed_waits(source: str) -> list[int]:
    """Lines that sleep outside a loop: a loop polls."""
    tree = ast.parse(source)
    polling = {inner for node in ast.walk(tree) if isinstance(node, ast.While | ast.For | ast.AsyncFor) for inner in ast.walk(node)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node not in polling]
    return [node.lineno for node in calls if ast.unparse(node.func) in {"sleep", "time.sleep", "asyncio.sleep"}]


def test_a_test_polls_and_the_rare_fixed_wait_says_why() -> None:
    found = []
    for path in tracked("tests"):
        if path.name.startswith("test_"):
            explained = {line for line, _ in comments(path)}
            found += [f"{path.relative_to(ROOT)}:{line}" for line in fixed_waits(path.read_text()) if line not in explained]

    assert found == []


def test_a_wait_in_a_loop_is_a_poll_and_one_outside_is_not() -> None:
    assert fixed_waits("import time\nwhile not done():\n    time.sleep(1)\ntime.sleep(2)\n") == [4]
