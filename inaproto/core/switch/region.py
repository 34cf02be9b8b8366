"""The slots of one message at a switch (NetReduce section 3.1 and 3.2).

A slot keeps every rank's header and payload, the bitmap of ranks that arrived, and once the bitmap is full
the result. The payload that came first stays, so aggregation is idempotent though a kernel may add payloads
up as they come, as long as they come in the order of ranks, and keep only the sum. Results leave under the
headers of the packets that ranks sent.

Which message a region belongs to, and when it goes to another, is in
:mod:`inaproto.core.switch.aggregator`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels import Compiled, active
from inaproto.core.plan.reduce import reduce_into
from inaproto.core.switch.lookup_table import Rows
from inaproto.core.switch.message_packets import (
    FIRST,
    HEADER_BYTES,
    MIDDLE,
    OPENING_OPCODES,
    TOS,
    UDP_CHECKSUM,
    without_rank,
)
from inaproto.core.switch.packet_memory import (
    Cut,
    CutsPieces,
    OutputArena,
    PayloadBuffer,
    PayloadPool,
    aligned,
)
from inaproto.core.switch.region_kernels import (
    LIKE_WORD,
    PAYLOAD_WORD,
    SERIAL_WORD,
    SUMMED,
    UNLIKE,
    LastPacket,
    RegionKernels,
)
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.wire.crc import crc32
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, Dtype, InaHeader, Op
from inaproto.wire.vector import RoceRun

HEADER_BYTES_MAX: Final = 76
"""Room for the headers of a packet."""
_FIRST_HEADER_BYTES: Final = HEADER_BYTES[FIRST]
_MIDDLE_HEADER_BYTES: Final = HEADER_BYTES[MIDDLE]
_NO_LAST: Final = LastPacket(0, 0, 0, 0)


class Region:
    """The slots of one message. Shapes: W ranks, L packets, P payload bytes.

    The arrays serve vectors of packets. The flat views of the same memory serve single packets, for which
    indexing an array costs more than what is done with it.
    """

    __slots__ = (
        "_done_bytes",
        "_everyone",
        "_final_bytes",
        "_header_bytes",
        "_ina",
        "_nobody",
        "_nothing",
        "_seen_bytes",
        "_share_words",
        "_stored_from",
        "_stored_to",
        "agreed",
        "done",
        "filled",
        "finished_last",
        "header",
        "ina_bytes",
        "itemsize",
        "kernels",
        "last",
        "missing",
        "opening",
        "packets",
        "payload",
        "pending",
        "pool",
        "result",
        "result_crc",
        "result_cuts",
        "seen",
        "serial",
        "share",
        "silent",
        "summed",
        "sums",
        "told",
        "top",
    )

    def __init__(self, ranks: int, packets_max: int, mtu: int, pool: PayloadPool) -> None:
        self.pool = pool
        self.serial = -1
        self.packets = 0
        self._everyone = frozenset(range(ranks))
        self._nobody, self._nothing = bytes(ranks * packets_max), bytes(packets_max)
        self.silent: set[int] = set()
        """Ranks that have sent nothing of this message yet: as long as there is one, nothing is full."""
        self._ina: InaHeader | None = None
        self.opening = b""
        """Encoded INA header that came first, where ``take_over`` was given another one like it and nobody
        has asked for ``ina``."""
        self.itemsize = 1
        """Bytes of an element of this message."""
        self.agreed = b""
        """The INA header of the rank that came first, less the rank: what all must send."""
        self.last: LastPacket | None = None
        self._seen_bytes = bytearray(ranks * packets_max)
        self.seen = np.frombuffer(self._seen_bytes, np.bool_).reshape(ranks, packets_max)
        self._done_bytes = bytearray(packets_max)
        self.done = np.frombuffer(self._done_bytes, np.bool_)
        self._final_bytes = self._done_bytes
        """Slots that hold the ring's result."""
        self.header: NDArray[np.uint8] = np.empty((ranks, packets_max, HEADER_BYTES_MAX), np.uint8)
        self.share: NDArray[np.uint32] = np.empty((ranks, packets_max), np.uint32)
        self._header_bytes = self.header.reshape(-1).data
        self._share_words = self.share.reshape(-1).data
        self._stored_from, self._stored_to = packets_max, 0
        """Slots that got packets since ``finish`` was asked: only they can have become full."""
        self.payload: PayloadBuffer | None = None
        self.pending = 0
        """Packets without a result; the payload buffer is held as long as there are any."""
        self.missing = 0
        """Slots and ranks without a packet: bits of the bitmaps that are not set."""
        self.top = [0] * ranks
        """For each rank, the offset behind the last one stored: from there on nothing has come."""
        self.finished_last = -1
        self.filled = 0
        """Slots that have their results since ``finish`` was asked: the kernel that placed added them up."""
        self.sums: Dtype | None = None
        """What that kernel can add up of this message."""
        self.told: bytearray | None = None
        """1 for each slot that ``untold`` has named, once it was asked."""
        self.ina_bytes: NDArray[np.uint8] = np.empty((ranks, INA_HEADER_BYTES), np.uint8)
        self.result = aligned(packets_max, mtu)
        self.result_cuts = [memoryview(row) for row in self.result]
        self.result_crc: NDArray[np.uint32] = np.empty(packets_max, np.uint32)
        self.summed: NDArray[np.uint16] = np.zeros(packets_max, np.uint16)
        """How many ranks, from the first one on, a kernel has added up where the slot's result will be: their
        payloads are not kept."""
        self.kernels: RegionKernels | None = None
        """Once it has a message, and if there are any."""

    @property
    def ina(self) -> InaHeader | None:
        """The header of the rank that came first."""
        if self.opening:
            self.ina = InaHeader.decode(self.opening)
        return self._ina

    @ina.setter
    def ina(self, ina: InaHeader | None) -> None:
        self._ina, self.opening = ina, b""

    @property
    def final(self) -> NDArray[np.bool_]:
        """Slots that hold the ring's result: where one switch does all, those that are done. bool (L,)."""
        return self.done

    def take_over(self, serial: int, ina: InaHeader, header: bytes | None = None) -> None:
        """Become the region of another message; ``ina`` (encoded: ``header``) is the one that came first."""
        self._ina = ina
        self.itemsize = ina.dtype.itemsize
        self.packets = packets = ina.msg_len
        self._begin(serial, b"", without_rank(ina.encode() if header is None else header))
        if self.kernels is None and (compiled := active()) is not None:
            self._compile(compiled)
        self.sums = None
        assert self.payload is not None, "a message has begun"
        if self.kernels is not None:
            if ina.op is Op.SUM and ina.dtype in SUMMED:
                self.sums = ina.dtype
                self.summed.fill(0)
            self.kernels.opened(self.payload.address, serial, packets, self.itemsize, self.sums, self.agreed)
        self._seen_bytes[:] = self._nobody  # for so few, quicker than by arrays
        self._done_bytes[:] = self._nothing

    def taken_over(self, rank: int) -> None:
        """The kernel has made it the region of a message like the one before, opened by ``rank``."""
        assert self.kernels is not None, "it has kernels"
        header = self.kernels.opening(rank)
        self._begin(self.kernels.words[SERIAL_WORD], header, without_rank(header))

    def _begin(self, serial: int, opening: bytes, agreed: bytes) -> None:
        self.serial, self.opening, self.agreed = serial, opening, agreed
        self.pending = self.packets
        self.last = None
        self.silent = set(self._everyone)
        ranks, slots = self.seen.shape
        self.missing = self.packets * ranks
        self.top = [0] * ranks
        self._stored_from, self._stored_to = slots, 0
        self.filled = 0
        if self.payload is None:
            self.payload = self.pool.take()
        if self.told is not None:
            self.told = bytearray(self._nothing)

    def _compile(self, compiled: Compiled) -> None:
        memory = (
            self.header,
            self.seen,
            self.result,
            self.share,
            self.result_crc,
            self.ina_bytes,
            self.done,
            self.summed,
        )
        first, middle = (FIRST, _FIRST_HEADER_BYTES), (MIDDLE, _MIDDLE_HEADER_BYTES)
        self.kernels = RegionKernels(compiled, memory, inputs=len(self.seen), first=first, middle=middle)

    def serve(self, spec: RingSpec) -> None:
        """Be of that ring from now on, whose region it could have been from the start."""

    def forget(self) -> None:
        """Belong to no message: what it held, the kept results too, is no more."""
        self.serial = -1
        self.ina = None
        self.last = None
        self.agreed = b""
        if self.payload is not None:
            self.pool.give_back(self.payload)
            self.payload = None
        if self.kernels is not None:
            words = self.kernels.words
            words[PAYLOAD_WORD], words[SERIAL_WORD], words[LIKE_WORD] = 0, -1, UNLIKE

    def store_fresh(
        self,
        rank: int,
        offsets: slice,
        payload: NDArray[np.uint8],
        headers: NDArray[np.uint8],
        share: NDArray[np.uint32],
        icrc: NDArray[np.uint32],
    ) -> int | None:
        """Keep and check whole-MTU middle packets in slots that this rank has not filled yet.

        Their UDP checksum is 0. They are checked where they were copied to, which is quicker than in the
        receive buffer; those with a wrong ICRC are as if they had never come. Returns how many are right, or
        None, with nothing changed, if a slot was filled before (a wrong packet must not overwrite a right
        one).
        """
        if self.payload is None or (offsets.start < self.top[rank] and self.seen[rank, offsets].any()):
            return None
        self.payload.array[rank, offsets] = payload
        cuts = self.payload.cuts[rank][offsets]
        found = np.fromiter(map(crc32, cuts), np.uint32, len(cuts))
        found ^= share
        intact = found == icrc
        self.header[rank, offsets, :_MIDDLE_HEADER_BYTES] = headers[:, :_MIDDLE_HEADER_BYTES]
        self.share[rank, offsets] = share
        self.seen[rank, offsets] = intact
        right, past = int(np.count_nonzero(intact)), offsets.stop
        if right:
            if right < past - offsets.start:
                past = offsets.start + int(np.flatnonzero(intact)[-1]) + 1
            self.stored(rank, right, offsets.start, past)
        return right

    def store_single(
        self, rank: int, offset: int, header: bytes, tail: memoryview, share: int, *, again: bool = False
    ) -> bool:
        """Keep one packet, checked already; False if the slot was filled before.

        Then, if it may come ``again``, its headers are kept, which are always those of the latest packet;
        else nothing is changed.
        """
        slot = rank * len(self.done) + offset
        payload = self.payload
        fresh = payload is not None and not self._seen_bytes[slot]
        if not fresh and not again:
            return False
        at = slot * HEADER_BYTES_MAX
        self._header_bytes[at : at + len(header)] = header
        self._header_bytes[at + UDP_CHECKSUM.start : at + UDP_CHECKSUM.stop] = b"\0\0"
        self._share_words[slot] = share
        if payload is None or not fresh:
            return False
        payload.cuts[rank][offset][: len(tail)] = tail
        self._seen_bytes[slot] = 1
        self.stored(rank, 1, offset, offset + 1)
        return True

    def keep_header(self, rank: int, header: NDArray[np.uint8]) -> None:
        """The rank's own INA header, uint8 (40,), as its result will carry it: marked as a result."""
        self.ina_bytes[rank] = header
        self.ina_bytes[rank, FLAGS_OFFSET] |= FLAG_RESULT

    def stored(self, rank: int, packets: int, low: int, past: int) -> None:
        """Account for ``packets`` of ``rank`` in slots that were empty, from ``low`` to before ``past``."""
        self.missing -= packets
        self.silent.discard(rank)
        # Quicker than max and min, and done for each part of a message.
        if past > self.top[rank]:  # noqa: PLR1730
            self.top[rank] = past
        if past > self._stored_to:  # noqa: PLR1730
            self._stored_to = past
        if low < self._stored_from:  # noqa: PLR1730
            self._stored_from = low

    def fill(self, slots: int, past: int) -> None:
        """Account for ``slots`` that have their results, all before ``past``, the last one just before it."""
        self.finished_last = max(past - 1, self.finished_last) if self.filled else past - 1
        self.filled += slots
        self.pending -= slots

    def store(self, rank: int, run: RoceRun, rows: Rows, offsets: Rows) -> NDArray[np.bool_] | None:
        """Keep packets of ``rank``; returns which of them were already done, bool (n,), or None if none.

        Headers are always those of the latest packet (a resend has another IP id and AckReq). A payload that
        is there is not replaced: it may be in the slot's sum already.
        """
        width = run.header_bytes
        self.header[rank, offsets, :width] = run.frames[rows, :width]
        self.header[rank, offsets, UDP_CHECKSUM] = 0
        self.share[rank, offsets] = run.header_crc[rows]
        tail = run.tail
        length = tail.shape[1]
        if run.opcode in OPENING_OPCODES:
            self.keep_header(rank, tail[rows][-1, :INA_HEADER_BYTES])
        done: NDArray[np.bool_] = self.done[offsets]
        if self.payload is None:
            return done
        had = self.seen[rank, offsets].copy()
        before = int(np.count_nonzero(self.seen[rank]))
        low, past = (
            (offsets.start, offsets.stop)
            if isinstance(offsets, slice)
            else (int(offsets.min()), int(offsets.max()) + 1)
        )
        if not had.any():
            self.payload.array[rank, offsets, :length] = tail[rows]
            self.seen[rank, offsets] = True
            self.stored(rank, int(np.count_nonzero(self.seen[rank])) - before, low, past)
            return None
        if not had.all():
            fresh = np.flatnonzero(~had)
            at = (
                np.arange(offsets.start, offsets.stop)[fresh]
                if isinstance(offsets, slice)
                else offsets[fresh]
            )
            self.payload.array[rank, at, :length] = tail[rows][fresh]
            self.seen[rank, at] = True
            self.stored(rank, int(np.count_nonzero(self.seen[rank])) - before, low, past)
        return done if done.any() else None

    def finish(self) -> int:
        """Compute the results of all slots that became full; returns how many.

        The offset of the last of them is in ``finished_last``. A slot becomes full by a packet stored
        into it, so only those stored into since the last call are looked at.
        """
        low, past = self._stored_from, self._stored_to
        self._stored_from, self._stored_to = len(self.done), 0
        filled, self.filled = self.filled, 0
        if self.silent or self.payload is None or low >= past:
            return filled
        packets = self.packets
        if self.pending == 0:
            ready, spans = 0, []
        elif self.missing == 0 and self.pending == packets:
            ready, spans = packets, [(0, packets)]
        elif past - low == 1:  # one packet came: what arrays would cost is more than all the rest
            if self._done_bytes[low] or 0 in self._seen_bytes[low :: len(self.done)]:
                return filled
            ready, spans = 1, [(low, past)]
        else:
            full: NDArray[np.bool_] = np.logical_and.reduce(self.seen[:, low:past], axis=0)
            full &= ~self.done[low:past]
            ready = int(np.count_nonzero(full))
            spans = [(low + begin, low + end) for begin, end in spans_of(full)]
        for a, b in spans:
            # Whole rows, though the last packet may be short: what lies behind its end is not sent.
            if self.kernels is not None and self.sums is not None:
                _, _, payload, pad = self.last or _NO_LAST
                self.kernels.sum(self.sums, a, b, packets - 1, payload, pad)
            else:
                assert self.ina is not None, "an open region has the header that opened it"
                array, ina = self.payload.array, self.ina
                inputs = list(array[:, a]) if b - a == 1 else [rank[a:b] for rank in array]
                reduce_into(ina.dtype, ina.op, inputs, self.result[a] if b - a == 1 else self.result[a:b])
                self._checksum(a, b)
            self._done_bytes[a:b] = bytes([1]) * (b - a)
            self.finished_last = max(b - 1, self.finished_last) if filled else b - 1
        self.pending -= ready
        if self.pending == 0:
            self.pool.give_back(self.payload)
            self.payload = None
            if self.kernels is not None:
                self.kernels.words[PAYLOAD_WORD] = 0
        return ready + filled

    def untold(self) -> list[tuple[int, int]]:
        """Slots whose results were done since it was asked last, as (begin, end)."""
        done, told = self._final_bytes, self.told
        if told is None:
            told = self.told = bytearray(len(done))
        spans: list[tuple[int, int]] = []
        # Without loss there is one, behind all that were told: quicker by bytes than by arrays.
        begin = done.find(1, max(0, told.find(0)))
        while begin >= 0:
            if told[begin]:
                begin = told.find(0, begin)
                begin = done.find(1, begin) if begin >= 0 else -1
                continue
            end = min(at if at >= 0 else len(done) for at in (done.find(0, begin), told.find(1, begin)))
            told[begin:end] = bytes([1]) * (end - begin)
            spans.append((begin, end))
            begin = done.find(1, end)
        return spans

    def _checksum(self, begin: int, end: int) -> None:
        whole = min(end, self.packets - 1)
        if begin == whole - 1:
            self.result_crc[begin] = crc32(self.result_cuts[begin])
        elif begin < whole:
            self.result_crc[begin:whole] = np.fromiter(
                map(crc32, self.result_cuts[begin:whole]), np.uint32, whole - begin
            )
        if end == self.packets:
            assert self.last is not None, "a full last slot has a layout"
            tail = self.last.payload_bytes + self.last.pad
            self.result[end - 1, self.last.payload_bytes : tail] = 0
            self.result_crc[end - 1] = crc32(self.result_cuts[end - 1][:tail])

    def first_missing(self, rank: int) -> int:
        """The first slot that has no packet of the rank; the message's length if there is none."""
        row = rank * len(self.done)
        at = self._seen_bytes.find(0, row, row + self.packets)
        return self.packets if at < 0 else at - row

    def traffic_class(self, rank: int) -> int:
        """The traffic class of a packet of the rank; 0 before one has come."""
        at = self._seen_bytes.find(1, rank * len(self.done), (rank + 1) * len(self.done))
        return 0 if at < 0 else self._header_bytes[at * HEADER_BYTES_MAX + TOS]

    def is_told(self, offset: int) -> bool:
        """Whether ``untold`` has named the slot."""
        return self.told is not None and bool(self.told[offset])

    def done_until(self, begin: int) -> int:
        """The first slot from ``begin`` on that has no result yet; the message's length if there is none."""
        end = self._final_bytes.find(0, begin, self.packets)
        return self.packets if end < 0 else end

    def cut_out(self, kernels: RegionKernels, ranks: slice, begin: int, end: int, arena: CutsPieces) -> Cut:
        """The same as ``packets_out``, by kernels."""
        if kernels.last is not self.last and self.last is not None:
            kernels.expect(self.last)
        return kernels.seal(ranks, begin, end, self.packets, arena)

    def packets_out(self, ranks: slice, begin: int, end: int, arena: OutputArena) -> list[NDArray[np.uint8]]:
        """Result packets ``begin`` to ``end - 1`` under the headers of ``ranks``, sealed.

        Returns uint8 blocks (ranks, n, frame_bytes) in packet order, one for each frame length.
        """
        if self.kernels is not None:
            return self.cut_out(self.kernels, ranks, begin, end, arena).blocks
        blocks = []
        if begin == 0:
            blocks.append(self._packet(ranks, 0))
        low, high = max(begin, 1), min(end, self.packets - 1)
        if high - low == 1:
            blocks.append(self._packet(ranks, low))
        elif low < high:
            blocks.append(self._middles(ranks, low, high, arena))
        if end == self.packets > 1:
            blocks.append(self._packet(ranks, end - 1))
        return blocks

    def _packet(self, ranks: slice, at: int) -> NDArray[np.uint8]:
        """One packet of each rank, uint8 (ranks, 1, frame_bytes), put together from bytes.

        For so few, arrays would cost twice as much.
        """
        if at == self.packets - 1:
            assert self.last is not None, "a finished last packet has a layout"
            width, tail = self.last.header_bytes, self.last.payload_bytes + self.last.pad
        else:
            width, tail = (_MIDDLE_HEADER_BYTES if at else _FIRST_HEADER_BYTES), self.result.shape[1]
        body = self.result_cuts[at][:tail]
        crc = int(self.result_crc[at])
        parts: list[bytes | memoryview] = []
        for rank in range(ranks.start, ranks.stop):
            slot = rank * len(self.done) + at
            begin = slot * HEADER_BYTES_MAX
            parts.append(self._header_bytes[begin : begin + width])
            if at == 0:
                # The INA header is the sender's own: it was never summed, only marked.
                ina = self.ina_bytes[rank].tobytes()
                parts.append(ina)
                crc = crc32(body[INA_HEADER_BYTES:], crc32(ina))
            parts.append(body if at else body[INA_HEADER_BYTES:])
            parts.append((self._share_words[slot] ^ crc).to_bytes(4, "little"))
        shape = (ranks.stop - ranks.start, 1, width + tail + 4)
        return np.ndarray(shape, np.uint8, bytearray().join(parts))

    def _middles(self, ranks: slice, begin: int, end: int, arena: OutputArena) -> NDArray[np.uint8]:
        width, tail = _MIDDLE_HEADER_BYTES, self.result.shape[1]
        headers = self.header[ranks, begin:end, :width]
        out = arena.take(len(headers), end - begin, width + tail + 4)
        out[:, :, :width] = headers
        out[:, :, width : width + tail] = self.result[begin:end]
        icrc = self.share[ranks, begin:end] ^ self.result_crc[begin:end]
        out[:, :, width + tail :].view("<u4")[:, :, 0] = icrc
        return out


def spans_of(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Maximal runs of true values, as (begin, end)."""
    data = mask.tobytes()  # for messages, quicker than by arrays
    spans: list[tuple[int, int]] = []
    begin = data.find(1)
    while begin >= 0:
        end = data.find(0, begin)
        if end < 0:
            end = len(data)
        spans.append((begin, end))
        begin = data.find(1, end)
    return spans


def consecutive(offsets: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Maximal runs of offsets that rise by ones, in the order given, as (begin, end)."""
    numbers = offsets.tolist()
    spans: list[tuple[int, int]] = []
    begin = end = numbers[0]
    for number in numbers:
        if number != end:
            spans.append((begin, end))
            begin = number
        end = number + 1
    spans.append((begin, end))
    return spans
