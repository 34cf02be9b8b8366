"""Messages between the memory of a NIC and its frames, by compiled kernels (``nic.c``)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from inaproto.core.kernels.compiled import Compiled, Told, address_of, pointer_to
from inaproto.units import Frames
from inaproto.wire.vector import BTH_END, HEADER_COLUMNS, FlowTemplate

_BLOCK: Final = struct.Struct("4q")
_ORDER: Final = struct.Struct("9q")
_FOUND: Final = struct.Struct("7q")
_OPCODE_AT: Final = 42
_RETH: Final = struct.Struct(">QII")
_RETH_BYTES: Final = 16
_IMM_BYTES: Final = 4
_ICRC_BYTES: Final = 4
_ACK_BYTES: Final = BTH_END + 4 + _ICRC_BYTES
PIECES_MAX: Final = 4
"""Pieces in which a message may lie in memory."""
_BUILD: Final = struct.Struct(f"11qQ3q{2 * PIECES_MAX}q")
_FRAME_BYTES_MIN: Final = BTH_END + 4
_REUSED_BYTES: Final = 2 << 20
"""Some messages: what is sent together. Pages that are never written take no memory."""
_CUTS_MAX: Final = 256

_SAME_COLUMNS: Final = (*range(6), 12, 13, 14, 21, 23, *range(26, 34), 36, 37, 47, 48, 49)
_SAME: Final = np.zeros(HEADER_COLUMNS, np.uint8)
_SAME[list(_SAME_COLUMNS)] = 0xFF
_SAME[20] = 0x3F


def connection_key(flow: FlowTemplate) -> Frames:
    """What packets of a flow have in common, as ``nic.c`` compares it: uint8 (56,)."""
    header = flow.header(0, 0)[:BTH_END] + bytes(HEADER_COLUMNS - BTH_END)
    return np.frombuffer(header, np.uint8) & _SAME


Head = tuple[int, int, int, tuple[int, int, int]]
"""What a frame is if it is a packet of a connection, not verified: destination queue pair, opcode, PSN, and
what would be a RETH, where the opcode says that there is one."""
Taken = tuple[int, int, int, bool, int | None]
"""What :meth:`Arrivals.take` took: packets, bytes of payload, packets up to which an ACK is owed (0: none
is), whether the last one ended the message, and its immediate."""
Cut = tuple[int, list[Frames], int]
"""Where the frames of a message are, these, and their bytes."""


class Arrivals:
    """Blocks of frames of one receive, and how far they are dealt with. Memory is kept for the next one."""

    def __init__(self, kernels: Compiled) -> None:
        self._take = kernels.take
        self._ack = kernels.ack
        self._read = kernels.read
        self._told = Told()
        self._words = bytearray(_ORDER.size + _FOUND.size)
        self._words_at = ctypes.addressof(ctypes.c_char.from_buffer(self._words))
        self._room(16)
        self._blocks: Sequence[Frames] = ()
        self._count = 0
        self.block = self.row = 0
        """The next frame."""

    def _room(self, blocks: int) -> None:
        self._most = blocks
        self._table = bytearray(blocks * _BLOCK.size)
        self._table_pointer = pointer_to(self._table)
        self._table_at = self._table_pointer.value

    def read(self, blocks: Sequence[Frames]) -> None:
        """They stay alive until all are dealt with."""
        self._blocks = blocks
        self._count = count = len(blocks)
        if count > self._most:
            self._room(2 * count)
        self._read(self._told.of(blocks), self._table_pointer, _FRAME_BYTES_MIN)
        self.block = self.row = 0

    @property
    def rest(self) -> Frames:
        """The next frame, and what is behind it in its block."""
        return self._blocks[self.block][self.row :]

    def skip_one(self) -> None:
        """The next frame is dealt with."""
        self.row += 1
        if self.row == len(self._blocks[self.block]):
            self.skip()

    def skip(self) -> None:
        """The rest of the next frame's block is dealt with."""
        self.block += 1
        self.row = 0

    def since(self, block: int, row: int) -> Iterator[Frames]:
        """The frames from there on that are dealt with."""
        while block < self.block:
            yield self._blocks[block][row:]
            block, row = block + 1, 0
        if row < self.row:
            yield self._blocks[block][row : self.row]

    def head(self) -> Head | None:
        """What the next frame is; None where there is no packet, or one that no kernel looks at."""
        address, rows, stride, length = _BLOCK.unpack_from(self._table, self.block * _BLOCK.size)
        if not rows:
            return None
        at = address + self.row * stride + _OPCODE_AT
        if length < BTH_END + 16:
            data = ctypes.string_at(at, BTH_END - _OPCODE_AT) + bytes(16)
        else:
            data = ctypes.string_at(at, BTH_END + 16 - _OPCODE_AT)
        word, psn = struct.unpack_from(">II", data, 4)
        return word & 0xFF_FFFF, data[0], psn & 0xFF_FFFF, _RETH.unpack_from(data, 12)

    def acknowledgement(self, key: int) -> tuple[int, int, int] | None:
        """PSN, syndrome and MSN of the next frame, which is dealt with then; None, and it is not, if it is no
        intact ACK of the connection without payload, or packets of others are in its block."""
        address, rows, stride, length = _BLOCK.unpack_from(self._table, self.block * _BLOCK.size)
        word: int = self._ack(address + self.row * stride, rows - self.row, stride, length, key)
        if word < 0:
            return None
        self.row += 1
        if self.row == rows:
            self.skip()
        return word >> 32, word >> 24 & 0xFF, word & 0xFF_FFFF

    def take(self, key: int, *, psn: int, mtu: int, to: int, left: int, starts: bool, may_end: int) -> Taken:
        """Copy payloads of packets of one message to the address ``to``, from the next frame on.

        ``may_end``: 0: not with these packets; 1: without an immediate; 2: with one, too.
        """
        words = self._words
        _ORDER.pack_into(words, 0, key, psn, mtu, to, left, starts, may_end, self.block, self.row)
        self._take(self._table_at, self._count, self._words_at)
        self.block, self.row = struct.unpack_from("2q", words, 56)
        packets, nbytes, asked, ended, imm = struct.unpack_from("5q", words, 72)
        return packets, nbytes, asked, bool(ended), None if imm < 0 else imm


