"""The chart's own test and its upgrade, on real kubelets."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

from demo import steps
from demo.site import Site
from tests.cluster.shell import wait_for
from tests.e2e.looks import a_service, apply, delete_service, engine_pod, get, uid, wait_ready


def test_helm_test_reaches_a_ready_operator(demo: Site) -> None:
    said = demo.helm("test", steps.RELEASE, "--namespace", steps.OPERATOR_NAMESPACE)

    assert "Succeeded" in said


def test_an_upgrade_of_the_chart_loses_no_service_that_is_created_meanwhile(demo: Site) -> None:
    """Case B16: old and new operator overlap; one of them writes."""
    name, before = f"e2e-{secrets.token_hex(3)}", uid(engine_pod(demo))

    def generation() -> int:
        (deployment,) = get(demo, "deployments", namespace=steps.OPERATOR_NAMESPACE)
        return int(deployment["metadata"]["generation"])

    installed = generation()
    try:
        with ThreadPoolExecutor(1) as helm:
            upgrade = helm.submit(lambda: steps.install_operator(demo, **{"podAnnotations.example\\.com/release": name}))
            wait_for("the upgrade to begin", lambda: generation() > installed, timeout=30)
            apply(demo, a_service(name))
            upgrade.result()
        wait_ready(demo, name)

        assert len(get(demo, "deployments", selector=f"glm5.dev/service={name}")) == 1
        assert len(get(demo, "replicasets", selector=f"glm5.dev/service={name}")) == 1, "planned once, the same by both"
        assert uid(engine_pod(demo)) == before
    finally:
        delete_service(demo, name)
