"""Troubles that MindCluster's maps show, and that the operator says in an AscendNode's conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from glm5_operator.api.common import Condition
from glm5_operator.health.doctor.diagnose import diagnose
from glm5_operator.health.doctor.evidence import Evidence

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


def test_the_operators_word_that_a_source_is_not_believed_is_told() -> None:
    said = {"lastTransitionTime": "2026-11-30T12:00:00Z", "reason": "Stale", "message": "mindx-dl-deviceinfo is 20 min old"}
    conditions = tuple(Condition.model_validate({"type": "FactsFresh", "status": status, **said}) for status in ("False", "True"))
    assert told(Evidence("node-a", conditions=conditions[:1])) == {
        "SourceNotBelieved": ("condition FactsFresh: Stale: mindx-dl-deviceinfo is 20 min old",)
    }
    assert told(Evidence("node-a", conditions=conditions[1:])) == {}
