"""Puts our CRDs on a test API server and waits until it serves them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.shell import wait_for

if TYPE_CHECKING:
    from tests.cluster.api import ApiCluster

CRDS = Path(__file__).parents[2] / "crds"


def install_crds(cluster: ApiCluster) -> None:
    """Plain client-side `kubectl apply`, then a poll: `kubectl wait` fails when it comes before the first condition is written."""
    cluster.kubectl("apply", "-f", str(CRDS))
    collections = ("namespaces/default/glm5services", "namespaces/default/glm5finetunejobs", "npupools", "ascendnodes")

    def served() -> bool:
        return all(cluster.http.get(f"/apis/glm5.dev/v1alpha1/{collection}").is_success for collection in collections)

    wait_for("the CRDs to be served", served, timeout=30, every=0.05)
