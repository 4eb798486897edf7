"""What outputs of tools say of a node's cards, as the report that the node agent would have written.

Nobody says which command printed a file, so each parser is offered each text, and takes what it knows for sure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api.node_facts import (
    MOST_CARDS,
    MOST_PROBLEMS,
    CardReport,
    DeviceNode,
    HostReport,
    NodeFactsReport,
    ToolReport,
)
from glm5_operator.health.sources.npusmi import parse_info, parse_map
from glm5_operator.health.sources.npusmi.identify import physical_ids
from glm5_operator.health.sources.npusmi.report import card_report
from glm5_operator.health.sources.versions import parse_version_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5_operator.health.doctor.evidence import Text
    from glm5_operator.health.sources.npusmi.readings import InfoTable

COLLECTED: Final = "collected"
"""Stands for the time of facts that were read from files."""

_LISTED: Final = re.compile(
    r"^c([rwxsStT-]{9})[.+@]?\s+\d+\s+(\S+)\s+(\S+)\s+\d+,\s*\d+\s.*?((?:/dev/)?\b(?:davinci\w*|hisi_hdc|devmm_svm))\s*$", re.M
)
_IDS: Final = {"root": "0", "HwHiAiUser": "1000"}
_NAMES: Final = 48
"""Of a word in a listing; longer ones aren't users."""


def facts_of(texts: Iterable[Text]) -> NodeFactsReport | None:
    """Facts from outputs of npu-smi, version files and listings of /dev; None when no text is one of these."""
    texts = tuple(texts)
    tables = [found for text in texts if "npu-smi" in text.text and (found := parse_info(text.text)).chips]
    versions = _versions(texts)
    nodes = [node for text in texts for node in _device_nodes(text.text)]
    if not (tables or versions or nodes):
        return None
    table = tables[-1] if tables else None
    known: dict[str, Any] = {"driver": table.driver if table else None, **versions}
    return NodeFactsReport(
        observed_at=COLLECTED,
        tool=ToolReport(state="Working", version=table.version if table else None),
        cards=_cards(table, texts)[:MOST_CARDS] if table else (),
        product=table.product if table else None,
        problems=tuple(f"npu-smi info: {problem}"[:512] for problem in table.problems[:MOST_PROBLEMS]) or None if table else None,
        host=HostReport(device_nodes=tuple(nodes[:96])) if nodes else None,
        **known,
    )


def _cards(table: InfoTable, texts: tuple[Text, ...]) -> tuple[CardReport, ...]:
    mapping = next((found for text in texts if "Logic" in text.text and (found := parse_map(text.text)).chips), None)
    ids = physical_ids(table, mapping)
    # A chip of which nothing tells the physical id is shown under its NPU id: on a machine that is only looked at, nothing is reset by it.
    cards = {ids.get((row.npu, row.chip), row.npu): row for row in table.chips}
    return tuple(card_report(row, physical, table) for physical, row in sorted(cards.items()))


def _versions(texts: tuple[Text, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name = text.where.rpartition("/")[2]
        key = "cann" if name.endswith(("toolkit_install.info", "version.cfg")) else "driver" if name.endswith("version.info") else None
        if key == "driver" and "firmware" in text.where:
            key = "firmware"
        if key and (version := parse_version_file(text.text).version):
            found[key] = version[:128]
    return found


def _device_nodes(text: str) -> Iterable[DeviceNode]:
    """Lines of `ls -l /dev/davinci*`."""
    for bits, user, group, path in _LISTED.findall(text):
        mode = sum(1 << (8 - place) for place, bit in enumerate(bits) if bit not in "-ST")
        owner = ":".join(_IDS.get(name, name)[:_NAMES] for name in (user, group))
        yield DeviceNode(path=path if path.startswith("/") else f"/dev/{path}", owner=owner, mode=f"{mode:04o}")
