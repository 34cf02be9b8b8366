"""Builds the middle of a message: packets of one flow, opcode and length whose numbers count up.

All that differs between them is IP identification, IP checksum, PSN, AckReq, payload and ICRC. The first
three, and their share in the ICRC, are stretches of tables, so nothing is computed for each packet but the
CRC of its payload. The bytes are those of ``FlowTemplate.build``: ``tests/unit/test_wire_run_builder.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.units import Frames
from inaproto.wire.crc import byte_table, copy_rows, pair_table
from inaproto.wire.icrc import ICRC_BYTES
from inaproto.wire.vector import BTH_END, FlowTemplate, header_share

CopyRows = Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.uint32]]
_WRAP: Final = 1 << 16
IDS: Final = np.arange(_WRAP).astype(">u2")
"""Each identification as it lies in a header: big-endian, (65536,)."""
_PSN_WORDS: Final = np.arange(_WRAP).astype(">u4").view(np.uint32)
"""A BTH's last word by the PSN's low 16 bits."""


_SUMS: Final = np.arange(2 * _WRAP - 1)
IP_CHECKSUMS: Final = (~((_SUMS & 0xFFFF) + (_SUMS >> 16)) & 0xFFFF).astype(">u2")
"""The IP checksum as it lies in a header, by the folded sum of the other words plus the identification:
(131071,)."""


def folded(words: Iterable[int]) -> int:
    """The sum of 16-bit words as the Internet checksum (RFC 1071) adds them: 0 only where all are 0."""
    total = sum(words)
    return (total - 1) % 0xFFFF + 1 if total else 0


class RunBuilder:
    """Packets of one flow, opcode without extension headers, and payload length, a multiple of 4."""

    __slots__ = ("_ack", "_end", "_header", "_high_table", "_id_table", "_low_table", "_share", "_word_sum")

    def __init__(self, flow: FlowTemplate, opcode: int, payload_bytes: int) -> None:
        header = flow.header(opcode, payload_bytes)
        self._header = np.frombuffer(header, np.uint8)
        self._end = BTH_END + payload_bytes
        self._word_sum = folded(struct.unpack_from(">10H", header, 14))
        self._share = header_share(self._header[None], BTH_END, payload_bytes)[0]
        self._id_table = pair_table(BTH_END - 20 + payload_bytes)
        self._low_table = pair_table(BTH_END - 54 + payload_bytes)
        self._high_table = byte_table(BTH_END - 52 + payload_bytes)
        self._ack = byte_table(BTH_END - 51 + payload_bytes)[0x80]

    def build(
        self,
        *,
        psn: int,
        asking: Iterable[int],
        ip_id: int,
        payload: NDArray[np.uint8],
        copy: CopyRows = copy_rows,
    ) -> Frames | None:
        """``n`` sealed frames with ``payload`` uint8 (n, payload_bytes); rows ``asking`` ask for an ACK.

        PSNs and IP ids count up from those given; ``copy`` copies payloads and gives their CRCs. None where a
        number would wrap at 16 bits.
        """
        n, low = len(payload), psn & 0xFFFF
        if low + n > _WRAP or ip_id + n > _WRAP:
            return None
        frames = np.empty((n, self._end + ICRC_BYTES), np.uint8)
        frames[:, :BTH_END] = self._header
        frames[:, 18:20].view(">u2")[:, 0] = IDS[ip_id : ip_id + n]
        at = self._word_sum + ip_id
        frames[:, 24:26].view(">u2")[:, 0] = IP_CHECKSUMS[at : at + n]
        high = psn >> 16 & 0xFF
        frames[:, 50:54].view(np.uint32)[:, 0] = _PSN_WORDS[low : low + n]
        frames[:, 51] = high
        share = self._low_table[low : low + n] ^ self._id_table[ip_id : ip_id + n]
        share ^= self._share ^ self._high_table[high]
        for row in asking:
            frames[row, 50] = 0x80
            share[row] ^= self._ack
        share ^= copy(payload, frames[:, BTH_END : self._end])
        frames[:, self._end :].view("<u4")[:, 0] = share
        return frames
