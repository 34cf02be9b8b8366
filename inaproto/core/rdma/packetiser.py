"""From a transmit order to frames: opcodes, gathered payloads, one vector for the middle of a message.

A message of 170 packets is FIRST (1 frame), MIDDLE (168 in one vector), LAST_IMM (1). Payload rows of
a vector are a view of registered memory wherever they lie in one gather segment: the only copy is the
one into the frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.rdma.requester import Transmit
from inaproto.units import PSN_MASK, Frames
from inaproto.wire.packet import PacketBuilder
from inaproto.wire.roce import Opcode

_FEW: Final = 16
"""Packets that are built one by one sooner than as a vector."""


class GatherList:
    """The bytes of a message, in pieces.

    ``places``: address and length of each piece in this process, for compiled kernels; empty: not known.
    """

    def __init__(self, pieces: Sequence[memoryview | NDArray[np.uint8]], places: Sequence[int] = ()) -> None:
        self._pieces = [
            piece if isinstance(piece, memoryview) else piece.data for piece in pieces if len(piece)
        ]
        self.nbytes = sum(map(len, self._pieces))
        self.places: Final = places

    def span(self, begin: int, nbytes: int) -> memoryview | bytes:
        """``nbytes`` consecutive bytes from ``begin`` on; a view if they are in one piece."""
        parts: list[memoryview] = []
        left = nbytes
        for piece in self._pieces:
            size = len(piece)
            if begin < size:
                if not parts and begin + nbytes <= size:
                    return piece[begin : begin + nbytes]
                parts.append(piece[begin : begin + left])
                left -= len(parts[-1])
                if not left:
                    break
                begin = 0
            else:
                begin -= size
        return b"".join(parts)

    def rows(self, begin: int, count: int, row_bytes: int) -> NDArray[np.uint8]:
        """uint8 (count, row_bytes): as ``span`` gives them."""
        return np.ndarray((count, row_bytes), np.uint8, self.span(begin, count * row_bytes))


def build_frames(
    builder: PacketBuilder, transmit: Transmit, gather: GatherList, *, mtu: int, ip_id: int
) -> list[Frames]:
    """The frames of a transmit order, in order; each block of one opcode. IP ids count on from ``ip_id``."""
    message, begin, begin_psn = transmit.message, transmit.first_packet, transmit.psn
    asking = transmit.ack_packets
    write = message.write
    last, end = message.packets - 1, begin + transmit.count

    def block(first: int, stop: int, row_bytes: int, opcode: Opcode) -> Frames:
        count = stop - first
        psn = begin_psn + first - begin
        block_id = (ip_id + first - begin) & 0xFFFF
        reth = (write.remote_va, write.rkey, write.nbytes) if first == 0 else None
        imm = write.imm if stop > last else None
        if count <= _FEW:
            return builder.build(
                opcode=opcode,
                psn=psn,
                ack_requests=[packet == last or packet in asking for packet in range(first, stop)],
                ip_id=block_id,
                payload=gather.span(first * mtu, count * row_bytes),
                reth=reth,
                imm=imm,
            )
        return builder.build_run(
            opcode,
            psn=psn & PSN_MASK,
            asking=[packet - first for packet in asking if first <= packet < stop],
            ip_id=block_id,
            payload=gather.rows(first * mtu, count, row_bytes),
        )

    with_imm = write.imm is not None
    if last == 0:
        return [block(0, 1, write.nbytes, Opcode.RC_WRITE_ONLY_IMM if with_imm else Opcode.RC_WRITE_ONLY)]
    blocks = []
    if begin == 0:
        blocks.append(block(0, 1, mtu, Opcode.RC_WRITE_FIRST))
    middle, middle_end = max(begin, 1), min(end, last)
    if middle < middle_end:
        blocks.append(block(middle, middle_end, mtu, Opcode.RC_WRITE_MIDDLE))
    if end > last:
        opcode = Opcode.RC_WRITE_LAST_IMM if with_imm else Opcode.RC_WRITE_LAST
        blocks.append(block(last, end, write.nbytes - last * mtu, opcode))
    return blocks
