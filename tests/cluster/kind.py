"""The kind cluster of demo and end-to-end tests: one control-plane node, four workers with fake Ascend cards.

Used by plugin.py, the CLI and the demo. With a Docker engine that can pull kindest/node it is plain kind; else the
engine (engine.py) and the node image (nodeimage.py) are our own. `down` leaves no process, mount, interface or container.
"""

import contextlib
import functools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.cluster import cache, engine, nodeimage
from tests.cluster.archive import write_image
from tests.cluster.devices import NodeDevices
from tests.cluster.engine import Engine
from tests.cluster.errors import ClusterError, CommandFailedError
from tests.cluster.nodes import CARDS, RESOURCE, node_labels
from tests.cluster.shell import run, wait_for
from tests.cluster.tools import tool, tool_key
from tests.cluster.versions import KINDEST_NODE

CONFIG = Path(__file__).parents[2] / "manifests" / "kind.yaml"
_PLUGIN = Path(__file__).parent / "node" / "ascend-fake.yaml"
_CARDS_FOLDER = "/var/lib/glm5-fake-ascend"  # on the node; go/fake/ascend-fake/state.go names it too
SHARED_NODE_PATH = "/var/lib/glm5-shared"
PRODUCTS = ("A2",) * 4


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this host, read-only on every worker node."""

    host: str
    node: str


@dataclass(frozen=True, slots=True)
class KindOptions:
    """What the cluster is made with.

    Attributes:
        mounts: Folders that pods may mount from the workers by hostPath.
        products: A2 or A3 for each worker in turn.
    """

    mounts: tuple[Mount, ...] = ()
    products: tuple[str, ...] = PRODUCTS


@dataclass(frozen=True)
class KindCluster:
    """A running kind cluster. Leaving it as a context manager deletes it."""

    name: str
    engine: Engine
    options: KindOptions = field(default_factory=KindOptions)

    @staticmethod
    def up(name: str = "glm5", options: KindOptions | None = None, say: Callable[[str], None] = lambda _: None) -> "KindCluster":
        """Start the cluster, or return the running one of that name.

        Args:
            name: kind's cluster name.
            options: How to make it.
            say: Told each step as it begins.

        Raises:
            UnavailableError: There is no engine and none can be started here.
            DifferentClusterError: One of that name runs and was made otherwise; it is left as it is.
            ClusterError: A step failed; the message holds the end of its output.
        """
        wanted = options or KindOptions()
        with cache.locked(f"kind-{name}"), engine.in_use():
            found = KindCluster.find(name)
            if found is not None and found.alive:
                require_same(found, wanted)
                return found
            say("find or start a Docker engine")
            docker = engine.require()
            cluster = KindCluster(name, docker, wanted)
            if name in _clusters(docker):
                say(f"delete what is left of cluster {name}")
                cluster._delete()
            say("find the node image")
            image = node_image(docker)
            note_network(docker)
            cluster._create(image, say)
            return cluster

    @staticmethod
    def find(name: str = "glm5") -> "KindCluster | None":
        """The cluster of that name as it was made, alive or not; None when there is none."""
        docker = engine.find()
        try:
            state = json.loads((_folder(name) / "state.json").read_text())
            options = KindOptions(tuple(Mount(**mount) for mount in state["mounts"]), tuple(state["products"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return KindCluster(name, docker, options) if docker is not None else None

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a cluster administrator."""
        return _folder(self.name) / "kubeconfig"

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the worker nodes."""
        return tuple(f"{self.name}-worker{index if index > 1 else ''}" for index in range(1, len(self.options.products) + 1))

    @property
    def alive(self) -> bool:
        """Whether all nodes are Ready."""
        try:
            return self._nodes_ready()
        except CommandFailedError:
            return False

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl on this cluster and return its output."""
        return run(tool("kubectl"), "--kubeconfig", self.kubeconfig, *words, stdin=stdin)

    def kubectl_json(self, *words: str) -> dict[str, Any]:
        """Run kubectl with JSON output and return it decoded."""
        decoded: dict[str, Any] = json.loads(self.kubectl(*words, "--output=json"))
        return decoded

    def cards(self, worker: str) -> Path:
        """The file with that worker's cards: NodeDevices.read, change, write; the node follows within a second."""
        return _folder(self.name) / "nodes" / worker / "node.json"

    @property
    def shared(self) -> Path:
        """The host's side of SHARED_NODE_PATH, which pods on every worker may write; it goes with the cluster."""
        return _folder(self.name) / "shared"

    def load(self, *images: str) -> None:
        """Put images of the engine (by name) or archives (by path, ending in .tar) onto the workers, where pods run."""
        where = ("--name", self.name, "--nodes", ",".join(self.workers))
        archives = [image for image in images if image.endswith(".tar")]
        named = [image for image in images if image not in archives]
        if named:
            self._kind("load", "docker-image", *named, *where)  # in one call: layers that they share travel once
        for archive in archives:
            self._kind("load", "image-archive", archive, *where)

    def down(self) -> bool:
        """`remove` this cluster."""
        return KindCluster.remove(self.name)

    @staticmethod
    def remove(name: str = "glm5") -> bool:
        """Delete what there is of a cluster, whole or half; stop the engine when it is ours and nothing else uses it.

        Returns:
            Whether no engine of ours runs any more; False while another cluster or process uses it.
        """
        with cache.locked(f"kind-{name}"), engine.in_use():
            for docker in engine.every():
                KindCluster(name, docker)._delete()
                if not _clusters(docker):
                    remove_network(docker)
            cache.remove(_folder(name))
        return engine.stop_own()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    def _kind(self, *words: str | Path) -> None:
        run(tool("kind"), *words, env=self.engine.env, log=_log(self.name))

    def _delete(self) -> None:
        with contextlib.suppress(CommandFailedError):  # it may be gone; what pods wrote belongs to them, and only root may remove it
            self.engine.docker("exec", f"{self.name}-worker", "find", SHARED_NODE_PATH, "-mindepth", "1", "-delete")
        self._kind("delete", "cluster", "--name", self.name, "--kubeconfig", self.kubeconfig)
        cache.remove(_folder(self.name))

    def _create(self, image: str, say: Callable[[str], None]) -> None:
        folder = _folder(self.name)
        cache.remove(folder)
        folder.mkdir(mode=0o700, parents=True)
        for worker, product in zip(self.workers, self.options.products, strict=True):
            self.cards(worker).parent.mkdir(parents=True)
            NodeDevices.idle(product).write(self.cards(worker))
        self.shared.mkdir()
        self.shared.chmod(0o777)  # pods run as uid 1000
        config = folder / "kind.yaml"
        config.write_text(yaml.safe_dump(self._config(), sort_keys=False))
        _log(self.name).unlink(missing_ok=True)
        say("create the nodes")
        begin = ("create", "cluster", "--name", self.name, "--image", image, "--config", config)
        self._kind(*begin, "--kubeconfig", self.kubeconfig, "--wait", "180s")
        say("wait for all nodes")
        wait_for("all nodes to be Ready", self._nodes_ready, timeout=120, every=0.5)
        for worker, product in zip(self.workers, self.options.products, strict=True):
            self.kubectl("label", "node", worker, "--overwrite", *(f"{key}={value}" for key, value in node_labels(product).items()))
        say("install the fake Ascend device plugin")
        self.load(str(plugin_image()))
        self.kubectl("apply", "--filename", "-", stdin=_PLUGIN.read_text().replace("IMAGE_TAG", tool_key("ascend-fake")))
        say("wait for system pods and cards")
        wait_for("all system pods to be Ready", self._system_ready, timeout=180, every=0.5)
        wait_for("the cards to be allocatable", self._cards_ready, timeout=60, every=0.5)
        write_state(self, image)  # last: a cluster without it is a half one

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
        workers = [node for node in config["nodes"] if node["role"] == "worker"]
        if len(workers) != len(self.workers):
            raise ClusterError(f"{CONFIG.name} has {len(workers)} workers, but {len(self.workers)} products were given")
        for node, worker in zip(workers, self.workers, strict=True):
            mounts = [{"hostPath": mount.host, "containerPath": mount.node, "readOnly": True} for mount in self.options.mounts]
            # Writable: a reset on the node heals cards. Pods that get cards see the folder read-only (plugin.go).
            mounts.append({"hostPath": str(self.cards(worker).parent), "containerPath": _CARDS_FOLDER, "readOnly": False})
            mounts.append({"hostPath": str(self.shared), "containerPath": SHARED_NODE_PATH, "readOnly": False})
            node["extraMounts"] = [*node.get("extraMounts", []), *mounts]
        return config

    def _nodes_ready(self) -> bool:
        nodes = self.kubectl_json("get", "nodes")["items"]
        return len(nodes) == len(self.workers) + 1 and all(_is(node, "Ready") for node in nodes)

    def _system_ready(self) -> bool:
        pods = self.kubectl_json("get", "pods", "--namespace=kube-system")["items"]
        return all(_is(pod, "Ready") for pod in pods) and any("coredns" in pod["metadata"]["name"] for pod in pods)

    def _cards_ready(self) -> bool:
        nodes = {node["metadata"]["name"]: node["status"]["allocatable"] for node in self.kubectl_json("get", "nodes")["items"]}
        wanted = zip(self.workers, self.options.products, strict=True)
        return all(nodes[worker].get(RESOURCE) == str(CARDS[product]) for worker, product in wanted)


