"""Recognises the packets of a flow that is known already, a vector at a time.

Most packets that a switch sees are the middle of a message of a connection whose headers it has seen:
comparing them with what is expected costs a fraction of decoding them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.units import Frames
from inaproto.wire.crc import byte_table, pair_table
from inaproto.wire.vector import BTH_END, HEADER_COLUMNS, RoceRun, header_columns, header_share

# The last word of a BTH (AckReq, reserved bits, PSN) as it lies in memory: by the PSN's low 16 bits, by its
# high 8 bits, and AckReq alone.
_PSN_WORDS: Final = np.arange(1 << 16).astype(">u4").view(np.uint32)
_PSN_HIGH_WORDS: Final = (np.arange(1 << 8) << 16).astype(">u4").view(np.uint32)
_ACK_WORD: Final = np.array([1 << 31], ">u4").view(np.uint32)[0]


class RunTemplate:
    """The headers of one flow's packets of one opcode and length, to recognise more of them quickly.

    Made from a run without extension headers that was decoded and found intact. Only IP id, IP
    checksum, PSN and AckReq may differ in what it matches.
    """

    __slots__ = (
        "_ack",
        "_expected",
        "_header",
        "_id_table",
        "_length",
        "_low_table",
        "_mask",
        "_masks",
        "_rows",
        "_share",
        "_table",
        "dst_mac",
        "src_mac",
    )

    def __init__(self, run: RoceRun) -> None:
        tail = run.payload_bytes + run.pad
        self._length = run.frames.shape[1]
        self.dst_mac, self.src_mac = run.dst_mac, run.src_mac
        header = header_columns(run.frames[:1])
        varying = [18, 19, 24, 25, *range(50, 54)]
        mask = np.zeros(HEADER_COLUMNS, np.uint8)
        mask[:BTH_END] = 0xFF
        mask[varying] = 0
        header[0, varying] = 0
        self._mask = mask.view(np.uint64)
        self._header = header.tobytes()
        self._rows = 0
        self._masks = self._mask
        self._expected = b""
        # Share of the headers with all that varies zero; the rest is XORed in by table.
        self._share = header_share(header, BTH_END, tail)[0]
        self._id_table = pair_table(BTH_END - 20 + tail)
        self._table = byte_table(BTH_END - 52 + tail)
        self._low_table = pair_table(BTH_END - 54 + tail)
        self._ack = byte_table(BTH_END - 51 + tail)[0x80]

    def match(self, frames: Frames) -> tuple[int, NDArray[np.uint32], NDArray[np.uint8]] | None:
        """(first PSN, ICRC share of the headers, contiguous headers) of consecutive packets, else None.

        uint32 (n,) and uint8 (n, 56); ``None`` also where the PSN's low 16 bits wrap.
        """
        if frames.shape[1] != self._length:
            return None
        n = len(frames)
        if n != self._rows:  # whole arrays, not one row broadcast: numpy is slow on short inner loops
            self._rows, self._masks, self._expected = n, np.tile(self._mask, n), self._header * n
        headers = frames[:, :HEADER_COLUMNS].copy()
        if (headers.reshape(-1).view(np.uint64) & self._masks).tobytes() != self._expected:
            return None
        first = int.from_bytes(headers[0, 51:54].tobytes(), "big")
        low = first & 0xFFFF
        if low + n > 0x1_0000:
            return None
        # XOR with the words that consecutive PSNs make: only AckReq, the very first bit, may be left.
        left = headers[:, 50:54].view(np.uint32)[:, 0] ^ _PSN_WORDS[low : low + n]
        left ^= _PSN_HIGH_WORDS[first >> 16]
        asking = left.tobytes() != bytes(4 * n)
        if asking and not ((left == 0) | (left == _ACK_WORD)).all():
            return None
        share = self._low_table[low : low + n] ^ (self._share ^ self._table[first >> 16])
        share ^= self._id_table.take(headers[:, 18:20].view(">u2")[:, 0])
        if asking:
            share[left != 0] ^= self._ack
        return first, share, headers
