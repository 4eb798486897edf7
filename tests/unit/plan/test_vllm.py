"""The vllm container on this machine: entry script and checks are the real ones, `vllm` and `npu-smi` are stand-ins."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from glm5_operator.plan.facts import NodeFacts, Product
from glm5_operator.plan.vllm import vllm_image
from tests.unit.plan.builders import engine_of, env_of, node, plan, service, tiny
from tests.unit.plan.stand_in import map_of, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from glm5_operator.api.service import GLM5Service

A2 = node("n0", Product.A2)
A3 = node("n0", Product.A3)
FOUR = tiny({"engine": {"name": "vllm"}}, tensor=4)
KV = {"kvCache": {"pageSize": 64, "dtype": "fp16", "prefixCache": False}, "speculative": {"tokens": 2}}

COMMANDS = [
    (service("GLM-5.1", "w4a8"), A3),
    (service("GLM-5.1", "w8a8"), A3),
    (service("GLM-5", "w4a8"), A2),
    (service("GLM-5.2", "w4a8c8"), A3),
    (service("GLM-5.2", "w4a8c8", {"context": {"maxTokens": 1024000}}), A3),
    (service("GLM-5.2", "w8a8"), A3),
    (service("GLM-5.2", "w8a8"), node("box16", Product.A2, cards=16)),
    (service("GLM-5.1", "w8a8", {**KV, "parallelism": {"tensor": 16, "expert": 1}, "auth": {"secretRef": {"name": "a", "key": "b"}}}), A3),
    (service("GLM-5.1", "w8a8", {"speculative": {"tokens": 0}}), A3),
    (tiny({"engine": {"name": "vllm"}, **KV, "context": {"maxTokens": 2048}}, tensor=2, weights="w8a8"), A2),
    (tiny({"engine": {"name": "vllm"}, "parallelism": {"tensor": 2, "pipeline": 2, "data": 2}}), A2),
]


@pytest.mark.parametrize(("wanted", "where"), COMMANDS)
def test_every_rendered_argument_is_one_of_vllm_0_23_0(wanted: GLM5Service, where: NodeFacts, tmp_path: Path) -> None:
    ran = run(engine_of(plan(wanted, where)), tmp_path)

    assert ran.code == 0, ran.errors
    assert ran.said["options"]["--port"] == 8000
    assert ran.said["model"] == f"/models/{wanted.spec.model.name}"


def test_the_stand_in_refuses_what_vllm_would_refuse(tmp_path: Path) -> None:
    for added, says in (
        ("--max-sequences=4", "unrecognized argument"),
        ("--enable-expert-parallel=true", "ignored explicit argument"),
        ("--kv-cache-dtype=fp12", "invalid choice"),
        ("--seed=one", "invalid value"),
        ('--additional-config={"enable_magic":true}', "unknown keys"),
        ("--port=1", "given twice"),
    ):
        container = engine_of(plan(FOUR, A2))
        ran = run({**container, "args": [*container["args"], added]}, tmp_path)
        assert (ran.code, says in ran.errors) == (2, True), (added, ran.errors)
    assert run(engine_of(plan(FOUR, A2)), tmp_path, VLLM_NO_SUCH_SETTING="1").code == 2


def test_cards_four_to_seven_of_the_node_are_zero_to_three_in_the_container(tmp_path: Path) -> None:
    ran = run(engine_of(plan(FOUR, A2)), tmp_path, npu_smi=map_of(range(4, 8)), ASCEND_VISIBLE_DEVICES="4,5,6,7")

    assert ran.said["visible"] == "0,1,2,3"


def test_without_npu_smi_the_cards_are_counted(tmp_path: Path) -> None:
    assert run(engine_of(plan(FOUR, A2)), tmp_path).said["visible"] == "0,1,2,3"


def test_a_container_that_sees_the_whole_node_takes_only_what_it_was_given(tmp_path: Path) -> None:
    ran = run(engine_of(plan(FOUR, A2)), tmp_path, npu_smi=map_of(range(8)), ASCEND_VISIBLE_DEVICES="4,5,6,7")

    assert ran.said["visible"] == "4,5,6,7"


@pytest.mark.parametrize("given", ["", "0-3", "Ascend910-4,Ascend910-5,Ascend910-6,Ascend910-7", "4,5", "4,5,6,7,", ",4,5,6"])
def test_a_container_that_sees_too_many_cards_and_was_told_nothing_usable_does_not_take_others(given: str, tmp_path: Path) -> None:
    ran = run(engine_of(plan(FOUR, A2)), tmp_path, npu_smi=map_of(range(8)), ASCEND_VISIBLE_DEVICES=given)

    assert ran.code == 1
    assert "is the container privileged" in ran.errors


@pytest.mark.parametrize(("table", "code"), [(map_of(range(3)), 0), ("dcmi module initialize failed. ret is -8005", 1), ("", 1)])
def test_missing_cards_end_the_start_with_what_npu_smi_says(table: str, code: int, tmp_path: Path) -> None:
    ran = run(engine_of(plan(FOUR, A2)), tmp_path, npu_smi=table, npu_smi_code=code)

    assert ran.code == 1
    assert "other cards than the 4" in ran.errors
    assert table in ran.errors


def test_the_dies_of_an_a3_container_are_found_in_its_wider_table(tmp_path: Path) -> None:
    rows = ["\tNPU ID    Chip ID    Chip Logic ID    Chip Phy-ID    Chip Name"]
    for card in range(8):
        rows += [f"\t{card}   {die}   {2 * card + die}   {2 * card + die}   Ascend910" for die in range(2)]
        rows.append(f"\t{card}   2   -   -   Mcu")
    ran = run(engine_of(plan(service(), A3)), tmp_path, npu_smi="\n".join(rows))

    assert ran.said["visible"] == ",".join(str(die) for die in range(16))


def test_the_drivers_libraries_come_first_and_nothing_is_lost(tmp_path: Path) -> None:
    libraries = run(engine_of(plan(FOUR, A2)), tmp_path, LD_LIBRARY_PATH="/opt/own").said["libraries"].split(":")

    assert libraries[:3] == [f"/usr/local/Ascend/driver/lib64{part}" for part in ("", "/common", "/driver")]
    assert libraries[-1] == "/opt/own"


@pytest.mark.parametrize(
    ("image", "product", "expected"),
    [
        ("quay.io/ascend/vllm-ascend:v0.23.0", Product.A2, "quay.io/ascend/vllm-ascend:v0.23.0"),
        ("quay.io/ascend/vllm-ascend:v0.23.0", Product.A3, "quay.io/ascend/vllm-ascend:v0.23.0-a3"),
        ("quay.io/ascend/vllm-ascend:v0.23.0", Product.ATLAS_310P, "quay.io/ascend/vllm-ascend:v0.23.0-310p"),
        ("quay.io/ascend/vllm-ascend:v0.23.0-openeuler", Product.A3, "quay.io/ascend/vllm-ascend:v0.23.0-a3-openeuler"),
        ("registry:5000/vllm-ascend:v0.23.0-a3", Product.A3, "registry:5000/vllm-ascend:v0.23.0-a3"),
        ("vllm@sha256:" + "0" * 64, Product.A3, "vllm@sha256:" + "0" * 64),
    ],
)
def test_each_product_has_its_own_image(image: str, product: Product, expected: str) -> None:
    assert vllm_image(image, product) == expected


def test_dsa_context_parallelism_is_never_asked_for_without_what_0_23_0_requires_for_it() -> None:
    """vllm-ascend v0.23.0 raises "DSA CP requires SP to be enabled" without FLASHCOMM1; later tutorials no longer set it."""
    for spec in ({}, {"context": {"maxTokens": 1024000}}):
        planned = plan(service("GLM-5.2", "w4a8c8", spec), A3)
        stated = next(arg for arg in engine_of(planned)["args"] if arg.startswith("--additional-config="))
        additional = json.loads(stated.partition("=")[2])
        assert additional["enable_dsa_cp"] is True
        assert additional.get("enable_flashcomm1") is True or env_of(planned)["VLLM_ASCEND_ENABLE_FLASHCOMM1"] == "1"


class Answering(BaseHTTPRequestHandler):
    """Answers every completion with `tokens` tokens, or with a status."""

    status, tokens = 200, 1
    seen: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        answer = json.dumps({"usage": {"completion_tokens": self.tokens}}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Say nothing."""


