"""The one thing beside RoCE that a NIC without a kernel has to answer: who has its address (RFC 826)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from inaproto.units import Frames

ARP_BYTES: Final = 42
_REQUEST_HEAD: Final = struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
_REPLY_HEAD: Final = struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, 2)


def arp_replies(frames: Frames, *, mac: bytes, ip: bytes) -> Iterator[Frames]:
    """Answers to the ARP requests for ``ip`` among frames of one length; other frames are passed over."""
    if frames.shape[1] < ARP_BYTES:
        return
    for row in frames[:, :ARP_BYTES]:
        frame = row.tobytes()
        if frame[12:22] == _REQUEST_HEAD and frame[38:42] == ip:
            asker = frame[22:32]
            reply = asker[:6] + mac + _REPLY_HEAD + mac + ip + asker
            yield np.frombuffer(reply, np.uint8).reshape(1, ARP_BYTES)
