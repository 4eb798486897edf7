"""A published adapter goes into a running service, and comes out again when it is worse.

Real: the operator as a process, API server, scheduler, controllers of Deployments and Jobs. Played by the test: kubelets, and the engines
of pods, each a page on an address of its own that says what a real one would of the file that the operator wrote.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.api.conftest import Operated
from tests.api.finetune.conftest import Json, Training
from tests.support import kubelet
from tests.support.documents import bare_node, pool, tiny
from tests.support.kube import Kube, stays, until
from tests.support.trainers import bound_pods, end, let_go_of_deleted, run

pytestmark = pytest.mark.api

SHA = "ab" * 32
DONE = {"step": 9, "total": 9, "loss": 0.5, "adapter": {"path": "/output/support", "sha256": SHA, "bytes": 7}}
DEPLOY: Json = {"service": "chat", "adapter": "support"}
EVALUATE: Json = {"source": "hostpath:///data/held.jsonl"}
GOOD = {"outcome": "Succeeded", "rows": 3, "base": {"loss": 2.0, "exact_match": 0.0}, "adapter": {"loss": 1.0, "exact_match": 0.5}}


@dataclass
class Engine:
    """One pod's engine: it has whatever the service's file lists, and has counted what a test says."""

    serving: Serving
    address: str
    refuses: str = ""
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)  # by name; "" is the model
    asked: int = 0

    def answer(self) -> Json:
        self.asked += 1
        told = []
        for entry in self.serving.file():
            requests, failures = self.counts.get(entry["name"], (0, 0))
            state = {"state": "Failed", "message": self.refuses, "sha256": None} if self.refuses else {"state": "Loaded", "message": ""}
            told.append({"sha256": entry.get("sha256"), "requests": requests, "failures": failures, **entry, **state})
        base = dict(zip(("requests", "failures"), self.counts.get("", (0, 0)), strict=True))
        return {"model": "tiny", "adapters": told, "base": base}


@dataclass
class Serving:
    """A service on a node of its own, with an engine for each of its pods."""

    kube: Kube
    home: str
    stack: contextlib.ExitStack
    engines: dict[str, Engine] = field(default_factory=dict)

    def file(self) -> list[Json]:
        found = self.kube.find("ConfigMap", self.home, "chat-adapters")
        return list(json.loads(found["data"]["adapters.json"])["adapters"]) if found else []

    def shares(self) -> dict[str, float]:
        return {entry["name"]: entry["share"] for entry in self.file()}

    def status(self) -> Json:
        found: Json = self.kube.get("GLM5Service", self.home, "chat").get("status") or {}
        return found

    def pods(self) -> list[Json]:
        return self.kube.list("Pod", self.home, "glm5.dev/service=chat")

    def start_pods(self, count: int = 1) -> list[Engine]:
        """Play kubelet for pods that have got their node: each has an address and an engine, and is ready."""

        def waiting() -> list[Json]:
            return [pod for pod in self.pods() if pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in self.engines]

        until(f"{count} pods of the service", lambda: len(waiting()) >= count, 40, lambda: str(self.status()))
        made = []
        for pod in waiting():
            engine = self._engine()
            self.engines[pod["metadata"]["uid"]] = engine
            metadata = pod["metadata"]
            status = {"podIP": engine.address, "podIPs": [{"ip": engine.address}]}
            self.kube.patch("Pod", self.home, metadata["name"], {"status": status}, subresource="status")
            container = {"name": "engine", "image": "glm5-runtime:0.1.0", "restartCount": 0, "lastState": {}}
            kubelet.report(self.kube, pod, {**container, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}, ready=True)
            made.append(engine)
        return made

    def _engine(self) -> Engine:
        address = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"
        engine = Engine(self, address)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(engine.answer()).encode() if self.path == "/health/adapters" else b"{}"
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        server = ThreadingHTTPServer((address, 8000), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.stack.callback(server.server_close)
        self.stack.callback(server.shutdown)
        return engine


@pytest.fixture
def serving(kube: Kube, home: str) -> Iterator[Serving]:
    """Service `chat`, which takes adapters, with one pod that serves."""
    name = f"serve-{home}"
    kube.create(bare_node(name, name))
    with contextlib.ExitStack() as stack:
        stack.enter_context(kubelet.heartbeat(kube, name))
        kube.create(pool(name))
        until("the pool", lambda: kube.pool_condition(name).get("status") == "True", 20, lambda: str(kube.pool_condition(name)))
        made = Serving(kube, home, stack)
        yield made
        kube.delete("GLM5Service", home, "chat")
        kube.delete("NPUPool", "", name)
        kube.delete("Node", "", name)


def serve(serving: Serving, **spec: object) -> list[Engine]:
    """Create the service and start its pod. The training fixture has made the claim."""
    serving.kube.create(tiny(serving.home, pool=f"serve-{serving.home}", adapterStorage="pvc://adapters", **spec))
    return serving.start_pods()


def train(at: Training, **deploy: object) -> None:
    """A run that ends well, with an adapter in claim `adapters`."""
    at.create(deploy={**DEPLOY, **deploy})
    pods = bound_pods(at.kube, at.home, 1, 1)
    run(at.kube, *pods)
    end(at.kube, pods[0], 0, DONE)
    at.wait("Succeeded")


def deployment(at: Training) -> Json:
    found: Json = at.status().get("deployment") or {}
    return found


def reach(at: Training, phase: str, timeout: float = 40) -> Json:
    """Wait until the deployment is there, and play kubelet for pods that go meanwhile."""

    def there() -> bool:
        let_go_of_deleted(at.kube, at.home)
        return deployment(at).get("phase") == phase

    until(f"the deployment to be {phase}", there, timeout, lambda: str(deployment(at)))
    return deployment(at)


def evaluator(at: Training) -> Json:
    """The evaluation's pod, once it has a node."""

    def pods() -> list[Json]:
        return [pod for pod in at.kube.list("Pod", at.home, "app.kubernetes.io/component=evaluation") if pod["spec"].get("nodeName")]

    until("the evaluation's pod", lambda: bool(pods()), 40, lambda: str(at.kube.list("Job", at.home)))
    return pods()[-1]


