"""The node agent's settings: environment variables `GLM5_AGENT_<GROUP>_<FIELD>`, read once at start and passed as arguments.

Called by `__main__`; hack/generate.py writes them into docs/settings.md. Decoding is the operator's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from glm5_operator.settings import SettingsError, decode, group_tables, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "GLM5_AGENT_"


@dataclass(frozen=True, slots=True)
class Node:
    """Which node this is, and where its files are."""

    name: str = setting("", "Name of the node, which is the name of its AscendNode; must be given.", "The chart takes it from the pod.")
    root: str = setting(
        "/host",
        "Where the host's root is mounted; npu-smi and hccn_tool run with it as their root. `/` is the own root.",
        "The vendor's tool then finds its libraries, its devices and the host's processes as it would without a container.",
    )
    state: str = setting(
        "/var/lib/glm5-agent",
        "Folder that outlives the agent: cards seen so far, resets begun.",
        "A restarted agent must know what it had begun.",
    )
    kubelet: str = setting("/var/lib/kubelet", "The kubelet's folder on the host, for its pod-resources socket.", "The kubelet's default.")
    resources: tuple[str, ...] = setting(
        (),
        "Extended resources that count cards beside all of huawei.com/, separated by commas.",
        "Device plugins can be built with names of the site's own; the chart gives `admission.resources`.",
    )


@dataclass(frozen=True, slots=True)
class Tool:
    """The vendor's tools."""

    path: str = setting(
        "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin:/usr/local/Ascend/driver/tools",
        "Folders of the host in which npu-smi and hccn_tool are looked for.",
        "Drivers put them in one or the other.",
    )
    libraries: str = setting(
        "/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64/common:/usr/local/Ascend/driver/lib64/driver:/usr/local/dcmi",
        "LD_LIBRARY_PATH of the tools.",
        "Where the driver installs its libraries.",
    )
    table_timeout: float = setting(
        15.0, "Longest time for `npu-smi info`.", "It takes 1 to 3 s on a busy node of 16 dies.", unit="s", low=0.1, high=120
    )
    call_timeout: float = setting(5.0, "Longest time for a question about one card.", "It takes well under a second.", unit="s", low=0.1)


@dataclass(frozen=True, slots=True)
class Every:
    """How often what is read and written."""

    poll: float = setting(
        2.0,
        "`npu-smi info`: health, temperature, memory and processes of all cards. Between two calls lies at least a call's time, or 5 s.",
        "A sick card is to be out of traffic within 5 s.",
        unit="s",
        low=0.2,
        high=60,
    )
    full: float = setting(
        10.0, "Who holds which card, and fault codes of cards that aren't well.", "kubelet limits how often it answers.", unit="s", low=0.2
    )
    link: float = setting(
        30.0, "State of each card's RoCE port.", "One call a card; MindCluster waits 30 s for a link, too.", unit="s", low=1
    )
    network: float = setting(60.0, "Network health of each card.", "The card's own check sends a packet each few seconds.", unit="s", low=1)
    rare: float = setting(
        600.0, "ECC counters, addresses, TLS, versions, HCCS and the host.", "They change with a repair or an upgrade.", unit="s", low=1
    )
    heartbeat: float = setting(
        600.0,
        "The report is written anew after this, changed or not.",
        "2,000 nodes then write 3.3 times a second; whether an agent lives shows in its pod.",
        unit="s",
        low=1,
    )
    remedy: float = setting(
        10.0,
        "As heartbeat, while a remedy or a move has the node out of service.",
        "They wait for memory and links as well; `nodesInRemedy` of the pools bounds how many nodes that are at once.",
        unit="s",
        low=1,
    )
    numbers: float = setting(
        60.0,
        "Least time between two writes that only numbers made necessary.",
        "Health, codes, holders and links are written at once.",
        unit="s",
        low=0,
    )


@dataclass(frozen=True, slots=True)
class Worth:
    """What makes numbers worth a write before the next heartbeat."""

    hot: int = setting(
        80,
        "From here on a card counts as hot: its numbers are written each `every.numbers`, whether they moved or not.",
        "Rules on heat begin at 85 °C by default; with one card in twenty hot 2,000 nodes write 5 times a second.",
        unit="°C",
        low=1,
    )
    hot_310p: int = setting(90, "The same for cards of 310P.", "They idle at 78 to 86 °C.", unit="°C", low=1)
    memory: int = setting(4096, "Change of HBM in use.", "A model that comes or goes.", unit="MiB", low=1)


@dataclass(frozen=True, slots=True)
class Api:
    """How the API server is talked to."""

    url: str = setting("", "Its address; empty takes the pod's KUBERNETES_SERVICE_HOST and _PORT.", "Set for processes outside a pod.")
    token: str = setting(
        "/var/run/secrets/kubernetes.io/serviceaccount/token", "File with the token; read for each request.", "kubelet renews it each hour."
    )
    authority: str = setting(
        "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "File with the certificate authority.", "Of the service account."
    )
    timeout: float = setting(10.0, "Whole time of one request.", "A dead connection is replaced after this.", unit="s", low=0.1, high=300)


@dataclass(frozen=True, slots=True)
class Probe:
    """The HTTP port for kubelet's probes and for metrics."""

    host: str = setting("0.0.0.0", "Address to listen on.", "Probes and scrapes come from outside the pod.")  # noqa: S104 - the reason stands beside it
    port: int = setting(8081, "Port of /healthz, /readyz and /metrics; 0 takes a free one and logs it.", "Above 1024.", low=0, high=65535)
    stale: float = setting(
        60.0,
        "/readyz fails when nothing was read, or a change couldn't be written, for this long; /healthz after five times this.",
        "The operator believes an agent's report only as long as its pod is ready.",
        unit="s",
        low=1,
    )


@dataclass(frozen=True, slots=True)
class Log:
    """Logging."""

    level: str = setting("info", "debug, info, warning or error.", "Debug logs every call of a tool.")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All groups."""

    node: Node = field(default_factory=Node)
    tool: Tool = field(default_factory=Tool)
    every: Every = field(default_factory=Every)
    worth: Worth = field(default_factory=Worth)
    api: Api = field(default_factory=Api)
    probe: Probe = field(default_factory=Probe)
    log: Log = field(default_factory=Log)


def load(environ: Mapping[str, str]) -> AgentSettings:
    """Decode the environment.

    Raises:
        SettingsError: with every fault, not only the first.
    """
    settings, faults = decode(AgentSettings, PREFIX, environ)
    if not settings.node.name:
        faults.append(f"{PREFIX}NODE_NAME: must name the node")
    if faults:
        raise SettingsError(faults)
    return settings


def docs_table() -> str:
    """The agent's part of docs/settings.md."""
    lines = [
        "",
        "# Settings of the node agent",
        "",
        "Of operator/glm5_operator/agent/settings.py; `agent.extraEnv` of the chart sets them. The rules above hold for them too.",
        *group_tables(AgentSettings, PREFIX),
    ]
    return "\n".join(lines) + "\n"
