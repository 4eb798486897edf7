"""Keys, certificates and kubeconfigs of the API-server-only cluster, made with openssl. Used by api.py.

They live in the cluster's folder (mode 700), are good for a year and are never shared between clusters.
"""

import json
from base64 import b64encode
from pathlib import Path

from tests.cluster.shell import run

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "365")
_CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kwok": "/O=system:masters/CN=kwok",
}
_SERVER_NAMES = "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1"


def make_certificates(folder: Path, server: str) -> None:
    """Write a CA, the API server's certificate, the service account key, and a kubeconfig `<client>.kubeconfig` per client."""
    folder.mkdir(mode=0o700, exist_ok=True)
    ca = folder / "ca.crt"
    run("openssl", "req", "-x509", *_EC, "-keyout", folder / "ca.key", "-out", ca, "-subj", "/CN=glm5-test-ca")
    _issue(folder, "apiserver", "/CN=kube-apiserver", "serverAuth", names=_SERVER_NAMES)
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", folder / "sa.key")
    run("openssl", "ec", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub")
    for client, subject in _CLIENTS.items():
        _issue(folder, client, subject, "clientAuth")
        write_kubeconfig(folder / f"{client}.kubeconfig", server, ca, folder / f"{client}.crt", folder / f"{client}.key")


def _issue(folder: Path, name: str, subject: str, usage: str, *, names: str | None = None) -> None:
    extensions = ["-addext", f"extendedKeyUsage={usage}", "-addext", "basicConstraints=critical,CA:FALSE"]
    if names is not None:
        extensions += ["-addext", f"subjectAltName={names}"]
    files = ("-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt")
    run("openssl", "req", "-x509", *_EC, *files, "-subj", subject, *extensions)


def write_kubeconfig(path: Path, server: str, ca: Path, certificate: Path, key: Path) -> None:
    """Write a kubeconfig that holds everything inside (readable by its owner only), so it can be copied elsewhere."""

    def data(file: Path) -> str:
        return b64encode(file.read_bytes()).decode()

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "glm5-test",
        "clusters": [{"name": "glm5-test", "cluster": {"server": server, "certificate-authority-data": data(ca)}}],
        "users": [{"name": "glm5-test", "user": {"client-certificate-data": data(certificate), "client-key-data": data(key)}}],
        "contexts": [{"name": "glm5-test", "context": {"cluster": "glm5-test", "user": "glm5-test"}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
