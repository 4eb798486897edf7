"""Which parser reads which of the raw files in tests/fixtures/npu-smi (their origin: README.md there)."""

from collections.abc import Callable
from pathlib import Path

from glm5_operator.health.sources import hccn, npusmi, versions
from glm5_operator.health.sources.reading import Reading

FOLDER = Path(__file__).parents[4] / "fixtures" / "npu-smi"
FILES = sorted(path for path in FOLDER.rglob("*") if path.suffix in (".txt", ".stdout"))

Parser = Callable[[str], Reading]

BY_PREFIX: dict[str, Parser] = {
    "ascend_toolkit_install": versions.parse_version_file,
    "driver_version": versions.parse_version_file,
    "hccn_conf": hccn.parse_hccn_conf,
    "hccn_ip": hccn.parse_address,
    "hccn_link_stat": hccn.parse_link_history,
    "hccn_link_": hccn.parse_link,
    "hccn_net_health": hccn.parse_net_health,
    "hccn_optical": hccn.parse_optical,
    "hccn_ping": hccn.parse_ping,
    "hccn_route": hccn.parse_route,
    "hccn_tls": hccn.parse_tls,
    "err_": npusmi.parse_info,
    "dcmi_": npusmi.parse_info,
    "info_": npusmi.parse_info,
    "synthetic_info_": npusmi.parse_info,
    "a2_": npusmi.parse_info,
    "a3_": npusmi.parse_info,
    "list_l": npusmi.parse_list,
    "map_m": npusmi.parse_map,
    "reset_": npusmi.parse_reset,
    "synthetic_reset": npusmi.parse_reset,
    "set_refused": npusmi.parse_reset,
    "t_board": npusmi.parse_board,
    "t_common": npusmi.parse_common,
    "t_current_fault_event": npusmi.parse_fault_events,
    "t_ecc": npusmi.parse_ecc,
    "t_health": npusmi.parse_health,
    "health_by_": npusmi.parse_health,
    "synthetic_t_health": npusmi.parse_health,
    "t_memory": npusmi.parse_memory,
    "t_power": npusmi.parse_power,
    "t_procmem": npusmi.parse_process_memory,
    "t_temp": npusmi.parse_temperature,
    "t_usages": npusmi.parse_usages,
    "topo_": npusmi.parse_topology,
    "version": npusmi.parse_version,
    "watch_": npusmi.parse_watch,
}

# Those without a published file take part in whatever is tried on all parsers.
PARSERS: list[Parser] = [
    *dict.fromkeys(BY_PREFIX.values()),
    npusmi.parse_device_share,
    npusmi.parse_error_counts,
    npusmi.parse_phyid_remap,
]


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text() if not name.endswith(".stdout") else (FOLDER / name).read_text()


def case(name: str) -> str:
    return (FOLDER / "cases" / name).read_text()


def parser_of(path: Path) -> Parser:
    return next(parser for prefix, parser in BY_PREFIX.items() if path.name.startswith(prefix))
