"""What a RoCEv2 frame has around its UDP datagram beyond plain IPv4: taken off, and put back on.

A switch and a NIC work on frames of one form: Ethernet, IPv4 without options, UDP. A frame may come in
another: with a VLAN tag (:mod:`inaproto.wire.vlan`), over IPv6, or with IPv4 options. ``peel`` turns such
frames into that form and says what it took off, the *outer* part; ``dress`` puts it on again. Nothing of a
packet is lost on the way: traffic class (DSCP and ECN) and hop limit become those of IPv4, the flow label is
part of what was taken off.

An IPv6 address has a *short form* of four bytes inside, its CRC-32: addresses that differ in 32 bits next to
each other, as those of one /96 do, never share one. Where two do, a frame of one is like one with a forged
source of the other; the outer part has both addresses in full, so that who knows a peer's can compare.

The ICRC covers the IP header, so it changes with the form. CRC-32 is linear: it changes by a value that
depends on the two headers and the length alone, so a damaged packet stays damaged. Of IPv6 the ICRC takes as
ones: traffic class, flow label and hop limit (InfiniBand Architecture Specification, annex A17). IPv4 options
are covered as they are. Frames with extension headers, fragments and lengths that do not fit are left alone.

An outer part is empty, or begins with the four bytes of the VLAN tag, zeros for none. Behind it: nothing; or
0x60 with the flow label (4 bytes), source and destination (16 each); or version and length of a longer IPv4
header (1 byte) and the options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.units import Frames
from inaproto.wire.crc import byte_table, crc32, shift
from inaproto.wire.icrc import ICRC_BYTES
from inaproto.wire.vector import BTH_END
from inaproto.wire.vlan import TAG_BEGIN, TAG_BYTES

IPV6_BYTES: Final = 40
IPV6_ADDRESS_BYTES: Final = 16
PLAIN_TYPE_MAX: Final = 0x80
"""Ethernet types whose first byte is higher may be those of frames that ``peel`` changes."""
_NO_VLAN: Final = bytes(TAG_BYTES)
_IP: Final = 14
_UDP: Final = 34
_IPV4_BYTES: Final = _UDP - _IP
_ROCE_PORT: Final = 4791
_PROTOCOL_UDP: Final = 17
_IPV6_MARK: Final = 0x60
_ONES: Final = b"\xff" * 8
_ID: Final = slice(18, 20)
_COVERED_IP: Final = np.array([20, *range(26, 34)])
"""Flags and addresses of IPv4, which the ICRC covers."""
_BEHIND_ID: Final = 14
"""Bytes of an IPv4 header without options behind its identification."""


def short_ip(ip: bytes) -> bytes:
    """An IPv4 address as it is, the short form of one of IPv6: 4 bytes."""
    return ip if len(ip) != IPV6_ADDRESS_BYTES else crc32(ip).to_bytes(4, "big")


def outer_of(src_ip: bytes, dst_ip: bytes, *, tag: bytes = b"") -> bytes:
    """Outer part of frames between two addresses, with a VLAN tag or none; flow label 0."""
    if len(src_ip) != IPV6_ADDRESS_BYTES:
        return tag
    return (tag or _NO_VLAN) + bytes([_IPV6_MARK, 0, 0, 0]) + src_ip + dst_ip


def in_vlan_of(outer: bytes, other: bytes) -> bytes:
    """``outer`` with the VLAN tag of ``other`` in the place of its own."""
    tag, rest = other[:TAG_BYTES], outer[TAG_BYTES:]
    if tag == _NO_VLAN and not rest:
        return b""
    return (tag or _NO_VLAN) + rest if rest else tag


def addresses_of(outer: bytes) -> tuple[bytes, bytes] | None:
    """Source and destination of IPv6; None where the frames are of IPv4."""
    if len(outer) <= TAG_BYTES or outer[TAG_BYTES] != _IPV6_MARK:
        return None
    at = TAG_BYTES + 4
    return outer[at : at + IPV6_ADDRESS_BYTES], outer[at + IPV6_ADDRESS_BYTES :]


def peel(blocks: Sequence[Frames]) -> list[tuple[bytes, Sequence[Frames]]]:
    """Frames in the order in which they came, in groups of one outer part: (outer part, blocks without it).

    An empty one: frames as they are, in plain form or no RoCEv2. The rest are copies.
    """
    groups: list[tuple[bytes, list[Frames]]] = []
    for block in blocks:
        for outer, part in _peeled(block) if _may_change(block) else [(b"", block)]:
            if not groups or groups[-1][0] != outer:
                groups.append((outer, []))
            groups[-1][1].append(part)
    return list(groups)


def is_dressed(frames: Frames) -> bool:
    """Whether the first frame is one that ``peel`` changes."""
    return _may_change(frames) and bool(next(_peeled(frames[:1]))[0])


def dress(frames: Frames, outer: bytes) -> Frames:
    """Copies of plain frames, in the form that has this outer part; the frames themselves if it is empty."""
    if not outer:
        return frames
    tag, inner = outer[:TAG_BYTES], outer[TAG_BYTES:]
    width = 0 if tag == _NO_VLAN else TAG_BYTES
    n, length = frames.shape
    if inner and n > 1 and (frames[:, _COVERED_IP] != frames[0, _COVERED_IP]).any():
        return np.concatenate([dress(frames[row : row + 1], outer) for row in range(n)])
    if not inner:
        header = _IPV4_BYTES
    else:
        header = IPV6_BYTES if inner[0] == _IPV6_MARK else 4 * (inner[0] & 15)
    out = np.empty((n, length + width + header - _IPV4_BYTES), np.uint8)
    out[:, :TAG_BEGIN] = frames[:, :TAG_BEGIN]
    if width:
        out[:, TAG_BEGIN : TAG_BEGIN + TAG_BYTES] = np.frombuffer(tag, np.uint8)
    ip = _IP + width
    out[:, ip + header :] = frames[:, _UDP:]
    if not inner:
        out[:, TAG_BEGIN + width : ip + header] = frames[:, TAG_BEGIN:_UDP]
    elif n:
        if inner[0] == _IPV6_MARK:
            new = _put_ipv6(out, frames, ip, inner)
        else:
            new = _put_options(out, frames, ip, inner)
        _reseal(out, frames, new)
    return out


def _put_ipv6(out: Frames, frames: Frames, ip: int, inner: bytes) -> bytes:
    """Write the header into all rows; returns it as the ICRC sees it."""
    src, dst = inner[4 : 4 + IPV6_ADDRESS_BYTES], inner[4 + IPV6_ADDRESS_BYTES :]
    if frames[0, 26:30].tobytes() == short_ip(dst) != short_ip(src):  # what is said to the sender
        src, dst = dst, src
    nbytes = (frames.shape[1] - _UDP).to_bytes(2, "big")
    label = np.frombuffer(inner, np.uint8, 4)
    tos = frames[:, 15]
    out[:, ip - 2 : ip] = 0x86, 0xDD
    out[:, ip] = _IPV6_MARK | tos >> 4
    out[:, ip + 1] = (tos & 15) << 4 | label[1]
    out[:, ip + 2 : ip + 4] = label[2:]
    out[:, ip + 4 : ip + 7] = np.frombuffer(nbytes + bytes([_PROTOCOL_UDP]), np.uint8)
    out[:, ip + 7] = frames[:, 22]
    out[:, ip + 8 : ip + IPV6_BYTES] = np.frombuffer(src + dst, np.uint8)
    return _masked_ipv6(nbytes, src, dst)


def _put_options(out: Frames, frames: Frames, ip: int, inner: bytes) -> bytes:
    """The same with IPv4 options."""
    options = np.frombuffer(inner, np.uint8, offset=1)
    nbytes = frames.shape[1] - _IP + len(options)
    header = out[:, ip : ip + _IPV4_BYTES + len(options)]
    out[:, ip - 2 : ip] = 8, 0
    header[:, :_IPV4_BYTES] = frames[:, _IP:_UDP]
    header[:, 0] = inner[0]
    header[:, 2:4] = np.frombuffer(nbytes.to_bytes(2, "big"), np.uint8)
    header[:, _IPV4_BYTES:] = options
    header[:, 10:12] = 0
    total = header.view().astype(np.uint32).reshape(len(out), -1, 2) @ np.array([256, 1], np.uint32)
    sums = total.sum(axis=1, dtype=np.uint32)
    for _ in range(2):
        sums = (sums & 0xFFFF) + (sums >> 16)
    header[:, 10:12] = (~sums.astype(np.uint16)).astype(">u2").view(np.uint8).reshape(-1, 2)
    return _masked_ipv4(header[0].tobytes())


def _reseal(new: Frames, old: Frames, header: bytes) -> None:
    """Give rows the ICRC that belongs to another masked IP header, ``header``; one form is plain.

    ``header`` is that of the first row, with identification 0; those of the others differ by theirs alone.
    """
    plain, other = (old, header) if new.shape[1] >= old.shape[1] else (new, header)
    before = _masked_ipv4(plain[0, _IP:_UDP].tobytes())
    behind = plain.shape[1] - _UDP - ICRC_BYTES
    change: NDArray[np.uint32] = np.full(len(new), _difference(before, other, behind), np.uint32)
    numbers = plain[:, _ID]
    if numbers.any():
        longer = len(other) - len(before) if other[len(_ONES)] >> 4 == 4 else None
        for column, distance in ((0, 1), (1, 0)):
            at = _BEHIND_ID + behind + distance
            change ^= byte_table(at)[numbers[:, column]]
            if longer is not None:
                change ^= byte_table(at + longer)[numbers[:, column]]
    tail = old[:, -ICRC_BYTES:].copy().view("<u4")[:, 0] ^ change
    new[:, -ICRC_BYTES:] = tail.astype("<u4").view(np.uint8).reshape(-1, ICRC_BYTES)


@lru_cache(maxsize=4096)
def _difference(one: bytes, other: bytes, behind: int) -> int:
    """How CRCs of two strings differ that begin so, and have the same ``behind`` bytes behind that."""
    return shift(crc32(one) ^ crc32(other), behind)


def _masked_ipv4(header: bytes) -> bytes:
    """As the ICRC sees it, with identification 0."""
    covered = bytearray(header)
    covered[1] = covered[8] = covered[10] = covered[11] = 0xFF
    covered[4:6] = bytes(2)
    return _ONES + covered


def _masked_ipv6(nbytes: bytes, src: bytes, dst: bytes) -> bytes:
    return _ONES + b"\x6f\xff\xff\xff" + nbytes + b"\x11\xff" + src + dst


# -- taking off


def _may_change(block: Frames) -> bool:
    """Whether the first frame begins as one that is changed does."""
    if not block.size or block.shape[1] <= _IP + 1:
        return False
    kind = block[0, TAG_BEGIN]
    return bool(kind > PLAIN_TYPE_MAX or (kind == 8 and block[0, _IP] > 0x45 and block[0, _IP] < 0x50))


def _peeled(block: Frames) -> Iterator[tuple[bytes, Frames]]:
    """The block cut where outer parts change."""
    n, length = block.shape
    if length < BTH_END + ICRC_BYTES + TAG_BYTES:
        yield b"", block
        return
    is_tagged = (block[:, TAG_BEGIN] == 0x81) & (block[:, TAG_BEGIN + 1] == 0)
    tags = block[:, TAG_BEGIN : TAG_BEGIN + TAG_BYTES].copy().view(np.uint32)[:, 0]
    tags[~is_tagged] = 0
    for begin, end in _stretches(tags[1:] != tags[:-1], n):
        rows = block[begin:end]
        tag = tags[begin].tobytes() if is_tagged[begin] else b""
        ip = _IP + len(tag)
        kinds = rows[:, [ip - 2, ip - 1, ip]]
        kinds[:, 2] &= np.where(kinds[:, 0] == 0x86, 0xF0, 0xFF).astype(np.uint8)
        for first, last in _stretches((kinds[1:] != kinds[:-1]).any(axis=1), end - begin):
            yield from _of_kind(rows[first:last], tag, kinds[first].tobytes())


def _stretches(changes: NDArray[np.bool_], n: int) -> Iterator[tuple[int, int]]:
    return pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), n])


def _of_kind(rows: Frames, tag: bytes, kind: bytes) -> Iterator[tuple[bytes, Frames]]:
    """Frames that agree in tag, Ethernet type, IP version and length of an IPv4 header."""
    ip, length = _IP + len(tag), rows.shape[1]
    if kind == b"\x86\xdd\x60":
        header, key = IPV6_BYTES, [ip + 1, ip + 2, ip + 3, *range(ip + 8, ip + IPV6_BYTES)]
    elif kind[:2] == b"\x08\x00" and 0x45 <= kind[2] < 0x50 and (tag or kind[2] > 0x45):
        header = 4 * (kind[2] & 15)
        key = [ip + 6]
        if header > _IPV4_BYTES:  # then the ICRC's change depends on the addresses
            key += range(ip + 12, ip + header)
    else:
        yield b"", rows
        return
    udp = ip + header
    if length < udp + BTH_END - _UDP + ICRC_BYTES:
        yield b"", rows
        return
    fits = _fits(rows, ip, udp, is_ipv6=header == IPV6_BYTES and kind[0] == 0x86)
    keys = rows[:, key]
    if kind[0] == 0x86:
        keys[:, 0] &= 15
    changes = (keys[1:] != keys[:-1]).any(axis=1) | (fits[1:] != fits[:-1])
    for begin, end in _stretches(changes, len(rows)):
        part = rows[begin:end]
        if not fits[begin]:
            yield b"", part
        elif kind[0] == 0x86:
            yield _from_ipv6(part, tag, ip)
        elif header > _IPV4_BYTES:
            yield _from_options(part, tag, ip, header)
        else:
            yield tag, _shorter(part, len(tag), 0)


def _fits(rows: Frames, ip: int, udp: int, *, is_ipv6: bool) -> NDArray[np.bool_]:
    """Which frames are RoCEv2 with a UDP datagram that ends with the frame: bool (n,).

    With a VLAN tag alone, what is behind the datagram may be padding: all behind the tag stays as it is.
    """
    left = rows.shape[1] - udp
    port_and_length = np.frombuffer(_ROCE_PORT.to_bytes(2, "big") + left.to_bytes(2, "big"), np.uint8)
    if not is_ipv6 and udp == ip + _IPV4_BYTES:
        found = (rows[:, udp + 2 : udp + 4] == port_and_length[:2]).all(axis=1)
        return np.asarray(found & (rows[:, ip + 9] == _PROTOCOL_UDP))
    found = (rows[:, udp + 2 : udp + 6] == port_and_length).all(axis=1)
    if is_ipv6:
        head = np.frombuffer(left.to_bytes(2, "big") + bytes([_PROTOCOL_UDP]), np.uint8)
        return np.asarray(found & (rows[:, ip + 4 : ip + 7] == head).all(axis=1))
    total = np.frombuffer((rows.shape[1] - ip).to_bytes(2, "big"), np.uint8)
    found &= (rows[:, ip + 2 : ip + 4] == total).all(axis=1) & (rows[:, ip + 9] == _PROTOCOL_UDP)
    return np.asarray(found & (rows[:, ip + 6] & 0x3F == 0) & (rows[:, ip + 7] == 0))


def _shorter(rows: Frames, tag_bytes: int, header_bytes: int) -> Frames:
    """Copies without tag, with room for a plain IPv4 header where one was that is so much longer."""
    out = np.empty((len(rows), rows.shape[1] - tag_bytes - header_bytes), np.uint8)
    out[:, :TAG_BEGIN] = rows[:, :TAG_BEGIN]
    out[:, TAG_BEGIN:_UDP] = rows[:, TAG_BEGIN + tag_bytes : _UDP + tag_bytes]
    out[:, _UDP:] = rows[:, _UDP + tag_bytes + header_bytes :]
    return out


def _from_ipv6(rows: Frames, tag: bytes, ip: int) -> tuple[bytes, Frames]:
    header = rows[0, ip : ip + IPV6_BYTES].tobytes()
    src, dst = header[8:24], header[24:]
    outer = (tag or _NO_VLAN) + bytes([_IPV6_MARK, header[1] & 15]) + header[2:4] + src + dst
    out = _shorter(rows, len(tag), IPV6_BYTES - _IPV4_BYTES)
    total = (out.shape[1] - _IP).to_bytes(2, "big")
    plain = b"\x08\x00\x45\0" + total + b"\0\0\x40\0\0\x11\0\0" + short_ip(src) + short_ip(dst)
    out[:, TAG_BEGIN:_UDP] = np.frombuffer(plain, np.uint8)
    out[:, 15] = rows[:, ip] << 4 | rows[:, ip + 1] >> 4
    out[:, 22] = rows[:, ip + 7]
    _reseal(out, rows, _masked_ipv6(header[4:6], src, dst))
    return outer, out


def _from_options(rows: Frames, tag: bytes, ip: int, header_bytes: int) -> tuple[bytes, Frames]:
    """The IP checksum is left wrong: it is made anew where the options are put back."""
    header = rows[0, ip : ip + header_bytes].tobytes()
    out = _shorter(rows, len(tag), header_bytes - _IPV4_BYTES)
    out[:, _IP] = 0x45
    out[:, 16:18] = np.frombuffer((out.shape[1] - _IP).to_bytes(2, "big"), np.uint8)
    _reseal(out, rows, _masked_ipv4(header))
    return (tag or _NO_VLAN) + header[:1] + header[_IPV4_BYTES:], out
