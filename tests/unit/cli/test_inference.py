"""`glm5 inference` starts an engine, talks to it and always ends it. The engine is a stand-in process (stub_engine.py) on real HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glm5_operator.cli import engine
from tests.unit.cli.support import glm5

if TYPE_CHECKING:
    from click.testing import Result

STUB = Path(__file__).with_name("stub_engine.py")


class Bench:
    """A checkpoint folder, a stand-in engine, and what it noted."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "models" / "tiny"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text("{}")
        self.log = folder / "log"
        self.program = folder / "engine"
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
        self.program.chmod(0o755)

    def ask(self, *words: str, mode: str = "", stdin: str | None = None, model: str | None = None, **env: str) -> Result:
        variables = {engine.PROGRAM_ENV: str(self.program), "STUB": mode, "STUB_LOG": str(self.log), **env}
        return glm5("inference", "--model", model or str(self.model), *words, stdin=stdin, env=variables)

    @property
    def noted(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def engine_lives(self) -> bool:
        return Path(f"/proc/{self.noted[0]['pid']}").exists()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_an_answer_goes_to_standard_output_and_everything_else_to_standard_error(bench: Bench) -> None:
    run = bench.ask("--prompt", "你好")
    assert (run.exit_code, run.stdout) == (0, "you said: 你好\n")
    assert "tiny: the model is being loaded" in run.stderr
    assert "hm" in run.stderr
    assert not bench.engine_lives()


def test_the_engine_gets_loopback_the_folder_and_its_key_outside_the_arguments(bench: Bench) -> None:
    bench.ask("--prompt", "x", "--device", "cpu", "--max-model-len", "64")
    flags = bench.noted[0]["flags"]
    assert flags["host"] == "127.0.0.1"
    assert (flags["model"], flags["served_model_name"], flags["device"], flags["max_model_len"]) == (str(bench.model), "tiny", "cpu", "64")
    assert not any("key" in word for word in bench.noted[0]["argv"])


def test_the_request_carries_the_options(bench: Bench) -> None:
    bench.ask("--prompt", "x", "--system", "be brief", "--max-tokens", "7", "--temperature", "0.5")
    request = bench.noted[1]
    assert request["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "x"}]
    assert (request["max_tokens"], request["temperature"], request["stream"], request["model"]) == (7, 0.5, True, "stub")


@pytest.mark.parametrize("words", [(), ("--prompt", "-")])
def test_a_question_can_come_from_standard_input(bench: Bench, words: tuple[str, ...]) -> None:
    assert bench.ask(*words, stdin="two\nlines\n").stdout == "you said: two\nlines\n"


def test_a_talk_keeps_what_was_said_until_end_of_file(bench: Bench) -> None:
    run = bench.ask("--chat", stdin="one\n\ntwo\n")
    assert run.stdout == "you said: one\nyou said: two\n"
    assert [message["content"] for message in bench.noted[2]["messages"]] == ["one", "you said: one", "two"]


def test_a_model_can_be_named_in_a_folder_of_models(bench: Bench) -> None:
    run = bench.ask("--prompt", "x", model="tiny", GLM5_MODELS=f"/nowhere{os.pathsep}{bench.model.parent}")
    assert run.exit_code == 0


@pytest.mark.parametrize(
    ("mode", "code", "says"),
    [
        ("crash", 8, "the engine ended with code 1: ValueError: model.safetensors is cut short"),
        ("unequipped", 8, "error: glm5-runtime serve: the runtime's packages are missing; in a clone: pip install '.[runtime]'"),
        ("refuse", 8, "the engine refused the request: max_tokens is too large"),
        ("die", 8, "the engine ended with code 9: RuntimeError: out of memory"),
        ("midway", 8, "the engine failed in its answer: the engine stopped"),
        ("breaks", 8, "the answer broke off"),
    ],
)
def test_a_failure_of_the_engine_is_one_line_with_its_own_words(bench: Bench, mode: str, code: int, says: str) -> None:
    run = bench.ask("--prompt", "x", mode=mode)
    assert run.exit_code == code
    assert says in run.stderr.splitlines()[-1]
    assert ("last lines" in run.stderr) == (mode in {"crash", "die"})
    assert not bench.engine_lives()


def test_an_engine_that_never_gets_ready_is_given_up_and_ended(bench: Bench) -> None:
    run = bench.ask("--prompt", "x", "--start-timeout", "1", mode="never")
    assert run.exit_code == 7
    assert "wasn't ready after 1 s" in run.stderr
    assert not bench.engine_lives()


def test_an_engine_that_ignores_the_end_is_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STOP_SECONDS", 0.2)
    assert bench.ask("--prompt", "x", mode="deaf").exit_code == 0
    assert not bench.engine_lives()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_engine_too(bench: Bench, number: signal.Signals, code: int) -> None:
    command = [str(Path(sys.executable).with_name("glm5")), "inference", "--model", str(bench.model), "--prompt", "x"]
    env = {**os.environ, engine.PROGRAM_ENV: str(bench.program), "STUB": "never", "STUB_LOG": str(bench.log)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "being loaded" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(20) == code
    assert not bench.engine_lives()


def test_a_proxy_in_the_environment_is_not_asked_for_loopback(bench: Bench) -> None:
    assert bench.ask("--prompt", "x", HTTP_PROXY="http://127.0.0.1:9", ALL_PROXY="http://127.0.0.1:9").exit_code == 0


def test_a_model_that_is_nowhere_is_answered_with_where_it_was_looked_for(bench: Bench) -> None:
    run = bench.ask("--prompt", "x", model="absent", GLM5_MODELS="/models")
    assert run.exit_code == 3
    assert "--model: no folder absent, /models/absent" in run.stderr


def test_a_folder_that_is_no_checkpoint_is_refused_before_anything_starts(bench: Bench, tmp_path: Path) -> None:
    run = bench.ask("--prompt", "x", model=str(tmp_path))
    assert run.exit_code == 3
    assert "has no config.json" in run.stderr
    assert not bench.log.exists()


def test_a_program_that_cannot_be_started_is_named(bench: Bench) -> None:
    run = bench.ask("--prompt", "x", GLM5_RUNTIME="/nowhere/glm5-runtime")
    assert run.exit_code == 8
    assert "/nowhere/glm5-runtime can't be started" in run.stderr


def test_a_prompt_and_a_chat_exclude_each_other(bench: Bench) -> None:
    assert bench.ask("--prompt", "x", "--chat").exit_code == 2
