"""From a transmit order to frames: opcodes, gathered payloads, one vector for the middle of a message.

A message of 170 packets is FIRST (1 frame), MIDDLE (168 in one vector), LAST_IMM (1). Payload rows of
a vector are a view of registered memory wherever they lie in one gather segment: the only copy is the
one into the frames.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from inaproto.core.rc_requester import Transmit
from inaproto.units import Frames
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import FlowTemplate


class GatherList:
    """The bytes of a message, in pieces."""

    def __init__(self, pieces: Sequence[NDArray[np.uint8]]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)] or [np.empty(0, np.uint8)]
        self._ends = list(accumulate(len(piece) for piece in self._pieces))

    @property
    def nbytes(self) -> int:
        return self._ends[-1]

    def rows(self, begin: int, count: int, row_bytes: int) -> NDArray[np.uint8]:
        """uint8 (count, row_bytes): consecutive bytes from ``begin`` on; a view if they are in one piece."""
        end = begin + count * row_bytes
        index = min(bisect_right(self._ends, begin), len(self._pieces) - 1)
        start = self._ends[index] - len(self._pieces[index])
        if end <= self._ends[index]:
            return self._pieces[index][begin - start : end - start].reshape(count, row_bytes)
        parts = []
        while begin < end:
            stop = min(end, self._ends[index])
            parts.append(self._pieces[index][begin - start : stop - start])
            begin = start = stop
            index += 1
        return np.concatenate(parts).reshape(count, row_bytes)


def build_frames(
    template: FlowTemplate, transmit: Transmit, gather: GatherList, *, mtu: int, ip_id: int
) -> Iterator[Frames]:
    """The frames of a transmit order, in order; each block of one opcode. IP ids count on from ``ip_id``."""
    message = transmit.message
    write = message.write
    last = message.packets - 1
    begin, end = transmit.first_packet, transmit.first_packet + transmit.count
    psns = transmit.psn + np.arange(transmit.count)
    asks = np.zeros(transmit.count, np.bool_)
    for packet in transmit.ack_packets:
        asks[packet - begin] = True
    asks[-1] |= transmit.ends_message

    def block(first: int, stop: int, row_bytes: int, opcode: Opcode) -> Frames:
        rows = slice(first - begin, stop - begin)
        return template.build(
            opcode=opcode,
            psns=psns[rows],
            ack_request=asks[rows],
            ip_id=(ip_id + first - begin) & 0xFFFF,
            payload=gather.rows(first * mtu, stop - first, row_bytes),
            reth=(write.remote_va, write.rkey, write.nbytes) if first == 0 else None,
            imm=write.imm if stop > last else None,
        )

    with_imm = write.imm is not None
    if last == 0:
        yield block(0, 1, write.nbytes, Opcode.RC_WRITE_ONLY_IMM if with_imm else Opcode.RC_WRITE_ONLY)
        return
    if begin == 0:
        yield block(0, 1, mtu, Opcode.RC_WRITE_FIRST)
    middle, middle_end = max(begin, 1), min(end, last)
    if middle < middle_end:
        yield block(middle, middle_end, mtu, Opcode.RC_WRITE_MIDDLE)
    if end > last:
        opcode = Opcode.RC_WRITE_LAST_IMM if with_imm else Opcode.RC_WRITE_LAST
        yield block(last, end, write.nbytes - last * mtu, opcode)