def ends_evaluation(at: Training, word: Json, code: int = 0) -> None:
    state = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "message": json.dumps(word),
        "finishedAt": "2026-01-01T00:00:00Z",
    }
    container = {"name": "evaluator", "image": "glm5-runtime:0.1.0", "restartCount": 0, "lastState": {}, "state": {"terminated": state}}
    kubelet.report(at.kube, evaluator(at), container, phase="Failed" if code else "Succeeded")


def test_an_adapter_is_loaded_evaluated_tried_and_then_answers_all(kube: Kube, home: str, training: Training, serving: Serving) -> None:
    (engine,) = serve(serving)
    training.create(deploy={**DEPLOY, "evaluate": EVALUATE, "canary": {"share": 0.25, "time": "3s", "leastRequests": 4}})
    pods = bound_pods(kube, home, 1, 1)
    run(kube, *pods)
    training.wait("Training")
    assert training.condition("Deployed")["reason"] == "NotYet"
    assert serving.file() == []

    end(kube, pods[0], 0, DONE)
    reach(training, "Evaluating")
    assert serving.file() == [{"name": "support", "path": "/adapters/support", "sha256": SHA, "share": 0.0}]
    marks = {pod["metadata"]["annotations"]["glm5.dev/adapters"] for pod in serving.pods()}
    assert len(marks) == 1

    pod = evaluator(training)
    assert pod["spec"]["containers"][0]["args"][:3] == [
        f"--url=http://chat-api.{home}.svc.cluster.local:8000",
        "--model=support",
        "--base=tiny",
    ]
    ends_evaluation(training, GOOD)
    reach(training, "Canary")
    until("the share in the file", lambda: serving.shares() == {"support": 0.25}, 20, lambda: str(serving.file()))
    engine.counts = {"support": (3, 0), "": (9, 0)}
    until("requests to be counted", lambda: (deployment(training).get("canary") or {}).get("requests") == 3, 20)
    engine.counts = {"support": (4, 0), "": (12, 0)}

    done = reach(training, "Deployed")
    assert done["evaluation"] == {"rows": 3, "loss": 1.0, "baseLoss": 2.0, "exactMatch": 0.5, "baseExactMatch": 0.0}
    assert training.condition("Deployed")["status"] == "True"
    until("all traffic", lambda: serving.shares() == {"support": 1.0}, 20, lambda: str(serving.file()))
    (told,) = serving.status()["adapters"]
    assert (told["name"], told["source"], told["state"], told["sha256"]) == ("support", "job://tune", "Loaded", SHA)
    until("the evaluation's Job to go", lambda: let_go_of_deleted(kube, home) or training.jobs() == ["tune-attempt-1"], 20)  # type: ignore[func-returns-value]

    kube.delete("GLM5FinetuneJob", home, "tune")
    until("it to be taken out with its job", lambda: serving.file() == [], 20, lambda: str(serving.file()))


def worse_on_held_out_rows(at: Training, _: Engine, __: Operated) -> None:
    reach(at, "Evaluating")
    ends_evaluation(at, {**GOOD, "adapter": {"loss": 2.5, "exact_match": 0.5}})


def an_evaluation_that_finds_no_data(at: Training, _: Engine, __: Operated) -> None:
    reach(at, "Evaluating")
    ends_evaluation(at, {"outcome": "DataError", "message": "held.jsonl: line 7 is no JSON"}, 3)


def failing_requests(at: Training, engine: Engine, _: Operated) -> None:
    reach(at, "Evaluating")
    ends_evaluation(at, GOOD)
    reach(at, "Canary")
    engine.counts = {"support": (10, 5), "": (90, 0)}


