"""The loop against an API server of the test's: what is written and when, what probes say, which resets are handed on.

Real: the loop, the collector, httpx up to its transport. Faked: the API server (a transport), npu-smi's answers, and the clock of probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from glm5_operator.agent import loop as loop_module
from glm5_operator.agent.apiserver import ApiError, ApiServer
from glm5_operator.agent.gauges import CardGauges
from glm5_operator.agent.loop import Backoff, Loop
from glm5_operator.agent.settings import Api, Every
from glm5_operator.api.node import ResetReport, ResetRequest
from glm5_operator.api.node_facts import NodeFactsReport
from tests.support.vendor_tools import Bench, exited, text

A2 = "info_910b3_8card_idle_24.1.rc1.txt"
ALARM = "synthetic_info_910b3_npu3_alarm.txt"
PATIENT = 20.0
CODES = "\tHealth Status                  : Alarm\n\tError Code                     : 80E18404\n"
RESET = {"id": "r-1", "radius": "Node", "cards": [0], "deadline": "2026-12-01T00:00:00Z"}


class Events(httpx.AsyncByteStream):
    """A watch that stays open until the server closes it."""

    def __init__(self, server: FakeApiServer) -> None:
        self._server = server

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (event := await self._server.events.get()) is not None:
            yield json.dumps(event).encode() + b"\n"


@dataclass
class FakeApiServer:
    """Keeps what is written, and sends what the test wants seen."""

    spec: dict[str, Any] = field(default_factory=dict)
    written: list[dict[str, Any]] = field(default_factory=list)
    refuse: int = 0
    message: str = ""
    tokens: set[str] = field(default_factory=set)
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[httpx.Request] = field(default_factory=list)

    def object(self) -> dict[str, Any]:
        return {
            "apiVersion": "glm5.dev/v1alpha1",
            "kind": "AscendNode",
            "metadata": {"name": "node-1", "resourceVersion": "7"},
            "spec": self.spec,
        }

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.tokens.add(request.headers["authorization"])
        self.news.set()
        if self.refuse:
            return httpx.Response(self.refuse, json={"message": self.message})
        if request.method == "PATCH":
            self.written.append(json.loads(await request.aread())["status"])
            return httpx.Response(200, json=self.object())
        return httpx.Response(200, stream=Events(self)) if "watch" in request.url.params else httpx.Response(200, json=self.object())

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for the next requests until the condition holds."""
        try:
            async with asyncio.timeout(PATIENT):
                while not condition():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            pytest.fail(f"{what}: in vain; written {len(self.written)} times, last {self.written[-1:]}")


@dataclass
class FakeResets:
    """Remembers what was asked for."""

    asked: list[ResetRequest] = field(default_factory=list)
    done: tuple[ResetReport, ...] = ()
    changed: Callable[[], None] = lambda: None

    async def handle(self, request: ResetRequest) -> ResetReport:
        self.asked.append(request)
        report = ResetReport(id=request.id, state="Running")
        self.done = (report,)
        self.changed()
        return report

    def reports(self) -> tuple[ResetReport, ...]:
        return self.done


@dataclass
class Agent:
    """A loop with all around it."""

    bench: Bench
    server: FakeApiServer
    resets: FakeResets
    loop: Loop
    token: Path
    now: list[float]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    monkeypatch.setattr(loop_module, "FIRST_DELAY", 0.01)
    bench = Bench.at(tmp_path, A2)
    settings = replace(bench.settings, every=Every(poll=0.01), api=Api(token=str(tmp_path / "token")))
    (tmp_path / "token").write_text("first\n")
    server, resets, now = FakeApiServer(), FakeResets(), [1000.0]
    client = httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(server))
    loop = Loop(settings, bench.collector, bench.rare, ApiServer(settings.api, client), resets=resets, clock=lambda: now[0])
    resets.changed = loop.tell
    return Agent(bench, server, resets, loop, tmp_path / "token", now)


@contextlib.asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[None]:
    """The loop's parts without the port of probes."""
    parts = [agent.loop._always(agent.loop._poll), agent.loop._reading_codes(), agent.loop._writing(), agent.loop._watching()]
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def polls(agent: Agent, count: int) -> None:
    """Wait for that many more readings."""
    for _ in range(count):
        agent.bench.runner.news.clear()
        await asyncio.wait_for(agent.bench.runner.news.wait(), PATIENT)


