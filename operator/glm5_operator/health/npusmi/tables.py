"""To be filled in: tables."""

from __future__ import annotations

from glm5_operator.health.reading import ParseProblem

from .readings import Topology, VersionReading, WatchReading


def parse_topology(text: str) -> Topology:
    """`-t topo`."""
    return Topology(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_watch(text: str) -> WatchReading:
    """`info watch`."""
    return WatchReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))


def parse_version(text: str) -> VersionReading:
    """`npu-smi -v`."""
    return VersionReading(problems=(ParseProblem(0, "", f"no parser yet for {len(text)} characters"),))
