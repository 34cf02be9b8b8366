"""Slots are never shared: no two rings, and no two messages of one ring, have the same memory."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.core.switch.events import RingState
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World


class SlotsApart(Checker):
    """Looks at the memory itself: result rows and payload buffers of all regions, pairwise."""

    name = "slots never shared"

    def begin(self, world: World) -> None:
        self._tenants: dict[tuple[int, int, int], tuple[RingState, int]] = {}

    def switch_rebooted(self, switch: SimSwitch) -> None:
        self._tenants = {key: known for key, known in self._tenants.items() if key[0] != switch.number}

    def sample(self, world: World) -> None:
        for switch in world.switches:
            if switch.is_up:
                self._look_at(world, switch)

    def _look_at(self, world: World, switch: SimSwitch) -> None:
        rings = switch.accelerator.rings
        if len(rings) > 1:
            world.mark("two rings at once")
        owners: dict[int, str] = {}
        for ring_id, ring in rings.items():
            self._tenants_only_advance(switch, ring_id, ring)
            for number, region in enumerate(ring.array.regions):
                owner = f"region {number} of ring {ring_id}"
                memories = [region.result, region.seen, region.done, region.header]
                if region.payload is not None:
                    memories.append(region.payload.array)
                for memory in memories:
                    address = memory.__array_interface__["data"][0]
                    if address in owners:
                        raise Violated(self.name, f"{owner} and {owners[address]} share memory")
                    owners[address] = owner
        self._ranges_apart(switch)

    def _tenants_only_advance(self, switch: SimSwitch, ring_id: int, ring: RingState) -> None:
        regions = ring.array.regions
        for number, region in enumerate(regions):
            if region.serial >= 0 and region.serial % len(regions) != number:
                raise Violated(self.name, f"ring {ring_id}: region {number} holds message {region.serial}")
            key = switch.number, ring_id, number
            known, before = self._tenants.get(key, (ring, -1))
            if known is ring and region.serial < before:  # one that left and came back has new regions
                raise Violated(
                    self.name,
                    f"ring {ring_id}: region {number} went from message {before} to {region.serial}",
                )
            self._tenants[key] = ring, region.serial

    def _ranges_apart(self, switch: SimSwitch) -> None:
        rings = switch.accelerator.rings.values()
        arrays = [region.result for ring in rings for region in ring.array.regions]
        spans = sorted(np.lib.array_utils.byte_bounds(array) for array in arrays)
        for (_, high), (low, _) in pairwise(spans):
            if low < high:
                raise Violated(self.name, "the result rows of two regions overlap")
