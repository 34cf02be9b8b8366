"""What a port received at once, by compiled kernels: flow by flow, and whole messages in one call.

It does what :mod:`inaproto.core.switch.flow_order` and then :class:`~inaproto.core.switch.ingest.Ingest` do,
to the byte, for what a lossless stream consists of: packets of a ring of one switch, the next ones of their
message and not seen before, from the port and addresses that the flow is known by. The kernel places the
packets; that they may be placed there is decided here, packet by packet of those that say something: the
first one with its INA header, and the last one with its layout. Whatever is not exactly that goes on to the
general way, with nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.compiled import HEAD_BYTES, Compiled, Parts, Scan
from inaproto.core.switch.events import Counters, RingState
from inaproto.core.switch.flow_order import Connection, flow_by_flow, flow_of, joined, joined_rows
from inaproto.core.switch.ingest import Ingest
from inaproto.core.switch.inlets import Inlet, RingInlet
from inaproto.core.switch.lookup_table import Flow, LookupTable, MessageEntry
from inaproto.core.switch.message_packets import FIRST, HEADER_BYTES, LAST_OPCODES
from inaproto.core.switch.region import Region
from inaproto.core.switch.region_kernels import LastPacket
from inaproto.core.switch.tree.ring import TreeRing
from inaproto.units import Frames, PortId
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.vector import BTH_END, HEADER_COLUMNS

_KNOWN_MAX: Final = 1024
"""Flows whose masked headers are remembered."""
_FEW: Final = 8
"""Frames that are put together one by one sooner than by arrays."""
UNREAD: Final = -1
"""Number of classes of frames at which nobody has looked."""
_INA_BEGIN: Final = HEADER_BYTES[FIRST]
_INA_END: Final = _INA_BEGIN + INA_HEADER_BYTES


class _Known:
    """What frames with the same masked headers are."""

    __slots__ = ("flow", "inlet", "key", "of")

    def __init__(self, key: bytes, of: Connection | bytes, flow: Flow | None) -> None:
        self.key = key
        self.of = of
        """What they keep their order with."""
        self.flow = flow
        """Their flow, if they may be taken."""
        self.inlet: Inlet | None = None


class Bursts:
    def __init__(
        self,
        kernels: Compiled,
        table: LookupTable,
        rings: Mapping[int, RingState],
        ingest: Ingest,
        counters: Counters,
        is_of_ring: Callable[[Connection], bool],
    ) -> None:
        self._scan = Scan(kernels)
        self._table = table
        self._rings = rings
        self._ingest = ingest
        self._counters = counters
        self._is_of_ring = is_of_ring
        self._known: dict[bytes, _Known] = {}
        self._latest: dict[PortId, _Known] = {}
        """What came last by each port, and is of a flow."""

    def forget(self) -> None:
        """Rings were installed or removed: what a header belongs to may be another flow."""
        self._known.clear()
        self._latest.clear()

    def read(
        self, port: PortId, blocks: Sequence[Frames], taken: Callable[[Flow], None]
    ) -> tuple[int, Sequence[Frames] | None]:
        """Look at all that a port received, for ``take``; returns the number of classes of frames.

        If all is of the flow from which the latest came there, it is taken as ``take`` does, and the rest is
        returned, too; None: nothing was taken.
        """
        scan, known = self._scan, self._latest.get(port)
        if known is None:
            return scan.read(blocks), None
        flow = known.flow
        assert flow is not None, "others are not remembered"
        ring = self._rings[flow.ring_id]
        if not self._may_take(ring, flow, port):
            return scan.read(blocks), None
        inlet = self._inlet(ring, known, flow)
        classes = scan.read(blocks, inlet)
        again = self._account(ring, flow, scan.parts())
        went = scan.taken
        if not went:
            return classes, None
        taken(flow)
        end = scan.edges[1]
        if went < end:
            went = self._rest(ring, known, flow, went, end, again=again)
        return classes, self._left(blocks, known.of, [0], went) if went < end else ()

    def take(
        self, port: PortId, blocks: Sequence[Frames], classes: int, taken: Callable[[Flow], None]
    ) -> Iterable[Frames]:
        """Take what can be taken at once, saying of which flows; return the rest, flow by flow.

        ``classes`` is what ``read`` said of these blocks, or UNREAD. All must be asked for before the next
        receive is taken.
        """
        if classes == UNREAD:
            classes = self._scan.read(blocks)
        scan = self._scan
        if classes != 1:
            if not classes:
                return flow_by_flow(blocks, self._is_of_ring)
            return self._several(port, blocks, taken, classes)
        known = self._known_of(bytes(scan.keys[:HEADER_COLUMNS]))
        went, end = 0, scan.edges[1]
        if known.flow is not None:
            went = self._message(port, known, known.flow, 0, 0, end)
            if went:
                self._latest[port] = known
                taken(known.flow)
        return self._left(blocks, known.of, [0], went) if went < end else ()

    def _several(
        self, port: PortId, blocks: Sequence[Frames], taken: Callable[[Flow], None], classes: int
    ) -> Iterator[Frames]:
        scan = self._scan
        flows: dict[Connection | bytes, list[int]] = {}
        found: dict[Connection | bytes, _Known | None] = {}
        for number in range(classes):
            known = self._known_of(scan.key(number))
            of = known.of
            if of in flows:
                flows[of].append(number)
                found[of] = None
            else:
                flows[of] = [number]
                found[of] = known
        for of, numbers in flows.items():
            begin, end = scan.edges[numbers[0]], scan.edges[numbers[0] + 1]
            only = found[of]
            if only is not None and only.flow is not None:
                went = self._message(port, only, only.flow, numbers[0], begin, end)
                if went:
                    taken(only.flow)
                    begin += went
            if begin < end or len(numbers) > 1:
                yield from self._left(blocks, of, numbers, begin)

    def _known_of(self, key: bytes) -> _Known:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            of = flow_of(key, self._is_of_ring)
            flow = self._table.get(*of) if isinstance(of, tuple) else None
            if flow is not None and isinstance(self._rings[flow.ring_id], TreeRing):
                flow = None
            known = self._known[key] = _Known(key, of, flow)
        return known

    # -- what is taken -------------------------------------------------------------------------

    def _may_take(self, ring: RingState, flow: Flow, port: PortId) -> bool:
        if ring.failed or flow.replay_next is not None or flow.ingress != port:
            return False
        return flow.tag == self._ingest.tag

    @staticmethod
    def _inlet(ring: RingState, known: _Known, flow: Flow) -> int:
        """Where it is that kernels look for what they must know of a flow."""
        of_ring, array = ring.inlet, ring.array
        if of_ring is None or of_ring.regions is not array.regions or not of_ring.is_whole:
            of_ring = ring.inlet = RingInlet(array)
        of_ring.tell(array, ring.epoch, ring.opened_by)
        inlet = known.inlet
        if (
            inlet is None
            or inlet.ring is not of_ring
            or inlet.dst_mac != flow.dst_mac
            or inlet.src_mac != flow.src_mac
        ):
            inlet = known.inlet = Inlet(of_ring, flow, known.key)
        return inlet.at

    def _message(self, port: PortId, known: _Known, flow: Flow, number: int, begin: int, end: int) -> int:
        """How many of the flow's packets, in those places of the scan, are taken."""
        ring, scan = self._rings[flow.ring_id], self._scan
        if not self._may_take(ring, flow, port):
            return 0
        macs = bytes(scan.heads[HEAD_BYTES * number : HEAD_BYTES * number + 12])
        if macs != flow.dst_mac + flow.src_mac:
            return 0
        went, parts = scan.join(self._inlet(ring, known, flow), begin, end)
        again = self._account(ring, flow, parts)
        at = begin + went
        return (at if at == end else self._rest(ring, known, flow, at, end, again=again)) - begin

    def _rest(self, ring: RingState, known: _Known, flow: Flow, at: int, end: int, *, again: bool) -> int:
        """Take what the kernel takes once something is known that it did not know; returns where that ends.

        ``again``: it may go on as it is.
        """
        while at < end and (again or self._prepares(ring, flow, at)):
            went, parts = self._scan.join(self._inlet(ring, known, flow), at, end)
            opened = self._account(ring, flow, parts)
            if not went and not again:
                break
            at += went
            again = opened and went > 0
        return at

    def _account(self, ring: RingState, flow: Flow, parts: Parts) -> bool:
        """Take into account what the kernel has placed; returns whether it may do more, asked again."""
        rank, regions, again = flow.spec.rank, ring.array.regions, False
        for index, offset, psn, opens, went, right, past, filled, filled_past in parts:
            region = regions[index]
            if opens:
                region.taken_over(rank)
                again = True
            serial, packets = region.serial, region.packets
            if not offset:
                flow.shown = flow.src_mac, flow.dst_mac, psn
                flow.open_message(MessageEntry(serial, psn, packets))
            if right < went:
                self._counters.drop("wrong ICRC", went - right)
            if not right:
                continue
            if filled:
                region.fill(filled, filled_past)
            if past == packets and region.last is None and region.kernels is not None:
                region.last = region.kernels.last  # as was guessed
            self._counters.aggregated_in += right
            region.stored(rank, right, offset, past)
            flow.reached = serial * ring.spec.message_packets + past - 1
            if not region.silent:  # or nothing can be full
                ring.dirty[serial] = region
        return again

    def _prepares(self, ring: RingState, flow: Flow, at: int) -> bool:
        """Let the kernel know what it needs for the packet there; False if that is not for it."""
        head, length = self._scan.frame(at)
        psn = int.from_bytes(head[51:54], "big") & flow.psn_mask
        regions = ring.array.regions
        if head[42] == FIRST:
            return self._opens(ring, flow, psn, head, at)
        found = flow.find(psn)
        if found is None:
            return False
        entry, offset = found
        region = regions[entry.serial % len(regions)]
        if region.serial != entry.serial or region.payload is None or offset != region.packets - 1:
            return False
        return region.last is None and self._suppose_last(region, head, length)

    def _opens(self, ring: RingState, flow: Flow, psn: int, head: bytes, at: int) -> bool:
        """Whether a first packet opens a message now."""
        header = head[_INA_BEGIN:_INA_END]
        array = ring.array
        serial = array.serial_of(int.from_bytes(header[20:24], "big"))
        kernels = array.regions[0].kernels
        if array.region_of(serial).serial == serial or kernels is None:
            return False
        if not self._scan.intact(at, kernels.layouts):
            return False
        return self._ingest.opens(ring, flow, psn, header)

    @staticmethod
    def _suppose_last(region: Region, head: bytes, length: int) -> bool:
        """Let the kernel go by the layout of a last packet, the first of its message. It says how the others'
        look if its ICRC is right."""
        opcode, pad = head[42], head[43] >> 4 & 3
        if opcode not in LAST_OPCODES or region.kernels is None:
            return False
        width = HEADER_BYTES[opcode]
        payload = length - width - pad - 4
        fits = 0 < payload <= region.result.shape[1] and not payload % region.itemsize
        layout = LastPacket(opcode, width, payload, pad)
        if not fits or pad != -payload % 4 or layout == region.kernels.last:
            return False
        region.kernels.expect(layout)
        return True

    # -- what is left --------------------------------------------------------------------------

    def _left(
        self, blocks: Sequence[Frames], flow: Connection | bytes, numbers: list[int], begin: int
    ) -> list[Frames]:
        """Frames of some classes, of the first one from place ``begin`` on, as blocks."""
        scan = self._scan
        end = scan.edges[numbers[0] + 1]
        if len(numbers) == 1 and end == begin + 1:  # as acknowledgements come
            row = int(scan.frames(begin, end)[0])
            for block in blocks:
                if row < len(block):
                    return [block if len(block) == 1 else block[row : row + 1]]
                row -= len(block)
        if end - begin <= _FEW and len(numbers) == 1 and isinstance(flow, tuple):
            few = list(self._few(blocks, begin, end))
            if min(row.shape[1] for row in few) >= BTH_END:  # or they are no packets
                return joined_rows(few)
        parts = [scan.frames(begin, end)]
        parts += [scan.frames(*scan.bounds(number)) for number in numbers[1:]]
        frames: NDArray[np.int64] = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        found: list[Frames] = []
        starts = [0, *accumulate(map(len, blocks))]
        edges = np.searchsorted(frames, starts).tolist()
        for block, first, (low, high) in zip(blocks, starts, pairwise(edges), strict=False):
            if high - low == len(block):
                found.append(block)
            elif low < high:
                rows = frames[low:high] - first
                together = int(rows[-1] - rows[0]) == high - low - 1
                found.append(block[int(rows[0]) : int(rows[-1]) + 1] if together else block[rows])
        return joined(flow, [part for part in found if len(part)])

    def _few(self, blocks: Sequence[Frames], begin: int, end: int) -> Iterator[Frames]:
        """Some frames of a connection, each as a block."""
        at, first = 0, 0
        for frame in self._scan.frames(begin, end).tolist():
            while frame >= first + len(blocks[at]):
                first += len(blocks[at])
                at += 1
            yield blocks[at][frame - first : frame - first + 1]
