"""Readiness and liveness of a vllm container: the rendered check is the real one; vLLM's server is a stand-in with its metrics."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from glm5_operator.plan.facts import Product
from glm5_operator.plan.vllm import RESTART_SECONDS, UNREADY_SECONDS
from tests.unit.plan.builders import engine_of, node, plan, tiny

PROBES = engine_of(plan(tiny({"engine": {"name": "vllm"}}, tensor=4), node("n0", Product.A2)))
BLIND = "only /health is checked"


def exposition(*, engine: int = 0, running: int = 0, waiting: int = 0, usage: float = 0.0, prompt: int = 12, generated: int = 3) -> str:
    """What vLLM 0.23 says in /metrics, as far as the check is concerned, with neighbours that it must not mistake for it."""
    labels = f'{{engine="{engine}",model_name="GLM-5.1"}}'
    return "\n".join(
        (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {running}.0",
            f"vllm:num_requests_waiting{labels} {waiting}.0",
            f"vllm:kv_cache_usage_perc{labels} {usage}",
            f"vllm:prompt_tokens_total{labels} {prompt}.0",
            f"vllm:prompt_tokens_created{labels} {time.time()}",
            f"vllm:generation_tokens_total{labels} {generated}.0",
            f"process_cpu_seconds_total {time.time()}",
            "",
        )
    )


@dataclass
class Engine:
    """The stand-in, and the files of the container."""

    folder: Path
    port: int = 0
    health: int = 200
    metrics: str | None = field(default_factory=exposition)

    @property
    def state(self) -> Path:
        return self.folder / "progress.json"

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""

    def program(self, probe: str, port: int | None = None) -> tuple[list[str], str]:
        """The command before the program, and the program with port and files of this stand-in."""
        *command, program = PROBES[probe]["exec"]["command"]
        files = 'state_file, container_log = "/tmp/glm5-progress.json", "/proc/1/fd/2"'
        start = "port, window, timeout = 8000,"
        assert (program.count(files), program.count(start)) == (1, 1)
        program = program.replace(files, f"state_file, container_log = {str(self.state)!r}, {str(self.folder / 'log')!r}")
        return command, program.replace(start, f"port, window, timeout = {port or self.port},")

    def check(self, probe: str = "livenessProbe", *, port: int | None = None) -> tuple[bool, str]:
        """Run the check once, in this process: whether it passed, and what it said."""
        _, program = self.program(probe, port)
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                exec(compile(program, "progress", "exec"), {"__name__": "__main__"})  # the rendered check is what is tested
        except SystemExit as error:
            return False, f"{said.getvalue()}{error.code}"
        return True, said.getvalue()

    def pass_time(self, seconds: float) -> None:
        """As if the checks had gone on with nothing new for so long."""
        state = json.loads(self.state.read_text())
        for entry in state["engines"].values():
            entry[1] -= seconds
        self.state.write_text(json.dumps(state))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    standing = Engine(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {"/health": (standing.health, ""), "/metrics": (404, "") if standing.metrics is None else (200, standing.metrics)}
            status, text = known[self.path]
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        standing.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield standing
        server.shutdown()
        thread.join()


def test_an_idle_engine_is_ready_and_alive_for_ever(engine: Engine) -> None:
    assert engine.check() == (True, "")
    engine.pass_time(10 * RESTART_SECONDS)

    assert engine.check("readinessProbe") == (True, "")
    assert engine.check("livenessProbe") == (True, "")


@pytest.mark.parametrize(
    "step",
    [
        {"generated": 4},  # decoding
        {"prompt": 13},
        {"usage": 0.25},  # a chunk of a long prompt: no counter moves, its pages are taken
        {"running": 1},
        {"waiting": 1},
    ],
)
def test_each_sign_of_a_step_starts_the_window_anew(engine: Engine, step: dict[str, int]) -> None:
    engine.metrics = exposition(running=2)
    engine.check()
    engine.pass_time(RESTART_SECONDS + 1)
    engine.metrics = exposition(**{"running": 2, **step})

    assert engine.check() == (True, "")
    engine.pass_time(RESTART_SECONDS - 5)
    assert engine.check() == (True, "")


def test_a_hung_engine_leaves_traffic_first_and_is_restarted_later(engine: Engine) -> None:
    engine.metrics = exposition(running=3)
    assert engine.check("readinessProbe") == engine.check("livenessProbe") == (True, "")

    engine.pass_time(UNREADY_SECONDS + 1)
    passed, said = engine.check("readinessProbe")
    assert not passed
    assert "3 requests run, and no number in /metrics has moved for 30" in said
    assert engine.check("livenessProbe") == (True, "")

    engine.pass_time(RESTART_SECONDS - UNREADY_SECONDS)
    assert not engine.check("livenessProbe")[0]
    assert engine.check("livenessProbe")[0] is False, "until it moves"

    engine.metrics = exposition(running=3, generated=4)
    assert engine.check("readinessProbe") == (True, "")


def test_one_hung_engine_of_several_is_noticed(engine: Engine) -> None:
    engine.metrics = exposition(engine=0, running=1) + exposition(engine=1, running=1)
    engine.check()
    engine.pass_time(RESTART_SECONDS + 1)
    engine.metrics = exposition(engine=0, running=1, generated=9) + exposition(engine=1, running=1)

    passed, said = engine.check()

    assert not passed
    assert "engine 1: 1 requests" in said


def test_a_dead_engine_and_a_dead_server_fail_at_once(engine: Engine) -> None:
    engine.health = 503

    assert engine.check("readinessProbe") == (False, "/health: /health answers 503")
    assert not engine.check("livenessProbe", port=1)[0]


@pytest.mark.parametrize("metrics", [None, "", "vllm:num_requests_running 1.0\n", "python_info 1.0\n"])
def test_without_metrics_only_health_decides_and_the_containers_log_says_so_once(engine: Engine, metrics: str | None) -> None:
    engine.metrics = metrics

    passed, said = engine.check()
    assert (passed, BLIND in said) == (True, True)
    assert engine.check() == (True, "")
    assert engine.log.count(BLIND) == 1

    engine.health = 503
    assert not engine.check()[0]


def test_it_is_a_program_that_an_isolated_python_without_packages_can_run(engine: Engine) -> None:
    (_, *options), program = engine.program("readinessProbe")
    for health, code in ((200, 0), (503, 1)):
        engine.health = health
        ran = subprocess.run([sys.executable, *options, program], capture_output=True, text=True, timeout=30, check=False)
        assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr


def test_what_another_run_left_in_tmp_says_nothing(engine: Engine) -> None:
    engine.metrics = exposition(running=1)
    engine.check()
    engine.pass_time(RESTART_SECONDS + 1)
    for seen in (time.monotonic() - 61, time.monotonic() + 1000):
        engine.state.write_text(json.dumps({**json.loads(engine.state.read_text()), "seen": seen}))
        assert engine.check() == (True, "")
        engine.pass_time(RESTART_SECONDS + 1)
    engine.state.write_text("{half")
    assert engine.check() == (True, "")


def test_a_full_tmp_is_said_and_breaks_no_check(engine: Engine) -> None:
    engine.state.mkdir()

    passed, said = engine.check()

    assert (passed, BLIND in said) == (True, True)
