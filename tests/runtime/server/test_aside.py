"""Large bodies wait for one another, ordinary ones don't wait for them, and nobody works for a client that has gone."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest

from glm5_runtime.engine.engine import Engine
from glm5_runtime.server import aside
from glm5_runtime.server.aside import INLINE_BYTES, ORDINARY_BYTES, Aside
from glm5_runtime.server.errors import ApiError
from glm5_runtime.server.service import Service
from glm5_runtime.text.template import ChatTemplate
from tests.runtime.server.test_disconnect import send
from tests.support import serving
from tests.support.serving import ask, error_of, until

ORDINARY, LARGE = INLINE_BYTES + 1, ORDINARY_BYTES
PATIENCE = 30  # seconds; a gate is shut for longer


class Gate:
    """Work that waits in its thread until it is let go."""

    def __init__(self) -> None:
        self.begun, self._go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self._go.wait(60)
        return "done"

    def open(self) -> None:
        self._go.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


async def held(place: Aside, size: int, gate: Gate) -> asyncio.Task[str]:
    """A caller whose thread has begun."""
    task = asyncio.create_task(place.run(size, gate))
    await until(gate.begun.is_set)
    return task


async def queued(place: Aside, size: int, work: Callable[[], object]) -> asyncio.Task[object]:
    """A caller that has begun to wait."""
    task = asyncio.create_task(place.run(size, work))
    await asyncio.sleep(0)  # one turn of the loop, in which it takes its place in the queue
    return task


async def test_an_ordinary_body_does_not_wait_for_a_large_one(gate: Gate) -> None:
    place = Aside()
    large = await held(place, LARGE, gate)

    assert await asyncio.wait_for(place.run(ORDINARY, lambda: 5), PATIENCE) == 5

    assert not large.done()
    gate.open()
    assert await large == "done"


async def test_the_smallest_of_those_that_wait_is_next_and_equals_keep_their_order(gate: Gate) -> None:
    place, order = Aside(), list[str]()
    await held(place, ORDINARY, gate)
    waiting = [await queued(place, ORDINARY + more, lambda name=name: order.append(name)) for name, more in (("c", 9), ("a", 0), ("b", 0))]

    gate.open()
    await asyncio.gather(*waiting)

    assert order == ["a", "b", "c"]


async def test_past_the_limit_the_largest_that_waits_is_told_to_come_again(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_WAITING", 2)
    place = Aside()
    await held(place, ORDINARY, gate)
    middle, larger = await queued(place, ORDINARY + 1, lambda: 1), await queued(place, ORDINARY + 2, lambda: 2)

    small = await queued(place, ORDINARY, lambda: 0)

    for refused in (larger, place.run(ORDINARY + 3, lambda: 3)):
        with pytest.raises(ApiError) as caught:
            await refused
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "queue_full", 1)
    gate.open()
    assert await asyncio.gather(small, middle) == [0, 1]


async def test_a_cancelled_caller_that_waited_is_not_worked_for_and_holds_nobody_up(gate: Gate) -> None:
    place, run = Aside(), list[int]()
    await held(place, LARGE, gate)
    gone, behind = [await queued(place, LARGE, lambda name=name: run.append(name)) for name in (0, 1)]

    gone.cancel()
    gate.open()
    await asyncio.wait_for(behind, PATIENCE)

    assert gone.cancelled()
    assert run == [1]


async def test_a_caller_cancelled_in_the_moment_its_turn_comes_passes_it_on(gate: Gate) -> None:
    place = Aside()
    first = await held(place, LARGE, gate)
    gone, behind = await queued(place, LARGE, lambda: 0), await queued(place, LARGE, lambda: 1)
    gate.open()
    first.add_done_callback(lambda _: gone.cancel())

    assert await asyncio.wait_for(behind, PATIENCE) == 1
    assert await asyncio.wait_for(place.run(LARGE, lambda: 2), PATIENCE) == 2


async def test_a_thread_keeps_its_place_and_its_settings_after_its_caller_has_gone(gate: Gate) -> None:
    before = gc.isenabled(), sys.getswitchinterval()
    place, second = Aside(), Gate()
    (await held(place, LARGE, gate)).cancel()

    behind = await queued(place, LARGE, second)
    await asyncio.sleep(0.05)  # the time in which the second thread would begin, were the place free

    assert not second.begun.is_set()
    assert not gc.isenabled()
    gate.open()
    second.open()
    assert await asyncio.wait_for(behind, PATIENCE) == "done"
    assert (gc.isenabled(), sys.getswitchinterval()) == before == (True, 0.005)


@pytest.mark.parametrize("first_out", [0, 1])
async def test_settings_come_back_when_the_last_of_two_threads_ends(first_out: int) -> None:
    before = gc.isenabled(), sys.getswitchinterval()
    gates = Gate(), Gate()
    tasks = [await held(Aside(), LARGE, gate) for gate in gates]

    gates[first_out].open()
    await tasks[first_out]
    between = gc.isenabled(), sys.getswitchinterval()
    gates[1 - first_out].open()
    await tasks[1 - first_out]

    assert between == (False, 0.0005)
    assert (gc.isenabled(), sys.getswitchinterval()) == before


async def test_what_the_work_of_a_gone_caller_raises_is_no_complaint_in_the_log(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        gate()
        raise ApiError(400, "wrong")

    place = Aside()
    task = asyncio.create_task(place.run(LARGE, fail))
    await until(gate.begun.is_set)
    task.cancel()
    gate.open()
    assert await place.run(LARGE, lambda: 1) == 1
    gc.collect()

    assert not caplog.records


# Through the server


@pytest.fixture
def service(engine: Engine) -> Service:
    return serving.make_service(engine)


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with serving.on_a_socket(service) as client:
        yield client


@pytest.fixture
def renders(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the conversations that are rendered, by their length; those of two messages wait for the gate."""
    seen, render = list[int](), ChatTemplate.render

    def slow(template: ChatTemplate, messages: list[object], **options: object) -> str:
        seen.append(len(messages))
        if len(messages) == 2:
            gate()
        return render(template, messages, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ChatTemplate, "render", slow)
    return seen


