"""Rings that share a pool, at one accelerator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inaproto.core.accelerator import AcceleratorConfig
from inaproto.core.accelerator_types import PoolView
from inaproto.core.aggregation_tree import TreeSwitch
from inaproto.core.ring_spec import FlowSpec, PoolSpec
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


def two_trees(tree: TreeSwitch = FIGURE_5) -> tuple[SwitchedTree, SwitchedTree]:
    """Rings 1 and 2 of the same ranks, at the same switches, in one pool of each."""
    ranks = len(tree.ranks)
    known: list[dict[str, Any]] = [
        {"ring_id": number, "key": 0xFEED + number, "flows": flows_of(number, ranks), "pool": POOL}
        for number in (1, 2)
    ]
    one = SwitchedTree(tree, **known[0])
    return one, SwitchedTree(tree, beside=one, **known[1])


def pool_at(tree: SwitchedTree, name: str) -> PoolView:
    return tree.switches[name].view().pools[POOL.name]
