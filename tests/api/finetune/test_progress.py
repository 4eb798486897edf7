"""How far a run is, from its trainer's page to status, condition, history and metrics. Played by the test: kubelets, and the page."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.api.conftest import PROGRESS, Operated
from tests.api.finetune.conftest import Json, Training
from tests.support.kube import Kube, stays, until
from tests.support.trainers import bound_pods, end, let_go_of_deleted, run

pytestmark = pytest.mark.api

DIGEST = "b" * 64
AT: Json = {
    "attempt": 1,
    "step": 40,
    "total": 90,
    "epoch": 1.5,
    "loss": 2.25,
    "learning_rate": 1e-4,
    "tokens_per_second": 99.5,
    "eta_seconds": 60,
    "evaluation_loss": 2.5,
    "overflows": 1,
    "checkpoint": {"step": 30, "time": "2026-11-30T10:00:00Z", "sha256": DIGEST},
}


class Page:
    """What the trainer's page says: bytes, or None for a page that never answers."""

    def __init__(self) -> None:
        self.body: bytes | None = json.dumps(AT).encode()
        self.asked = 0
        self.over = threading.Event()


@contextmanager
def served() -> Iterator[Page]:
    page = Page()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page.asked += 1
            if page.body is None:
                page.over.wait(20)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:  # the operator hangs up on a page that is too long
            return

    socketserver.TCPServer.allow_reuse_address = True
    with Server(("127.0.0.1", int(PROGRESS["GLM5_OPERATOR_PROGRESS_PORT"])), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield page
        finally:
            page.over.set()
            server.shutdown()


@pytest.fixture
def page() -> Iterator[Page]:
    with served() as made:
        yield made


def address(kube: Kube, *pods: Json) -> None:
    """Kubelet has told the pods' addresses."""
    for pod in pods:
        here = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        kube.patch("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], {"status": here}, subresource="status")


def begun(at: Training, **spec: Any) -> list[Json]:  # noqa: ANN401 - fields of the job
    at.create(**spec)
    pods = bound_pods(at.kube, at.home, 1, spec.get("nodes", 1))
    run(at.kube, *pods)
    address(at.kube, *pods)
    at.wait("Training")
    return pods


def told(at: Training, step: int) -> Json:
    until(f"step {step} in the status", lambda: at.status().get("step") == step, 20, lambda: str(at.status()))
    return at.status()


def test_a_running_job_says_how_far_it_is_and_where_it_would_go_on(operated: Operated, training: Training, page: Page) -> None:
    begun(training)

    status = told(training, 40)
    expected = {"totalSteps": 90, "epoch": 1.5, "loss": 2.25, "learningRate": 1e-4, "tokensPerSecond": 99.5, "evaluationLoss": 2.5}
    assert expected.items() <= status.items()
    assert status["checkpoint"] == {"step": 30, "time": "2026-11-30T10:00:00Z", "sha256": DIGEST}
    assert status["eta"] > status["startTime"]
    verified = training.condition("CheckpointVerified")
    assert (verified["status"], DIGEST in verified["message"]) == ("True", True)
    said = operated.operator.get("/metrics").text
    assert f'glm5_finetune_step{{name="tune",namespace="{training.home}"}} 40.0' in said

    training.kube.delete("GLM5FinetuneJob", training.home, "tune")
    # The pool of the test has metrics too, and bears the namespace's name.
    until("its metrics to go", lambda: f'namespace="{training.home}"' not in operated.operator.get("/metrics").text, 20)


def test_a_run_that_stands_still_costs_no_write(operated: Operated, training: Training, page: Page) -> None:
    begun(training)
    told(training, 40)
    written, asked = operated.writes(training.home), page.asked

    until("a few more questions", lambda: page.asked > asked + 3, 20)

    assert operated.writes(training.home) == written


def test_a_fast_run_is_told_no_more_often_than_the_setting_says(operated: Operated, training: Training, page: Page) -> None:
    begun(training)
    told(training, 40)
    before = len([item for item in operated.writes(training.home) if "status" in item])
    asked = page.asked
    while page.asked < asked + 6:
        page.body = json.dumps({**AT, "step": 41 + page.asked - asked}).encode()
        stays("the operator up", lambda: not operated.operator.ended, 0.1)

    writes = len([item for item in operated.writes(training.home) if "status" in item]) - before
    assert 1 <= writes <= 4, "six answers a second apart, of which every second one may be told"


NONSENSE: dict[str, bytes | None] = {
    "no JSON": b"<html>",
    "another attempt": json.dumps({**AT, "attempt": 2, "step": 77}).encode(),
    "too long": b'{"attempt": 1, "step": 77, "text": "' + b"x" * 2_000_000 + b'"}',
    "too deep": b"[" * 100_000,
    "numbers beyond all bounds": json.dumps({**AT, "step": 10**40, "loss": 1e308, "overflows": -1}).encode(),
    "never": None,
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
def test_a_page_of_nonsense_disturbs_nothing(training: Training, page: Page, body: bytes | None) -> None:
    begun(training)
    told(training, 40)
    asked, page.body = page.asked, body

    until("a few questions", lambda: page.asked > asked + 2, 30)
    assert training.status()["step"] == 40
    assert training.condition()["reason"] == "Training"
    page.over.set()
    page.body = json.dumps({**AT, "step": 50}).encode()
    told(training, 50)


def test_the_history_says_how_far_an_attempt_came_that_could_not_say_it_itself(
    kube: Kube, home: str, training: Training, page: Page
) -> None:
    (pod,) = begun(training)
    told(training, 40)

    end(kube, pod, 137)

    def second() -> bool:
        let_go_of_deleted(kube, home)
        return bool(training.status().get("history"))

    until("the end of the attempt", second, 30, lambda: str(training.status()))
    (entry,) = training.status()["history"]
    assert (entry["cause"], entry["step"], entry["loss"]) == ("Unknown", 40, 2.25)
    assert "eta" not in training.status()
