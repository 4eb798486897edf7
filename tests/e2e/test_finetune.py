"""Training on real kubelets: two pods with two ranks each, through kill -9 of everything, to an adapter that a running service loads.

The figures of recovery are printed as JSON lines and judged loosely: how fast is for the benchmark page, that it recovers is for here.
"""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from demo import steps
from demo.talk import port_forward, stream_chat
from tests.cluster.shell import wait_for
from tests.e2e import runs
from tests.e2e.looks import a_service, apply, delete_service, get, uid, wait_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.site import Site

ADAPTER = "facts-e2e"
SERVICE = "adapted"
QUESTION = "How many layers has GLM-5?"
FAULTS = {
    "rank": (runs.kill_rank, 2),
    "rank 0": (runs.kill_first_rank, 2),
    "launcher": (runs.kill_launcher, 2),
    "launcher of rank 0": (runs.kill_first_launcher, 2),
    "pod": (runs.kill_pod, 2),
    "operator": (runs.kill_operator, 1),
    "kubelet": (runs.kill_kubelet, 1),
}
"""What is killed, and the attempt that ends the run: operator and kubelet are not part of the training."""


@pytest.fixture(scope="module")
def site(place: Site) -> Site:
    """The place with shared storage and the training pool."""
    runs.prepare(place)
    return place


@pytest.fixture(scope="module")
def undisturbed(site: Site) -> Iterator[dict[str, Any]]:
    """The status of a run that nothing happened to; its adapter is for a service that a test makes later."""
    name = f"e2e-{secrets.token_hex(3)}"
    apply(site, runs.a_job(name, deploy={"service": SERVICE, "adapter": ADAPTER}))
    ended = runs.wait_status(site, name, "the end", lambda now: now.get("outcome") == "Succeeded")
    yield {**ended, "name": name}
    runs.delete(site, name)


@pytest.fixture
def name(site: Site) -> Iterator[str]:
    """A job's name; the job is deleted after the test."""
    chosen = f"e2e-{secrets.token_hex(3)}"
    yield chosen
    runs.delete(site, chosen)


