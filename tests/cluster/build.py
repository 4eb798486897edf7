"""What must be made once before a cluster can start, as steps side by side. Used by the CLI and by the demo."""

import os
from collections.abc import Iterable
from enum import StrEnum
from functools import partial

from rich.console import Console
from rich.text import Text

from tests.cluster import cache, engine, images, kind, nodeimage
from tests.cluster.engine import Engine
from tests.cluster.errors import UnavailableError
from tests.cluster.site_packages import site_packages
from tests.cluster.steps import Step, run_steps
from tests.cluster.tools import API_TOOLS, KIND_TOOLS, NODE_TOOLS, missing, tool
from tests.cluster.versions import KINDEST_NODE

_ENGINE = "find or start a Docker engine"


class Cluster(StrEnum):
    """The two kinds of test cluster."""

    API = "api"
    KIND = "kind"


def build(only: Cluster | None, console: Console) -> dict[str, float]:
    """Make everything that is missing for one kind of cluster, or for both; returns seconds by step.

    An engine that had to be started for it is left running for what comes next; `engine.stop_own` stops it.

    Raises:
        UnavailableError: Something can neither be pulled nor be made here; the message says why.
    """
    tools: list[str] = []
    others: list[Step] = []
    seconds: dict[str, float] = {}
    if only is not Cluster.API:
        seconds |= run_steps(_engine_steps(), console)
        docker = engine.require()
        own_node, offline = kind.needs_own_node_image(docker), images.is_offline(docker)
        own_base = offline and not docker.has_image(images.local_base())
        _say_what_is_made_here(docker, {KINDEST_NODE: own_node, images.PYTHON_BASE: own_base}, console)
        if own_node:
            tools += NODE_TOOLS  # first: the node image waits for them and for nothing else
            others += _node_steps(docker)
        if offline:
            others += _offline_steps()
        tools += KIND_TOOLS
    if only is not Cluster.KIND:
        tools += API_TOOLS
    return seconds | run_steps([*_go_steps(tools), *others], console)


def _engine_steps() -> list[Step]:
    """An engine of our own needs Debian packages and one Go program; and asking registries may take a while."""
    own = engine.find() is None and os.geteuid() == 0
    clamp = _go_steps(["runc-clamp"]) if own else []
    return [
        *clamp,
        Step(_ENGINE, engine.require, after=tuple(step.name for step in clamp)),
        Step("look for a node image", lambda: kind.needs_own_node_image(engine.require()), after=(_ENGINE,)),
        Step("look for a Python image", lambda: images.is_offline(engine.require()), after=(_ENGINE,)),
    ]


def _say_what_is_made_here(docker: Engine, made_here: dict[str, bool], console: Console) -> None:
    """Say why an image isn't pulled; without root nothing can be made in its place."""
    for reference in (reference for reference, here in made_here.items() if here):
        why = kind.no_pull(docker, reference)
        if os.geteuid() != 0:
            raise UnavailableError(
                f"{reference} can't be pulled ({why}), and making it here needs root on Debian: mend what the registry complains about "
                f"(`docker pull {reference}` shows it: a login, a proxy, a mirror), or run this as root"
            )
        with (cache.logs() / "registries.log").open("a") as log:
            log.write(f"{reference}: {why}\n")
        console.print(Text(f"{reference} can't be pulled, so it is made here: {why}", style="dim"), soft_wrap=True)


def _go_steps(names: Iterable[str]) -> list[Step]:
    return [Step(_go_step(name), partial(tool, name), lane="go") for name in missing(names)]


def _go_step(name: str) -> str:
    return f"go build {name}"


def _node_steps(docker: Engine) -> list[Step]:
    before = (*map(_go_step, missing(NODE_TOOLS)), "debootstrap of the node")
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