@pytest.fixture
def engine() -> Iterator[tuple[type[Answering], int]]:
    handler = type("Handler", (Answering,), {"seen": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield handler, server.server_address[1]
        server.shutdown()
        thread.join()


def startup_check(port: int, **environment: str) -> int:
    *command, program = engine_of(plan(FOUR, A2))["startupProbe"]["exec"]["command"]
    here = program.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    return subprocess.run([sys.executable, *command[1:], here], env=environment, capture_output=True, timeout=30, check=False).returncode


def test_the_start_up_check_passes_once_a_token_was_produced(engine: tuple[type[Answering], int]) -> None:
    handler, port = engine

    assert startup_check(port, VLLM_API_KEY="secret") == 0
    assert handler.seen == [{"path": "/v1/completions", "key": "Bearer secret", "model": "tiny-glm5", "prompt": "1", "max_tokens": 1}]


@pytest.mark.parametrize(("status", "tokens"), [(503, 1), (200, 0), (401, 1)])
def test_the_start_up_check_fails_without_a_token(engine: tuple[type[Answering], int], status: int, tokens: int) -> None:
    handler, port = engine
    handler.status, handler.tokens = status, tokens

    assert startup_check(port) != 0


def test_the_start_up_check_fails_while_nothing_listens(engine: tuple[type[Answering], int]) -> None:
    assert startup_check(1) != 0
