"""`glm5 pools` and `glm5 pool move` with the operator at work. Real: API server, operator, command line. The test plays the node agents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.api.conftest import Operated
from tests.api.pool.test_audit import a_pod, wait_violation
from tests.api.pool.test_move import LIMIT, Build, build
from tests.api.pool.test_nodes import label_of
from tests.support.kube import Kube, until
from tests.unit.cli.support import glm5

if TYPE_CHECKING:
    from click.testing import Result

__all__ = ["build"]
"""The fixture, for this file too."""


def command(operated: Operated, *words: str) -> Result:
    return glm5(*words, "--kubeconfig", str(operated.cluster.kubeconfig))


def test_one_command_moves_a_node_and_tells_each_step(operated: Operated, kube: Kube, build: Build) -> None:
    site = build(mode="DryRun")
    node = next(iter(site.agents))

    done = command(operated, "pool", "move", node, "--to", site.target, "--timeout", "60")

    assert done.exit_code == 0, done.stderr
    assert f"{node}: Verifying (AllWell)" in done.stderr
    assert done.stderr.splitlines()[-1] == f"{node}: belongs to {site.target} now"
    assert label_of(kube, node) == site.target


def test_a_move_that_can_not_go_on_is_shown_and_stopped(operated: Operated, kube: Kube, build: Build) -> None:
    site = build(mode="DryRun", idleMemory=1000)
    node = next(iter(site.agents))

    waited = command(operated, "pool", "move", node, "--to", site.target, "--timeout", "5")
    assert waited.exit_code == 7
    assert "memory of card 0" in waited.stderr
    until("the pool to show it", lambda: "Moves" in command(operated, "pools").stdout, LIMIT)
    row = next(line.split() for line in command(operated, "pools").stdout.splitlines() if line.startswith(node))
    assert row[:5] == [node, site.origin, site.target, "Verifying", "NotIdle"]

    assert command(operated, "pool", "move", node, "--cancel").exit_code == 0
    until("the move to be over", lambda: site.move(node) == {}, LIMIT)
    assert label_of(kube, node) == site.origin


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("no-such-node", "--to", "inference"), 3, "Node no-such-node"),
        (("npu-0", "--to", "no-such-pool"), 3, "NPUPool no-such-pool"),
        (("npu-0",), 2, "--to POOL, or --cancel"),
        (("npu-0", "--to", "inference", "--cancel"), 2, "--to POOL, or --cancel"),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_written(operated: Operated, words: tuple[str, ...], code: int, told: str) -> None:
    done = command(operated, "pool", "move", *words)

    assert (done.exit_code, told in done.stderr) == (code, True), done.stderr


def test_a_node_of_no_pool_needs_no_handover(operated: Operated, kube: Kube) -> None:
    operated.cluster.add_nodes(1, prefix="nobodys")
    try:
        done = command(operated, "pool", "move", "nobodys-0", "--to", "inference")
        assert done.exit_code == 3
        assert "belongs to no pool" in done.stderr
    finally:
        kube.delete("Node", "", "nobodys-0")


def test_holders_and_violations_are_shown_and_read_by_programs(operated: Operated, kube: Kube, home: str, build: Build) -> None:
    site = build()
    node = next(iter(site.agents))
    kube.create(a_pod(home, "hostile", 2, nodeName=node))
    until("its cards to be held", lambda: (site.agents[node].say(), len(site.agents[node].holders()) == 2)[1], LIMIT)
    wait_violation(kube, site.origin, "hostile", "NoPool")

    def shown() -> list[str]:
        lines = command(operated, "pools", site.origin).stdout.splitlines()
        return next((line.split() for line in lines if line.startswith(node)), [])

    until("kubelet's ids", lambda: shown() == [node, home, "hostile", "2", "0,1"], LIMIT, lambda: str(shown()))
    table = command(operated, "pools", site.origin).stdout
    assert "Violations" in table
    (told,) = json.loads(command(operated, "pools", site.origin, "-o", "json").stdout)["pools"]
    assert [entry["reason"] for entry in told["status"]["violations"]] == ["NoPool"]
