"""The page says what the code does: every refusal, every flag, and the report as it is printed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from glm5_runtime.cli import data as command
from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.data.reading import ReadingConfig, check
from tests.runtime.train.data.conftest import ROOT

PAGES = [ROOT / "docs" / "fine-tuning-data.md", ROOT / "docs" / "fine-tuning-data.zh-CN.md"]
CODE = ROOT / "runtime" / "glm5_runtime" / "train" / "data"
REASON = re.compile(
    r'(?:RowError|Fault)\(\s*(?:[\w.]+, )?"([a-z0-9-]+)",'
    r'|return "([a-z-]+)", [f"]|"(no-answer)" if|else "(no-text)"|BadLine\([^,]+, 0, "([a-z]+)"'
)
ROWS = [
    '{"messages": [{"role": "user", "content": "Which card is hot?"}, {"role": "assistant", "content": "Card 3: 81 °C."}]}',
    '{"instruction": "Name a river.", "input": "", "output": "The Yangtze."}',
    '{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}',
    '{"messages": [{"role": "user", "content": "cut of',
    '{"messages": [{"role": "user", "content": "Hi"}, {"role": "bot", "content": "Hello."}]}',
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_explains_every_reason_and_no_other(page: Path) -> None:
    given = {name for path in CODE.glob("*.py") for match in REASON.findall(path.read_text()) for name in match if name}
    tables = page.read_text().split("\n## ")[5]
    explained = {name for row in re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE) for name in re.findall(r"`([a-z0-9-]+)`", row)}

    assert len(given) > 25, "the collector finds the reasons"
    assert given == explained


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_names_every_flag(page: Path) -> None:
    flags = {f"`--{name.replace('_', '-')}`" for name in inspect.signature(command.check).parameters if name != "files"}
    named = {flag for row in re.findall(r"^\| (.*?) \|", page.read_text(), re.MULTILINE) for flag in re.findall(r"`--[\w-]+`", row)}

    assert flags == named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_shows_the_report_as_it_is_printed(page: Path, renderer: Renderer, write: Callable[..., Path]) -> None:
    path = write(*ROWS)
    report = check([path], renderer, ReadingConfig(2048, switch="--lenient"))

    assert f"```text\n{report.as_table().replace(str(path), path.name)}\n```" in page.read_text()
