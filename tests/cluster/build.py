"""What must be made once before a cluster can start, as steps. Used by the CLI and by the demo."""

from enum import StrEnum
from functools import partial

from rich.console import Console

from tests.cluster.steps import Step, run_steps
from tests.cluster.tools import API_TOOLS, KIND_TOOLS, missing, tool


class Cluster(StrEnum):
    """The two kinds of test cluster."""

    API = "api"
    KIND = "kind"


def build(only: Cluster | None, console: Console) -> dict[str, float]:
    """Make everything that is missing for one kind of cluster, or for both; returns seconds by step."""
    steps: list[Step] = []
    if only in (Cluster.API, None):
        steps += go_steps(API_TOOLS)
    if only in (Cluster.KIND, None):
        steps += go_steps(KIND_TOOLS)
    return run_steps(steps, console)


def go_steps(names: tuple[str, ...]) -> list[Step]:
    """One step per Go program that is not built yet."""
    return [Step(f"go build {name}", partial(tool, name), lane="go") for name in missing(names)]
