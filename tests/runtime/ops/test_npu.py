"""The NPU operators on the real torch_npu wheel, without a card: each check of `on_npu` and `on_npu_limits` as a test of its own."""

import ast
from pathlib import Path

import pytest

CHECKS = [
    node.name
    for name in ("on_npu.py", "on_npu_limits.py")
    for node in ast.parse((Path(__file__).parent / name).read_text()).body
    if isinstance(node, ast.FunctionDef) and any(ast.unparse(decorator) == "check" for decorator in node.decorator_list)
]


def test_every_check_has_run(npu_report: dict[str, str | None]) -> None:
    assert sorted(npu_report) == sorted(CHECKS)
    assert len(CHECKS) > 12


@pytest.mark.parametrize("name", CHECKS)
def test_that(name: str, npu_report: dict[str, str | None]) -> None:
    assert npu_report[name] is None, npu_report[name]