async def test_the_first_reading_is_written_and_then_nothing_until_something_changes(agent: Agent) -> None:
    async with running(agent):
        await agent.server.until("the first report", lambda: len(agent.server.written) == 1)
        await polls(agent, 5)
        assert len(agent.server.written) == 1

        agent.bench.runner.answers["npu-smi info"] = exited(text(ALARM))
        await agent.server.until("the fault", lambda: len(agent.server.written) == 2)

    assert [card["health"] for card in agent.server.written[1]["facts"]["cards"]].count("Alarm") == 1
    patch = next(request for request in agent.server.requests if request.method == "PATCH")
    assert str(patch.url) == "http://api/apis/glm5.dev/v1alpha1/ascendnodes/node-1/status?fieldManager=glm5-agent&force=true"
    assert patch.headers["content-type"] == "application/apply-patch+yaml"


async def test_a_fault_is_written_while_its_codes_are_still_asked_for_and_they_follow(agent: Agent) -> None:
    """npu-smi may take 5 s to say nothing of a card that hangs; the polls go on meanwhile."""
    hanging, over = asyncio.Event(), asyncio.Event()

    async def slow(_: str) -> None:
        hanging.set()
        await over.wait()

    agent.bench.runner.before["npu-smi info -t health -i 3 -c 0"] = slow
    agent.bench.runner.answers["npu-smi info -t health -i 3 -c 0"] = exited(CODES)
    async with running(agent):
        await agent.server.until("the first report", lambda: len(agent.server.written) == 1)
        agent.bench.runner.answers["npu-smi info"] = exited(text(ALARM))
        await agent.server.until("the fault", lambda: len(agent.server.written) == 2)
        await asyncio.wait_for(hanging.wait(), PATIENT)
        await polls(agent, 3)
        assert len(agent.server.written) == 2
        over.set()
        await agent.server.until("the codes", lambda: len(agent.server.written) == 3)
        await polls(agent, 3)

    third = [status["facts"]["cards"][3] for status in agent.server.written]
    assert [(card["health"], card.get("codes")) for card in third] == [("OK", None), ("Alarm", None), ("Alarm", ["80E18404"])]
    assert agent.bench.runner.asked.count("npu-smi info -t health -i 3 -c 0") == 1


async def test_a_sign_of_life_is_written_when_the_heartbeat_is_over(agent: Agent) -> None:
    async with running(agent):
        await agent.server.until("the first report", lambda: len(agent.server.written) == 1)
        await polls(agent, 2)  # the loop has noted when it wrote
        agent.now[0] += agent.loop._settings.every.heartbeat + 1
        await agent.server.until("the sign of life", lambda: len(agent.server.written) == 2)


@pytest.mark.parametrize(("status", "message"), [(404, "not found"), (403, "forbidden by policy"), (500, "etcd"), (429, "slow down")])
async def test_a_refused_write_is_tried_again_with_what_is_true_by_then(agent: Agent, status: int, message: str) -> None:
    agent.server.refuse, agent.server.message = status, message
    async with running(agent):
        await agent.server.until("a refused write", lambda: any(request.method == "PATCH" for request in agent.server.requests))
        agent.bench.runner.answers["npu-smi info"] = exited(text(ALARM))
        await polls(agent, 2)
        agent.server.refuse = 0
        await agent.server.until("the report", lambda: bool(agent.server.written))

    assert "Alarm" in {card["health"] for card in agent.server.written[0]["facts"]["cards"]}


async def test_a_renewed_token_is_used_for_the_next_request(agent: Agent) -> None:
    async with running(agent):
        await agent.server.until("the first report", lambda: len(agent.server.written) == 1)
        agent.token.write_text("second\n")
        agent.bench.runner.answers["npu-smi info"] = exited(text(ALARM))
        await agent.server.until("the fault", lambda: len(agent.server.written) == 2)

    assert agent.server.tokens == {"Bearer first", "Bearer second"}


