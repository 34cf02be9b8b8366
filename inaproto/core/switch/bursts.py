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

from inaproto.core.kernels.compiled import HEAD_BYTES, Compiled, Scan
from inaproto.core.switch.aggregator import FIRST, HEADER_BYTES, LAST_OPCODES, Region, without_rank
from inaproto.core.switch.events import Counters, RingState
from inaproto.core.switch.flow_order import Connection, flow_by_flow, flow_of, joined
from inaproto.core.switch.ingest import Ingest
from inaproto.core.switch.lookup_table import Flow, LookupTable, MessageEntry
from inaproto.core.switch.region_kernels import LastPacket
from inaproto.core.switch.tree.ring import TreeRing
from inaproto.units import Frames, PortId
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.vector import HEADER_COLUMNS

_KNOWN_MAX: Final = 1024
"""Flows whose masked headers are remembered."""
_INA_BEGIN: Final = HEADER_BYTES[FIRST]
_INA_END: Final = _INA_BEGIN + INA_HEADER_BYTES


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
        self._known: dict[bytes, tuple[Connection | bytes, Flow | None]] = {}

    def forget(self) -> None:
        """Rings were installed or removed: what a header belongs to may be another flow."""
        self._known.clear()

    def take(self, port: PortId, blocks: Sequence[Frames], taken: Callable[[Flow], None]) -> Iterable[Frames]:
        """Take what can be taken at once, saying of which flows; return the rest, flow by flow.

        All must be asked for before the next receive is taken.
        """
        scan = self._scan
        classes = scan.read(blocks)
        if classes != 1:
            if not classes:
                return flow_by_flow(blocks, self._is_of_ring)
            return self._several(port, blocks, taken, classes)
        key = bytes(scan.keys[:HEADER_COLUMNS])
        of, flow = self._known.get(key) or self._flow_of(key)
        went, end = 0, scan.edges[1]
        if flow is not None:
            went = self._message(port, flow, 0, 0, end)
            if went:
                taken(flow)
        return self._left(blocks, of, [0], went) if went < end else ()

    def _several(
        self, port: PortId, blocks: Sequence[Frames], taken: Callable[[Flow], None], classes: int
    ) -> Iterator[Frames]:
        scan, known = self._scan, self._known
        flows: dict[Connection | bytes, list[int]] = {}
        found: dict[Connection | bytes, Flow | None] = {}
        for number in range(classes):
            key = scan.key(number)
            of, flow = known.get(key) or self._flow_of(key)
            if of in flows:
                flows[of].append(number)
                found[of] = None
            else:
                flows[of] = [number]
                found[of] = flow
        for of, numbers in flows.items():
            begin, end = scan.bounds(numbers[0])
            flow = found[of]
            if flow is not None:
                went = self._message(port, flow, numbers[0], begin, end)
                if went:
                    taken(flow)
                    begin += went
            if begin < end or len(numbers) > 1:
                yield from self._left(blocks, of, numbers, begin)

    def _flow_of(self, key: bytes) -> tuple[Connection | bytes, Flow | None]:
        """What frames with these masked headers keep their order with; their flow if they may be taken."""
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        of = flow_of(key, self._is_of_ring)
        flow = self._table.get(*of) if isinstance(of, tuple) else None
        if flow is not None and isinstance(self._rings[flow.ring_id], TreeRing):
            flow = None
        found = self._known[key] = of, flow
        return found

    # -- what is taken -------------------------------------------------------------------------

    def _message(self, port: PortId, flow: Flow, number: int, begin: int, end: int) -> int:
        """How many of the flow's packets, in those places of the scan, are taken."""
        ring = self._rings[flow.ring_id]
        if ring.failed or flow.replay_next is not None or flow.ingress != port:
            return 0
        if flow.tag != self._ingest.tag:
            return 0
        head = bytes(self._scan.heads[HEAD_BYTES * number : HEAD_BYTES * (number + 1)])
        if head[:12] != flow.dst_mac + flow.src_mac:
            return 0
        at = begin + self._part(ring, flow, head, begin, end)
        while begin < at < end:
            head, _ = self._scan.frame(at)
            went = self._part(ring, flow, head, at, end)
            if not went:
                break
            at += went
        return at - begin

    def _part(self, ring: RingState, flow: Flow, head: bytes, at: int, end: int) -> int:
        """How many packets from the one with ``head`` on, all of one message, are taken."""
        psn = int.from_bytes(head[51:54], "big") & flow.psn_mask
        is_first = head[42] == FIRST
        if is_first:
            entry, offset = self._opened(ring, flow, psn, head, at), 0
            if entry is None:
                return 0
        else:
            found = flow.find(psn)
            if found is None:
                return 0
            entry, offset = found
            if offset == 0:  # a message of one packet, whose headers are longer
                return 0
        array = ring.array
        region = array.regions[entry.serial % len(array.regions)]
        kernels, serial = region.kernels, entry.serial
        if region.serial != serial or region.payload is None or kernels is None:
            return 0
        rank, packets, last, guess = flow.spec.rank, region.packets, region.last, None
        if last is None:
            guess = kernels.guess
            if guess is not None and guess.payload_bytes % region.itemsize:
                guess = None
        if kernels.last is not (expected := guess or last):
            kernels.expect(expected)
        went, right, past, filled, filled_past = kernels.place(
            self._scan, at, end, rank, offset, packets, psn, flow.psn_mask, region.sums
        )
        if filled:
            region.fill(filled, filled_past)
        if guess is not None and right and past == packets:
            region.last = guess
        elif last is None and at + went < end and offset + went == packets - 1:
            more = self._last(region, rank, at + went, psn + went, flow.psn_mask)
            if more:
                went, right, past = went + 1, right + 1, packets
        if right < went:
            self._counters.drop("wrong ICRC", went - right)
        if right:
            self._counters.aggregated_in += right
            region.stored(rank, right, offset, past)
            flow.reached = serial * ring.spec.message_packets + past - 1
            ring.dirty[serial] = region
            if is_first:
                flow.shown = flow.src_mac, flow.dst_mac, psn
                flow.open_message(entry)
        return went

    def _opened(self, ring: RingState, flow: Flow, psn: int, head: bytes, at: int) -> MessageEntry | None:
        """The message that a first packet opens or belongs to, if it is what it says.

        Whether its ICRC is right is still to be seen, unless it is the first of all ranks'.
        """
        header = head[_INA_BEGIN:_INA_END]
        array = ring.array
        serial = array.serial_of(int.from_bytes(header[20:24], "big"))
        region = array.regions[serial % len(array.regions)]
        if region.serial == serial and serial >= array.first_serial:
            rank = int.from_bytes(header[24:26], "big")
            if rank != flow.spec.rank or without_rank(header) != region.agreed:
                return None
            entry = MessageEntry(serial, psn, region.packets)
            return entry if flow.may_remember(entry) else None
        kernels = array.regions[0].kernels
        if kernels is None or not self._scan.intact(at, kernels.layouts):
            return None
        flow.shown = flow.src_mac, flow.dst_mac, psn
        return flow.entries[flow.latest] if self._ingest.opens(ring, flow, psn, header) else None

    def _last(self, region: Region, rank: int, at: int, psn: int, psn_mask: int) -> bool:
        """Whether a last packet, the first of its message, is taken: then it says how the others' look."""
        head, length = self._scan.frame(at)
        opcode, pad = head[42], head[43] >> 4 & 3
        if opcode not in LAST_OPCODES or region.kernels is None:
            return False
        width = HEADER_BYTES[opcode]
        payload = length - width - pad - 4
        fits = 0 < payload <= region.result.shape[1] and not payload % region.itemsize
        if not fits or pad != -payload % 4:
            return False
        layout = LastPacket(opcode, width, payload, pad)
        region.kernels.expect(layout)
        offset = region.packets - 1
        _, right, *_ = region.kernels.place(
            self._scan, at, at + 1, rank, offset, region.packets, psn, psn_mask
        )
        region.last = layout if right else None
        return bool(right)

    # -- what is left --------------------------------------------------------------------------

    def _left(
        self, blocks: Sequence[Frames], flow: Connection | bytes, numbers: list[int], begin: int
    ) -> list[Frames]:
        """Frames of some classes, of the first one from place ``begin`` on, as blocks."""
        scan = self._scan
        parts = [scan.frames(begin, scan.bounds(numbers[0])[1])]
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
