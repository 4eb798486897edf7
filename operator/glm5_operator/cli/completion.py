"""Names that the shell completes from the cluster. Called at each press of Tab: quick, silent, and without an error whatever fails."""

from __future__ import annotations

import asyncio
from typing import Final

import typer  # noqa: TC002 - typer reads the annotations when it runs

SECONDS: Final = 2.0
"""A person waits no longer for a list."""


def node_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of AscendNodes that begin so."""
    from glm5_operator.cli import cluster, nodes  # not counted as waiting: a busy machine takes long to import them

    async def listed() -> list[str]:
        async with cluster.connected(ctx.params.get("kubeconfig")) as client:
            return [str(node["metadata"]["name"]) for node in await nodes.list_nodes(client)]

    try:
        found = asyncio.run(asyncio.wait_for(listed(), SECONDS))
    except Exception:  # noqa: BLE001 - a traceback in the middle of a command line helps nobody
        return []
    return [name for name in found if name.startswith(incomplete)]
