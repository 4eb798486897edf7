"""`GET /progress` beside a run: what it says, and that nobody who asks disturbs training. Over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from glm5_runtime.train import command, progress_server
from glm5_runtime.train.checkpoint import MANIFEST, Checkpoints
from glm5_runtime.train.progress_server import serving
from tests.runtime.train.test_command import DEADLINE, ending, until, write_run


def ask(port: int, path: str = "/progress") -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_every_question_gets_what_is_so_now() -> None:
    step = iter(range(9))
    with serving(0, lambda: {"step": next(step)}) as port:
        assert port is not None
        assert [ask(port)["step"], ask(port, "/progress?x=1")["step"]] == [0, 1]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(port, "/metrics")


def test_a_client_that_hangs_up_or_talks_nonsense_costs_nobody_else_the_answer() -> None:
    with serving(0, lambda: {"step": 1}) as port:
        assert port is not None
        for said in (b"", b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET /progress HTTP/1.1\r\nHost: a\r\n\r\n"):
            client = socket.create_connection(("127.0.0.1", port))
            client.sendall(said)
            client.close()
        assert ask(port) == {"step": 1}


def test_clients_that_drip_their_request_are_cut_and_keep_nobody_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "CLIENT_SECONDS", 0.5)
    with contextlib.ExitStack() as stack, serving(0, lambda: {"step": 1}) as port:
        assert port is not None
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)) for _ in range(40)]
        over = threading.Event()

        def drip() -> None:
            while not over.wait(0.05):  # each byte well within the time that one read may take
                for client in clients:
                    with contextlib.suppress(OSError):
                        client.send(b"G")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert ask(port) == {"step": 1}
            assert len([each for each in threading.enumerate() if "process_request_thread" in each.name]) <= 8
        finally:
            over.set()
            dripping.join(DEADLINE)


def test_after_the_run_nobody_answers() -> None:
    with serving(0, dict) as port:
        assert port is not None
    with pytest.raises(urllib.error.URLError):
        ask(port)


def test_a_port_that_is_taken_costs_the_page_and_not_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, serving(taken.getsockname()[1], dict) as port:
        assert port is None


def test_a_run_tells_how_far_it_is_with_its_attempt_and_its_newest_checkpoint(tmp_path: Path) -> None:
    config = write_run(tmp_path, training={"steps": 100_000})
    arguments = [sys.executable, "-m", "glm5_runtime.cli", "train", "--config", str(config), "--progress-port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "GLM5_ATTEMPT": "3"}
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            said = until(process, "progress at port ")
            found = re.search(r"progress at port (\d+)", said)
            assert found, said
            until(process, "checkpoint-5 written")
            told = ask(int(found[1]))
        finally:
            process.kill()
            process.communicate(timeout=DEADLINE)

    assert told["attempt"] == 3
    assert (told["step"] >= 5, told["total"], told["loss"] > 0, told["eta_seconds"] > 0) == (True, 100_000, True, True)
    assert told["checkpoint"]["step"] >= 5
    assert re.fullmatch(r"[0-9a-f]{64}", told["checkpoint"]["sha256"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", told["checkpoint"]["time"])


def test_a_checkpoint_that_is_found_at_the_start_is_told_like_one_that_was_just_written(tmp_path: Path) -> None:
    assert command.train(write_run(tmp_path, training={"steps": 5})) == 0

    found = Checkpoints(tmp_path / "checkpoints", 3)
    assert found.newest_written is None
    assert found.newest() is not None
    assert found.newest_written is not None
    digest = subprocess.run(["sha256sum", found.at(5).path / MANIFEST], capture_output=True, text=True, check=True).stdout.split()[0]
    assert (found.newest_written.step, found.newest_written.sha256) == (5, digest)


def test_a_run_that_fails_says_how_far_it_was(tmp_path: Path) -> None:
    config = write_run(tmp_path, training={"learning_rate": 1e30, "steps": 40})

    assert command.train(config, config.with_suffix(".json")) == 4
    told = ending(config)
    assert (told["outcome"], told["total"], told["step"] > 0) == ("NotFinite", 40, True)


def test_a_message_in_any_script_leaves_a_last_word_that_is_whole(tmp_path: Path) -> None:
    for character in ("é", "字", "😀", "\ud800"):
        command.write_ending(tmp_path / "end.json", {"outcome": "DataError", "message": character * 2000, "step": 3})
        raw = (tmp_path / "end.json").read_bytes()

        assert len(raw) <= 4096
        assert json.loads(raw)["step"] == 3
