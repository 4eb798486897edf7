"""What must be made once before a cluster can start, as steps side by side. Used by the CLI and by the demo."""

from collections.abc import Iterable
from enum import StrEnum
from functools import partial

from rich.console import Console

from tests.cluster import engine, images, kind, nodeimage
from tests.cluster.engine import Engine
from tests.cluster.site_packages import site_packages
from tests.cluster.steps import Step, run_steps
from tests.cluster.tools import API_TOOLS, KIND_TOOLS, NODE_TOOLS, missing, tool


class Cluster(StrEnum):
    """The two kinds of test cluster."""

    API = "api"
    KIND = "kind"


def build(only: Cluster | None, console: Console) -> dict[str, float]:
    """Make everything that is missing for one kind of cluster, or for both; returns seconds by step.

    An engine that had to be started for it is left running for what comes next; `engine.stop_own` stops it.
    """
    tools: list[str] = []
    others: list[Step] = []
    if only is not Cluster.KIND:
        tools += API_TOOLS
    if only is not Cluster.API:
        tools += KIND_TOOLS
        docker = engine.require()
        if kind.needs_own_node_image(docker):
            tools += NODE_TOOLS
            others += _node_steps(docker, tools)
        if images.is_offline(docker):
            others += _offline_steps()
    return run_steps([*_go_steps(tools), *others], console)


def _go_steps(names: Iterable[str]) -> list[Step]:
    return [Step(_go_step(name), partial(tool, name), lane="go") for name in missing(names)]


def _go_step(name: str) -> str:
    return f"go build {name}"


def _node_steps(docker: Engine, tools: Iterable[str]) -> list[Step]:
    before = (*map(_go_step, missing(tools)), "debootstrap of the node")
    return [
        Step("debootstrap of the node", nodeimage.base_tree, lane="debian"),
        Step("node image", nodeimage.node_image, after=before),
        Step("node image into the engine", partial(kind.node_image, docker), after=("node image",)),
    ]


def _offline_steps() -> list[Step]:
    return [
        Step("debootstrap of the Python base", images.base_tree, lane="debian"),
        Step("wheels of the operator", images.wheelhouse, lane="python"),
        Step("Python packages of the runtime", site_packages, lane="python"),
    ]
