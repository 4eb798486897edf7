"""A server that isn't Kubernetes is named with the file that leads there, whatever it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from glm5_operator.cli.cluster_file import EXAMPLE
from tests.unit.cli.support import glm5


class OtherServer(ThreadingHTTPServer):
    """Answers 200 and `body` to everything."""

    body = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, OtherServer)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(server.body)))
        self.end_headers()
        self.wfile.write(server.body)

    do_PATCH = do_GET  # noqa: N815  # the name that http.server asks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # likewise
        """Nothing."""


@pytest.fixture
def server() -> Iterator[OtherServer]:
    with OtherServer(("127.0.0.1", 0), _Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.mark.parametrize("command", ["status", "deploy"])
@pytest.mark.parametrize(
    "body",
    [
        b"<html>Welcome to nginx!</html>",
        b"{}",
        b"[]",
        b"",
        b'{"items": "text"}',
        b'{"kind": 5}',
        b'{"kind": "Page"}',
        b'{"kind": "PageList", "items": "text"}',
        b'{"kind": "PageList", "items": ["text"]}',
        b'{"kind": "PageList", "items": [{}]}',
    ],
)
def test_a_server_that_is_not_kubernetes_is_named_with_its_kubeconfig(
    tmp_path: Path, server: OtherServer, body: bytes, command: str
) -> None:
    server.body = body
    path = tmp_path / "kube.config"
    context = {"name": "c", "context": {"cluster": "k"}}
    path.write_text(
        yaml.safe_dump({"current-context": "c", "contexts": [context], "clusters": [{"name": "k", "cluster": {"server": server.url}}]})
    )
    file = tmp_path / "cluster.yaml"
    file.write_text(EXAMPLE)
    words = ("deploy", "--cluster-config", str(file), "--model", "glm-5.1") if command == "deploy" else ("status",)

    run = glm5(*words, "--kubeconfig", str(path))

    assert run.exit_code == 5
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"error: {server.url}: not a Kubernetes API server? ")
    assert last.endswith(f"; check the server URL in kubeconfig {path}")
