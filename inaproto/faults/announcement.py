"""Gratuitous ARP (RFC 5227): who comes up says where it is, so that bridges need not flood what is for it.

In a tree of switches a host's packets end at its first switch, which sums them: without this the switches
behind it would never learn where the host is, and flood every ACK for it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from inaproto.units import Frames

_BROADCAST: Final = b"\xff" * 6
_ARP_REQUEST: Final = bytes.fromhex("08060001080006040001")
ANNOUNCEMENT_BYTES: Final = 60
"""The least that Ethernet carries, without FCS."""


def announcement(mac: bytes, ip: bytes) -> Frames:
    """One frame: an ARP request for the sender's own address, to all."""
    frame = _BROADCAST + mac + _ARP_REQUEST + mac + ip + bytes(6) + ip
    return np.frombuffer(frame.ljust(ANNOUNCEMENT_BYTES, b"\0"), np.uint8).reshape(1, -1)


def is_announcement(frame: bytes) -> bool:
    return frame[12:14] == _ARP_REQUEST[:2]
