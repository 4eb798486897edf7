"""Troubles that facts of a node show: one card out of order at a time, and a machine that is well shows none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from glm5_operator.api.node import RemedyReport
from glm5_operator.api.node_facts import CardReport, DeviceNode, HostReport, NodeFactsReport
from glm5_operator.health.doctor.diagnose import diagnose
from glm5_operator.health.doctor.evidence import Evidence
from glm5_operator.plan.compat import Versions

TIME = "2026-11-30T12:00:00Z"
MANAGERS = ("davinci_manager", "hisi_hdc", "devmm_svm")


def card(number: int = 0, **changes: object) -> dict[str, Any]:
    return {
        "physical": number,
        "npu": number,
        "health": "OK",
        "name": "910B3",
        "temperature": 45,
        "memoryUsed": 3300,
        "memoryTotal": 65536,
        "pids": [],
        "link": "Up",
        "netHealth": "Success",
        "tls": False,
        "pcie": "16.0 GT/s x16",
        "pcieMost": "16.0 GT/s x16",
        "numa": number // 4,
        **changes,
    }


def host(mode: str = "0660", owner: str = "1000:1000", without: tuple[str, ...] = (), **changes: object) -> dict[str, Any]:
    paths = [f"/dev/{name}" for name in (*MANAGERS, *(f"davinci{number}" for number in range(8))) if name not in without]
    return {
        "kernel": "5.10.0",
        "architecture": "aarch64",
        "cpuFlags": ["asimd"],
        "numaNodes": 2,
        "memory": 1_500_000,
        "disks": ["nvme0n1=3576"],
        "deviceNodes": [{"path": path, "owner": owner, "mode": mode} for path in paths],
        **changes,
    }


def evidence(*cards: Mapping[str, Any], of: Mapping[str, Any] | None = None, **facts: object) -> Evidence:
    stated = {number: dict(card(number)) for number in range(8)} | {one["physical"]: dict(one) for one in cards}
    report = {
        "observedAt": TIME,
        "tool": {"state": "Working", "version": "25.5.1"},
        "cards": list(stated.values()),
        "product": "A2",
        "driver": "25.5.1",
        "cann": "9.1.0",
        "allocationsKnown": True,
        "host": dict(of or host()),
        **facts,
    }
    return Evidence("node-1", NodeFactsReport.model_validate(report), age=timedelta(minutes=1), offered=8, live=True)


def names(found: Evidence) -> list[str]:
    return [one.name for one in diagnose(found)]


def test_a_machine_that_is_well_has_no_trouble() -> None:
    assert diagnose(evidence()) == ()


@pytest.mark.parametrize(
    ("found", "name", "shows"),
    [
        (evidence(card(3, health="Alarm", codes=["80E01801"])), "CardFault", "card 3 (NPU 3 chip 0): Alarm, codes 80E01801"),
        (evidence(card(3, health="Unknown")), "CardUnreadable", "card 3 (NPU 3 chip 0): Unknown"),
        (evidence(missing=[8]), "CardMissing", "card 8 isn't listed any more"),
        (evidence(card(1, eccDouble=2)), "UncorrectableMemory", "card 1 (NPU 1 chip 0): 2 double-bit errors"),
        (evidence(card(1, temperature=91)), "CardHot", "card 1 (NPU 1 chip 0): 91 °C"),
        (evidence(card(2, memoryUsed=61000)), "MemoryHeldByNobody", "card 2 (NPU 2 chip 0): 61000 MiB in use, no process, no pod"),
        (evidence(card(2, pids=[77, 78])), "UsedOutsideKubernetes", "card 2 (NPU 2 chip 0): pids 77, 78"),
        (evidence(of=host(mode="0600")), "DeviceNodesClosed", "permission: /dev/davinci_manager (owner 1000:1000, mode 0600), "),
        (evidence(of=host(owner="0:0")), "DeviceNodesClosed", "(owner 0:0, mode 0660)"),
        (evidence(of=host(without=("davinci5", "hisi_hdc"))), "DeviceNodesMissing", "device: /dev/hisi_hdc, /dev/davinci5 not there"),
        (evidence(card(0, tls=True)), "TlsDiffers", "on: cards 0; off: all others"),
        (evidence(card(0, link="Down")), "LinkDown", "link status DOWN"),
        (evidence(card(0, netHealth="Socket failed")), "NetworkUnhealthy", "net health status: Socket failed"),
        (evidence(card(0, pcie="8.0 GT/s x8")), "PcieLinkDegraded", "card 0 (NPU 0 chip 0): 8.0 GT/s x8, can do 16.0 GT/s x16"),
        (evidence(*(card(number, numa=0) for number in range(8))), "CardsOnOneNuma", "8 cards on NUMA node 0 of 2"),
        (
            evidence(*(card(number, holder={"namespace": "a", "pod": "b"}) for number in (3, 4))),
            "PodAcrossNuma",
            "pod a/b: 2 cards on NUMA nodes 0, 1",
        ),
        (evidence(of=host(memory=128_000)), "HostMemorySmall", "128000 MiB"),
        (evidence(of=host(disks=["nvme0n1=447"])), "HostDiskSmall", "447 GiB: nvme0n1=447"),
        (evidence(of=host(architecture="x86_64", cpuFlags=["amx_bf16"])), "CpuTooOld", "x86_64: amx_bf16"),
        (evidence(driver="24.1.rc1"), "VersionsDoNotFit", "found driver 24.1.rc1, need 25.2 or later for CANN 9.1.0"),
        (evidence(problems=["line 9: no such column: 'x'"]), "OutputNotUnderstood", "line 9: no such column: 'x'"),
        (evidence(tool={"state": "Hanging", "message": "no answer in 20 s"}), "NpuSmiHanging", "no answer in 20 s"),
        (replace(evidence(), age=timedelta(minutes=40)), "FactsStale", f"observed at {TIME}, 40 min ago"),
        (replace(evidence(), offered=7), "CardsNotOffered", "npu-smi shows 8 cards in health OK, the node offers 7"),
        (Evidence("node-1", live=True), "NoFacts", "AscendNode node-1 has no status.facts"),
    ],
)
def test_one_thing_out_of_order_is_named_with_what_shows_it(found: Evidence, name: str, shows: str) -> None:
    told = diagnose(found)
    assert [one.name for one in told] == [name]
    assert any(shows in line for line in told[0].evidence), told[0].evidence
    assert told[0].cause
    assert told[0].fix


def test_words_of_a_failing_tool_are_told_with_their_cause() -> None:
    found = evidence(tool={"state": "Failing", "message": "dcmi module initialize failed. ret is -8005"})
    assert names(found) == ["NpuSmiFailing", "DevicesClosed"]


def test_nothing_is_concluded_from_what_was_not_read() -> None:
    bare = {"observedAt": TIME, "tool": {"state": "Working"}, "cards": [{"physical": 0, "npu": 0, "health": "OK"}]}
    assert diagnose(Evidence("node-1", NodeFactsReport.model_validate(bare))) == ()
    assert diagnose(Evidence()) == ()


def test_memory_of_a_card_whose_holder_or_processes_are_unknown_is_nobodys_fault() -> None:
    assert names(evidence(card(2, memoryUsed=61000), allocationsKnown=False)) == []
    assert names(evidence(card(2, memoryUsed=61000, pids=None))) == []
    assert names(evidence(card(2, memoryUsed=61000, holder={"namespace": "a", "pod": "b"}))) == []


@pytest.mark.parametrize(("env", "told"), [([], ["VersionsDoNotFit"]), ([{"name": "GLM5_DEVICE", "value": "cpu"}], [])])
def test_a_container_that_computes_on_the_cpu_asks_no_driver_for_anything(env: list[Mapping[str, str]], told: list[str]) -> None:
    container = {"name": "engine", "image": "glm5-runtime:0.1.0", "env": env, "resources": {"limits": {"huawei.com/Ascend910": "1"}}}
    old = evidence(driver="24.1.rc1", cann=None)
    assert names(replace(old, pods=({"metadata": {"name": "p"}, "spec": {"containers": [container]}},))) == told


def test_cards_of_310p_are_hot_when_idle() -> None:
    assert names(evidence(card(0, temperature=86, name="310P3"), product="310P")) == []


def test_a_pod_that_needs_more_cards_than_a_socket_has_is_spread_by_nobodys_fault() -> None:
    assert names(evidence(*(card(number, holder={"namespace": "a", "pod": "b"}) for number in range(8)))) == []


def test_a_quarantined_node_says_how_to_take_it_back() -> None:
    remedy = RemedyReport.model_validate({"state": "Quarantined", "since": TIME, "reason": "BudgetUsedUp", "message": "2 resets in 24h"})
    (told,) = diagnose(replace(evidence(), remedy=remedy))
    assert (told.name, told.cause) == ("NodeQuarantined", "BudgetUsedUp: 2 resets in 24h")
    assert told.fix.endswith("`glm5 node release node-1`")


def test_the_containers_stack_counts_with_the_hosts_driver() -> None:
    found = replace(evidence(driver="25.0.1", cann=None), versions=Versions(cann="9.1.0", torch_npu="2.12.0", torch="2.12.0"))
    (told,) = diagnose(found)
    assert told.evidence == ("found driver 25.0.1, need 25.2 or later for CANN 9.1.0",)


def test_what_the_runtimes_doctor_lacks_is_told_in_its_words() -> None:
    (told,) = diagnose(replace(evidence(), lacking=("CANN: ASCEND_HOME_PATH is not set",)))
    assert (told.name, told.evidence) == ("NpuLacks", ("CANN: ASCEND_HOME_PATH is not set",))


def test_every_field_of_a_card_that_rules_read_is_the_apis() -> None:
    assert CardReport.model_validate(card()).memory_used == 3300
    assert HostReport.model_validate(host()).device_nodes is not None
    assert DeviceNode.model_validate({"path": "/dev/x", "owner": "0:0", "mode": "0600"}).mode == "0600"
