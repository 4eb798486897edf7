"""Troubles that MindCluster's maps show, and that the operator says in an AscendNode's conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from glm5_operator.api.common import Condition
from glm5_operator.health.doctor.diagnose import diagnose
from glm5_operator.health.doctor.evidence import Evidence
from tests.support.mindcluster import card_fault, cluster_map, device_list

FIXTURES = Path(__file__).parents[3] / "fixtures" / "deviceinfo"


def device_map(**data: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FIXTURES / "mixed_levels.yaml").read_text())
    found["data"] |= data
    return found


def told(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    return {one.name: one.evidence for one in diagnose(evidence)}


def test_faults_above_a_note_are_told_with_level_and_codes() -> None:
    assert told(Evidence("node-a", maps=(device_map(),))) == {
        "CardFault": (
            "mindx-dl-deviceinfo-node-a: card 0: PreSeparateNPU, codes 81078603",
            "mindx-dl-deviceinfo-node-a: card 4: SeparateNPU, codes A8028801, 80E18401",
            "mindx-dl-deviceinfo-node-a: card 6: RestartNPU, codes 80E18404",
        )
    }


def test_cards_that_a_person_or_a_frequent_fault_took_out_are_told_apart() -> None:
    found = told(Evidence("node-a", maps=(device_map(ManuallySeparateNPU="Ascend910-7"),)))
    assert found["CardSeparated"] == ("mindx-dl-deviceinfo-node-a: ManuallySeparateNPU has cards 7",)


def test_a_map_of_another_form_says_nothing_and_is_told() -> None:
    broken = {"metadata": {"name": "mindx-dl-deviceinfo-node-a"}, "data": {"DeviceInfoCfg": "{"}}
    assert list(told(Evidence("node-a", maps=(broken,)))) == ["MindClusterUnreadable"]


def test_faults_of_the_host_and_a_reset_that_waits_for_a_person_are_told() -> None:
    info = '{"NodeInfo":{"FaultDevList":[{"DeviceType":"CPU","DeviceId":0,"FaultCode":["00000001"],"FaultLevel":"SeparateFault"}]}}'
    host = {"metadata": {"name": "mindx-dl-nodeinfo-node-a"}, "data": {"NodeInfo": info}}
    reset = '{"ManualResetDevs":[{"CardId":3,"DeviceId":0,"AssociatedCardId":-1,"PhyID":3,"LogicID":3}]}'
    found = told(Evidence("node-a", maps=(host,), annotations={"ResetInfo": reset}))
    assert found == {
        "HostFault": ("mindx-dl-nodeinfo-node-a: CPU 0: SeparateFault, codes 00000001",),
        "ResetWaitsForPerson": ("annotation ResetInfo: ManualResetDevs has cards 3",),
    }


def test_of_clusterds_copies_doctor_tells_what_stands_nowhere_else_and_believes_one_namespace() -> None:
    public = card_fault(2, "SeparateNPU", code="220001001", kind="PublicFault")
    listed = {"DeviceList": device_list(public, card_fault(3, "RestartNPU")), "UpdateTime": 1790000000}
    part = {"DeviceType": "PSU", "DeviceId": 2, "FaultCode": ["0300000D"], "FaultLevel": "SeparateFault"}
    devices = cluster_map({"mindx-dl-deviceinfo-node-a": listed, "mindx-dl-deviceinfo-node-b": listed})
    hosts = cluster_map({"mindx-dl-nodeinfo-node-a": {"FaultDevList": [part]}}, "cluster-info-node-cm")
    own = {"metadata": {"name": "mindx-dl-deviceinfo-node-a"}, "data": {"DeviceInfoCfg": '{"DeviceInfo": {"DeviceList": {}}}'}}
    where = "cluster-info-device-0 (written 2026-09-21 14:13:20+00:00)"

    assert told(Evidence("node-a", maps=(devices, hosts))) == {
        "CardFault": (f"{where}: card 2: SeparateNPU, codes 220001001", f"{where}: card 3: RestartNPU, codes 80E18404"),
        "HostFault": ("cluster-info-node-cm: PSU 2: SeparateFault, codes 0300000D",),
    }
    assert told(Evidence("node-a", maps=(devices, own))) == {"CardFault": (f"{where}: card 2: SeparateNPU, codes 220001001",)}
    devices["metadata"]["namespace"] = "team"
    assert told(Evidence("node-a", maps=(devices,))) == {}


def test_the_operators_word_that_a_source_is_not_believed_is_told() -> None:
    said = {"lastTransitionTime": "2026-11-30T12:00:00Z", "reason": "Stale", "message": "mindx-dl-deviceinfo is 20 min old"}
    conditions = tuple(Condition.model_validate({"type": "FactsFresh", "status": status, **said}) for status in ("False", "True"))
    assert told(Evidence("node-a", conditions=conditions[:1])) == {
        "SourceNotBelieved": ("condition FactsFresh: Stale: mindx-dl-deviceinfo is 20 min old",)
    }
    assert told(Evidence("node-a", conditions=conditions[1:])) == {}
