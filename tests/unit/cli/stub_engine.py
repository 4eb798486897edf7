"""A stand-in for `glm5-runtime serve`: a real process that speaks the same flags and HTTP. What it does comes from $STUB."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = os.environ.get("STUB", "")
LOG = os.environ["STUB_LOG"]


class Handler(BaseHTTPRequestHandler):
    looks = 0

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def _send(self, code: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health/ready":
            Handler.looks += 1
            if MODE == "never" or Handler.looks < 3:
                self._send(503, {"status": "unready", "message": "the model is being loaded"})
            else:
                self._send(200, {"status": "ready"})
        elif self.headers.get("Authorization") != f"Bearer {os.environ['GLM5_API_KEY']}":
            self._send(401, {"error": {"message": "no key"}})
        else:
            self._send(200, {"data": [{"id": "stub"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(LOG, "a") as log:
            log.write(json.dumps(body) + "\n")
        if MODE == "refuse":
            self._send(400, {"error": {"message": "max_tokens is too large"}})
            return
        if MODE == "die":
            sys.stderr.write("RuntimeError: out of memory\n")
            sys.stderr.flush()
            os._exit(9)
        self.send_response(200)
        self.end_headers()
        for delta in (
            {"role": "assistant"},
            {"reasoning_content": "hm"},
            {"content": "you said: "},
            {"content": body["messages"][-1]["content"]},
        ):
            self.wfile.write(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n".encode())
        if MODE == "midway":
            error = {"error": {"message": "the engine stopped"}}
            self.wfile.write(f"data: {json.dumps(error)}\n\n".encode())
        if MODE != "breaks":
            self.wfile.write(b"data: [DONE]\n\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    for flag in ("--model", "--served-model-name", "--host", "--port", "--device", "--log-level", "--max-model-len"):
        parser.add_argument(flag)
    options = parser.parse_args()
    with open(LOG, "a") as log:
        log.write(json.dumps({"flags": vars(options), "pid": os.getpid(), "argv": sys.argv}) + "\n")
    if MODE == "crash":
        sys.exit("ValueError: model.safetensors is cut short")
    if MODE == "unequipped":
        sys.exit("glm5-runtime serve: the runtime's packages are missing; in a clone: pip install '.[runtime]' (no uvicorn)")
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ThreadingHTTPServer((options.host, int(options.port)), Handler).serve_forever()


main()
