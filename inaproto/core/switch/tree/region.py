"""Aggregators of a ring that spans several switches (NetReduce section 3.3).

A region has *rows*. The first are the inputs, in the order of addition, as in the ring of one switch; the
others only leave: connections that begin elsewhere and are delivered here, one row for each switch below
and one for the switch above. Their headers are made here when the first of their packets is to leave.

A slot is *done* when its inputs are added up, and *final* when it holds the ring's result. At the root the
two are the same. Elsewhere the sum is kept, for repeats, until the result from above takes its place.

Congestion marks (ECN) of inputs go up with the sum of their slot, and come down with its result: a
connection that is delivered elsewhere has no other way for them.

Invariants: final implies done; a result never enters a sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.core.switch.lookup_table import Rows
from inaproto.core.switch.message_packets import FIRST, HEADER_BYTES, TOS
from inaproto.core.switch.packet_memory import PayloadPool
from inaproto.core.switch.region import Region, spans_of
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.core.switch.tree.translation import MessageHeaders, share_of, start_psn
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, InaHeader
from inaproto.wire.vector import BTH_END

_RETH = slice(54, 70)
_IP_CHECKSUM = slice(24, 26)
_MARK = 3
"""Congestion experienced: both bits of ECN."""
_ECT_0 = 2
Span = tuple[int, int]
"""Offsets of a message, (begin, end)."""


class Shape(NamedTuple):
    """Rows of every region of a ring at one switch."""

    inputs: int
    rows: int
    root: bool


class TreeRegion(Region):
    """The slots of one message at one switch of a tree. ``I`` inputs, ``R`` rows, ``L`` packets."""

    __slots__ = (
        "_last_worn",
        "_psn_mask",
        "_start_psn",
        "_worn",
        "asked",
        "final",
        "inputs",
        "marked",
        "noted",
        "passed",
    )

    def __init__(self, shape: Shape, spec: RingSpec, pool: PayloadPool) -> None:
        length = spec.message_packets
        super().__init__(shape.inputs, length, spec.mtu, pool)
        header_bytes = self.header.shape[2]
        self.header = np.empty((shape.rows, length, header_bytes), np.uint8)
        self.share = np.empty((shape.rows, length), np.uint32)
        self._header_bytes = self.header.reshape(-1).data
        self._share_words = self.share.reshape(-1).data
        self.ina_bytes = np.empty((shape.rows, INA_HEADER_BYTES), np.uint8)
        if not shape.root:
            self._final_bytes = bytearray(length)
        self.final: NDArray[np.bool_] = np.frombuffer(self._final_bytes, np.bool_)
        self.inputs = shape.inputs
        self.marked = np.zeros(length, np.bool_)
        """Slots whose result came with a congestion mark."""
        self.passed = np.zeros(length, np.bool_)
        """Slots whose sum went to the other switches: up, or from the root down."""
        self.asked = np.zeros((shape.rows, length), np.bool_)
        """Rows on which a packet came again since its sum last went up again."""
        self.noted: set[int] = set()
        """Input rows whose first packet was told of; their complements: once more."""
        self._worn: set[int] = set()
        self._last_worn: set[int] = set()
        self.serve(spec)

    def serve(self, spec: RingSpec) -> None:
        """Be of that ring from now on."""
        self._psn_mask = (1 << spec.psn_bits) - 1
        self._start_psn = start_psn(spec)

    def take_over(self, serial: int, ina: InaHeader, header: bytes | None = None) -> None:
        super().take_over(serial, ina, header)
        self.final[:] = False
        self.marked[:] = False
        self.passed[:] = False
        self.asked[:] = False
        self.noted.clear()
        self._worn.clear()
        self._last_worn.clear()

    # -- sums and results ----------------------------------------------------------------------

    def newly_done(self) -> list[Span]:
        """Sums that no switch was sent yet; they are taken for sent from here on."""
        fresh = self.done & ~self.passed
        spans = spans_of(fresh)
        for begin, end in spans:
            self.passed[begin:end] = True
        return spans

    def unanswered(self, begin: int, end: int) -> list[Span]:
        """Sums from ``begin`` to ``end - 1`` whose results have not come."""
        waiting = self.done[begin:end] & ~self.final[begin:end]
        return [(begin + low, begin + high) for low, high in spans_of(waiting)]

    def to_ask_again(self, row: int, begin: int, end: int) -> list[Span]:
        """Choose the unanswered sums to send up again because ``row``'s sender repeated its packets.

        All senders repeat when a result is late, and one repeat is enough. So a slot's first one goes up, and
        from then on the second of any sender: no more than the most impatient sends.
        """
        waiting = self.done[begin:end] & ~self.final[begin:end]
        asked = self.asked[:, begin:end]
        due = waiting & (asked[row] | ~asked.any(axis=0))
        asked[:, due] = False
        asked[row] |= waiting
        return [(begin + low, begin + high) for low, high in spans_of(due)]

    def answered(self, begin: int, end: int) -> list[Span]:
        """Results from ``begin`` to ``end - 1``."""
        return [(begin + low, begin + high) for low, high in spans_of(self.final[begin:end])]

    def keep_results(
        self, offsets: NDArray[np.intp], tail: NDArray[np.uint8], crc: NDArray[np.uint32]
    ) -> list[Span]:
        """Put results in the place of the sums of these slots, which are done; returns what is new.

        ``tail`` is uint8 (n, bytes), payload and pad, ``crc`` their CRC-32 from 0, uint32 (n,).
        """
        fresh = ~self.final[offsets]
        if not fresh.all():
            offsets, tail, crc = offsets[fresh], tail[fresh], crc[fresh]
            if not len(offsets):
                return []
        width = tail.shape[1]
        if (np.diff(offsets) == 1).all():
            spans = [(int(offsets[0]), int(offsets[-1]) + 1)]
            at: Rows = slice(*spans[0])
        else:
            at, first = np.unique(offsets, return_index=True)
            tail, crc = tail[first], crc[first]
            breaks = np.flatnonzero(np.diff(at) != 1) + 1
            spans = [(int(part[0]), int(part[-1]) + 1) for part in np.split(at, breaks)]
        self.result[at, :width] = tail
        self.result_crc[at] = crc
        self.final[at] = True
        return spans

    def wear_marks(self, rows: slice, begin: int, end: int, *, of_hosts: bool) -> None:
        """Mark the headers of ``rows`` in slots of which an input or the result was marked.

        ``of_hosts``: what a host sends as not capable of ECN stays so. The ICRC covers no mark.
        """
        if not self._has_marks(begin, end):
            return
        marked = (self.header[: self.inputs, begin:end, TOS] & _MARK == _MARK).any(axis=0)
        marked |= self.marked[begin:end]
        tos = self.header[rows, begin:end, TOS]
        due = marked & (tos & _MARK != _MARK)
        if of_hosts:
            due &= tos & _MARK != 0
        more = np.where(due, _MARK - (tos & _MARK), 0).astype(np.uint32)
        checksums = self.header[rows, begin:end, _IP_CHECKSUM].copy().view(">u2")[..., 0]
        sums = (~checksums).astype(np.uint32) + more
        sums = (sums & 0xFFFF) + (sums >> 16)
        fresh = (~sums.astype(np.uint16)).astype(">u2")[..., np.newaxis].view(np.uint8)
        self.header[rows, begin:end, _IP_CHECKSUM] = np.where(
            due[..., np.newaxis], fresh, self.header[rows, begin:end, _IP_CHECKSUM]
        )
        self.header[rows, begin:end, TOS] = tos | np.where(due, _MARK, 0).astype(np.uint8)

    def _has_marks(self, begin: int, end: int) -> bool:
        """Whether there is one among these slots; mostly there is none, so this is quick."""
        if end - begin == 1:
            step = self.header.shape[2]
            every, at = len(self.done) * step, begin * step + TOS
            headers = self._header_bytes
            if self.marked[begin]:
                return True
            return any(headers[at + row * every] & _MARK == _MARK for row in range(self.inputs))
        highest = (self.header[: self.inputs, begin:end, TOS] & _MARK).max()
        return bool(highest == _MARK or self.marked[begin:end].any())

    def ina_of(self, rank: int, *, result: bool) -> bytes:
        """The INA header that all agreed on, with this rank."""
        header = bytearray(self.agreed[:24] + rank.to_bytes(2, "big") + self.agreed[24:])
        if result:
            header[FLAGS_OFFSET] |= FLAG_RESULT
        return bytes(header)

    # -- headers that are made here ------------------------------------------------------------

    def virtual_headers(self, base: bytes, length: int) -> MessageHeaders:
        """Headers of a virtual connection. The message's bytes are those that the first input said."""
        assert self.ina is not None, "an open region has the header that opened it"
        psn0 = (self._start_psn + self.serial * length) & self._psn_mask
        dma_length = bytes(12) + self.header[0, 0, 66:70].tobytes()
        return MessageHeaders(base, psn0, self._psn_mask, dma_length, self.ina.msg_id, ack=False)

    def told_headers(self, header: bytes) -> MessageHeaders:
        """Headers of a host's connection, from those of the message's first packet."""
        assert self.ina is not None, "an open region has the header that opened it"
        psn0 = int.from_bytes(header[51:54], "big") & self._psn_mask
        with_imm = len(header) > HEADER_BYTES[FIRST]
        imm = int.from_bytes(header[-4:], "big") if with_imm else self.ina.msg_id
        if header[TOS] & _MARK == _MARK:  # that of the first packet alone, which goes by its sum
            header = header[:TOS] + bytes([header[TOS] & ~_MARK | _ECT_0]) + header[TOS + 1 :]
        return MessageHeaders(header[:BTH_END], psn0, self._psn_mask, header[_RETH], imm, ack=True)

    def wears(self, row: int) -> bool:
        """Whether the row's headers stand, but for the last packet's."""
        return row in self._worn

    def undress(self, row: int) -> None:
        """The row's headers are to be made anew."""
        self._worn.discard(row)
        self._last_worn.discard(row)

    def dress(self, row: int, headers: MessageHeaders, ina: bytes) -> None:
        """Make the headers of a row that only leaves, less the last packet's."""
        mtu = self.result.shape[1]
        self.ina_bytes[row] = np.frombuffer(ina, np.uint8)
        if self.packets > 1:
            self._put(row, 0, headers.first(mtu), mtu)
        if self.packets > 2:
            rows, share = headers.middles(self.packets, mtu)
            self.header[row, 1 : self.packets - 1, :BTH_END] = rows
            self.share[row, 1 : self.packets - 1] = share
        self._worn.add(row)

    def dress_last(self, row: int, headers: MessageHeaders) -> None:
        """Make the headers of the last packet; its layout is known when its slot is done."""
        if row in self._last_worn:
            return
        assert self.last is not None, "a done last slot has a layout"
        tail = self.last.payload_bytes + self.last.pad
        self._put(row, self.packets - 1, headers.last(self.packets, self.last), tail)
        self._last_worn.add(row)

    def _put(self, row: int, at: int, header: bytes, tail: int) -> None:
        self.header[row, at, : len(header)] = np.frombuffer(header, np.uint8)
        self.share[row, at] = share_of(header, tail)


class TreeArray(AggregatorArray):
    """Regions of one ring at one switch of a tree. The frontier is that of the results."""

    regions: Sequence[TreeRegion]

    def __init__(self, spec: RingSpec, shape: Shape) -> None:
        self._rows = shape
        super().__init__(spec)
        self.start_psn = start_psn(spec)
        self.sum_high = -1
        """Highest position whose inputs are added up; ``done_high`` is the highest final one."""

    @property
    def shape(self) -> Hashable:
        rows, spec = self._rows, self.spec
        return (rows.inputs, rows.rows, rows.root, spec.message_packets, spec.mtu, spec.regions)

    def new_regions(self) -> Sequence[TreeRegion]:
        pool = PayloadPool(self._rows.inputs, self.spec.message_packets, self.spec.mtu)
        return [TreeRegion(self._rows, self.spec, pool) for _ in range(self.spec.regions)]

    def _no_regions(self) -> Sequence[TreeRegion]:
        bare = replace(self.spec, message_packets=1)
        return [TreeRegion(Shape(1, 1, root=self._rows.root), bare, PayloadPool(1, 1, self.spec.mtu))]

    def region_of(self, serial: int) -> TreeRegion:
        return self.regions[serial % len(self.regions)]
