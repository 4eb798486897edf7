"""MindCluster's maps are read strictly: every nested text, old and new keys, any name of a device. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.health.sources import mindcluster
from glm5_operator.health.sources.mindcluster import Code, Devices, Entry, HostFault, Switch, Unreadable, Waiting
from tests.support.clock import at
from tests.support.mindcluster import card_fault, cluster_map, config_map, device_list, device_map, fixture, host_map

Json = dict[str, Any]


def read(devices: Json, **data: str) -> Devices:
    found = mindcluster.devices(device_map("n1", devices, at(), **data))
    assert isinstance(found, Devices)
    return found


def by_device(found: Devices) -> dict[int | None, tuple[str, str, tuple[str, ...]]]:
    return {entry.device: (entry.kind, entry.level, tuple(code.code for code in entry.codes)) for entry in found.entries}


def test_each_card_of_a_map_has_what_is_to_be_done_about_it_and_its_codes() -> None:
    found = mindcluster.devices(fixture("mixed_levels"))

    assert isinstance(found, Devices)
    assert by_device(found) == {
        0: ("CardNetworkUnhealthy", "PreSeparateNPU", ("81078603",)),
        2: ("CardUnhealthy", "NotHandleFault", ("80E18401",)),
        4: ("CardUnhealthy", "SeparateNPU", ("A8028801", "80E18401")),
        6: ("CardUnhealthy", "RestartNPU", ("80E18404",)),
    }
    assert found.entries[2].codes[1].level == "NotHandleFault"
    assert found.updated is not None
    assert f"{found.updated:%Y-%m-%d}" == "2026-09-21"


def test_other_names_of_resource_and_devices_and_an_entry_of_the_node_are_read_alike() -> None:
    """C21: nothing here knows the prefix, and a NodeUnhealthy entry names no chip."""
    found = mindcluster.devices(fixture("a5_resource_name"))

    assert isinstance(found, Devices)
    assert by_device(found) == {5: ("CardUnhealthy", "RestartNPU", ("80E18404",)), None: ("NodeUnhealthy", "", ("heartbeatTimeOut",))}


@pytest.mark.parametrize(
    ("present", "level"),
    [
        ({"fault_handling": "SeparateNPU", "fault_level": "RestartNPU", "large_model_fault_level": "NotHandleFault"}, "SeparateNPU"),
        ({"fault_level": "RestartNPU", "large_model_fault_level": "NotHandleFault"}, "RestartNPU"),
        ({"large_model_fault_level": "NotHandleFault"}, "NotHandleFault"),
        ({}, ""),
    ],
)
def test_of_the_three_fields_that_repeat_the_level_fault_handling_counts_where_it_is_there(present: dict[str, str], level: str) -> None:
    fault = {key: value for key, value in card_fault(1, "x").items() if not key.endswith(("level", "handling"))} | present

    assert read(device_list(fault)).entries[0].level == level


def test_a_plugin_of_old_that_only_lists_who_is_bad_is_believed() -> None:
    old = {
        "huawei.com/Ascend910": "Ascend910-0",
        "huawei.com/Ascend910-Unhealthy": "Ascend910-3",
        "huawei.com/Ascend910-NetworkUnhealthy": "Ascend910-5",
    }

    found = read(old)

    assert by_device(found) == {3: ("CardUnhealthy", "", ("CardUnhealthy",)), 5: ("CardNetworkUnhealthy", "", ("CardNetworkUnhealthy",))}
    assert (found.listed, found.available) == ({0, 3, 5}, {0})


def test_a_card_under_reset_is_recovering_and_not_bad_for_being_listed_so() -> None:
    found = read(device_list(recovering="Ascend910-2,Ascend910-3", unhealthy="Ascend910-2"))

    assert found.recovering == {2, 3}
    assert found.entries == ()


def test_a_chip_that_waits_for_a_person_to_release_it_is_bad_though_no_fault_is_left() -> None:
    found = read(device_list(), ManuallySeparateNPU="Ascend910-3, Ascend910-4")

    assert by_device(found) == dict.fromkeys((3, 4), ("CardUnhealthy", "ManuallySeparateNPU", ("ManuallySeparateNPU",)))


@pytest.mark.parametrize(("name", "card"), [("Ascend910-7", 7), ("npu-15", 15), ("Ascend910-2c-100-3", 3), ("our-chips-0", 0)])
def test_the_last_number_of_a_devices_name_is_its_physical_id(name: str, card: int) -> None:
    assert read(device_list(card_fault(0, "RestartNPU", npu_name=name))).entries[0].device == card


def test_shares_of_chips_that_are_free_do_not_make_the_map_unreadable() -> None:
    assert read(device_list() | {"huawei.com/npu-core": "0-12c,1-8c"}).entries == ()


@pytest.mark.parametrize(("written", "year"), [(1736926605, 2025), (1790000000000, 2026)])
def test_times_are_seconds_in_public_faults_and_milliseconds_in_others(written: int, year: int) -> None:
    fault = card_fault(1, "SeparateNPU", code="220001001")
    fault["fault_time_and_level_map"]["220001001"]["fault_time"] = written

    since = read(device_list(fault)).entries[0].codes[0].since

    assert since is not None
    assert since.year == year


BROKEN: dict[str, Json] = {
    "no map at all": config_map("mindx-dl-deviceinfo-n1", {}),
    "no data": {"metadata": {"name": "mindx-dl-deviceinfo-n1"}},
    "half a map": config_map("mindx-dl-deviceinfo-n1", {"DeviceInfoCfg": '{"DeviceInfo": {"DeviceList": {'}),
    "a list": config_map("mindx-dl-deviceinfo-n1", {"DeviceInfoCfg": "[]"}),
    "no DeviceList": config_map("mindx-dl-deviceinfo-n1", {"DeviceInfoCfg": '{"DeviceInfo": {"UpdateTime": 1}}'}),
    "faults cut off": device_map("n1", {"huawei.com/Ascend910-Fault": '[{"fault_type": "Card'}, at()),
    "faults that are no texts": device_map("n1", {"huawei.com/Ascend910-Fault": [card_fault(1, "RestartNPU")]}, at()),
    "a fault that is a number": device_map("n1", {"huawei.com/Ascend910-Fault": "[7]"}, at()),
    "a device without a number": device_map("n1", device_list(card_fault(1, "RestartNPU", npu_name="Ascend910")), at()),
    "a list of bad devices that is none": device_map("n1", {"huawei.com/Ascend910-Unhealthy": 3}, at()),
    "nesting without end": config_map("mindx-dl-deviceinfo-n1", {"DeviceInfoCfg": "[" * 100_000}),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_map_is_no_information_and_says_where_it_broke(broken: Json) -> None:
    """C09: half of it would hide what stands in the other half."""
    found = mindcluster.devices(broken)

    assert isinstance(found, Unreadable)
    assert "mindx-dl-deviceinfo-n1" in str(found)


def test_null_is_how_go_writes_a_list_of_none() -> None:
    assert read({"huawei.com/Ascend910-Fault": "null"}).entries == ()


def test_a_map_without_a_time_has_none() -> None:
    found = mindcluster.devices(device_map("n1", device_list(), None))

    assert isinstance(found, Devices)
    assert found.updated is None


def test_a_node_is_found_in_the_map_of_all_nodes() -> None:
    devices = {"DeviceList": device_list(card_fault(3, "RestartNPU")), "UpdateTime": 1790000000, "CmName": "mindx-dl-deviceinfo-n2"}
    cluster = cluster_map({"mindx-dl-deviceinfo-n1": {"DeviceList": device_list()}, "mindx-dl-deviceinfo-n2": devices})

    found = mindcluster.devices_in_cluster(cluster, "n2")

    assert isinstance(found, Devices)
    assert [entry.device for entry in found.entries] == [3]
    assert mindcluster.devices_in_cluster(cluster, "n3") is None
    assert isinstance(mindcluster.devices_in_cluster(config_map("cluster-info-device-0", {"cluster-info-device-0": "{"}), "n2"), Unreadable)


def test_the_switch_of_a_server_has_codes_that_are_json_again_or_bare() -> None:
    event = json.dumps({"AssembledFaultCode": "[0x00f103b0,155904,na,na]", "AlarmRaisedTime": 1790000000000, "SwitchChipId": 1})
    text = json.dumps(
        {"FaultCode": [event, "[0x08520003,na,npu,na]"], "FaultLevel": "Separate", "NodeStatus": "UnHealthy", "UpdateTime": 5}
    )

    found = mindcluster.switch(device_map("n1", device_list(), at(), SwitchInfoCfg=text))

    assert isinstance(found, Switch)
    assert (found.level, [code.code for code in found.codes]) == ("Separate", ["[0x00f103b0,155904,na,na]", "[0x08520003,na,npu,na]"])


def test_a_switch_without_a_fault_and_a_server_without_a_switch_are_well() -> None:
    quiet = device_map("n1", device_list(), at(), SwitchInfoCfg='{"FaultCode":[],"FaultLevel":"NotHandle","NodeStatus":"Healthy"}')

    assert mindcluster.switch(quiet) == Switch()
    assert mindcluster.switch(device_map("n1", device_list(), at())) is None
    assert isinstance(mindcluster.switch(device_map("n1", device_list(), at(), SwitchInfoCfg="{")), Unreadable)


def test_a_faulty_part_of_the_host_is_named_by_kind_and_number() -> None:
    found = mindcluster.host(
        host_map("n1", {"DeviceType": "PSU", "DeviceId": 2, "FaultCode": ["0300000D"], "FaultLevel": "PreSeparateFault"})
    )

    assert found == (HostFault("PSU 2", "PreSeparateFault", ("0300000D",)),)
    assert isinstance(mindcluster.host(config_map("mindx-dl-nodeinfo-n1", {"NodeInfo": "?"})), Unreadable)


def test_the_nodes_annotation_says_which_cards_others_are_to_reset() -> None:
    card = {"CardId": 1, "DeviceId": 0, "AssociatedCardId": -1, "PhyID": 2, "LogicID": 2}
    said = json.dumps({"ThirdPartyResetDevs": [card | {"PhyID": 4}], "ManualResetDevs": [card]})

    assert mindcluster.waiting({"ResetInfo": said}) == Waiting(frozenset({4}), frozenset({2}))
    assert mindcluster.waiting({"ResetInfo": '{"ThirdPartyResetDevs":null,"ManualResetDevs":null}'}) == Waiting()
    assert mindcluster.waiting({}) == Waiting()
    assert isinstance(mindcluster.waiting({"ResetInfo": '{"ManualResetDevs":[{"CardId":1}]}'}), Unreadable)


@pytest.mark.parametrize(
    ("args", "on"),
    [
        (["device-plugin -useAscendDocker=true -volcanoType=true -logLevel=0"], False),
        (["device-plugin -hotReset=-1"], False),
        (["device-plugin -volcanoType=true -hotReset=2 -logLevel=0"], True),
        (["-hotReset", "0"], True),
        (["-hotReset=2", "-hotReset=-1"], False),
    ],
)
def test_the_plugins_command_tells_whether_it_resets_by_itself(args: list[str], on: bool) -> None:
    assert mindcluster.hot_reset({"spec": {"containers": [{"command": ["/bin/bash", "-c", "--"], "args": args}]}}) is on


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_stands_there_is_read_or_unreadable_and_never_raises(value: object) -> None:
    text = json.dumps(value)
    for data in (
        {"DeviceInfoCfg": text},
        {"DeviceInfoCfg": json.dumps({"DeviceInfo": {"DeviceList": {"x-Fault": text, "x-Unhealthy": value}}})},
    ):
        found = mindcluster.devices(config_map("mindx-dl-deviceinfo-n1", data))
        assert isinstance(found, Devices | Unreadable)
    assert isinstance(mindcluster.switch(config_map("m", {"SwitchInfoCfg": text})), Switch | Unreadable)
    assert isinstance(mindcluster.host(config_map("m", {"NodeInfo": text})), tuple | Unreadable)
    assert isinstance(mindcluster.waiting({"ResetInfo": text}), Waiting | Unreadable)


@given(st.data())
def test_a_map_that_is_cut_anywhere_gives_no_card_a_fault_that_it_does_not_have(data: st.DataObject) -> None:
    whole = fixture("mixed_levels")
    text = whole["data"]["DeviceInfoCfg"]
    cut = data.draw(st.integers(0, len(text)))

    found = mindcluster.devices(config_map("mindx-dl-deviceinfo-node-a", {"DeviceInfoCfg": text[:cut]}))

    assert isinstance(found, Unreadable) or found == mindcluster.devices(config_map("mindx-dl-deviceinfo-node-a", whole["data"]))


def test_the_entry_of_a_card_without_codes_has_its_kind_for_one() -> None:
    assert read(device_list(card_fault(1, "NormalNPU", code=""))).entries == (
        Entry("CardUnhealthy", 1, "NormalNPU", (Code("CardUnhealthy"),)),
    )
