"""The entry point as a user meets it: a process, its messages and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

# The generated models of the client library: 800 classes, 50 MB, for what planning never uses.
MODELS = ("kubernetes.client.models.v1_pod", "kubernetes.aio.client.models.v1_pod")
HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "fastapi",
    "uvicorn",
    "typer",
    "glm5_runtime",
    "glm5_operator.cli",
    *MODELS,
)


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "glm5_operator", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_all_wrong_settings_are_named_at_once_and_nothing_starts() -> None:
    result = run("--workers", "many", GLM5_OPERATOR_LOG_LEVEL="loud", GLM5_OPERATOR_TYPO="1")

    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 3
    assert "GLM5_OPERATOR_TYPO: no such setting" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_cluster_the_message_says_what_is_missing() -> None:
    result = run("--kubeconfig", "/nowhere/config", "--admin-port", "0")

    assert result.returncode == 1
    assert "/nowhere/config" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_version_is_the_distributions() -> None:
    assert run("--version").stdout.strip() != ""


def test_the_operator_imports_nothing_heavy() -> None:
    code = "import sys, glm5_operator.app, glm5_operator.controllers; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split()

    assert "kopf" in loaded
    assert [name for name in HEAVY if name in loaded] == []
