"""The CRDs on a real API server, and a small client that answers what the server said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.api.crd.documents import Json
from tests.cluster.api import ApiCluster
from tests.support.crds import install_crds


@dataclass(frozen=True)
class Verdict:
    """What the API server said to a write: `causes` is empty when it took the document."""

    accepted: bool
    causes: tuple[tuple[str, str], ...]  # (field, message)
    body: Json

    @property
    def messages(self) -> set[str]:
        return {message for _, message in self.causes}


@dataclass(frozen=True)
class Api:
    """Writes to the API server as a user with kubectl would: strict about unknown fields."""

    http: httpx.Client
    namespace: str

    def create(self, document: Json, *, dry_run: bool = True) -> Verdict:
        return self._verdict(self.http.post(self._path(document), json=document, params=_strict(dry_run=dry_run)))

    def update(self, document: Json, *, dry_run: bool = True) -> Verdict:
        """Replace the stored object's spec; the rest of it stays."""
        path = f"{self._path(document)}/{document['metadata']['name']}"
        stored = self.http.get(path).raise_for_status().json()
        return self._verdict(self.http.put(path, json={**stored, "spec": document["spec"]}, params=_strict(dry_run=dry_run)))

    def set_status(self, document: Json, status: Json) -> None:
        path = f"{self._path(document)}/{document['metadata']['name']}"
        stored = self.http.get(path).raise_for_status().json()
        self.http.put(f"{path}/status", json={**stored, "status": status}).raise_for_status()

    def delete(self, document: Json) -> None:
        self.http.delete(f"{self._path(document)}/{document['metadata']['name']}").raise_for_status()

    def _path(self, document: Json) -> str:
        base = "/apis/glm5.dev/v1alpha1"
        if document["kind"] == "NPUPool":
            return f"{base}/npupools"
        if document["kind"] == "NetworkPolicy":
            return f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"
        return f"{base}/namespaces/{self.namespace}/{document['kind'].lower()}s"

    @staticmethod
    def _verdict(answer: httpx.Response) -> Verdict:
        body: dict[str, Any] = answer.json()
        if answer.is_success:
            return Verdict(True, (), body)
        assert answer.status_code in (400, 422), body
        causes = body.get("details", {}).get("causes", [{"message": body["message"]}])
        return Verdict(False, tuple((cause.get("field", ""), cause["message"]) for cause in causes), body)


def _strict(*, dry_run: bool) -> dict[str, str]:
    return {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}


@pytest.fixture(scope="session")
def installed(api_cluster: ApiCluster) -> ApiCluster:
    """The cluster with our CRDs, put there by client-side `kubectl apply` (a CRD too big for its annotation would fail here)."""
    install_crds(api_cluster)
    return api_cluster


@pytest.fixture
def api(installed: ApiCluster, namespace: str) -> Api:
    return Api(installed.http, namespace)
