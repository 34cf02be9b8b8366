"""Given tensors through a given tree of real accelerators, whatever the links do: what comes out, by rank.

Everything else is drawn and checked as in :mod:`tests.property.hierarchy_world`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.plan.reduction_plan import PlanList, ReductionPlan
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.roce import RocePacket
from tests.property.accelerator_rings import Flow, Operation, RingTraffic, fill_with
from tests.property.hierarchy_world import HierarchyWorld


class TensorWorld(HierarchyWorld):
    def __init__(
        self, seed: int, tree: TreeSwitch, operations: Sequence[Operation], *, weather: float
    ) -> None:
        """``operations`` follow each other on one ring of the tree's ranks."""
        self.operations = operations
        self.taken: list[list[bytes]] = [[] for _ in tree.ranks]
        """By rank: tensor bytes of the packets that it has taken, in order."""
        super().__init__(seed, tree=tree, weather=weather)

    def _fill(self, rng: Random, ring: RingTraffic) -> None:
        fill_with(rng, ring, self.operations)

    def _check(self, flow: Flow, index: int, got: RocePacket) -> None:
        super()._check(flow, index, got)
        if index == flow.expected:
            skip = INA_HEADER_BYTES if flow.packets[index].offset == 0 else 0
            self.taken[flow.receiver].append(got.payload[skip:])

    def results(self) -> list[list[bytes]]:
        """Of every operation, by rank, once the world has run."""
        found: list[list[bytes]] = []
        begin = 0
        streams = [b"".join(payloads) for payloads in self.taken]
        for operation in self.operations:
            end = begin + len(operation.data[0])
            found.append([stream[begin:end] for stream in streams])
            begin = end
        assert {len(stream) for stream in streams} == {begin}
        return found


def tree_of(plan: ReductionPlan, draw: Random, *, partial: float) -> TreeSwitch:
    """A switch that aggregates for each list of ``plan``.

    The higher ``partial``, below 1, the more switches that only steer stand between them; they add nothing.
    """
    names = (f"s{number}" for number in range(1000))

    def children(items: PlanList) -> tuple[TreeSwitch | int, ...]:
        found = [item if isinstance(item, int) else TreeSwitch(next(names), children(item)) for item in items]
        while draw.random() < partial:
            first = draw.randrange(len(found))
            end = draw.randint(first + 1, len(found))
            found[first:end] = [TreeSwitch(next(names), tuple(found[first:end]), aggregates=False)]
        return tuple(found)

    return TreeSwitch(next(names), children(plan.children))
