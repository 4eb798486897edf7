"""Which process of a run this one is: nodes, ranks of each, where they meet. From the environment; no torch here.

Read by the command line before anything else is imported. With one rank in all there is no launcher; with several the process that was
started is the launcher (`launcher`), and the ranks that it starts find their number in `GLM5_RANK`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glm5_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

RANK, LAUNCHER, CORES = "GLM5_RANK", "GLM5_LAUNCHER", "GLM5_CORES"
"""What the launcher tells a rank: its number, the launcher's process id, the cores that it is to run on."""
_MOST_NODES, _MOST_RANKS = 1024, 64


@dataclass(frozen=True, slots=True)
class Placement:
    """A process among those of a run."""

    nodes: int = 1
    per_node: int = 1
    node: int = 0
    """Rank of the node."""
    address: str = "127.0.0.1"
    port: int = 0
    """Where ranks meet: the store of node rank 0's launcher. Port 0: any free one, with one node."""
    rank: int | None = None
    """None: not a rank of several."""

    @property
    def size(self) -> int:
        """Ranks of the whole run."""
        return self.nodes * self.per_node

    @property
    def local(self) -> int:
        """The rank's number on its node, which is its card's."""
        return 0 if self.rank is None else self.rank % self.per_node

    @property
    def ranks(self) -> range:
        """Those of this node."""
        return range(self.node * self.per_node, (self.node + 1) * self.per_node)

    def node_of(self, rank: int) -> int:
        """Its node's rank."""
        return rank // self.per_node

    def as_rank(self, rank: int, port: int) -> Placement:
        """A rank of this node. The store of node rank 0 is asked for by its own ranks without a name server."""
        return replace(self, rank=rank, port=port, address="127.0.0.1" if self.node == 0 else self.address)

    def variables(self) -> dict[str, str]:
        """The environment that `placement_of` reads this from."""
        values = {"NNODES": self.nodes, "NPROC_PER_NODE": self.per_node, "NODE_RANK": self.node}
        values |= {} if self.rank is None else {RANK: self.rank, "LOCAL_RANK": self.local, "WORLD_SIZE": self.size}
        return {name: str(value) for name, value in values.items()} | {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}


def placement_of(environ: Mapping[str, str]) -> Placement:
    """Raises ConfigError with every variable that is wrong."""
    faults: list[str] = []

    def number(name: str, default: int, least: int, most: int) -> int:
        text = environ.get(name, "").strip()
        value = int(text) if text.isdecimal() and len(text) < 10 else default
        if text and (not text.isdecimal() or not least <= value <= most):
            faults.append(f"{name}={text!r} is no number from {least} to {most}")
        return value

    nodes, per_node = number("NNODES", 1, 1, _MOST_NODES), number("NPROC_PER_NODE", 1, 1, _MOST_RANKS)
    node = number("NODE_RANK", 0, 0, nodes - 1)
    address, port = environ.get("MASTER_ADDR", "").strip(), number("MASTER_PORT", 0, 0, 65535)
    if nodes > 1 and not (address and port):
        faults.append("NNODES is more than one, and MASTER_ADDR and MASTER_PORT don't say where the ranks meet")
    rank = number(RANK, 0, 0, nodes * per_node - 1) if environ.get(RANK) else None
    if faults:
        raise ConfigError("; ".join(faults))
    return Placement(nodes, per_node, node, address or "127.0.0.1", port, rank)
