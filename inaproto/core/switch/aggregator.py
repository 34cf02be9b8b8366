"""The aggregator array of one ring (NetReduce section 3.1 and 3.2).

``2N`` regions of ``L`` slots (:mod:`inaproto.core.switch.region`); message ``m`` lives in region
``m mod 2N``, packet ``psn - psn0`` of it in that slot.

Freeing is by *tenant*: a region belongs to one message; the first packet of message ``m`` takes it
over from ``m - 2N``, which nobody can need any more (a rank sends ``m`` only once it has the result of
``m - N``, which takes that every rank sent ``m - N``, hence has the result of ``m - 2N``). Packets older
than the tenant are dropped. The paper's rule, read literally, loses results or admits stale bits:
``tests/paper/test_netreduce_3_2_freeing.py`` shows each reading.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from inaproto.core.switch.packet_memory import PayloadPool
from inaproto.core.switch.region import HEADER_BYTES_MAX, Region
from inaproto.core.switch.ring_spec import RingSpec

_CUT_BYTES: Final = 200
"""What one memoryview of a row takes."""


def bytes_needed(spec: RingSpec) -> int:
    """Memory that a ring's aggregator array takes."""
    per_rank = spec.mtu + _CUT_BYTES + HEADER_BYTES_MAX + 4 + 1
    per_packet = spec.mtu + _CUT_BYTES + 4 + 1
    role = spec.role
    if role is None:
        return spec.regions * spec.message_packets * (spec.size * per_rank + per_packet)
    if not role.inputs:  # it steers
        return 0
    per_packet += (len(role.learns) + len(role.children) + 1) * (HEADER_BYTES_MAX + 4 + 1) + 2
    return spec.regions * spec.message_packets * (len(role.inputs) * (per_rank + 1) + per_packet)


class AggregatorArray:
    """Regions of one ring, and the frontier: the first packet whose result has not been emitted yet."""

    def __init__(self, spec: RingSpec) -> None:
        self.spec = spec
        self._none: Sequence[Region] = () if spec.pool is None else self._no_regions()
        """What a ring of a pool has while it is not its turn: one that no message is ever in."""
        self.regions: Sequence[Region] = self._none or self.new_regions()
        self.id_mask = (1 << spec.msg_id_bits) - 1
        """Bits of a serial number that headers carry."""
        self.first_serial = self.next_serial = spec.first_message
        """Messages before it had their results elsewhere, or in an earlier turn: what still comes of them is
        stale."""
        self.next_offset = 0
        self.done_high = -1
        """Highest finished position (see :class:`~inaproto.core.switch.lookup_table.Flow`)."""

    @property
    def shape(self) -> Hashable:
        """Rings with equal ones can use the same regions, one after the other."""
        return (self.spec.size, self.spec.message_packets, self.spec.mtu, self.spec.regions)

    def new_regions(self) -> Sequence[Region]:
        spec = self.spec
        pool = PayloadPool(spec.size, spec.message_packets, spec.mtu)
        return [Region(spec.size, spec.message_packets, spec.mtu, pool) for _ in range(spec.regions)]

    def _no_regions(self) -> Sequence[Region]:
        return [Region(1, 1, 8, PayloadPool(1, 1, 8))]

    def occupy(self, regions: Sequence[Region]) -> None:
        """It is the ring's turn: use these, which hold nothing. The frontier is where the last turn ended; of
        messages before it nothing is kept, so they are stale."""
        for region in regions:
            region.serve(self.spec)
        self.regions = regions
        self.first_serial = self.next_serial

    def vacate(self) -> Sequence[Region]:
        """The turn is over: forget all messages and give the regions up."""
        regions, self.regions = self.regions, self._none
        for region in regions:
            region.forget()
        return regions

    @property
    def is_between_messages(self) -> bool:
        """Whether every message that began has all its results."""
        return self.next_offset == 0 and all(region.serial < self.next_serial for region in self.regions)

    @property
    def frontier(self) -> int:
        return self.next_serial * self.spec.message_packets + self.next_offset

    def serial_of(self, msg_id: int) -> int:
        """Unwrap a ``msg_id``: the serial nearest to the frontier that has these bits."""
        mask = self.id_mask
        half = (mask + 1) >> 1
        return self.next_serial + ((msg_id - self.next_serial + half) & mask) - half

    def region_of(self, serial: int) -> Region:
        return self.regions[serial % len(self.regions)]

    def advance(self) -> list[tuple[Region, int, int]]:
        """Move the frontier over finished packets; returns what it passed, (region, begin, end) in order."""
        passed = []
        while True:
            region = self.region_of(self.next_serial)
            begin = self.next_offset
            if region.serial != self.next_serial:
                break
            end = region.done_until(begin)
            if end > begin:
                passed.append((region, begin, end))
                self.next_offset = end
            if end < region.packets:
                break
            self.next_serial += 1
            self.next_offset = 0
        return passed

    def after(self, position: int) -> int:
        """The position that follows in PSN order; ``position`` must be one that the array holds."""
        serial, offset = divmod(position, self.spec.message_packets)
        last = offset + 1 == self.region_of(serial).packets
        return (serial + 1) * self.spec.message_packets if last else position + 1

    def spans_from(self, begin: int, end: int) -> list[tuple[Region, int, int]]:
        """Regions and offsets of the positions ``begin`` to ``end - 1`` that the array still holds."""
        length = self.spec.message_packets
        found = []
        for serial in range(begin // length, (end - 1) // length + 1):
            region = self.region_of(serial)
            if region.serial != serial:
                continue
            low = max(begin - serial * length, 0)
            high = min(end - serial * length, region.packets)
            if low < high:
                found.append((region, low, high))
        return found
