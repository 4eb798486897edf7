"""Services that can't work, on real kubelets: the reason is in the condition, and mending the cause is enough."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import httpx
import pytest

from demo import steps
from demo.site import Site
from demo.talk import port_forward
from tests.cluster.devices import NodeDevices
from tests.cluster.shell import wait_for
from tests.e2e.looks import a_service, apply, delete_service, exists, get, leftovers, serving_workers, wait_ready, wait_reason

MODEL = {"name": "tiny-glm5", "weights": "bf16", "source": "image:///models/tiny-glm5", "memory": "2Gi"}


@pytest.fixture
def name(place: Site) -> Iterator[str]:
    """A service name of the test's own; the service is deleted after it."""
    chosen = f"e2e-{secrets.token_hex(3)}"
    yield chosen
    delete_service(place, chosen)


def test_an_image_that_does_not_exist_is_named_and_a_right_one_heals(place: Site, name: str) -> None:
    apply(place, a_service(name, engine={"image": "glm5-runtime:9.9.9"}))
    told = wait_reason(place, name, "ImagePullFailed")

    apply(place, a_service(name))
    wait_ready(place, name)

    assert "glm5-runtime:9.9.9" in told["message"]


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_a_service_whose_image_never_came_is_deleted_like_any_other(place: Site, name: str, cascade: str) -> None:
    """Case B03, with kubelets that keep trying to pull."""
    apply(place, a_service(name, engine={"image": "glm5-runtime:9.9.9"}))
    wait_reason(place, name, "ImagePullFailed")

    place.kubectl("delete", "glm5", name, "-n", steps.NAMESPACE, f"--cascade={cascade}", "--wait=false")

    wait_for("nothing to be left", lambda: not exists(place, "glm5", name) and not leftovers(place, name), timeout=30, every=0.5)


def test_a_missing_secret_is_named_and_creating_it_is_enough(place: Site, name: str) -> None:
    api_key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-key", "namespace": steps.NAMESPACE}}
    apply(place, a_service(name, auth={"secretRef": {"name": f"{name}-key", "key": "token"}}))
    told = wait_reason(place, name, "SecretMissing")

    apply(place, {**api_key, "stringData": {"token": "open-sesame"}})
    wait_ready(place, name)

    assert f"{name}-key" in told["message"]
    with port_forward(place.kubectl_path, place.kubeconfig, steps.NAMESPACE, f"svc/{name}-api") as url:
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer open-sesame"}, trust_env=False).status_code == 200


def test_a_checkpoint_that_is_not_there_ends_in_the_condition_with_the_engines_last_words(place: Site, name: str) -> None:
    apply(place, a_service(name, model={**MODEL, "source": "image:///models/nothing-here"}))
    told = wait_reason(place, name, "EngineCrashing")

    apply(place, a_service(name))
    wait_ready(place, name)

    assert "/models/nothing-here" in told["message"]


def test_too_little_memory_is_told_as_out_of_memory(place: Site, name: str) -> None:
    apply(place, a_service(name, model={**MODEL, "memory": "256Mi"}))

    assert "memory" in wait_reason(place, name, "OutOfMemory")["message"]


@pytest.fixture
def one_card_a_node(place: Site) -> Iterator[None]:
    """All cards but one of each serving worker are sick; afterwards they are as before."""
    assert place.kind is not None
    files = [place.kind.cards(worker) for worker in serving_workers(place)]
    healthy = [NodeDevices.read(file) for file in files]
    try:
        for node, file in zip(healthy, files, strict=True):
            node.change(*range(1, len(node.devices)), health="Alarm").write(file)
        wait_for("two cards to be left", lambda: cards_in_all(place) == 2, timeout=60, every=0.5)
        yield
    finally:
        for node, file in zip(healthy, files, strict=True):
            node.write(file)
        wait_for("all cards to be back", lambda: cards_in_all(place) == sum(len(node.devices) for node in healthy), timeout=60, every=0.5)


@pytest.mark.usefixtures("one_card_a_node")
def test_more_replicas_than_cards_say_which_resource_is_short(demo: Site, name: str) -> None:
    apply(demo, a_service(name, replicas=2))

    assert "huawei.com/Ascend910" in wait_reason(demo, name, "InsufficientCards")["message"]


def cards_in_all(place: Site) -> int:
    """The pool's own count."""
    return int(get(place, "npupool", steps.POOL)["status"]["cards"]["total"])


def test_a_sick_card_leaves_the_pools_count_and_a_healed_one_returns(place: Site) -> None:
    assert place.kind is not None
    cards = place.kind.cards(serving_workers(place)[0])
    healthy = NodeDevices.read(cards)
    before = cards_in_all(place)

    try:
        healthy.change(5, health="Alarm").write(cards)
        wait_for("the pool to count one card less", lambda: cards_in_all(place) == before - 1, timeout=60, every=0.5)
    finally:
        healthy.write(cards)
    wait_for("the card to be counted again", lambda: cards_in_all(place) == before, timeout=60, every=0.5)
