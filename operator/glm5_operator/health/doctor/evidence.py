"""What doctor looks at, and what it says: frozen values between those who gather (the command line) and those who judge (`diagnose`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glm5_operator.plan.compat import Versions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from glm5_operator.api.common import Condition
    from glm5_operator.api.node import RemedyReport
    from glm5_operator.api.node_facts import NodeFactsReport
    from glm5_operator.health.doctor.pains import Certain

IDLE_MEMORY = 6144
"""MiB of HBM in use up to which a card without processes counts as idle; the default of spec.health.idleMemory of a pool."""


@dataclass(frozen=True, slots=True)
class Text:
    """A log, an event, a tool's output; `where` names the file, or the pod and container."""

    where: str
    text: str


@dataclass(frozen=True)
class Evidence:
    """All that is known of one node.

    Attributes:
        node: its name; empty for a folder that names none.
        facts: the node agent's report, or what was read from collected outputs.
        remedy: the operator's report.
        age: since the agent wrote the facts; None of collected files, which are as old as they are.
        conditions: of the AscendNode, written by the operator.
        labels: of the Node.
        annotations: of the Node.
        maps: MindCluster's ConfigMaps of the node, as the API server sends them; ClusterD's may have other nodes' parts too.
        offered: cards that the device plugin offers; None when nothing says.
        pods: pods on the node, as the API server sends them.
        texts: logs, events, outputs of tools.
        versions: of the stack in the container, from the runtime's own doctor or from version files.
        lacking: what the runtime's own doctor says an NPU lacks, in its words.
        live: read from a cluster just now, so what is absent there is absent.
        idle_memory: MiB.
    """

    node: str = ""
    facts: NodeFactsReport | None = None
    remedy: RemedyReport | None = None
    age: timedelta | None = None
    conditions: tuple[Condition, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    maps: tuple[Mapping[str, Any], ...] = ()
    offered: int | None = None
    pods: tuple[Mapping[str, Any], ...] = ()
    texts: tuple[Text, ...] = ()
    versions: Versions = field(default_factory=Versions)
    lacking: tuple[str, ...] = ()
    live: bool = False
    idle_memory: int = IDLE_MEMORY


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One trouble.

    Attributes:
        name: stable CamelCase word.
        cause: why it happens.
        evidence: what shows it, each with where it was seen.
        fix: what to do.
        certain: who says that the fix helps.
        links: where it is told.
    """

    name: str
    cause: str
    evidence: tuple[str, ...]
    fix: str
    certain: Certain = "advice"
    links: tuple[str, ...] = ()
