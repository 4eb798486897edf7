"""A cache of its own and a scripted docker client for tests that need no engine."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import kind


@dataclass(frozen=True)
class ScriptedDocker:
    """A `docker` program on PATH. It writes down what it was called with, and answers by its first word."""

    program: Path
    book: Path

    def answer(self, **answers: tuple[int, str]) -> None:
        """Exit code and output by first word; every other call succeeds silently."""
        cases = "".join(f"{word}) echo {shlex.quote(text)}; exit {code};;\n" for word, (code, text) in answers.items())
        self.program.write_text(f'#!/bin/sh\necho "$*" >> {self.book}\ncase "$1" in\n{cases}esac\n')
        self.program.chmod(0o755)

    def calls(self, word: str) -> list[str]:
        return [line for line in self.book.read_text().splitlines() if line.startswith(word)]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLM5_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def docker(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedDocker:
    scripted = ScriptedDocker(tmp_path / "bin" / "docker", tmp_path / "calls")
    scripted.program.parent.mkdir()
    scripted.book.touch()
    scripted.answer()
    monkeypatch.setenv("PATH", f"{scripted.program.parent}{os.pathsep}{os.environ['PATH']}")
    kind.no_pull.cache_clear()
    return scripted