def padded(size: int, messages: int) -> dict[str, object]:
    """A good request with a body of about `size` bytes."""
    return ask("ping", max_tokens=1, metadata="x" * size) | {"messages": [{"role": "user", "content": "ping"}] * messages}


async def test_9_kib_are_answered_beside_large_bodies_that_take_long(client: httpx.AsyncClient, renders: list[int], gate: Gate) -> None:
    bad = [asyncio.create_task(client.post("/v1/chat/completions", json=padded(LARGE, 2))) for _ in range(4)]
    await until(gate.begun.is_set)

    good = await asyncio.wait_for(client.post("/v1/chat/completions", json=padded(9 * 1024, 1)), PATIENCE)

    assert good.status_code == 200
    assert renders == [2, 1]
    gate.open()
    assert {reply.status_code for reply in await asyncio.gather(*bad)} == {200}


async def test_clients_that_hang_up_while_they_wait_are_not_worked_for(
    client: httpx.AsyncClient, service: Service, renders: list[int], gate: Gate
) -> None:
    first = asyncio.create_task(client.post("/v1/chat/completions", json=padded(ORDINARY, 2)))
    await until(gate.begun.is_set)
    connections = [send(client, padded(ORDINARY, 3), "/v1/chat/completions") for _ in range(20)]
    await until(lambda: service.active == 21)

    for connection in connections:
        connection.close()

    await until(lambda: service.active == 1)
    gate.open()
    assert (await first).status_code == 200
    assert (await client.post("/v1/chat/completions", json=padded(ORDINARY, 1))).status_code == 200
    assert renders == [2, 1]


async def test_a_refusal_for_too_many_that_wait_says_when_to_come_again_and_is_counted(
    client: httpx.AsyncClient, renders: list[int], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "_WAITING", 0)
    first = asyncio.create_task(client.post("/v1/chat/completions", json=padded(ORDINARY, 2)))
    await until(gate.begun.is_set)

    refused = await client.post("/v1/chat/completions", json=padded(ORDINARY, 1))

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert error_of(refused)["code"] == "queue_full"
    assert 'reason="queue_full"} 1.0' in (await client.get("/metrics")).text.split("glm5:request_rejections_total{", 1)[1]
    gate.open()
    assert (await first).status_code == 200
    assert renders == [2]
