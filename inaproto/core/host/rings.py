"""Which engine carries the operations of a host, and what links it needs.

The engines: :mod:`inaproto.core.host.engines.in_network`, :mod:`inaproto.core.host.engines.chain`,
:mod:`inaproto.core.host.engines.ring`, :mod:`inaproto.core.host.engines.host_tree`, and two of them at once
(:mod:`inaproto.core.host.engines.two_paths`).
"""

from __future__ import annotations

from inaproto.core.host.config import HostConfig
from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.host_tree import OverlayAction, OverlayEngine
from inaproto.core.host.engines.hosts import HostsAction
from inaproto.core.host.engines.in_network import RingAction, RingEngine
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.engines.two_paths import TwoPaths, TwoPathsAction
from inaproto.core.host.events import ConnectionFailed, ConnectLink, ConnectTree, LinkShape, OpenLinks
from inaproto.core.host.operation_queue import OperationQueue
from inaproto.core.host.operations import BASE, INA, UP, RingConfig
from inaproto.core.host.recovery import Recovery
from inaproto.core.host.ring_words import failure_at, transport_failure
from inaproto.core.plan.accumulators import Accumulators, RotatedAccumulators, accumulators_on, plan_of_text
from inaproto.core.plan.host_tree import OverlayTree, overlay_on
from inaproto.wire.control_messages import Ring, RingPath
from inaproto.wire.ina_header import INA_HEADER_BYTES

Engine = RingEngine | ChainEngine | RingAllReduceEngine | OverlayEngine | TwoPaths
EngineAction = RingAction | HostsAction | TwoPathsAction | OverlayAction


def links_for(config: HostConfig, path: RingPath, plan: str, *, size: int, children: int) -> OpenLinks:
    """Queue pairs and slots for a ring on ``path``, or for both rings of ``shared``.

    ``size``: of the job; ``children``: in an overlay, from how many hosts this one gathers. Raises
    ``LocalMisuse`` if the path cannot be followed.
    """
    slots, message_bytes = 2 * config.window_messages, config.message_bytes
    if path == "overlay":
        tree = overlay_on(plan, len(plan_of_text(plan, size).ranks), 1)
        slot_bytes = tree.slot_bytes(message_bytes - INA_HEADER_BYTES)
        return OpenLinks(LinkShape(config.window_messages, slot_bytes, children))
    if path == "switch":
        return OpenLinks(LinkShape(slots, message_bytes))
    # All hosts take the same size, though one may not know yet how many there are.
    slot_bytes = accumulators_on(path, plan, size).slot_bytes(message_bytes - INA_HEADER_BYTES)
    base = LinkShape(slots, slot_bytes)
    return OpenLinks(base, LinkShape(slots, message_bytes) if path == "shared" else None)


def overlay_of(ring: Ring) -> OverlayTree:
    """The tree of a ring on the path ``overlay``. Raises ``LocalMisuse`` for what is none."""
    return overlay_on(ring.plan, len(ring.peers), ring.in_degree)


def connections_of(ring: Ring, *, has_ina: bool) -> list[ConnectLink | ConnectTree]:
    """Whom the links of this host are to be connected to; none, where it is alone.

    ``has_ina``: it has a link for the ring through the switches. Raises ``LocalMisuse`` for what is no tree.
    """
    orders: list[ConnectLink | ConnectTree] = []
    if ring.path == "overlay":
        is_root = overlay_of(ring).root == ring.position
        return [ConnectTree(None if is_root else ring.successor, ring.below)]
    if len(ring.peers) > 1:
        orders.append(ConnectLink(BASE, ring.successor, ring.predecessor, ring.udp_source_port))
    if has_ina and ring.ina_successor and ring.ina_predecessor:
        orders.append(ConnectLink(INA, ring.ina_successor, ring.ina_predecessor))
    return orders


def why_connection_failed(job: str, ring: Ring, event: ConnectionFailed) -> str:
    """Says in words which connection of this host has failed."""
    if ring.path != "overlay":
        return transport_failure(job, ring, event.completion, at_out=event.at_out)
    tree = overlay_of(ring)
    parent, children = tree.parents[ring.position], tree.children(ring.position)
    peer = ring.position if parent is None else parent
    return failure_at(job, ring, event.completion, peer if event.edge == UP else children[event.edge], "to")


def accumulators_of(ring: Ring) -> Accumulators | None:
    """How hosts add, where they do so along a ring."""
    if ring.path in ("switch", "overlay"):
        return None
    return accumulators_on(ring.path, ring.plan, len(ring.peers))


def make_engine(
    config: RingConfig,
    ring: Ring,
    accumulators: Accumulators | None,
    operations: OperationQueue | None,
    recovery: Recovery,
) -> Engine:
    """Raises ``LocalMisuse`` or ``ValueError`` for a ring that cannot be."""
    if ring.path == "overlay":
        return OverlayEngine(config, overlay_of(ring), operations, recovery)
    if accumulators is None:
        return RingEngine(config, operations, recovery)
    if ring.path == "shared":
        return TwoPaths(config, accumulators, operations=operations, recovery=recovery)
    if isinstance(accumulators, RotatedAccumulators):
        return RingAllReduceEngine(config, accumulators, operations, recovery)
    return ChainEngine(config, accumulators, operations, recovery)