def failing_requests_under_another_operator(at: Training, engine: Engine, operated: Operated) -> None:
    reach(at, "Evaluating")
    operated.operator.stop()
    ends_evaluation(at, GOOD)
    operated.operator.start()
    reach(at, "Canary")
    engine.counts = {"support": (10, 2), "": (90, 0)}
    until("two failures to be counted", lambda: (deployment(at).get("canary") or {}).get("failures") == 2, 20)
    operated.operator.stop()
    engine.counts = {"support": (1, 1), "": (5, 0)}  # its process has started anew meanwhile
    operated.operator.start()


@pytest.mark.parametrize(
    ("happens", "reason", "says"),
    [
        (worse_on_held_out_rows, "WorseLoss", "its loss is 2.5, without it 2"),
        (an_evaluation_that_finds_no_data, "EvaluationFailed", "line 7 is no JSON"),
        (failing_requests, "TooManyFailures", "5 of its 10 requests failed, 0 of 90 without it"),
        (failing_requests_under_another_operator, "TooManyFailures", "3 of its 11 requests failed, 0 of 95 without it"),
    ],
)
def test_a_worse_one_is_taken_out_and_says_why(
    *,
    operated: Operated,
    training: Training,
    serving: Serving,
    happens: Callable[[Training, Engine, Operated], None],
    reason: str,
    says: str,
) -> None:
    (engine,) = serve(serving)
    train(training, evaluate=EVALUATE, canary={"share": 0.1, "time": "10m"})

    happens(training, engine, operated)

    back = reach(training, "RolledBack")
    assert (back["reason"], back["share"]) == (reason, 0)
    assert says in back["message"]
    told = training.condition("Deployed")
    assert (told["status"], told["reason"]) == ("False", reason)
    assert says in told["message"]
    until("it to be taken out", lambda: serving.file() == [], 20, lambda: str(serving.file()))
    assert training.condition()["reason"] == "Succeeded", "its training ended well all the same"
    stays("no other attempt", lambda: training.jobs() in (["tune-attempt-1"], ["tune-attempt-1", "tune-evaluation"]), 5)


def test_pods_that_come_later_have_it_and_the_service_keeps_what_it_lists(
    kube: Kube, home: str, training: Training, serving: Serving
) -> None:
    serve(serving, adapters=[{"name": "tuned", "source": "job://tune"}])
    (told,) = serving.status()["adapters"]
    assert (told["state"], told["message"]) == ("Waiting", "there is no GLM5FinetuneJob tune")

    train(training)
    reach(training, "Deployed")
    until("both names", lambda: serving.shares() == {"tuned": 0.0, "support": 1.0}, 20, lambda: str(serving.file()))

    kube.patch("GLM5Service", home, "chat", {"spec": {"replicas": 2}})
    serving.start_pods()
    until(
        "both pods to have both",
        lambda: [one.get("pods") for one in serving.status()["adapters"]] == [2, 2],
        30,
        lambda: str(serving.status()),
    )
    until("each pod's mark", lambda: all("glm5.dev/adapters" in pod["metadata"].get("annotations", {}) for pod in serving.pods()), 20)

    kube.delete("GLM5FinetuneJob", home, "tune")
    until("its own deployment to go", lambda: serving.shares() == {"tuned": 0.0}, 20, lambda: str(serving.file()))
    kube.patch("GLM5Service", home, "chat", {"spec": {"context": {"maxSequences": 4}}})
    stays("what is listed", lambda: [entry["sha256"] for entry in serving.file()] == [SHA], 5, lambda: str(serving.file()))


def test_it_waits_for_a_service_and_a_removed_deployment_takes_it_out(kube: Kube, home: str, training: Training, serving: Serving) -> None:
    train(training)
    waits = reach(training, "Waiting")
    assert waits["reason"] == "ServiceNotFound"

    kube.create(tiny(home, pool=f"serve-{home}", adapterStorage="pvc://adapters"))
    until("the reason", lambda: deployment(training)["reason"] == "ServiceNotReady", 20, lambda: str(deployment(training)))
    serving.start_pods()
    reach(training, "Deployed")
    kube.patch("GLM5Service", home, "chat", {"spec": {"adapterLimits": {"count": 1}, "adapters": [{"name": "a", "source": "job://x"}]}})
    stays("what is in use", lambda: serving.shares() == {"support": 1.0}, 3, lambda: str(serving.file()))
    kube.patch("GLM5Service", home, "chat", {"spec": {"adapterStorage": None, "adapterLimits": None, "adapters": None}})
    assert reach(training, "Waiting")["reason"] == "NoAdapterStorage"

    training.patch({"deploy": None})
    until("the deployment to be forgotten", lambda: "deployment" not in training.status(), 20, lambda: str(training.status()))
    assert training.condition("Deployed") == {}


def test_a_removed_deployment_takes_its_adapter_out_of_a_running_service(training: Training, serving: Serving) -> None:
    serve(serving)
    train(training)
    reach(training, "Deployed")

    training.patch({"deploy": None})

    until("it to be taken out", lambda: serving.file() == [], 20, lambda: str(serving.file()))
    until("the deployment to be forgotten", lambda: "deployment" not in training.status(), 20, lambda: str(training.status()))
