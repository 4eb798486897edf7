"""What the demo prints: answers are checked, errors are messages, and every text survives Rich's markup."""

import http.server
import io
import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from demo import __main__ as demo
from demo.owned import Operator
from demo.site import Site
from demo.talk import AnswerError, PortForwardError, port_forward
from tests.cluster.errors import ClusterError

Answer = Callable[[str], tuple[int, str]]
Serve = Callable[[Answer], Site]
ROW = "[/models/x] NAME" + " column" * 20


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(demo, "console", Console(file=text, width=80, soft_wrap=demo.console.soft_wrap))
    return text


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A place whose kubectl forwards to a server of this process that answers as told."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(answer: Answer) -> Site:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                status, body = answer(self.path)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *words: object) -> None:
                """Nothing: the test looks at the answers."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        kubectl = tmp_path / "kubectl"
        port = server.server_address[1]
        kubectl.write_text(
            f'#!/bin/sh\ncase "$*" in *port-forward*) echo "Forwarding from 127.0.0.1:{port} -> 8000"; exec sleep 60;; esac\n'
            f"echo '{ROW}'\n"
        )
        kubectl.chmod(0o755)
        return Site(kubeconfig=None, kubectl_path=kubectl, helm_path=kubectl)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def stream(*pieces: str) -> str:
    events = [json.dumps({"choices": [{"delta": {"content": piece}}]}) for piece in pieces]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def answers(chat: str, text: str = "None") -> Answer:
    return lambda path: (200, json.dumps({"text": text}) if path == "/generate" else chat)


def test_answers_are_printed_as_they_are(serve: Serve, screen: io.StringIO) -> None:
    demo._ask(serve(answers(stream("I am ", "[/bold] GLM"))))
    assert screen.getvalue().count("I am [/bold] GLM") == len(demo.QUESTIONS)
    assert ROW in screen.getvalue(), "a row is one line, however narrow the console is"
    assert f"prompt {demo.PROMPT!r}" in screen.getvalue()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (answers(stream()), "ended without text: look at `kubectl logs -n glm5-demo deploy/chat-engine`"),
        (answers(stream(" ", "\n")), "ended without text"),
        (answers(stream("yes"), ""), "/generate answered without text"),
        (answers('data: {"error": {"message": "engine failed"}}\n\n'), "the stream broke off with .*engine failed"),
        (lambda path: (503, '{"error": "draining"}'), "/v1/chat/completions answered 503 .*draining.*: look at"),
    ],
    ids=["empty", "blank", "generate", "broken off", "refused"],
)
def test_no_answer_is_a_failure_that_says_where_to_look(serve: Serve, screen: io.StringIO, answer: Answer, message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        demo._ask(serve(answer))


def test_a_server_that_is_gone_is_a_message_too(serve: Serve, screen: io.StringIO, tmp_path: Path) -> None:
    place = serve(answers(stream("yes")))
    script = place.kubectl_path.read_text()
    place.kubectl_path.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", script))
    with pytest.raises(AnswerError, match=r"the request failed.*look at"):
        demo._ask(place)


def test_a_failed_port_forward_says_what_kubectl_said_and_what_to_do(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'error: pod is not running'\nexit 1\n")
    kubectl.chmod(0o755)
    with (
        pytest.raises(PortForwardError, match=r"pod is not running(.|\n)*kubectl get pods -n home"),
        port_forward(kubectl, None, "home", "svc/x"),
    ):
        pass


def test_an_error_ends_the_program_with_its_text_whatever_is_in_it(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ClusterError("no such model [/models/x]")

    monkeypatch.setattr(demo, "app", fail)
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 1
    assert "no such model [/models/x]" in screen.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_where_there_is_no_terminal_a_line_says_what_begins(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    text = io.StringIO()
    monkeypatch.setattr(demo, "console", Console(file=text, width=80, force_terminal=terminal))
    with demo._step("wait"):
        assert ("… wait\n" in text.getvalue()) is not terminal


def test_what_a_step_says_may_hold_brackets(screen: io.StringIO) -> None:
    with demo._step("wait") as say:
        say("ModelNotFound: no model in [/models/x]")


@pytest.mark.parametrize(
    ("kubeconfig", "stop"), [(None, "CLUSTER=current make demo-down"), (Path("/tmp/k"), "stop         make demo-down")]
)
def test_the_last_panel_names_the_command_that_stops_this_demo(screen: io.StringIO, kubeconfig: Path | None, stop: str) -> None:
    kind = SimpleNamespace(shared=Path("/s")) if kubeconfig else None
    place = Site(kubeconfig, Path("/x/kubectl"), Path("/y/helm"), kind=kind)  # type: ignore[arg-type]
    demo._how_to_go_on(place, Operator("glm5-system", "glm5-glm5-operator"), 12)
    assert stop in screen.getvalue()
    assert ("data         /s/demo = pvc://shared\n" in screen.getvalue()) is (kind is not None)
    assert demo.ASK in screen.getvalue()
    assert "-n glm5-system deploy/glm5-glm5-operator 8080" in screen.getvalue()


def test_the_question_that_the_panel_shows_is_one_line_for_a_shell_and_asks_without_chance() -> None:
    words = shlex.split(demo.ASK)
    body = json.loads(words[words.index("-d") + 1])
    assert (words[0], body["temperature"], body["messages"][0]["content"]) == ("curl", 0, demo.QUESTIONS[0])