async def test_a_reset_that_stands_in_spec_and_one_that_comes_later_are_handed_on_and_reported(agent: Agent) -> None:
    agent.server.spec = {"reset": RESET}
    async with running(agent):
        await agent.server.until("the reset's report", lambda: any("resets" in status for status in agent.server.written))
        later = {**agent.server.object(), "spec": {"reset": {**RESET, "id": "r-2"}}}
        agent.server.events.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
        agent.server.events.put_nowait({"type": "MODIFIED", "object": later})
        await agent.server.until(
            "the second report", lambda: any(item["id"] == "r-2" for status in agent.server.written for item in status.get("resets", ()))
        )

    assert [request.id for request in agent.resets.asked] == ["r-1", "r-2"]


async def test_after_a_reset_has_ended_a_reading_that_began_later_is_written_although_nothing_else_changed(agent: Agent) -> None:
    agent.resets.done = (ResetReport(id="r-1", state="Running"),)
    async with running(agent):
        await agent.server.until("the first report", lambda: len(agent.server.written) == 1)
        await polls(agent, 3)
        begun = agent.loop._begun
        agent.resets.done = (ResetReport(id="r-1", state="Succeeded"),)
        agent.loop.tell()
        await agent.server.until("the end", lambda: len(agent.server.written) == 2)
        await agent.server.until("the cards after it", lambda: len(agent.server.written) == 3)
        assert agent.loop._number > begun
        await polls(agent, 5)

    assert len(agent.server.written) == 3, "once"
    assert [status["resets"][-1]["state"] for status in agent.server.written] == ["Running", "Succeeded", "Succeeded"]


REMEDY = {"since": "2026-11-30T12:00:00Z", "reason": "Good"}


@pytest.mark.parametrize(
    ("status", "often"),
    [
        ({"remedy": {**REMEDY, "state": "Verifying"}}, True),
        ({"remedy": {**REMEDY, "state": "Quiescing"}}, False),
        ({"remedy": {**REMEDY, "state": "Draining", "dryRun": True}}, False),
        ({"remedy": {**REMEDY, "state": "Healthy"}}, False),
        ({"move": {"origin": "a", "target": "b", "state": "Verifying", "since": REMEDY["since"], "started": REMEDY["since"]}}, True),
        ({}, False),
    ],
    ids=str,
)
async def test_while_the_node_is_out_of_service_facts_are_read_and_written_more_often(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], often: bool
) -> None:
    every, read, asked = agent.loop._settings.every, agent.loop._collector.read, []

    async def noted(observed_at: str, now: float, *, holders: bool) -> NodeFactsReport:
        asked.append(holders)
        return await read(observed_at, now, holders=holders)

    monkeypatch.setattr(agent.loop._collector, "read", noted)
    async with running(agent):
        await agent.server.until("the first report", lambda: len(agent.server.written) == 1)
        agent.server.events.put_nowait({"type": "MODIFIED", "object": {**agent.server.object(), "status": status}})
        agent.server.events.put_nowait(
            {"type": "MODIFIED", "object": {**agent.server.object(), "status": status, "spec": {"reset": RESET}}}
        )
        await agent.server.until("the reset's report", lambda: len(agent.server.written) == 2)
        await polls(agent, 2)
        agent.now[0] += every.remedy + 1
        if often:
            await agent.server.until("the next report", lambda: len(agent.server.written) == 3)
        else:
            await polls(agent, 3)

    assert len(agent.server.written) == (3 if often else 2)
    assert (asked[0], asked[-1]) == (False, often), "kubelet is asked each time"