def node_image(docker: Engine) -> str:
    """The node image's name in that engine: kindest/node where it is or can be pulled, else our own, made when missing."""
    own = nodeimage.reference()
    for reference in (own, KINDEST_NODE):
        if docker.has_image(reference):
            return reference
    if can_pull(docker, KINDEST_NODE):
        docker.docker("pull", KINDEST_NODE, log=cache.logs() / "pull-node.log", timeout=1800)
        return KINDEST_NODE
    change = ("--change", 'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]', "--change", "ENV container=docker")
    docker.docker("import", *change, nodeimage.node_image(), own)
    return own


def needs_own_node_image(docker: Engine) -> bool:
    """Whether the node image must be made here and isn't in the engine yet."""
    here = docker.has_image(nodeimage.reference()) or docker.has_image(KINDEST_NODE)
    return not here and not can_pull(docker, KINDEST_NODE)


def can_pull(docker: Engine, reference: str) -> bool:
    """Whether that image's registry can be reached and has it."""
    return no_pull(docker, reference) is None


@functools.cache
def no_pull(docker: Engine, reference: str) -> str | None:
    """Why that image can't be pulled, in the registry's or the network's words; None when it can. Asked once a process."""
    try:
        docker.docker("manifest", "inspect", reference, timeout=20)
    except CommandFailedError as error:
        return " ".join(error.output.split())[-300:] or f"docker manifest inspect ended with {error.code}"
    return None


