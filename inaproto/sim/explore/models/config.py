"""Size, faults and tree of an explored overlay; see :mod:`inaproto.sim.explore.models.world`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from inaproto.core.models.events import NodeConfig, Patience, RootConfig, ShardSpec
from inaproto.core.models.node import ShardNode
from inaproto.core.models.shard import ShardRoot
from inaproto.core.models.tree.trees import OverlayTree
from inaproto.errors import ConfigError
from inaproto.units import Instant
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import NodeId

ROOT: Final = NodeId(9)
RANGES: Final = {
    "clocks": (1, 3),
    "staleness": (0, 2),
    "pulls": (1, 2),
    "crashes": (0, 2),
    "resets": (0, 2),
    "abandons": (0, 2),
    "failures": (1, 3),
}
TREES: Final = {
    "flat": ((ROOT, (NodeId(0), NodeId(1), NodeId(2))),),
    "interior": ((NodeId(0), (NodeId(1), NodeId(2))), (ROOT, (NodeId(0),))),
    "chain": ((NodeId(0), (NodeId(1),)), (NodeId(1), (NodeId(2),)), (ROOT, (NodeId(0),))),
    "pair": ((NodeId(0), (NodeId(1),)), (ROOT, (NodeId(0),))),
    "two": ((ROOT, (NodeId(0), NodeId(1))),),
}
STRUCK: Final = ("any", "ends", "nodes")
NOW: Final = Instant(0)
WAIT_NS: Final = 1
"""Length of each kind of wait: none ends by itself, for clocks stand still; see ``overlay_waits``."""
_PATIENCE: Final = Patience(heartbeat_ns=None, dead_ns=WAIT_NS, return_ns=WAIT_NS, start_ns=0)


@dataclass(frozen=True)
class OverlayWorldConfig:
    tree: str = "flat"
    clocks: int = 1
    """Updates of each worker, of which there is one on each node."""
    staleness: int = 0
    pulls: int = 1
    """Pulls of a worker that may wait at once: with 2 it goes on to its next update while one waits."""
    crashes: int = 1
    """Crashes of the server or of a node, as ``struck`` says."""
    struck: str = "any"
    """Or ``ends``: no fault strikes a node that has children; or ``nodes``: none strikes the server."""
    resets: int = 0
    """Connections that break under nodes that live."""
    abandons: int = 0
    """Workers' processes that end, and others that go on in their places."""
    failures: int = 2
    """Nodes dead at once that tear the tree down."""
    reduced: bool = True
    """Leaves out orders and states that nobody can tell apart; see ``overlay_reductions``."""
    node: Callable[[NodeConfig], ShardNode] = field(
        default=lambda config: ShardNode(config, NOW), compare=False
    )
    root: Callable[..., ShardRoot] = field(
        default=lambda config, snapshot: ShardRoot(config, snapshot, (), NOW), compare=False
    )

    def __post_init__(self) -> None:
        if self.tree not in TREES:
            raise ConfigError(f"tree {self.tree!r} does not exist; there are {', '.join(TREES)}")
        if self.struck not in STRUCK:
            raise ConfigError(f"struck must be one of {', '.join(STRUCK)}, not {self.struck!r}")
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} must be {least} to {most}, not {value}")

        if self.clocks % (self.staleness + 1):
            raise ConfigError(
                "clocks must be a multiple of staleness + 1: nodes withhold what comes after one"
            )

    @property
    def counts_gone(self) -> bool:
        """Whether it makes a difference that the server takes workers for gone: these are of nodes that are
        down, and tear the tree down if they are enough."""
        return not self.reduced or self.failures <= self.crashes

    @cached_property
    def shape(self) -> OverlayTree:
        return OverlayTree(ROOT, TREES[self.tree])

    @cached_property
    def nodes(self) -> tuple[NodeId, ...]:
        """Below the root; node ``n`` has worker ``n``."""
        return tuple(sorted(node for node in self.shape.nodes if node != ROOT))

    @cached_property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(WorkerId(node) for node in self.nodes)

    @cached_property
    def shard(self) -> ShardSpec:
        """An element for each update."""
        return ShardSpec(
            elements=len(self.nodes) * self.clocks,
            dtype="int64",
            staleness=self.staleness,
            ahead_max=max(2, self.staleness + 1),
        )

    def element(self, node: int, clock: int) -> int:
        """Element of update ``clock`` of the node's worker."""
        return self.nodes.index(NodeId(node)) * self.clocks + clock - 1

    def node_config(self, node: NodeId) -> NodeConfig:
        return NodeConfig(
            self.shard,
            node,
            self.shape.ancestors(node),
            self.shape.children(node),
            WorkerId(node),
            _PATIENCE,
            workers=self.workers,
            nodes=self.nodes,
        )

    @cached_property
    def root_config(self) -> RootConfig:
        return RootConfig(
            self.shard, ROOT, self.workers, self.shape.children(ROOT), self.nodes, _PATIENCE, self.failures
        )
