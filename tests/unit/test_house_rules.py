"""The size limits of the house rules, measured on every tracked Python file."""

from __future__ import annotations

import ast
import math
import subprocess
from pathlib import Path

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