class Departures:
    """Builds the frames of a message, or of a part of it."""

    def __init__(self, kernels: Compiled, *, reuses: bool = False) -> None:
        """``reuses``: the frames are built in memory that is used again after ``reset``."""
        self._build = kernels.build
        self._acknowledge = kernels.acknowledge
        self._words = bytearray(_BUILD.size)
        self._words_at = ctypes.addressof(ctypes.c_char.from_buffer(self._words))
        self._memory: Frames = np.empty(_REUSED_BYTES if reuses else 0, np.uint8)
        self._memory_at = int(self._memory.ctypes.data)
        self._used = 0
        self._cuts: dict[tuple[int, ...], Cut] = {}

    def reset(self) -> None:
        """Nobody looks at what was built before."""
        self._used = 0

    def build(
        self,
        header: int,
        pieces: Sequence[int],
        *,
        psn: int,
        ip_id: int,
        first: int,
        count: int,
        packets: int,
        mtu: int,
        nbytes: int,
        asking: range,
        reth: tuple[int, int],
        imm: int | None,
    ) -> list[Frames]:
        """Packets ``first`` to ``first + count - 1`` of the ``packets`` of a message of ``nbytes``.

        ``header`` is the address of 54 bytes that the packets of the flow have in common, ``pieces`` are
        address and length of each piece of the message, ``reth`` is address and key. As
        ``packetiser.build_frames``: a block for the first packet, one for the middle ones, one for the last.
        """
        alike = (self._used, first, count, packets, mtu, nbytes, imm is None)
        out, frames, size = self._cuts.get(alike) or self._cut(*alike)
        if out:
            self._used += size
        else:
            out = address_of(frames[0])
        _BUILD.pack_into(
            self._words,
            0,
            header,
            psn,
            ip_id,
            first,
            count,
            packets,
            mtu,
            nbytes,
            asking.start,
            asking.stop,
            asking.step,
            reth[0],
            reth[1],
            -1 if imm is None else imm,
            len(pieces) // 2,
            *pieces,
            *(0,) * (2 * PIECES_MAX - len(pieces)),
        )
        self._build(self._words_at, out)
        return frames

    def acknowledge(self, header: int, *, psn: int, ip_id: int, syndrome: int, msn: int) -> Frames:
        """An acknowledge packet without payload, uint8 (1, 62), as ``PacketBuilder.build`` has it."""
        out, frames, size = self._cuts.get((self._used,)) or self._cut_out((self._used,), [(1, _ACK_BYTES)])
        if out:
            self._used += size
        else:
            out = address_of(frames[0])
        self._acknowledge(header, psn, ip_id, syndrome << 24 | msn, out)
        return frames[0]

    def _cut(
        self, used: int, first: int, count: int, packets: int, mtu: int, nbytes: int, is_without_imm: bool
    ) -> Cut:
        """Memory for such packets; address 0: only for these, not for others that are alike."""
        last, end = packets - 1, first + count
        shapes: list[tuple[int, int]] = []
        bare = BTH_END + _ICRC_BYTES
        if first == 0 < last:
            shapes.append((1, bare + _RETH_BYTES + mtu))
        middle = min(end, last) - max(first, 1)
        if middle > 0:
            shapes.append((middle, bare + mtu))
        if end > last:
            bytes_left = nbytes - last * mtu
            extensions = _RETH_BYTES * (last == 0) + (0 if is_without_imm else _IMM_BYTES)
            shapes.append((1, bare + extensions + bytes_left + (-bytes_left & 3)))
        alike = (used, first, count, packets, mtu, nbytes, is_without_imm)
        return self._cut_out(alike, shapes)

    def _cut_out(self, alike: tuple[int, ...], shapes: list[tuple[int, int]]) -> Cut:
        """The same for blocks of those shapes; the first of ``alike`` is how much is used."""
        used = alike[0]
        size = sum(rows * length for rows, length in shapes)
        lasts = used + size <= len(self._memory)
        out = self._memory[used : used + size] if lasts else np.empty(size, np.uint8)
        frames: list[Frames] = []
        begin = 0
        for rows, length in shapes:
            stop = begin + rows * length
            frames.append(out[begin:stop].reshape(rows, length))
            begin = stop
        if not lasts:
            return 0, frames, size
        if len(self._cuts) >= _CUTS_MAX:
            self._cuts.clear()
        cut = self._cuts[alike] = self._memory_at + used, frames, size
        return cut
