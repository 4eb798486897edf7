"""Which physical id a chip has: what /dev/davinciN, device plugins and ASCEND_VISIBLE_DEVICES count in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from .readings import CardMap, InfoTable


def physical_ids(info: InfoTable, mapping: CardMap | None = None, device_nodes: Set[int] | None = None) -> Mapping[tuple[int, int], int]:
    """(NPU id, chip id) -> physical id of every chip in the table; a chip that nothing tells it of is left out.

    Args:
        info: `npu-smi info`.
        mapping: `npu-smi info -m` of the same moment, where it could be read.
        device_nodes: N of every /dev/davinciN, where they could be listed.
    """
    return {(row.npu, row.chip): row.physical for row in info.chips if row.physical is not None}
