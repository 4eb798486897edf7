"""npu-smi's text, read into typed values. Pure, strict and total: a text that can't be read gives `problems` or `error`, no exception.

The agent calls these on live output, the command line on collected files. Hand over the output as it is, last newline included:
only by it a whole number is known from one that was cut short.
"""

from .chips import (
    parse_common,
    parse_fault_events,
    parse_health,
    parse_memory,
    parse_power,
    parse_temperature,
    parse_usages,
)
from .counters import parse_board, parse_device_share, parse_ecc, parse_error_counts, parse_phyid_remap, parse_process_memory
from .identify import physical_ids
from .info import parse_info
from .lists import parse_list, parse_map
from .reset import parse_reset
from .tables import parse_topology, parse_version, parse_watch

__all__ = [
    "parse_board",
    "parse_common",
    "parse_device_share",
    "parse_ecc",
    "parse_error_counts",
    "parse_fault_events",
    "parse_health",
    "parse_info",
    "parse_list",
    "parse_map",
    "parse_memory",
    "parse_phyid_remap",
    "parse_power",
    "parse_process_memory",
    "parse_reset",
    "parse_temperature",
    "parse_topology",
    "parse_usages",
    "parse_version",
    "parse_watch",
    "physical_ids",
]
