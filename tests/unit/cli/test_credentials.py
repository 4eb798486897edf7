"""Credentials that can't be used end in one line that names their file and the remedy; no cluster is asked."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from glm5_operator.kube.client import load_configuration
from tests.api.crd.documents import Json, overlay
from tests.unit.cli.support import glm5

REMEDY = "give --kubeconfig or set KUBECONFIG; `kubectl cluster-info` must answer"
BAD_PEM = base64.b64encode(b"no certificate").decode()


def kubeconfig(cluster: Json | None = None, user: Json | None = None, **changes: object) -> str:
    """A whole file but for what is changed."""
    file = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "t"} if user is None else user}],
    }
    return yaml.safe_dump(overlay(file, changes))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x80\x81\xff\x00", ""),
        (b"", "form of a kubeconfig"),
        (b"[]", "form of a kubeconfig"),
        (b"just text", "form of a kubeconfig"),
        (b"clusters: 5", "form of a kubeconfig"),
        (b"a: [", "no YAML"),
        (b"{a: " * 20000, ""),
        (b"apiVersion: v1", "current-context"),
        (kubeconfig(**{"current-context": "other"}), "other"),
        (kubeconfig({"server": 5}), "form of a kubeconfig"),
        (kubeconfig({"certificate-authority": "/missing/ca.crt"}), "/missing/ca.crt"),
        (kubeconfig(user={"client-certificate": "/missing/tls.crt", "client-key": "/missing/tls.key"}), "/missing/tls.crt"),
        (kubeconfig(user={"tokenFile": "/missing/token"}), "/missing/token"),
        (kubeconfig({"certificate-authority-data": BAD_PEM}), "no valid PEM"),
        (kubeconfig({"certificate-authority-data": "%%%"}), ""),
        (kubeconfig(user={"client-certificate-data": BAD_PEM, "client-key-data": BAD_PEM}), "no valid PEM"),
    ],
    ids=range(16),
)
@pytest.mark.parametrize("given", ["option", "environment"])
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | str, says: str, given: str) -> None:
    path = tmp_path / "kube.config"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    words = ("--kubeconfig", str(path)) if given == "option" else ()

    run = glm5("status", *words, env={"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": None})

    assert run.exit_code == 5
    assert run.stderr.startswith(f"error: no usable credentials in {path}: ")
    assert says in run.stderr
    assert run.stderr.endswith(f"; {REMEDY}\n")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("variable", ["", "/missing/one:/missing/two"])
def test_no_kubeconfig_at_all_says_where_it_was_looked_for(variable: str) -> None:
    run = glm5("status", env={"HOME": "/missing", "KUBECONFIG": variable, "KUBERNETES_SERVICE_HOST": None})

    assert run.exit_code == 5
    assert run.stderr == f"error: no usable credentials in {variable or '/missing/.kube/config'}: no such file; {REMEDY}\n"


async def test_a_token_file_may_end_with_a_line_break(tmp_path: Path) -> None:
    """Editors write one; in a header it would be refused."""
    (tmp_path / "token").write_text("secret\n")
    path = tmp_path / "kube.config"
    path.write_text(kubeconfig(user={"tokenFile": "token"}))

    assert (await load_configuration(str(path))).api_key == {"BearerToken": "Bearer secret"}