async def test_a_watch_that_ends_is_opened_again(agent: Agent) -> None:
    async with running(agent):
        await agent.server.until("a watch", lambda: any("watch" in request.url.params for request in agent.server.requests))
        agent.server.events.put_nowait({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
        await agent.server.until("a second watch", lambda: sum("watch" in request.url.params for request in agent.server.requests) == 2)


async def test_an_object_that_cannot_be_read_is_passed_over(agent: Agent) -> None:
    async with running(agent):
        await agent.server.until("a watch", lambda: any("watch" in request.url.params for request in agent.server.requests))
        agent.server.events.put_nowait({"type": "MODIFIED", "object": {**agent.server.object(), "spec": {"reset": {"id": 5}}}})
        agent.server.events.put_nowait({"type": "MODIFIED", "object": {**agent.server.object(), "spec": {"reset": RESET}}})
        await agent.server.until("the reset's report", lambda: any("resets" in status for status in agent.server.written))

    assert [request.id for request in agent.resets.asked] == ["r-1"]


async def test_a_reading_that_fails_inside_the_agent_is_followed_by_the_next(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:  # noqa: ANN401 - never returns
        raise RuntimeError("a parser's fault")

    agent.bench.runner.answers["npu-smi info"] = broken
    async with running(agent):
        await polls(agent, 2)
        agent.bench.runner.answers["npu-smi info"] = exited(text(A2))
        await agent.server.until("the report", lambda: bool(agent.server.written))

    assert "a parser's fault" in caplog.text


@pytest.mark.parametrize(("took", "pause"), [(0.0, 2.0), (0.5, 1.5), (1.5, 1.5), (3.0, 3.0), (60.0, loop_module.LONGEST_PAUSE)])
async def test_a_tool_that_is_slow_gets_as_long_a_pause_as_it_took(tmp_path: Path, took: float, pause: float) -> None:
    now, pauses = [1000.0], list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise asyncio.CancelledError

    def slow() -> Any:  # noqa: ANN401 - an answer of the bench
        now[0] += took
        return exited(text(A2))

    bench = Bench.at(tmp_path, A2)
    bench.runner.answers["npu-smi info"] = slow
    loop = Loop(bench.settings, bench.collector, bench.rare, ApiServer(Api(), httpx.AsyncClient()), clock=lambda: now[0], sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await loop._always(loop._poll)

    assert pauses == [pause]


# --- probes -----------------------------------------------------------------------------------------------------------------


async def test_it_is_ready_once_written_and_no_longer_when_reading_or_writing_stops(agent: Agent) -> None:
    stale = agent.loop._settings.probe.stale
    assert agent.loop.unready() == "nothing was written yet"
    async with running(agent):
        await agent.server.until("the first report", lambda: len(agent.server.written) == 1)
        await polls(agent, 2)
        assert agent.loop.unready() == ""
        agent.server.refuse = 500
        agent.bench.runner.answers["npu-smi info"] = exited(text(ALARM))
        await agent.server.until("a refused write", lambda: agent.server.requests[-1].method == "PATCH" and len(agent.server.requests) > 3)
        assert agent.loop.unready() == ""
        agent.now[0] += stale + 1
        await polls(agent, 2)
        assert "couldn't be written for 61 s" in agent.loop.unready()
        assert agent.loop.stuck() == ""  # a new process would write no better

    agent.now[0] += 5 * stale + 1
    assert "nothing was read" in agent.loop.unready()
    assert "nothing was read" in agent.loop.stuck()


async def test_probes_answer_over_http(agent: Agent) -> None:
    from glm5_operator.agent import probes

    gauges = CardGauges("node-1", agent.loop.reading)
    server = await probes.serve("127.0.0.1", 0, {"/readyz": agent.loop.unready, "/healthz": agent.loop.stuck}, gauges.exposition)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            answers = [await client.get(path) for path in ("/healthz", "/readyz", "/elsewhere")]
            await agent.loop._poll()
            metrics = await client.get("/metrics")

    assert [(answer.status_code, answer.text) for answer in answers] == [
        (200, "ok\n"),
        (503, "nothing was written yet\n"),
        (404, "no such path\n"),
    ]
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'glm5_card_health{card="7",node="node-1"} 1.0\n' in metrics.text


async def test_a_reading_that_is_old_is_no_metric_any_more(agent: Agent) -> None:
    await agent.loop._poll()
    assert agent.loop.reading() is not None

    agent.now[0] += agent.loop._settings.probe.stale + agent.loop._settings.tool.table_timeout + 1

    assert agent.loop.reading() is None


def test_delays_double_up_to_a_minute_and_begin_anew_after_a_success() -> None:
    backoff = Backoff()
    delays = [backoff.failed() for _ in range(9)]

    assert all(0.75 * wanted <= delay <= 1.25 * wanted for delay, wanted in zip(delays, (1, 2, 4, 8, 16, 32, 60, 60, 60), strict=True))
    backoff.well()
    assert backoff.failed() <= 1.25


def test_without_an_api_server_the_agent_says_what_is_missing() -> None:
    with pytest.raises(ApiError, match="KUBERNETES_SERVICE_HOST"):
        ApiServer.connect(Api(), {})
