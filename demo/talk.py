"""Talks to a service in the cluster as a user would: through `kubectl port-forward`, with HTTP. Used by the demo and by e2e tests."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.errors import ClusterError


class PortForwardError(ClusterError):
    """kubectl could not forward a port; the message holds what it said."""


class AnswerError(ClusterError):
    """The service is Ready, and still there was no answer."""


@contextlib.contextmanager
def port_forward(kubectl: Path, kubeconfig: Path | None, namespace: str, target: str, port: int = 8000) -> Iterator[str]:
    """Forward a free local port to `target` (`svc/NAME`, `pod/NAME`) and yield the base URL."""
    access = ["--kubeconfig", str(kubeconfig)] if kubeconfig is not None else []
    argv = [str(kubectl), *access, "-n", namespace, "port-forward", "--address", "127.0.0.1", target, f":{port}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("Forwarding from "):
                raise PortForwardError(
                    f"kubectl port-forward {target}: {line}{process.stdout.read()}\nRun the same command again; if it goes on, "
                    f"`kubectl get pods -n {namespace}` says whether the pod behind it still runs"
                )
            # kubectl prints a line per connection; unread, the pipe would fill up and stop it
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield "http://" + line.split()[2]
        finally:
            process.terminate()


def stream_chat(url: str, model: str, question: str, fields: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Ask one question and yield the answer's pieces as they come; `fields` are added to the request."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "stream": True, "temperature": 0, **(fields or {})}
    body.setdefault("chat_template_kwargs", {"enable_thinking": False})
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False) as answer:
        if answer.status_code != 200:
            answer.read()
        answer.raise_for_status()
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if not data or data == "[DONE]":
                continue
            event = json.loads(data)
            if "choices" not in event:
                raise AnswerError(f"the stream broke off with {data}")
            for choice in event["choices"]:
                piece = choice["delta"].get("content")
                if piece:
                    yield piece


def generate(url: str, prompt: str, max_new_tokens: int) -> dict[str, Any]:
    """One POST /generate; returns the JSON reply."""
    body = {"prompt": prompt, "max_new_tokens": max_new_tokens, "temperature": 0}
    answer = httpx.post(f"{url}/generate", json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    reply: dict[str, Any] = answer.json()
    return reply
