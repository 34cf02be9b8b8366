"""Address resolution (RFC 826) for a NIC without a kernel: it answers who asks for it, and asks for a peer.

A peer's address is known, so the answer to a question tells the NIC nothing. It tells the bridges on its way
where the peer is: one that took it to be elsewhere, after a frame that was damaged, would send all that is
for it there for ever, for the peer has nothing to say. Hosts with a kernel ask so too (RFC 1122, 2.3.2.1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from inaproto.units import Frames

ARP_BYTES: Final = 42
_REQUEST_HEAD: Final = struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
_REPLY_HEAD: Final = struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, 2)


_BROADCAST: Final = b"\xff" * 6


def arp_question(*, mac: bytes, ip: bytes, asked: bytes) -> Frames:
    """One frame to all, shape (1, 42): who has the IP address ``asked``."""
    frame = _BROADCAST + mac + _REQUEST_HEAD + mac + ip + bytes(6) + asked
    return np.frombuffer(frame, np.uint8).reshape(1, ARP_BYTES)


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
