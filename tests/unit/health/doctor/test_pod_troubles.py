"""Troubles that pods show by how they are made, and by what scheduler and kubelet say of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.health.doctor.diagnose import diagnose
from glm5_operator.health.doctor.evidence import Evidence, Text
from tests.unit.plan.builders import child, tiny
from tests.unit.plan.builders import plan as plan_service

Json = dict[str, Any]


def pod(
    cards: int = 2, env: dict[str, str] | None = None, *, shm: str | None = "64Gi", spec: Json | None = None, **container: object
) -> Json:
    """A pod that is well: whole cards, shared memory, uid of the image."""
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}] if shm else []
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}}] if shm else []
    return {
        "metadata": {"namespace": "prod", "name": "chat-0"},
        "spec": {
            "volumes": volumes,
            "containers": [
                {
                    "name": "engine",
                    "image": "glm5-runtime:0.1.0",
                    "resources": {"limits": {"huawei.com/Ascend910": str(cards)}},
                    "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
                    "volumeMounts": mounts,
                    **container,
                }
            ],
            **(spec or {}),
        },
    }


DROPPED = {"capabilities": {"drop": ["ALL"]}}
KEPT = {"capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}}


def names(*pods: Json) -> list[str]:
    return [one.name for one in diagnose(Evidence("node-1", pods=pods))]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pod(), []),
        (pod(env={"ASCEND_RT_VISIBLE_DEVICES": "0,1"}), []),
        (pod(env={"ASCEND_RT_VISIBLE_DEVICES": "3,4"}), ["DeviceNumbersWrong"]),
        (pod(env={"ASCEND_RT_VISIBLE_DEVICES": "3,4"}, securityContext={"privileged": True}), []),
        (pod(env={"ASCEND_VISIBLE_DEVICES": "0,1"}), ["CardsChosenByHand"]),
        (pod(env={"ASCEND_VISIBLE_DEVICES": "void"}), []),
        (pod(securityContext={"runAsUser": 4711}), ["DeviceUserUnknown"]),
        (pod(1, securityContext={"runAsUser": 4711}), []),
        (pod(securityContext={"runAsUser": 1000}), []),
        (pod(spec={"securityContext": {"runAsUser": 4711}}), ["DeviceUserUnknown"]),
        (pod(securityContext=DROPPED), ["RootWithoutOverride"]),
        (pod(securityContext=KEPT), []),
        (pod(securityContext={**DROPPED, "runAsUser": 1000}), []),
        (pod(shm="9Gi"), ["SharedMemorySmall"]),
        (pod(shm=None), ["SharedMemorySmall"]),
        (pod(1, shm=None), []),
        (pod(shm=None, spec={"hostIPC": True}), []),
        (pod(4, env={"RANK_SIZE": "2"}), ["RankSizeWrong"]),
        (pod(4, env={"RANK_SIZE": "8"}), []),
        (pod(env={"PYTORCH_ALLOC_CONF": "a", "PYTORCH_NPU_ALLOC_CONF": "b"}), ["AllocatorSetTwice"]),
        (pod(16, image="quay.io/ascend/vllm-ascend:v0.19.1rc1-a3"), ["LoaderStuck"]),
        (pod(0, shm=None, env={"ASCEND_VISIBLE_DEVICES": "0"}), []),
    ],
)
def test_a_pod_is_judged_by_how_it_is_made(made: Json, expected: list[str]) -> None:
    assert names(made) == expected


def test_physical_ids_of_an_old_connector_are_compared_with_what_was_given() -> None:
    made = pod(env={"PHYSICAL_DEVICES": "0,1"})
    made["metadata"]["annotations"] = {"huawei.com/AscendReal": "Ascend910-4,Ascend910-5"}
    assert names(made) == ["PhysicalDevicesWrong"]
    made["metadata"]["annotations"] = {"huawei.com/AscendReal": "Ascend910-1,Ascend910-0"}
    assert names(made) == []


def test_pods_that_the_operator_plans_have_none_of_these() -> None:
    template = child(plan_service(tiny(tensor=2)), "Deployment")["spec"]["template"]
    assert names(template) == []


def test_what_the_scheduler_and_kubelet_say_is_read_too() -> None:
    made = pod()
    made["status"] = {
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 ModeNotFit."}],
        "containerStatuses": [
            {"name": "engine", "lastState": {"terminated": {"message": "EI0006: Getting socket times out"}}, "state": {"running": {}}}
        ],
    }
    told = {one.name: one.evidence for one in diagnose(Evidence(pods=(made,)))}
    assert told == {
        "HamiModeMismatch": ("pod prod/chat-0 condition PodScheduled: 0/3 nodes are available: 3 ModeNotFit.",),
        "HcclConnectTimeout": ("pod prod/chat-0 container engine: EI0006: Getting socket times out",),
    }


def test_a_trouble_of_many_pods_is_told_once_with_a_few_of_them() -> None:
    many = tuple(pod(env={"ASCEND_VISIBLE_DEVICES": str(number)}) for number in range(20))
    (told,) = diagnose(Evidence(pods=many))
    assert len(told.evidence) == 7
    assert told.evidence[-1] == "and 14 more"


def test_a_trouble_in_pod_and_log_is_one() -> None:
    log = Text("engine.log", "open device 1 failed, error code is 507033")
    (told,) = diagnose(Evidence(pods=(pod(env={"ASCEND_RT_VISIBLE_DEVICES": "3,4"}),), texts=(log,)))
    assert told.name == "DeviceNumbersWrong"
    assert len(told.evidence) == 2


def test_an_error_code_without_a_trouble_of_its_own_is_told_by_the_table_of_codes_and_a_known_one_not_twice() -> None:
    told = diagnose(Evidence(texts=(Text("a.log", "RuntimeError: ACL stream synchronize failed, error code:507035"),)))
    assert [one.name for one in told] == ["Error507035"]
    assert told[0].evidence == ("a.log: RuntimeError: ACL stream synchronize failed, error code:507035",)
    told = diagnose(Evidence(texts=(Text("a.log", "aclrtSetDevice failed, error code is 507033"),)))
    assert [one.name for one in told] == ["DeviceNumbersWrong"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["spec", "status", "containers", "env", "name"]), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_a_pod_of_any_shape_is_read(made: Json) -> None:
    diagnose(Evidence(pods=(made,)))