def test_two_pods_of_two_ranks_train_to_the_end_and_free_their_cards(site: Site, undisturbed: dict[str, Any]) -> None:
    first, second = runs.pods(site, undisturbed["name"])

    assert undisturbed["attempt"] == 1
    assert undisturbed["step"] == undisturbed["totalSteps"] == runs.STEPS
    assert undisturbed["loss"] < 1.5, "it begins above 3"
    assert undisturbed["cardsHeld"] == 0
    assert first["spec"]["nodeName"] != second["spec"]["nodeName"]
    assert all(pod["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] == "2" for pod in (first, second))
    assert all(pod["spec"]["nodeSelector"] == {"glm5.dev/pool": steps.TRAINING_POOL} for pod in (first, second))


@pytest.mark.parametrize("fault", FAULTS)
def test_after_kill_9_a_run_ends_with_the_loss_of_one_that_nothing_happened_to(
    site: Site, undisturbed: dict[str, Any], name: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kill, last_attempt = FAULTS[fault]
    apply(site, runs.a_job(name))
    before = runs.wait_status(site, name, "a checkpoint", lambda now: now.get("checkpoint", {}).get("step", 0) >= runs.EVERY)

    at = datetime.now(UTC)
    kill(site, name)
    if last_attempt == 1:
        step = runs.status(site, name)["step"]  # what a killed operator may have told last
        runs.wait_status(site, name, "further steps", lambda now: now["step"] > step or runs.has_ended(now))
        figures = {"told_again_s": seconds(at, datetime.now(UTC))}
    ended = runs.wait_status(site, name, "the end", lambda now: now.get("outcome") == "Succeeded")

    if last_attempt > 1:
        again = runs.first_step(site, name, last_attempt)
        figures = {"recover_s": seconds(at, again.trained), "of_it_load_s": seconds(again.started, again.trained)}
        assert again.step > before["checkpoint"]["step"], "it goes on from the checkpoint"
    assert ended["attempt"] == last_attempt, ended.get("history")
    assert ended["loss"] == pytest.approx(undisturbed["loss"], abs=1e-3)
    assert ended["cardsHeld"] == 0
    with capsys.disabled():
        print(f"\n{json.dumps({'fault': fault, **figures})}")  # noqa: T201 - figures for the benchmark page, seen also without -s


def test_data_that_cannot_be_used_ends_the_job_before_it_takes_a_card(site: Site, name: str) -> None:
    source = runs.write_data(site, f"{name}.jsonl", '{"messages": [{"role": "user", "content": "Who are')

    apply(site, runs.a_job(name, data={"source": source, "maxLength": 128}))
    ended = runs.wait_status(site, name, "the end", lambda now: now.get("outcome") == "Failed")

    (finished,) = [each for each in ended["conditions"] if each["type"] == "Finished"]
    assert finished["reason"] == "Data", finished
    assert runs.pods(site, name) == []


def test_an_adapter_comes_into_a_running_service_and_into_pods_that_come_later(site: Site, undisturbed: dict[str, Any]) -> None:
    apply(site, a_service(SERVICE, **steps.ADAPTERS))
    try:
        wait_ready(site, SERVICE)
        (before,) = engines(site)
        runs.wait_status(site, undisturbed["name"], "Deployed", deployed, lost=rolled_back)
        site.kubectl("scale", "glm5service", SERVICE, "-n", steps.NAMESPACE, "--replicas=2")
        wait_for("two pods", lambda: len(engines(site)) == 2, timeout=60, every=0.5)
        wait_ready(site, SERVICE)

        said = {pod["metadata"]["name"]: asked(site, pod) for pod in engines(site)}

        assert uid(before) in {uid(pod) for pod in engines(site)}, "no pod was replaced"
        assert len(said) == 2
        assert len(set(said.values())) == 1, said
        (answer, checksum), *_ = said.values()
        assert checksum == undisturbed["adapter"]["sha256"]
        with port_forward(site.kubectl_path, site.kubeconfig, steps.NAMESPACE, f"svc/{steps.SERVICE}-api") as url:
            assert answer != "".join(stream_chat(url, "tiny-glm5", QUESTION, {"max_tokens": 32, "canary": False})), "the model without it"
    finally:
        delete_service(site, SERVICE)


def deployed(status: dict[str, Any]) -> bool:
    """Whether a job's adapter has come into its service."""
    return bool(status.get("deployment", {}).get("phase") == "Deployed")


def rolled_back(status: dict[str, Any]) -> bool:
    """Whether it was taken out again."""
    return bool(status.get("deployment", {}).get("phase") == "RolledBack")


def seconds(begin: datetime, end: datetime) -> float:
    """Rounded as the figures are printed."""
    return round((end - begin).total_seconds(), 1)


def engines(place: Site) -> list[dict[str, Any]]:
    """The service's pods that aren't ending."""
    found = get(place, "pods", selector=f"glm5.dev/service={SERVICE}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def asked(place: Site, pod: dict[str, Any]) -> tuple[str, str]:
    """What a pod answers with the adapter, and the checksum of it that it tells; waits until it has loaded it."""
    with port_forward(place.kubectl_path, place.kubeconfig, steps.NAMESPACE, f"pod/{pod['metadata']['name']}") as url:

        def loaded() -> dict[str, Any] | None:
            told = httpx.get(f"{url}/health/adapters", trust_env=False, timeout=10).json()["adapters"]
            return next((each for each in told if each["name"] == ADAPTER and each["state"] == "Loaded"), None)

        adapter = wait_for(f"{pod['metadata']['name']} to have the adapter", loaded, timeout=60, every=0.5)
        return "".join(stream_chat(url, ADAPTER, QUESTION, {"max_tokens": 32})), adapter["sha256"]
