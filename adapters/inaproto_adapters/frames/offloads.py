"""What a sender left to its network card, done here: checksums, and cutting long segments into frames.

A frame of a sender on the same machine (veth, containers) comes without its TCP or UDP checksum, and up to
64 KiB long; receive offload (GRO) merges neighbours likewise. The kernel says so in a ``virtio_net_hdr``
before the frame. Other links need frames as they are on the wire, so they are made whole where they come in:
nothing behind a port knows of offloads, and no setting of an interface is changed, which a daemon that is
killed would leave behind.

All operations are on whole segments and runs of frames, none per frame.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.units import Frames

VNET_BYTES: Final = 10
_VNET: Final = Struct("=BBHHHH")
_IPV4_WORDS: Final = Struct(">10H")
_LENGTH_AND_CHECKSUM: Final = Struct(">HH")
NEEDS_CHECKSUM: Final = 1
GSO_NONE: Final = 0
_GSO_TCP4: Final = 1
_GSO_TCP6: Final = 4
GSO_UDP: Final = 5
_GSO_ECN: Final = 0x80
_KINDS: Final = (_GSO_TCP4, _GSO_TCP6, GSO_UDP)
_ETHERNET_BYTES: Final = 14
_IPV4_BYTES: Final = 20
_IPV6_BYTES: Final = 40
_TCP_BYTES: Final = 20
_UDP_BYTES: Final = 8
_TCP: Final = 6
_UDP: Final = 17
_ROCE_PORT: Final = (4791).to_bytes(2, "big")
_FIN_PSH: Final = 0x09
_CWR: Final = 0x80
SEGMENTS_MAX: Final = 4096
_IP_FRAME_BYTES_MAX: Final = _ETHERNET_BYTES + 0xFFFF


class VnetHeader(NamedTuple):
    """``struct virtio_net_hdr``; offsets count from the Ethernet header, without a VLAN tag."""

    flags: int
    gso_type: int
    header_bytes: int
    gso_bytes: int
    checksum_start: int
    checksum_offset: int

    @classmethod
    def decode(cls, data: bytes) -> VnetHeader:
        return cls(*_VNET.unpack(data))


class CannotCut(Exception):
    """A long segment of a kind that is not known here; the text is the rule under which it is dropped."""


def fill_checksums(frames: Frames, start: int, offset: int) -> bool:
    """Complete the checksums of equal-length frames, in place.

    The field at ``start + offset`` holds the sum of the pseudo header, as the sender left it. False if it
    lies outside the frames, which are then as they were.
    """
    if start + offset + 2 > frames.shape[1]:
        return False
    covered = frames[:, start:]
    sums = _inverted(_sums(covered))
    covered[:, offset : offset + 2] = _bytes_of(sums)
    return True


def with_tag(frames: Frames, tpid: int, tci: int) -> Frames:
    """Copies with the VLAN tag that the kernel took off."""
    n, length = frames.shape
    tagged = np.empty((n, length + 4), dtype=np.uint8)
    tagged[:, :12] = frames[:, :12]
    tagged[:, 12:16] = np.frombuffer(Struct(">HH").pack(tpid, tci), np.uint8)
    tagged[:, 16:] = frames[:, 12:]
    return tagged


def long_header(first: bytes, step: int, payload_bytes: int) -> bytes:
    """What stands before ``payload_bytes`` of UDP payloads, ``step`` bytes each, that the kernel is to cut.

    ``first``: Ethernet, IPv4 and UDP header of the first packet, 42 bytes, without UDP checksum. Returns
    ``virtio_net_hdr`` and headers, 52 bytes.
    """
    udp_bytes = _UDP_BYTES + payload_bytes
    words = list(_IPV4_WORDS.unpack_from(first, _ETHERNET_BYTES))
    words[1], words[5] = _IPV4_BYTES + udp_bytes, 0
    words[5] = 0xFFFF - _folded(sum(words))
    # Of the pseudo header, not inverted: the kernel adds the rest.
    pseudo = _folded(sum(words[6:]) + _UDP + udp_bytes)
    at = _ETHERNET_BYTES + _IPV4_BYTES
    return (
        _VNET.pack(NEEDS_CHECKSUM, GSO_UDP, at + _UDP_BYTES, step, at, 6)
        + first[:_ETHERNET_BYTES]
        + _IPV4_WORDS.pack(*words)
        + first[at : at + 4]
        + _LENGTH_AND_CHECKSUM.pack(udp_bytes, pseudo)
    )


def _folded(total: int) -> int:
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


class _Layout(NamedTuple):
    """Where the headers of a long segment are."""

    is_ipv6: bool
    protocol: int
    transport: int
    payload: int


def cut(frame: Frames, header: VnetHeader) -> list[Frames]:
    """The frames that the long segment ``frame``, uint8 (bytes,), is on a wire: all of one length, then the
    rest.

    Raises ``CannotCut``.
    """
    layout = _layout(frame, header)
    payload, step = frame[layout.payload :], header.gso_bytes
    if not step or len(payload) > step * SEGMENTS_MAX:
        raise CannotCut("long segment without a segment size")
    if layout.payload + min(step, len(payload)) > _IP_FRAME_BYTES_MAX:
        raise CannotCut("long segment of frames longer than an IP packet can be")
    whole = len(payload) // step
    blocks = []
    if whole:
        rows = np.empty((whole, layout.payload + step), dtype=np.uint8)
        rows[:, layout.payload :] = payload[: whole * step].reshape(whole, step)
        blocks.append(rows)
    if whole * step < len(payload) or not whole:
        rest = np.empty((1, layout.payload + len(payload) - whole * step), dtype=np.uint8)
        rest[0, layout.payload :] = payload[whole * step :]
        blocks.append(rest)
    first = 0
    for rows in blocks:
        rows[:, : layout.payload] = frame[: layout.payload]
        _number(rows, layout, first, step, is_last=rows is blocks[-1])
        first += len(rows)
    return blocks


def _layout(frame: Frames, header: VnetHeader) -> _Layout:
    kind = header.gso_type & ~_GSO_ECN
    if kind not in _KINDS:
        raise CannotCut(f"long segment of kind {kind}")
    ethertype = frame[12:14].tobytes()
    if ethertype == b"\x08\x00" and len(frame) >= _ETHERNET_BYTES + _IPV4_BYTES:
        is_ipv6, protocol = False, int(frame[23])
        transport = _ETHERNET_BYTES + 4 * int(frame[14] & 15)
    elif ethertype == b"\x86\xdd" and len(frame) >= _ETHERNET_BYTES + _IPV6_BYTES:
        is_ipv6, protocol = True, int(frame[20])
        transport = _ETHERNET_BYTES + _IPV6_BYTES
    else:
        raise CannotCut("long segment of another protocol than IP")
    wanted, least = (_UDP, _UDP_BYTES) if kind == GSO_UDP else (_TCP, _TCP_BYTES)
    if transport < _ETHERNET_BYTES + _IPV4_BYTES:
        raise CannotCut("long segment that is all headers")
    started_there = not header.flags & NEEDS_CHECKSUM or header.checksum_start == transport
    if protocol != wanted or not started_there or len(frame) < transport + least:
        raise CannotCut("long segment in a tunnel")
    payload = transport + (_UDP_BYTES if wanted == _UDP else 4 * int(frame[transport + 12] >> 4))
    if not transport + least <= payload <= len(frame):
        raise CannotCut("long segment that is all headers")
    return _Layout(is_ipv6, protocol, transport, payload)


def _number(rows: Frames, layout: _Layout, first: int, step: int, *, is_last: bool) -> None:
    """Lengths, numbers, flags and checksums of segments ``first`` and following."""
    n, width = rows.shape
    at = layout.transport
    nth = np.arange(first, first + n, dtype=np.uint64)
    if layout.is_ipv6:
        rows[:, 18:20] = _big(width - _ETHERNET_BYTES - _IPV6_BYTES)
        pseudo = _sums(rows[:, 22:54])
    else:
        rows[:, 16:18] = _big(width - _ETHERNET_BYTES)
        ids = (int.from_bytes(rows[0, 18:20].tobytes(), "big") + nth) & np.uint64(0xFFFF)
        rows[:, 18:20] = ids.astype(">u2")[:, None].view(np.uint8)
        rows[:, 24:26] = 0
        rows[:, 24:26] = _bytes_of(_inverted(_sums(rows[:, _ETHERNET_BYTES:at])))
        if layout.protocol == _UDP and rows[0, at + 2 : at + 4].tobytes() == _ROCE_PORT:
            # RoCE packets have no UDP checksum; their ICRC covers more.
            rows[:, at + 4 : at + 8] = np.frombuffer(_LENGTH_AND_CHECKSUM.pack(width - at, 0), np.uint8)
            return
        pseudo = _sums(rows[:, 26:34])
    if layout.protocol == _TCP:
        begin = int.from_bytes(rows[0, at + 4 : at + 8].tobytes(), "big")
        numbers = (begin + nth * np.uint64(step)) & np.uint64(0xFFFFFFFF)
        rows[:, at + 4 : at + 8] = numbers.astype(">u4")[:, None].view(np.uint8)
        flags = rows[:, at + 13]
        flags[: n - 1 if is_last else n] &= ~_FIN_PSH & 0xFF
        flags[0 if first else 1 :] &= ~_CWR & 0xFF
        field = at + 16
    else:
        rows[:, at + 4 : at + 6] = _big(width - at)
        field = at + 6
    rows[:, field : field + 2] = 0
    rest = np.frombuffer(Struct(">HH").pack(layout.protocol, width - at), np.uint8).reshape(1, 4)
    rows[:, field : field + 2] = _bytes_of(_inverted(_sums(rows[:, at:]) + pseudo + _sums(rest)))


Sums = NDArray[np.uint64]


def _sums(rows: Frames) -> Sums:
    """Sums of the 16-bit words of each row, little-endian: the order does not matter if all keep it."""
    even = rows.shape[1] & ~1
    sums: Sums = rows[:, :even].view("<u2").sum(axis=1, dtype=np.uint64)
    if even != rows.shape[1]:
        sums += rows[:, -1]
    return sums


def _inverted(sums: Sums) -> Sums:
    """Internet checksums (RFC 1071); 0 is written as 0xFFFF, which UDP asks for and the others allow."""
    for _ in range(4):
        sums = (sums & np.uint64(0xFFFF)) + (sums >> np.uint64(16))
    checks: Sums = np.uint64(0xFFFF) - sums
    return np.where(checks == 0, np.uint64(0xFFFF), checks)


def _bytes_of(checks: Sums) -> Frames:
    return checks.astype("<u2")[:, None].view(np.uint8)


def _big(value: int) -> Frames:
    return np.frombuffer(value.to_bytes(2, "big"), np.uint8)
