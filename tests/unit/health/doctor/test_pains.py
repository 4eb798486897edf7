"""Troubles that a text shows: each is recognised by words that users pasted, and by no text of a machine that is well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.health.doctor.pains import LINE_CHARACTERS, MOST_LINES, pains

FIXTURES = Path(__file__).parents[3] / "fixtures"

# Words as in the threads that pains.yaml links to, and in the vendor's sources.
SEEN = {
    "DeviceNumbersWrong": "RuntimeError: Initialize:npu_sys_ctrl.cpp:217 NPU function error: aclrtSetDevice, error code is 507033",
    "DevicesClosed": "dcmi module initialize failed. ret is -8005",
    "CardInTwoContainers": "dcmi model initialized failed, because the device is used. ret is -8020",
    "DriverLibraryMissing": "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory",
    "CannNotSourced": "OSError: libatb.so: cannot open shared object file: No such file or directory",
    "RootInfoFailed": "HCCL function error: HcclGetRootInfo(&hcclID), error code is 19",
    "RuntimeHandlerMissing": 'failed to get sandbox runtime: no runtime for "ascend" is configured',
    "StaticCpuManager": "cpuManagerPolicy: static",
    "VolcanoLabelsMissing": "checkNodeNPUByTask node-1 err: getNodeAcceleratorType accelerator-type is not in node label",
    "HamiModeMismatch": "0/1 nodes are available: 1 ModeNotFit.",
    "HcclConnectTimeout": "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.",
    "MoeDispatchFailed": "aclnnMoeDistributeDispatchV4 launch failed, error code 561103",
    "HcclExecTimeout": "[ERROR] HCCL fftsplus task timeout, timeout 1836s",
    "EngineReadyTimeout": "TimeoutError: Timed out waiting for engines to send initial message on input socket.",
    "StreamsExhausted": "EL0009: Stream resources are insufficient. ret=207008",
    "OutOfDeviceMemory": "RuntimeError: NPU out of memory. Tried to allocate 1.20 GiB (NPU 0; 60.97 GiB total capacity)",
    "GraphCaptureFailed": "Capturing ACL graph failed: aclrtSynchronizeStream returned 507015",
    "StackApart": "ImportError: /usr/local/lib/libtorch_npu.so: undefined symbol: aclrtGetDeviceUtilizationRate",
    "MooncakeTransferFailed": "Transfer slice failed with status: 103902",
    "SharedMemorySmall": "System memory request exceeds memory available in /dev/shm: 10.2 GB requested",
    "EngineDied": "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    "CardWedged": "rtStreamSynchronize failed, retCode=507018, the aicpu execution is abnormal",
    "AnotherReset": "Another user is resetting the NPU(s). Please try again later.",
    "UnknownNpuSmiCommand": "Command or option is not found.",
    "AllocatorSetTwice": "PYTORCH_ALLOC_CONF and PYTORCH_NPU_ALLOC_CONF can not both be set",
    "OldTransformers": "model type `glm_moe_dsa` but Transformers does not recognize this architecture",
    "LossNotFinite": "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.3}",
    "EmptyAnswer": '{"message":{"role":"assistant","content":""},"finish_reason":"stop"}',
    "CompileStuck": "Compiling operators:  99%|#########9| 412/416",
    "LinkDown": "link status: DOWN",
    "NetworkUnhealthy": "net health status: Receive timeout",
    "CardMissing": "Invalid card id.",
    "CardOffBus": "NpuOffBus: pcieport 0000:80:00.0: pciehp: Slot(4): Card not present",
    "PcieError": "PcieFault: pcieport 0000:c0:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
    "HotResetFailed": "HotResetFailed: hot reset failed, nodeName:npu-3, devices:0,1, time:2026-11-30 10:00:00, err:timeout",
    "PortTaken": "OSError: [Errno 98] Address already in use",
}


def named(text: str) -> set[str]:
    return {pain.name for pain in pains() if pain.lines(text)}


def test_every_trouble_has_words_that_users_saw() -> None:
    assert {pain.name for pain in pains()} == set(SEEN)


@pytest.mark.parametrize("name", SEEN)
def test_a_trouble_is_recognised_alone_among_ordinary_lines(name: str) -> None:
    text = f"INFO 11-29 10:00:00 loading weights\n{SEEN[name]}\nINFO bye\n"
    assert named(text) == {name}
    assert next(pain for pain in pains() if pain.name == name).lines(text) == (SEEN[name][:LINE_CHARACTERS],)


@pytest.mark.parametrize(
    "text",
    [
        "step 12 loss: 1.52 grad_norm: 0.8",
        "nan_to_num is used by the loss; loss scale inferred",
        '{"content":"Hi","finish_reason":"stop"}',
        "took 507033123 ns",
        "HCCL_CONNECT_TIMEOUT=120",
        "compiled 99 operators",
        "cpuManagerPolicy: none",
        "libascend_hal.so loaded",
        "pcieport 0000:00:1c.0: AER: Corrected error received: 0000:00:1c.0",
        "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "HotResetStart: hot reset start, nodeName:npu-3, ringDevs:0,1, faultDev:0, tokensLeft:2, time:2026-11-30 10:00:00",
    ],
)
def test_ordinary_lines_are_no_trouble(text: str) -> None:
    assert named(text) == set()


def test_outputs_of_machines_that_are_well_are_no_trouble() -> None:
    files = [path for path in (FIXTURES / "npu-smi").glob("*.txt") if not path.name.startswith(("err_", "synthetic_", "hccn_link_down"))]
    assert len(files) > 15
    assert {path.name: found for path in files if (found := named(path.read_text()))} == {}


def test_collected_logs_of_case_files_name_their_trouble() -> None:
    found = {path.name: named(path.read_text()) for path in (FIXTURES / "plog").iterdir()}
    assert found["device_open_507033.txt"] == {"DeviceNumbersWrong"}
    assert found["hccl_ei0006.txt"] == {"HcclConnectTimeout"}


def test_a_long_log_gives_a_few_different_lines_each_cut() -> None:
    text = "\n".join(f"rank {number} {'x' * 400}\nrank {number}: EI0006 no peer" for number in range(1000))
    pain = next(pain for pain in pains() if pain.name == "HcclConnectTimeout")
    assert pain.lines(text) == tuple(f"rank {number}: EI0006 no peer" for number in range(MOST_LINES))
    assert len(pain.lines("EI0006" + "y" * 1000)[0]) == LINE_CHARACTERS


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    for pain in pains():
        assert all(line in text for line in pain.lines(text))


def test_each_says_what_to_do_and_links_to_a_place() -> None:
    for pain in pains():
        assert pain.cause, pain.name
        assert pain.fix, pain.name
        assert all(re.fullmatch(r"[\w.-]+(/[\w.-]+)*(#\d+)?( [\w. ]+)?", link) for link in pain.links), pain.links