def plugin_image() -> Path:
    """The fake device plugin's image as an archive."""
    reference = f"ascend-fake:{tool_key('ascend-fake')}"
    files: dict[str, Path | str] = {"/ascend-fake": tool("ascend-fake")}

    def build(draft: Path) -> None:
        draft.mkdir()
        write_image(draft / "image.tar", reference, files, ("/ascend-fake",))

    return cache.artefact("ascend-fake-image", tool_key("ascend-fake"), build) / "image.tar"


class DifferentClusterError(ClusterError):
    """A cluster of that name runs and was made with other options or from other parts."""


def write_state(cluster: KindCluster, image: str) -> None:
    """Write down with which options and from which parts a cluster was made."""
    state = {**asdict(cluster.options), "made_from": {**_sources(), "node image": image}}
    (_folder(cluster.name) / "state.json").write_text(json.dumps(state))


def require_same(found: KindCluster, wanted: KindOptions) -> None:
    """Raise DifferentClusterError unless the running cluster is what would be made now."""
    made = json.loads((_folder(found.name) / "state.json").read_text()).get("made_from", {})
    differing = [part for part, key in _sources().items() if made.get(part) != key]
    if made.get("node image") not in (nodeimage.reference(), KINDEST_NODE):
        differing.append("node image")
    if found.options.mounts != wanted.mounts:
        differing.append("mounts")
    if found.options.products != wanted.products:
        differing.append("products")
    if differing:
        stop = "make demo-down" if found.name == "glm5" else f"python -m tests.cluster kind down --name {found.name}"
        raise DifferentClusterError(
            f"kind cluster {found.name} runs, but was made with other {', other '.join(differing)} than this clone's: "
            f"delete it first with `{stop}`"
        )


def _sources() -> dict[str, str]:
    """What of this clone goes into every cluster, by content."""
    return {CONFIG.name: cache.content_key(CONFIG), "device plugin": cache.content_key(tool_key("ascend-fake"), _PLUGIN)}


def _network_note(docker: Engine) -> Path:
    return cache.runs() / f"network-{cache.content_key(*(f'{docker.socket}', docker.docker('info', '--format', '{{.ID}}')))}"


def _has_network(docker: Engine) -> bool:
    return bool(docker.docker("network", "ls", "--quiet", "--filter", "name=^kind$").strip())


def note_network(docker: Engine) -> None:
    """Remember that kind will make its network there, so that it goes with the last cluster; one that was there stays."""
    if not _has_network(docker):
        _network_note(docker).touch()


def remove_network(docker: Engine) -> None:
    """Remove kind's network if kind made it for us, or if the whole engine is ours."""
    note = _network_note(docker)
    if (docker.own or note.exists()) and _has_network(docker):
        try:
            docker.docker("network", "rm", "kind")
        except CommandFailedError:  # the user's containers are in it by now
            if docker.own:
                raise
    note.unlink(missing_ok=True)


def names() -> list[str]:
    """Every cluster that has a folder."""
    return sorted(folder.name.removeprefix("kind-") for folder in cache.runs().glob("kind-*"))


def _clusters(docker: Engine) -> list[str]:
    return run(tool("kind"), "get", "clusters", env=docker.env).split()


def _folder(name: str) -> Path:
    return cache.runs() / f"kind-{name}"


def _log(name: str) -> Path:
    return cache.logs() / f"kind-{name}.log"


def _is(resource: dict[str, Any], condition: str) -> bool:
    conditions = resource["status"].get("conditions", [])
    return any(item["type"] == condition and item["status"] == "True" for item in conditions)
