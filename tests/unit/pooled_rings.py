"""Rings that share a pool, at one accelerator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.accelerator import AcceleratorConfig
from inaproto.core.switch.events import PoolView
from inaproto.core.switch.ring_spec import FlowSpec
from inaproto.wire.messages.switch import PoolSpec
from tests.unit.switched_ring import SwitchedRing, ring_of
from tests.unit.switched_tree import FIGURE_5, SwitchedTree

POOL = PoolSpec("shared")


def flows_of(number: int, ranks: int) -> tuple[FlowSpec, ...]:
    """On the same hosts as those of other numbers, by other queue pairs."""
    return tuple(replace(flow, dst_qp=flow.dst_qp + 0x40 * number) for flow in ring_of(ranks).flows)


def pooled_ring(number: int, ranks: int = 3, *, pool: PoolSpec = POOL, **changes: Any) -> SwitchedRing:
    """Ring ``number`` of a pool; ``beside`` says at which accelerator, ``epoch`` is not used."""
    return SwitchedRing(
        ranks,
        ring_id=number,
        key=0xFEED + number,
        flows=flows_of(number, ranks),
        pool=pool,
        **changes,
    )


def two_rings(
    *, config: AcceleratorConfig | None = None, **changes: Any
) -> tuple[SwitchedRing, SwitchedRing]:
    one = pooled_ring(1, config=config, **changes)
    return one, pooled_ring(2, beside=one, **changes)


def pool_of(ring: SwitchedRing) -> PoolView:
    return ring.accelerator.view().pools[POOL.name]


def pooled_tree(number: int, tree: TreeSwitch, beside: SwitchedTree | None = None) -> SwitchedTree:
    """Ring ``number`` of a pool, of all ranks of the tree."""
    flows = flows_of(number, len(tree.ranks))
    return SwitchedTree(tree, beside=beside, ring_id=number, key=0xFEED + number, flows=flows, pool=POOL)


def two_trees(tree: TreeSwitch = FIGURE_5) -> tuple[SwitchedTree, SwitchedTree]:
    one = pooled_tree(1, tree)
    return one, pooled_tree(2, tree, one)


def pool_at(tree: SwitchedTree, name: str) -> PoolView:
    return tree.switches[name].view().pools[POOL.name]
