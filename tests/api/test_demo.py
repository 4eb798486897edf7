"""`CLUSTER=current make demo` on clusters that others use: it adds its own, and `demo-down` takes away that and nothing else.

Real: helm, kubectl, API server, controller manager. Faked: nodes and kubelets (KWOK), so nothing serves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from demo import owned, steps
from demo.site import Site
from tests.cluster.api import ApiCluster
from tests.cluster.shell import wait_for
from tests.cluster.tools import tool
from tests.support.chart import CHART

pytestmark = pytest.mark.api
USERS_NAMESPACE = "glm5-system"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiCluster]:
    with ApiCluster.start() as started:
        started.add_nodes(1)
        yield started


@pytest.fixture
def place(cluster: ApiCluster) -> Iterator[Site]:
    """The cluster as a place for the demo; empty again after the test."""
    site = Site(cluster.kubeconfig, tool("kubectl"), tool("helm"))
    yield site
    for release, namespace in ((owned.RELEASE, owned.OPERATOR_NAMESPACE), ("glm5", USERS_NAMESPACE)):
        site.helm("uninstall", release, "--namespace", namespace, "--no-hooks", "--ignore-not-found")
    site.kubectl(
        "delete",
        "customresourcedefinitions",
        "--ignore-not-found",
        "glm5services.glm5.dev",
        "glm5finetunejobs.glm5.dev",
        "npupools.glm5.dev",
        "ascendnodes.glm5.dev",
    )
    site.kubectl("delete", "namespace", "--ignore-not-found", USERS_NAMESPACE, owned.OPERATOR_NAMESPACE, steps.NAMESPACE)


def everything(site: Site) -> list[str]:
    """What is in the cluster, as far as the demo could have made it, with its version of the content."""
    kinds = ["namespaces", "customresourcedefinitions", "clusterroles", "clusterrolebindings", "deployments", "secrets"]
    kinds += ["npupools", "glm5services"] if owned.crds(site) else []
    listed = json.loads(site.kubectl("get", ",".join(kinds), "-A", "-o", "json"))["items"]
    return sorted(
        f"{i['kind']} {i['metadata'].get('namespace', '')}/{i['metadata']['name']} {i['metadata'].get('generation')}" for i in listed
    )


def demo_up(site: Site) -> owned.Operator:
    operator = steps.install_operator(site)
    wait_for(
        "the kinds to be served", lambda: "glm5services" in site.kubectl("api-resources", "--api-group=glm5.dev", "-o", "name"), timeout=30
    )
    steps.apply_pool(site)
    steps.apply_service(site)
    return operator


def an_engine(site: Site) -> None:
    """What the operator makes of the demo's service, as far as it could be mistaken for an operator."""
    labels = {"app.kubernetes.io/part-of": "glm5", "app.kubernetes.io/managed-by": "glm5-operator", "glm5.dev/service": steps.SERVICE}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", "image": "none"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": f"{steps.SERVICE}-engine", "namespace": steps.NAMESPACE, "labels": labels}
    site.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}))


def users_install(site: Site) -> None:
    """What the README tells a user to do."""
    site.helm("install", "glm5", str(CHART), "--namespace", USERS_NAMESPACE, "--create-namespace", "--wait")
    pool = {"kind": "NPUPool", "metadata": {"name": "inference"}, "spec": {"role": "Inference", "nodeSelector": {"type": "kwok"}}}
    site.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "glm5.dev/v1alpha1", **pool}))


def test_a_cluster_without_an_operator_is_empty_again(place: Site) -> None:
    before = everything(place)
    assert demo_up(place).own
    assert everything(place) != before
    an_engine(place)
    # As Helm leaves it when it is interrupted: it would refuse every further upgrade.
    place.kubectl("label", "secret", "-n", owned.OPERATOR_NAMESPACE, "-l", "owner=helm", "status=pending-install", "--overwrite")
    assert demo_up(place).own, "a second `up` takes nothing but an operator for one"
    releases = place.kubectl("get", "secrets", "-n", owned.OPERATOR_NAMESPACE, "-l", "owner=helm", "-o", "name").split()
    assert releases == [f"secret/sh.helm.release.v1.{owned.RELEASE}.v1"], "an interrupted install is begun anew"
    assert steps.remove(place) == []
    assert everything(place) == before
    assert steps.remove(place) == [], "nothing to do is no error"


def test_an_operator_that_is_there_is_used_and_left_as_it_is(place: Site) -> None:
    users_install(place)
    before = everything(place)
    operator = demo_up(place)
    assert (operator.namespace, operator.deployment, operator.own) == (USERS_NAMESPACE, "glm5-glm5-operator", False)
    assert place.helm("list", "--all-namespaces", "--short").split() == ["glm5"]
    assert steps.remove(place) == []
    assert everything(place) == before


def test_crds_of_an_operator_that_is_gone_are_used_and_stay(place: Site) -> None:
    users_install(place)
    place.helm("uninstall", "glm5", "--namespace", USERS_NAMESPACE, "--no-hooks")
    before = everything(place)
    assert demo_up(place).own
    assert steps.remove(place) == []
    assert everything(place) == before


def test_crds_of_the_demo_stay_while_somebody_uses_them(place: Site) -> None:
    demo_up(place)
    service = place.kubectl("create", "--dry-run=client", "-o", "json", "-f", str(steps.MANIFESTS / "service.yaml"))
    mine = {**json.loads(service), "metadata": {"name": "mine", "namespace": "default"}}
    place.kubectl("apply", "-f", "-", stdin=json.dumps(mine))
    (left,) = steps.remove(place)
    assert "glm5service.glm5.dev/mine needs them" in left
    assert place.kubectl("get", "glm5service", "-n", "default", "-o", "name").split() == ["glm5service.glm5.dev/mine"]
    place.kubectl("delete", "glm5service", "mine", "-n", "default")


@pytest.mark.parametrize("name", [steps.NAMESPACE, owned.OPERATOR_NAMESPACE])
def test_a_namespace_of_somebody_else_is_refused_and_never_deleted(place: Site, name: str) -> None:
    place.kubectl("create", "namespace", name)
    with pytest.raises(owned.ForeignObjectError, match=f"namespace {name} that the demo did not make"):
        demo_up(place)
    steps.remove(place)
    assert place.kubectl("get", "namespace", name, "-o", "name").strip() == f"namespace/{name}"
