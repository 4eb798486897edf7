"""A ten-line GLM5Service on real kubelets: it answers, it holds exactly its card, and it comes back from whatever is done to it."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from demo import steps
from demo.site import Site
from demo.talk import generate, port_forward, stream_chat
from tests.cluster.shell import wait_for
from tests.e2e.looks import SELECTOR, engine_pod, get, in_pod, leftovers, signal_container, uid, wait_ready
from tests.e2e.threads import busiest_thread, held_still, host_pid

EXPECTED = json.loads((Path(__file__).parents[1] / "fixtures" / "tiny-glm5" / "expected.json").read_text())
ANSWERS = {row["question"]: row["answer"] for row in EXPECTED if row["kind"] == "chat"}


def ask(place: Site, question: str) -> str:
    with port_forward(place.kubectl_path, place.kubeconfig, steps.NAMESPACE, f"svc/{steps.SERVICE}-api") as url:
        return "".join(stream_chat(url, "tiny-glm5", question))


@pytest.mark.parametrize("question", ["Who are you?", "What is MLA?", "什么是昇腾？", "谢谢"])
def test_a_streamed_answer_is_the_models_word_for_word(demo: Site, question: str) -> None:
    assert ask(demo, question) == ANSWERS[question]


def test_generate_answers_and_metrics_count_it(demo: Site) -> None:
    with port_forward(demo.kubectl_path, demo.kubeconfig, steps.NAMESPACE, f"svc/{steps.SERVICE}-api") as url:
        assert generate(url, "Return a new ", 8)["usage"]["completion_tokens"] == 8
        metrics = httpx.get(f"{url}/metrics", trust_env=False).text
        health = httpx.get(f"{url}/health", trust_env=False).json()

    counted = [line for line in metrics.splitlines() if line.startswith("vllm:generation_tokens_total{")]
    assert counted
    assert float(counted[0].rsplit(" ", 1)[1]) >= 8
    assert health == {"status": "healthy"}


def test_an_answer_takes_the_form_that_is_asked_for(demo: Site) -> None:
    form = {"response_format": {"type": "json_object"}, "max_tokens": 200}
    with port_forward(demo.kubectl_path, demo.kubeconfig, steps.NAMESPACE, f"svc/{steps.SERVICE}-api") as url:
        answer = "".join(stream_chat(url, "tiny-glm5", "Who are you?", form))
    assert answer.startswith("{")


def test_the_pod_holds_one_card_of_its_pool_and_no_more_rights_than_it_needs(demo: Site) -> None:
    pod = engine_pod(demo)

    (container,) = pod["spec"]["containers"]
    environment = dict(line.split("=", 1) for line in in_pod(demo, pod, "env").splitlines() if "=" in line)
    assert container["resources"]["limits"]["huawei.com/Ascend910"] == "1"
    assert environment["ASCEND_VISIBLE_DEVICES"] in {str(card) for card in range(8)}
    assert pod["spec"]["nodeSelector"] == {"glm5.dev/pool": steps.POOL}
    assert in_pod(demo, pod, "id", "-u").strip() == "1000"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not any(mount["mountPath"].startswith("/var/run/secrets") for mount in container["volumeMounts"])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_kubectl_get_shows_whether_it_serves(demo: Site) -> None:
    wait_ready(demo, steps.SERVICE)

    header, row = demo.kubectl("get", "glm5", steps.SERVICE, "-n", steps.NAMESPACE).splitlines()
    assert "READY" in header
    assert "True" in row


def test_it_comes_back_after_its_pod_is_deleted(demo: Site) -> None:
    before = uid(engine_pod(demo))

    demo.kubectl("delete", "pod", "-n", steps.NAMESPACE, "-l", SELECTOR, "--grace-period=1")
    wait_for("another pod", lambda: uid(engine_pod(demo)) != before, timeout=60)
    wait_ready(demo, steps.SERVICE)

    assert ask(demo, "Who are you?") == ANSWERS["Who are you?"]


def test_it_comes_back_after_its_deployment_is_deleted(demo: Site) -> None:
    before = uid(get(demo, "deployment", f"{steps.SERVICE}-engine"))

    demo.kubectl("delete", "deployment", "-n", steps.NAMESPACE, f"{steps.SERVICE}-engine", "--wait=false")

    def renewed() -> bool:
        found = get(demo, "deployments", selector=SELECTOR)
        return bool(found) and uid(found[0]) != before

    wait_for("another Deployment", renewed, timeout=60)
    wait_ready(demo, steps.SERVICE)
    assert ask(demo, "Who are you?") == ANSWERS["Who are you?"]


def test_it_serves_on_through_a_kill_of_the_operator_and_is_looked_after_again(demo: Site) -> None:
    (operator,) = get(demo, "pods", namespace=steps.OPERATOR_NAMESPACE, selector="app.kubernetes.io/component=operator")
    before, restarts = uid(engine_pod(demo)), operator["status"]["containerStatuses"][0]["restartCount"]

    signal_container(demo, operator, signal.SIGKILL)
    assert ask(demo, "Who are you?") == ANSWERS["Who are you?"]

    def restarted() -> bool:
        status = get(demo, "pod", operator["metadata"]["name"], steps.OPERATOR_NAMESPACE)["status"]["containerStatuses"][0]
        return status["restartCount"] > restarts and status["ready"]

    wait_for("the operator to run again", restarted, timeout=90, every=0.5)
    demo.kubectl("delete", "service", f"{steps.SERVICE}-api", "-n", steps.NAMESPACE)
    wait_for("the Service to be made anew", lambda: bool(get(demo, "services", selector=SELECTOR)), timeout=60, every=0.5)
    assert uid(engine_pod(demo)) == before


def test_loss_of_all_annotations_is_repaired_without_a_rollout(demo: Site) -> None:
    before = uid(engine_pod(demo))
    wipe = json.dumps([{"op": "remove", "path": "/metadata/annotations"}])
    name = f"{steps.SERVICE}-engine"

    demo.kubectl("patch", "deployment", name, "-n", steps.NAMESPACE, "--type=json", "-p", wipe)

    def repaired() -> bool:
        return "glm5.dev/desired-hash" in get(demo, "deployment", name)["metadata"].get("annotations", {})

    wait_for("the operator's annotation to be back", repaired, timeout=30, every=0.5)
    assert uid(engine_pod(demo)) == before
    assert ask(demo, "Who are you?") == ANSWERS["Who are you?"]


@pytest.mark.skipif(os.geteuid() != 0, reason="holding one thread of a container still takes ptrace as root on its host")
def test_ready_falls_while_the_engine_stands_still_though_http_answers(demo: Site) -> None:
    pod = engine_pod(demo)
    pid = host_pid(pod)

    with port_forward(demo.kubectl_path, demo.kubeconfig, steps.NAMESPACE, f"pod/{pod['metadata']['name']}") as url:
        engine = busiest_thread(pid, lambda: generate(url, "Once upon a time", 300))
        with ThreadPoolExecutor(1) as other:
            with held_still(engine):
                waiting = other.submit(generate, url, "Return a new ", 8)
                wait_for("Ready to fall", lambda: steps.conditions(demo)["Ready"]["status"] == "False", timeout=20, every=0.2)
                health = httpx.get(f"{url}/health", trust_env=False, timeout=5)
            assert waiting.result(timeout=60)["usage"]["completion_tokens"] == 8, "the request that had to wait is answered after all"

    assert health.status_code == 200
    wait_ready(demo, steps.SERVICE)
    assert uid(engine_pod(demo)) == uid(pod)


def test_ready_falls_while_the_whole_process_stands_still_and_rises_again(demo: Site) -> None:
    pod = engine_pod(demo)

    signal_container(demo, pod, signal.SIGSTOP)
    try:
        wait_for("Ready to fall", lambda: steps.conditions(demo).get("Ready", {}).get("status") == "False", timeout=45, every=0.5)
    finally:
        signal_container(demo, pod, signal.SIGCONT)

    wait_ready(demo, steps.SERVICE)
    assert ask(demo, "Who are you?") == ANSWERS["Who are you?"]


def test_deleting_the_service_leaves_nothing(demo: Site) -> None:
    demo.kubectl("delete", "glm5", steps.SERVICE, "-n", steps.NAMESPACE)

    wait_for("nothing to be left", lambda: not leftovers(demo, steps.SERVICE), timeout=90, every=0.5)
    assert get(demo, "glm5services") == []
