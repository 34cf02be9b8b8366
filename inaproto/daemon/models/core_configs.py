"""What the models file means for the cores of a shard."""

from __future__ import annotations

from inaproto.core.models.events import NodeConfig, Patience, RootConfig, ShardSpec
from inaproto.core.models.tree.epochs import Stand
from inaproto.core.models.tree.shape import Shape
from inaproto.core.models.tree.trees import OverlayTree
from inaproto.daemon.settings.models_file import PlacedModel, Shard
from inaproto.units import MS
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import NodeId


def pulls_max(model: PlacedModel) -> int:
    """Pulls of a worker that wait at once; as many of its updates may be where its server lacks them."""
    return model.settings.ahead_max or model.settings.staleness + 8


def spec_of(shard: Shard) -> ShardSpec:
    settings = shard.model.settings
    return ShardSpec(
        elements=shard.elements,
        dtype=settings.dtype,
        staleness=settings.staleness,
        fraction_bits=settings.fraction_bits,
        ahead_max=pulls_max(shard.model),
    )


def pushes_max(shard: Shard) -> int:
    """Pushes that a child may have to send at once: all that its log can have, which its parent may lack.

    They wait as parts of the log, and take no memory of their own. Sums of several workers are fewer.
    """
    return len(shard.model.workers) * (spec_of(shard).ahead_max + 1)


def patience_of(shard: Shard) -> Patience:
    """MLNet's heartbeats; dead is who was silent for three of them (docs/protocol.md 18.8)."""
    period = shard.model.settings.heartbeat_ms * MS
    return Patience(heartbeat_ns=period, dead_ns=3 * period, return_ns=3 * period)


def shape_of(shard: Shard, tree: OverlayTree, node: NodeId) -> Shape | None:
    """The order of additions below a node; None where they have none (staleness > 0)."""
    model = shard.model
    if model.settings.staleness > 0:
        return None
    return Shape.of(node, tree.children, lambda of: model.worker(model.process_of(of)))


def stands_of(shard: Shard, node: NodeId) -> tuple[Stand, ...]:
    """Where it is in each of the trees to choose from."""
    return tuple(
        Stand(tree.ancestors(node), tree.children(node), shape_of(shard, tree, node)) for tree in shard.trees
    )


def workers_of(shard: Shard) -> tuple[WorkerId, ...]:
    """All of the model."""
    return tuple(WorkerId(number) for number in range(len(shard.model.workers)))


def node_config(shard: Shard, host: str) -> NodeConfig:
    node, tree = shard.model.node_of(host), shard.tree
    first, *others = stands_of(shard, node)
    return NodeConfig(
        shard=spec_of(shard),
        node=node,
        ancestors=first.ancestors,
        children=first.children,
        worker=shard.model.worker(host),
        patience=patience_of(shard),
        shape=first.shape,
        children_max=max(1024, len(tree.nodes)),
        others=tuple(others),
        workers=workers_of(shard),
        nodes=tree.nodes[1:],
    )


def root_config(shard: Shard) -> RootConfig:
    model, tree = shard.model, shard.tree
    removal_ms = model.settings.removal_ms
    first, *others = stands_of(shard, tree.root)
    return RootConfig(
        shard=spec_of(shard),
        node=tree.root,
        workers=workers_of(shard),
        children=first.children,
        nodes=tree.nodes[1:],
        patience=patience_of(shard),
        teardown_failures=model.settings.teardown_failures,
        removal_ns=removal_ms * MS if removal_ms else None,
        shape=first.shape,
        children_max=max(4096, len(tree.nodes)),
        others=tuple(others),
    )
