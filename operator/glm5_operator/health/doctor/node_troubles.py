"""Troubles that a node's facts show: cards, device nodes, links, host. Called by `diagnose`; each rule is one function."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from glm5_operator.health.doctor.evidence import Diagnosis
from glm5_operator.health.doctor.pod_troubles import stacks
from glm5_operator.plan.compat import Versions, mismatches, of_image, unfit
from glm5_operator.plan.facts import Product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from glm5_operator.api.node_facts import CardReport, NodeFactsReport
    from glm5_operator.health.doctor.evidence import Evidence

STALE_AFTER: Final = timedelta(minutes=15)
"""The agent writes every 10 minutes at the latest."""
HOT: Final = 85
"""°C; 310P cards idle at 78 to 86."""
LEAST_MEMORY: Final = 240_000
"""MiB: a host of 256 GB as its kernel counts, which keeps some for itself."""
LEAST_DISK: Final = 1860
"""GiB of NVMe: 2 TB."""

_MANAGERS: Final = ("davinci_manager", "hisi_hdc", "devmm_svm")
_CPU_NEEDS: Final = {"x86_64": "avx512f", "aarch64": "asimd"}
_DRIVER_OWNER: Final = "1000"
"""Group of HwHiAiUser on nearly all installations."""


def node_troubles(evidence: Evidence) -> Iterator[Diagnosis]:
    """All troubles of the node."""
    yield from _quarantine(evidence)
    if evidence.facts is None:
        if evidence.live:
            yield Diagnosis(
                "NoFacts",
                "no node agent has read this node",
                (f"AscendNode {evidence.node} has no status.facts",),
                "look at its pods: kubectl get pods -A -l app.kubernetes.io/component=node-agent -o wide; the node must be of an NPUPool",
            )
        return
    yield from _stale(evidence)
    yield from _versions(evidence)
    yield from _offered(evidence)
    yield from _memory_held(evidence)
    yield from _devices(evidence)
    for rule in _RULES:
        yield from rule(evidence.facts)


def _quarantine(evidence: Evidence) -> Iterator[Diagnosis]:
    if evidence.remedy is not None and evidence.remedy.state == "Quarantined":
        yield Diagnosis(
            "NodeQuarantined",
            f"{evidence.remedy.reason}: {evidence.remedy.message}".strip(": "),
            (f"status.remedy.state is Quarantined since {evidence.remedy.since}",),
            f"repair it, then take it back with `glm5 node release {evidence.node}`",
        )


def _stale(evidence: Evidence) -> Iterator[Diagnosis]:
    if evidence.age is not None and evidence.age > STALE_AFTER and evidence.facts is not None:
        minutes = int(evidence.age.total_seconds() // 60)
        yield Diagnosis(
            "FactsStale",
            "the node agent doesn't write any more, so nothing is known of the cards now",
            (f"observed at {evidence.facts.observed_at}, {minutes} min ago",),
            "look at the agent's pod on this node and its log; a hung driver hangs the agent's readings, not the agent",
        )


def _versions(evidence: Evidence) -> Iterator[Diagnosis]:
    facts = evidence.facts
    if facts is None:
        return
    found = evidence.versions.over(Versions(driver=facts.driver or "", cann=facts.cann or ""))
    if facts.driver:
        found = Versions(driver=facts.driver).over(found)
    wrong = [(one.sentence, one.source) for one in mismatches(found)]
    for image in stacks(evidence.pods):
        if fault := unfit(of_image(image), facts.driver or ""):
            wrong.append((f"{fault.sentence} in {image}", fault.source))
    if wrong:
        yield Diagnosis(
            "VersionsDoNotFit",
            "driver, CANN, torch_npu and torch aren't of one set",
            tuple(sentence for sentence, _ in wrong),
            "take the versions named; `glm5 compat` has the table",
            "vendor",
            tuple(dict.fromkeys(source for _, source in wrong)),
        )


def _offered(evidence: Evidence) -> Iterator[Diagnosis]:
    facts = evidence.facts
    well = [card for card in facts.cards if card.health == "OK"] if facts else []
    if evidence.offered is None or evidence.offered >= len(well):
        return
    yield Diagnosis(
        "CardsNotOffered",
        "the device plugin isn't running there, or holds cards back" if evidence.offered else "no device plugin offers cards on this node",
        (f"npu-smi shows {len(well)} cards in health OK, the node offers {evidence.offered}",),
        "look at the device plugin's pod and log, and at data ManuallySeparateNPU of ConfigMap mindx-dl-deviceinfo-<node> (kube-system)",
    )


def _memory_held(evidence: Evidence) -> Iterator[Diagnosis]:
    facts = evidence.facts
    if facts is None:
        return
    # Without an answer of kubelet a card without a holder may have one whose processes npu-smi doesn't show.
    held = [
        card
        for card in facts.cards
        if card.pids == () and card.holder is None and facts.allocations_known and (card.memory_used or 0) > evidence.idle_memory
    ]
    if held:
        yield Diagnosis(
            "MemoryHeldByNobody",
            "a process died and left its HBM allocated; the next one starts, and its compilation stops near the end for want of memory",
            tuple(f"{_card(card)}: {card.memory_used} MiB in use, no process, no pod" for card in held),
            "reset the card (spec.health.mode Auto of the pool does), or reboot the node",
        )


def _tool(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    if facts.tool.state == "Working":
        return
    causes = {
        "Hanging": ("the driver or a card hangs", "look at dmesg; reset the node, and reboot it when that hangs too"),
        "Missing": ("npu-smi isn't there", "install the driver, or correct the path of npu-smi that the agent mounts"),
        "Failing": ("npu-smi fails", "run it on the host as root; its own words say why"),
    }
    cause, fix = causes[facts.tool.state]
    yield Diagnosis(f"NpuSmi{facts.tool.state}", cause, (facts.tool.message or f"npu-smi: {facts.tool.state}",), fix)


def _missing(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    if facts.missing:
        yield Diagnosis(
            "CardMissing",
            "a card that was there is gone from the bus",
            tuple(f"card {number} isn't listed any more" for number in facts.missing),
            "look at `lspci | grep -i accelerators` and dmesg on the host; power-cycle it, reseat or replace the card. "
            "Where it was taken out on purpose, remove cards.json on the node (docs/health.md)",
        )


def _health(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    sick = [card for card in facts.cards if card.health not in ("OK", "Unknown")]
    if sick:
        yield Diagnosis(
            "CardFault",
            "npu-smi reports faults of cards",
            tuple(f"{_card(card)}: {card.health}" + (f", codes {', '.join(card.codes)}" if card.codes else "") for card in sick),
            "see status.remedy of the AscendNode for what is being done; docs/health.md says what each grade asks for",
            "vendor",
        )
    if unknown := [card for card in facts.cards if card.health == "Unknown"]:
        yield Diagnosis(
            "CardUnreadable",
            "the state of cards can't be read, which doesn't mean that they are well",
            tuple(f"{_card(card)}: Unknown" for card in unknown),
            "run `npu-smi info -t health -i N -c C` on the host",
        )


def _ecc(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    if bad := [card for card in facts.cards if card.ecc_double]:
        yield Diagnosis(
            "UncorrectableMemory",
            "HBM had errors that can't be corrected; pages are isolated only after a reset",
            tuple(f"{_card(card)}: {card.ecc_double} double-bit errors" for card in bad),
            "reset the node when it is idle; replace the card when 64 rows are isolated (code 80E18402)",
            "vendor",
        )


def _hot(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    if facts.product == Product.ATLAS_310P:
        return
    if hot := [card for card in facts.cards if (card.temperature or 0) > HOT]:
        yield Diagnosis(
            "CardHot",
            f"cards are above {HOT} °C",
            tuple(f"{_card(card)}: {card.temperature} °C" for card in hot),
            "look at fans, air flow and inlet temperature; spec.health.thermal of the pool says when that becomes a fault",
        )


def _outside(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    if facts.allocations_known and (used := [card for card in facts.cards if card.pids and card.holder is None]):
        yield Diagnosis(
            "UsedOutsideKubernetes",
            "processes use cards that kubelet has given to no pod",
            tuple(f"{_card(card)}: pids {', '.join(map(str, card.pids or ()))}" for card in used),
            "end them on the host, or take the node out of the pool; privileged containers see all cards",
        )


def _devices(evidence: Evidence) -> Iterator[Diagnosis]:
    facts = evidence.facts
    nodes = {node.path: node for node in facts.host.device_nodes or ()} if facts and facts.host else {}
    if facts is None or not nodes:
        return
    # Words and order as in `glm5-runtime doctor`, which says the same of a container.
    closed = [node for node in nodes.values() if not _opens(node.owner, node.mode)]
    if closed:
        shown = ", ".join(f"{node.path} (owner {node.owner}, mode {node.mode})" for node in closed[:3]) + (" …" if len(closed) > 3 else "")
        yield Diagnosis(
            "DeviceNodesClosed",
            "cards are online and programs find no device: only root may open the device nodes",
            (f"permission: {shown}",),
            "give them group HwHiAiUser (gid 1000) and mode 0660 with the driver's udev rules, or run as their owner or in their group",
            "vendor",
        )
    wanted = [f"/dev/davinci{card.physical}" for card in facts.cards]
    if evidence.live or len([path for path in nodes if path.endswith(_MANAGERS)]) > 1:  # a listing of /dev/davinci* shows no others
        wanted = [*(f"/dev/{name}" for name in _MANAGERS), *wanted]
    # /dev/davinci_manager_docker and the like stand for the plain one
    absent = [path for path in wanted if path not in nodes and f"{path}_docker" not in nodes]
    if absent:
        yield Diagnosis(
            "DeviceNodesMissing",
            "device nodes of cards that npu-smi lists aren't there",
            (f"device: {', '.join(absent[:4])}{' …' if len(absent) > 4 else ''} not there",),
            "reload the driver, or make them as the driver's installer does",
        )


def _opens(owner: str, mode: str) -> bool:
    """A process of the driver's group, or of root's when the file belongs to root alone, may read and write it."""
    try:
        bits = int(mode, 8)
    except ValueError:
        return True  # nothing is known
    return bits & 0o006 == 0o006 or (bits & 0o060 == 0o060 and owner.partition(":")[2] != "0")


def _network(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    if down := [card for card in facts.cards if card.link == "Down"]:
        yield Diagnosis(
            "LinkDown",
            "RoCE ports of cards are down; collectives over several nodes fail there",
            tuple(f"{_card(card)}: link status DOWN" for card in down),
            "look at cable and optical module (`hccn_tool -i N -optical -g`) and at the switch's port",
        )
    sick = [card for card in facts.cards if card.net_health and card.net_health.casefold() not in {"success", "init", "unknown"}]
    if sick:
        yield Diagnosis(
            "NetworkUnhealthy",
            "a card's network check fails",
            tuple(f"{_card(card)}: net health status: {card.net_health}" for card in sick),
            "look at address, gateway and detect address (`hccn_tool -i N -ip|-gateway|-netdetect -g`)",
        )
    switches = {card.tls for card in facts.cards if card.tls is not None}
    if len(switches) > 1:
        on = [str(card.physical) for card in facts.cards if card.tls]
        yield Diagnosis(
            "TlsDiffers",
            "the TLS switch differs between cards, so HCCL can't connect them (EI0006)",
            (f"on: cards {', '.join(on)}; off: all others",),
            "make them equal: hccn_tool -i N -tls -s enable 0 (or 1) on each",
            "vendor",
        )


def _slow(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    narrow = [card for card in facts.cards if card.pcie and card.pcie_most and card.pcie != card.pcie_most]
    if narrow:
        yield Diagnosis(
            "PcieLinkDegraded",
            "PCIe links of cards are slower than card and slot allow; more cards can then be slower than fewer",
            tuple(f"{_card(card)}: {card.pcie}, can do {card.pcie_most}" for card in narrow),
            "reseat card or riser, check the slot's setting in the firmware; look again under load: idle links may be slowed to save power",
        )
    places = {card.numa for card in facts.cards if card.numa is not None and card.numa >= 0}
    if facts.host and (facts.host.numa_nodes or 1) > 1 and len(facts.cards) > 1 and len(places) == 1:
        yield Diagnosis(
            "CardsOnOneNuma",
            "all cards are on one of several NUMA nodes, and share its memory and lanes",
            (f"{len(facts.cards)} cards on NUMA node {next(iter(places))} of {facts.host.numa_nodes}",),
            "spread the cards over the sockets as the server's manual shows",
        )


def _spread(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    """A pod whose cards are on several NUMA nodes although one could have held them."""
    places = Counter(card.numa for card in facts.cards if card.numa is not None and card.numa >= 0)
    held: dict[str, list[int]] = defaultdict(list)
    for card in facts.cards:
        if card.holder is not None and card.numa is not None and card.numa >= 0:
            held[f"{card.holder.namespace}/{card.holder.pod}"].append(card.numa)
    spread = {pod: numas for pod, numas in held.items() if len(set(numas)) > 1 and len(numas) <= max(places.values())}
    if spread:
        yield Diagnosis(
            "PodAcrossNuma",
            "cards of a pod are on several NUMA nodes; their traffic crosses the sockets, and more cards can be slower than fewer",
            tuple(
                f"pod {pod}: {len(numas)} cards on NUMA nodes {', '.join(map(str, sorted(set(numas))))}" for pod, numas in spread.items()
            ),
            "set kubelet's topologyManagerPolicy to best-effort or single-numa-node, or give the pod a whole node",
        )


def _host(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    host = facts.host
    if host is None:
        return
    if host.memory is not None and host.memory < LEAST_MEMORY:
        yield Diagnosis(
            "HostMemorySmall",
            "the host has less than 256 GB of memory",
            (f"{host.memory} MiB",),
            "add memory; loading GLM-5 and its checkpoints needs it",
        )
    if host.disks is not None and (total := sum(map(_gib, host.disks))) < LEAST_DISK:
        yield Diagnosis(
            "HostDiskSmall", "the host has less than 2 TB of NVMe", (f"{total} GiB: {', '.join(host.disks) or 'none'}",), "add an NVMe disk"
        )
    need = _CPU_NEEDS.get(host.architecture or "")
    if need and host.cpu_flags is not None and need not in host.cpu_flags:
        yield Diagnosis(
            "CpuTooOld",
            f"the processor has no {need}",
            (f"{host.architecture}: {', '.join(host.cpu_flags) or 'none of those looked for'}",),
            "the part of the work that runs on the CPU will be slow; use another host",
        )


def _gib(disk: str) -> int:
    size = disk.rpartition("=")[2]
    return int(size) if size.isascii() and size.isdigit() else 0


def _problems(facts: NodeFactsReport) -> Iterator[Diagnosis]:
    if facts.problems:
        yield Diagnosis(
            "OutputNotUnderstood",
            "outputs of tools have lines that this version can't read; their values are unknown, not zero",
            facts.problems[:3],
            "compare the driver's version with the supported ones (`glm5 compat`), and report the lines",
        )


def _card(card: CardReport) -> str:
    return f"card {card.physical} (NPU {card.npu} chip {card.chip})"


_RULES: Final[tuple[Callable[[NodeFactsReport], Iterable[Diagnosis]], ...]] = (
    _tool,
    _missing,
    _health,
    _ecc,
    _hot,
    _outside,
    _network,
    _slow,
    _spread,
    _host,
    _problems,
)
