"""MindCluster's ConfigMaps as its parts write them, from what a test says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from datetime import datetime

Json = dict[str, Any]

FIXTURES = Path(__file__).parents[1] / "fixtures" / "deviceinfo"


def fixture(name: str) -> Json:
    """A ConfigMap of tests/fixtures/deviceinfo."""
    return dict(yaml.safe_load((FIXTURES / f"{name}.yaml").read_text()))


def card_fault(card: int, level: str, code: str = "80E18404", kind: str = "CardUnhealthy", **changes: object) -> Json:
    """One entry of the `-Fault` list."""
    levels = {part: {"fault_time": 1790000000000, "fault_level": level} for part in code.split(",") if part}
    return {
        "fault_type": kind,
        "npu_name": f"Ascend910-{card}",
        "large_model_fault_level": level,
        "fault_level": level,
        "fault_handling": level,
        "fault_code": code,
        "fault_time_and_level_map": levels,
    } | changes


def device_list(*faults: Json, available: str = "", recovering: str = "", unhealthy: str | None = None) -> Json:
    """The DeviceList of a plugin; bad cards are listed too, as it does for all levels that keep pods away."""
    bad = ",".join(fault["npu_name"] for fault in faults if fault["fault_type"] == "CardUnhealthy") if unhealthy is None else unhealthy
    return {
        "huawei.com/Ascend910": available,
        "huawei.com/Ascend910-Fault": json.dumps(list(faults)),
        "huawei.com/Ascend910-NetworkUnhealthy": "",
        "huawei.com/Ascend910-Recovering": recovering,
        "huawei.com/Ascend910-Unhealthy": bad,
    }


def device_map(node: str, devices: Json, updated: datetime | None, **data: str) -> Json:
    """`mindx-dl-deviceinfo-<node>`."""
    info: Json = {"DeviceList": devices} | ({} if updated is None else {"UpdateTime": int(updated.timestamp())})
    text = json.dumps({"DeviceInfo": info, "SuperPodID": -2, "ServerIndex": -2, "CheckCode": "0" * 64})
    return config_map(f"mindx-dl-deviceinfo-{node}", {"DeviceInfoCfg": text} | data)


def cluster_map(entries: Json, name: str = "cluster-info-device-0") -> Json:
    """One of ClusterD's, which has the maps of all nodes under one key with the map's own name."""
    return config_map(name, {name: json.dumps(entries)}, namespace="mindx-dl")


def host_map(node: str, *parts: Json) -> Json:
    """`mindx-dl-nodeinfo-<node>` of NodeD."""
    text = json.dumps({"NodeInfo": {"FaultDevList": list(parts), "NodeStatus": "UnHealthy"}, "CheckCode": "0" * 64})
    return config_map(f"mindx-dl-nodeinfo-{node}", {"NodeInfo": text}, namespace="mindx-dl")


def config_map(name: str, data: dict[str, str], namespace: str = "kube-system") -> Json:
    """Any ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}
