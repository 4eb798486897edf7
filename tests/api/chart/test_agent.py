"""The node agent as the chart installs it, with a token that kubelet would give its pod: it writes its own AscendNode and nothing else.

Real: helm, API server, RBAC, the chart's admission policy, bound service account tokens, the DaemonSet controller, the agent as a process,
kubelet's PodResources protocol. Faked: nodes and kubelets (KWOK), and what npu-smi prints.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from glm5_operator.kube import rights
from tests.api.chart.conftest import SYSTEM, Release, granted_by, used_by
from tests.cluster.api import ApiCluster
from tests.cluster.shell import wait_for
from tests.cluster.tools import tool
from tests.support.chart import Chart
from tests.support.pod_resources import PodResources, pod, serving
from tests.support.vendor_tools import ToolFolder, text

pytestmark = pytest.mark.api

ACCOUNT = "glm5-glm5-operator-agent"
NODES = "/apis/glm5.dev/v1alpha1/ascendnodes"
PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
IDLE = "info_910b2c_16card_loaded_24.1.rc1.txt"
APPLY = {"content-type": "application/apply-patch+yaml"}
FACTS: dict[str, Any] = {"observedAt": "2026-11-30T12:00:00Z", "tool": {"state": "Working"}}
REMEDY: dict[str, Any] = {"state": "Healthy", "since": "2026-11-30T12:00:00Z", "reason": "AllWell"}
MOVE: dict[str, Any] = {
    "origin": "a",
    "target": "b",
    "state": "Verifying",
    "since": "2026-11-30T12:00:00Z",
    "started": "2026-11-30T12:00:00Z",
}


@dataclass(frozen=True)
class Site:
    """The release with two nodes of a pool, and the agents' pods that its DaemonSet made."""

    release: Release
    nodes: tuple[str, str]
    pods: dict[str, dict[str, Any]]

    @property
    def http(self) -> httpx.Client:
        return self.release.cluster.http

    def token(self, node: str | None) -> str:
        """As kubelet asks for it: bound to the agent's pod on that node; without a node as anybody with the right to ask would."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if node is not None:
            metadata = self.pods[node]["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.http.post(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{ACCOUNT}/token", json=body).raise_for_status()
        return str(answer.json()["status"]["token"])

    def apply(self, token: str, node: str, status: dict[str, Any], path: str = "/status", *, dry_run: bool = False) -> httpx.Response:
        """An apply as that token's bearer."""
        body = {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": node}, "status": status}
        wanted = {"fieldManager": "glm5-agent", "force": "true", **({"dryRun": "All"} if dry_run else {})}
        with self.bearer(token) as client:
            return client.patch(f"{NODES}/{node}{path}", params=wanted, json=body, headers=APPLY)

    def bearer(self, token: str) -> httpx.Client:
        trust = ssl.create_default_context(cafile=str(self.release.cluster.folder / "pki/ca.crt"))
        headers = {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.release.cluster.server, verify=trust, headers=headers, trust_env=False)

    def status(self, node: str) -> dict[str, Any]:
        return dict(self.release.get(f"{NODES}/{node}").get("status") or {})


@pytest.fixture(scope="module")
def site(chart_cluster: ApiCluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    release = Release(chart_cluster, Chart(tool("helm"), tmp_path_factory.mktemp("chart")))
    release.install()
    first, second = chart_cluster.add_nodes(2, prefix="npu", labels={"glm5.dev/pool": "cards"})
    for node in (first, second):
        body = {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": node}, "spec": {}}
        chart_cluster.http.post(NODES, json=body).raise_for_status()

    def agents() -> dict[str, dict[str, Any]] | None:
        selector = {"labelSelector": "app.kubernetes.io/component=node-agent"}
        items = chart_cluster.http.get(PODS, params=selector).raise_for_status().json()["items"]
        found = {item["spec"]["nodeName"]: item for item in items if "nodeName" in item["spec"]}
        return found if found.keys() == {first, second} else None

    made = Site(release, (first, second), wait_for("an agent on each node of a pool", agents, timeout=60))
    token = made.token(first)
    # The API server takes a policy into force some time after it was made; nothing is written by a dry run.
    wait_for("the policy to be in force", lambda: made.apply(token, second, {"facts": FACTS}, dry_run=True).status_code == 403, timeout=60)
    return made


# --- the policy -------------------------------------------------------------------------------------------------------------


def test_an_agent_writes_facts_of_its_own_node(site: Site) -> None:
    own, _ = site.nodes

    answer = site.apply(site.token(own), own, {"facts": FACTS})

    assert answer.status_code == 200, answer.text
    assert site.status(own)["facts"]["tool"] == {"state": "Working"}


def test_an_agent_may_not_write_another_node(site: Site) -> None:
    own, other = site.nodes
    before = site.status(other)

    answer = site.apply(site.token(own), other, {"facts": FACTS})

    assert answer.status_code == 403
    assert f"the node agent of {own} may write its own AscendNode only, not {other}" in answer.json()["message"]
    assert site.status(other) == before


def test_a_token_that_names_no_node_writes_nothing(site: Site) -> None:
    own, _ = site.nodes

    answer = site.apply(site.token(None), own, {"facts": FACTS})

    assert answer.status_code == 403
    assert "names no node" in answer.json()["message"]


@pytest.mark.parametrize(
    "part",
    [
        {"remedy": REMEDY},
        {"move": MOVE},
        {"conditions": [{"type": "Quarantined", "status": "False", "reason": "No", "lastTransitionTime": "2026-11-30T12:00:00Z"}]},
    ],
    ids=["remedy", "move", "conditions"],
)
def test_an_agent_may_not_write_the_operators_part(site: Site, part: dict[str, Any]) -> None:
    own, _ = site.nodes

    answer = site.apply(site.token(own), own, {"facts": FACTS, **part})

    assert answer.status_code == 403
    assert "status.facts and status.resets, nothing else" in answer.json()["message"]


def test_an_agent_may_not_take_the_operators_part_away(site: Site) -> None:
    own, _ = site.nodes
    body = {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": own}, "status": {"move": MOVE}}
    operators = {"fieldManager": "glm5-operator"}
    site.http.patch(f"{NODES}/{own}/status", params=operators, json=body, headers=APPLY).raise_for_status()

    with site.bearer(site.token(own)) as client:
        merge = {"content-type": "application/merge-patch+json"}
        answer = client.patch(f"{NODES}/{own}/status", json={"status": {"move": None}}, headers=merge)

    assert answer.status_code == 403, answer.text
    assert site.status(own)["move"] == MOVE
    site.http.patch(f"{NODES}/{own}/status", params=operators, json={**body, "status": {}}, headers=APPLY).raise_for_status()


def test_what_the_operator_wrote_stays_when_the_agent_writes(site: Site) -> None:
    own, _ = site.nodes
    body = {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": own}, "status": {"remedy": REMEDY}}
    site.http.patch(f"{NODES}/{own}/status", params={"fieldManager": "glm5-operator"}, json=body, headers=APPLY).raise_for_status()

    answer = site.apply(site.token(own), own, {"facts": {**FACTS, "driver": "25.5.0"}})

    assert answer.status_code == 200, answer.text
    assert (site.status(own)["remedy"], site.status(own)["facts"]["driver"]) == (REMEDY, "25.5.0")


def test_an_agent_may_not_write_spec_make_or_remove_the_object_nor_list_all(site: Site) -> None:
    own, _ = site.nodes
    body = {"apiVersion": "glm5.dev/v1alpha1", "kind": "AscendNode", "metadata": {"name": own}, "spec": {}}

    assert site.apply(site.token(own), own, {}, path="").status_code == 403
    with site.bearer(site.token(own)) as client:
        assert client.post(NODES, json=body).status_code == 403
        assert client.delete(f"{NODES}/{own}").status_code == 403
        assert client.get(NODES).status_code == 403
        assert client.get(f"/api/v1/nodes/{own}").status_code == 403


# --- the agent itself -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningAgent:
    """A `glm5_operator.agent` process, its tools and its kubelet."""

    process: subprocess.Popen[bytes]
    log: Path
    tools: ToolFolder
    kubelet: PodResources

    def address(self) -> str:
        def told() -> str:
            return self.log.read_text().partition("probes at ")[2].partition("\n")[0]

        host, port = wait_for("the agent's probes", told, timeout=30).strip("()").split(", ")
        return f"http://{host.strip(chr(39))}:{port}"


StartAgent = Callable[[str], RunningAgent]


@pytest.fixture
def start_agent(site: Site, tmp_path: Path) -> Iterator[StartAgent]:
    """Start the agent of a node as its pod would, but for the host's root."""
    running: list[subprocess.Popen[bytes]] = []
    with serving() as kubelet:

        def start(node: str) -> RunningAgent:
            tools = ToolFolder.at(tmp_path / "tools")
            tools.answer("npu-smi info", text(IDLE))
            socket = tmp_path / "kubelet/pod-resources"
            socket.mkdir(parents=True)
            (socket / "kubelet.sock").symlink_to(kubelet.socket)
            (tmp_path / "token").write_text(site.token(node))
            authority = yaml.safe_load(site.release.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
            environ = {
                "NODE_NAME": node,
                "NODE_ROOT": "/",
                "NODE_STATE": str(tmp_path / "state"),
                "NODE_KUBELET": str(tmp_path / "kubelet"),
                "TOOL_PATH": tools.tool.path,
                "EVERY_POLL": "0.3",
                "EVERY_FULL": "0.3",
                "API_URL": authority["server"],
                "API_TOKEN": str(tmp_path / "token"),
                "API_AUTHORITY": str(site.release.cluster.folder / "pki/ca.crt"),
                "PROBE_HOST": "127.0.0.1",
                "PROBE_PORT": "0",
            }
            clean = {name: value for name, value in os.environ.items() if not name.startswith(("GLM5_", "KUBE"))}
            log = tmp_path / "agent.log"
            with log.open("wb") as sink:
                process = subprocess.Popen(
                    [sys.executable, "-m", "glm5_operator.agent"],
                    stdout=sink,
                    stderr=sink,
                    env=clean | {f"GLM5_AGENT_{name}": value for name, value in environ.items()},
                )
            running.append(process)
            return RunningAgent(process, log, tools, kubelet)

        yield start
        for process in running:
            process.kill()
            process.wait()


def test_a_node_is_read_written_and_kept_up_to_date_with_the_rights_of_the_chart(site: Site, start_agent: StartAgent) -> None:
    node, _ = site.nodes
    agent = start_agent(node)

    def facts() -> dict[str, Any]:
        return dict(site.status(node).get("facts") or {})

    def card(physical: int) -> dict[str, Any]:
        return next((dict(item) for item in facts().get("cards", ()) if item["physical"] == physical), {})

    wait_for("all cards", lambda: len(facts().get("cards", ())) == 16, timeout=30)
    assert (facts()["tool"]["state"], facts()["product"], facts()["allocationsKnown"]) == ("Working", "A2", True)
    assert "holder" not in card(3)

    agent.kubelet.say([pod("chat-0", "Ascend910-3")])
    wait_for(
        "the holder of card 3", lambda: card(3).get("holder") == {"namespace": "team-a", "pod": "chat-0", "container": "engine"}, timeout=30
    )

    agent.tools.answer(
        "npu-smi info -t health -i 3 -c 0", "\tHealth Status                  : Alarm\n\tError Code                     : 80E18404\n"
    )
    agent.tools.answer("npu-smi info", text(IDLE).replace("| 3     910B2C              | OK ", "| 3     910B2C              | Alarm "))
    wait_for("the fault of card 3", lambda: (card(3).get("health"), card(3).get("codes")) == ("Alarm", ["80E18404"]), timeout=30)

    metrics = httpx.get(f"{agent.address()}/metrics", trust_env=False).text
    assert f'glm5_card_health{{card="3",node="{node}"}} 0.0' in metrics.splitlines()

    agent.tools.answer("npu-smi info", text("err_dcmi_8005_no_device_access.txt"), code=255)
    wait_for("the tool's failure", lambda: facts()["tool"]["state"] == "Failing", timeout=30)
    assert "-8005" in facts()["tool"]["message"]
    assert httpx.get(f"{agent.address()}/readyz", trust_env=False).status_code == 200

    assert used_by(ACCOUNT, site.release.cluster) >= granted_by(rights.AGENT)


def test_a_reset_that_is_asked_for_is_answered_and_the_agent_ends_when_told_to(site: Site, start_agent: StartAgent) -> None:
    node, _ = site.nodes
    agent = start_agent(node)
    request = {"id": "late-1", "radius": "Node", "cards": [0], "deadline": "2020-01-01T00:00:00Z"}
    merge = {"content-type": "application/merge-patch+json"}
    site.http.patch(f"{NODES}/{node}", json={"spec": {"reset": request}}, headers=merge).raise_for_status()

    def answered() -> dict[str, Any] | None:
        return next((dict(item) for item in site.status(node).get("resets", ()) if item["id"] == "late-1"), None)

    report = wait_for("the answer to the reset", answered, timeout=30)

    assert (report["state"], report["reason"]) == ("Refused", "TooLate")
    agent.process.terminate()
    assert agent.process.wait(20) == 0
