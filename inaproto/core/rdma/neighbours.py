"""Neighbour discovery (RFC 4861) for a NIC without a kernel, over IPv6 what :mod:`inaproto.core.rdma.arp` is.

It advertises its address to who solicits it, a check for duplicates included, and solicits a peer's, for the
sake of the bridges on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from inaproto.units import Frames
from inaproto.wire.ipv4 import internet_checksum

NEIGHBOUR_BYTES: Final = 14 + 40 + 32
"""Length of a solicitation or an advertisement with one option, the Ethernet address of its sender."""
_TYPE: Final = b"\x86\xdd"
_ICMPV6: Final = 58
_HOP_LIMIT: Final = 255
"""Another one has passed a router, and is no neighbour's."""
_SOLICITATION, _ADVERTISEMENT = 135, 136
_SOURCE_ADDRESS, _TARGET_ADDRESS = b"\1\1", b"\2\1"
_SOLICITED_OVERRIDE, _OVERRIDE = b"\x60\0\0\0", b"\x20\0\0\0"
_UNSPECIFIED: Final = bytes(16)
_ALL_NODES: Final = bytes.fromhex("ff02") + bytes(13) + b"\1"
_SOLICITED_NODE: Final = bytes.fromhex("ff02" + "00" * 9 + "01ff")


def neighbour_solicitation(*, mac: bytes, ip: bytes, asked: bytes) -> Frames:
    """One frame, shape (1, 86): who has the IPv6 address ``asked``."""
    group = _SOLICITED_NODE + asked[13:]
    return _frame(_group_mac(group), mac, ip, group, _SOLICITATION, bytes(4), asked, _SOURCE_ADDRESS)


def neighbour_advertisements(frames: Frames, *, mac: bytes, ip: bytes) -> Iterator[Frames]:
    """Answers to solicitations of ``ip`` among frames of one length; other frames are passed over."""
    if frames.shape[1] < NEIGHBOUR_BYTES - 8:  # a check for duplicates has no option
        return
    for row in frames[:, :78]:
        frame = row.tobytes()
        if frame[12:14] != _TYPE or frame[14] >> 4 != 6 or frame[54] != _SOLICITATION or frame[62:78] != ip:
            continue
        if frame[20] != _ICMPV6 or frame[21] != _HOP_LIMIT:
            continue
        asker = frame[22:38]
        if asker == _UNSPECIFIED:
            to, target, flags = _group_mac(_ALL_NODES), _ALL_NODES, _OVERRIDE
        else:
            to, target, flags = frame[6:12], asker, _SOLICITED_OVERRIDE
        yield _frame(to, mac, ip, target, _ADVERTISEMENT, flags, ip, _TARGET_ADDRESS)


def _group_mac(group: bytes) -> bytes:
    return b"\x33\x33" + group[12:]


def _frame(
    to: bytes, mac: bytes, src: bytes, dst: bytes, kind: int, flags: bytes, target: bytes, option: bytes
) -> Frames:
    head, tail = bytes([kind, 0]), flags + target + option + mac
    nbytes = (len(head) + 2 + len(tail)).to_bytes(2, "big")
    pseudo = src + dst + b"\0\0" + nbytes + bytes([0, 0, 0, _ICMPV6])
    checksum = internet_checksum(pseudo + head + bytes(2) + tail).to_bytes(2, "big")
    header = to + mac + _TYPE + b"\x60\0\0\0" + nbytes + bytes([_ICMPV6, _HOP_LIMIT]) + src + dst
    return np.frombuffer(header + head + checksum + tail, np.uint8).reshape(1, NEIGHBOUR_BYTES)
