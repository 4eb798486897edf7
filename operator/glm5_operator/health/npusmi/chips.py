"""To be filled in: chips."""

from __future__ import annotations

from glm5_operator.health.reading import ParseProblem

from .readings import (
    BoardReading,
    CommonReading,
    CountReading,
    EccReading,
    FaultEvents,
    HealthReading,
    MemoryReading,
    PowerReading,
    ProcessReading,
    RemapReading,
    ShareReading,
    TemperatureReading,
    UsageReading,
)


def parse_health(text: str) -> HealthReading:
    """`npu-smi info -t health`."""
    return HealthReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_fault_events(text: str) -> FaultEvents:
    """`-t current-fault-event`."""
    return FaultEvents(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_usages(text: str) -> UsageReading:
    """`-t usages`."""
    return UsageReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_common(text: str) -> CommonReading:
    """`-t common`."""
    return CommonReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_temperature(text: str) -> TemperatureReading:
    """`-t temp`."""
    return TemperatureReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_power(text: str) -> PowerReading:
    """`-t power`."""
    return PowerReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_memory(text: str) -> MemoryReading:
    """`-t memory`."""
    return MemoryReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_ecc(text: str) -> EccReading:
    """`-t ecc`."""
    return EccReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_process_memory(text: str) -> ProcessReading:
    """`-t proc-mem`."""
    return ProcessReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_error_counts(text: str) -> CountReading:
    """`-t err-count`."""
    return CountReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_board(text: str) -> BoardReading:
    """`-t board`."""
    return BoardReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_phyid_remap(text: str) -> RemapReading:
    """`-t phyid-remap`."""
    return RemapReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_device_share(text: str) -> ShareReading:
    """`-t device-share`."""
    return ShareReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))
