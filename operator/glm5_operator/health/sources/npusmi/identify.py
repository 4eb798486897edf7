"""Which physical id a chip has: what /dev/davinciN, device plugins and ASCEND_VISIBLE_DEVICES count in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from .readings import CardMap, InfoTable


def physical_ids(info: InfoTable, mapping: CardMap | None = None, device_nodes: Set[int] | None = None) -> Mapping[tuple[int, int], int]:
    """(NPU id, chip id) -> physical id of every chip in the table; a chip that nothing tells it of is left out.

    The tool's own columns go first. Without one (910B), the NPU id is the physical id on a host, also after a card has vanished
    (0, 1, 3); in a virtual machine NPU ids are the hypervisor's (4, 5) while the device nodes are davinci0 and davinci1, and there the
    logic id is what counts. The device nodes tell which of both it is; where they couldn't be listed, it is taken for a host.

    Args:
        info: `npu-smi info`.
        mapping: `npu-smi info -m` of the same moment, where it could be read.
        device_nodes: N of every /dev/davinciN, where they could be listed.
    """
    chips = {(row.npu, row.chip): row.physical for row in info.chips}
    mapped = {(entry.npu, entry.chip): entry for entry in mapping.chips} if mapping else {}
    known = {key: mapped[key].physical if physical is None and key in mapped else physical for key, physical in chips.items()}
    found = {key: physical for key, physical in known.items() if physical is not None}
    if found or any(chip for _, chip in chips):
        return found
    as_npu = {(npu, chip): npu for npu, chip in chips}
    if not device_nodes or set(device_nodes) >= set(as_npu.values()):
        return as_npu
    logic = {key: entry.logic for key in chips if (entry := mapped.get(key)) and entry.logic is not None}
    # Logic ids are counted anew when a card vanishes: they are device nodes only while every node has its card.
    return logic if set(device_nodes) == set(logic.values()) else {}
