"""The RoCEv2 connection of a frame as a lenient receiver would see it.

The vector decoder takes only what a NIC emits. Some stacks accept more: VLAN tags, IP options, lengths
that do not fit, opcodes unknown here. Whoever must keep such a frame from a connection (the accelerator)
asks here whose it is; nothing is decoded beyond that.
"""

from __future__ import annotations

from typing import Final

from inaproto.wire.outer import short_ip

_VLAN_TAGS: Final = frozenset({b"\x81\x00", b"\x88\xa8"})
_VLAN_DEPTH_MAX: Final = 3
_IPV4: Final = b"\x08\x00"
_IPV6: Final = b"\x86\xdd"
_IPV6_BYTES: Final = 40
_IPV6_EXTENSIONS: Final = frozenset({0, 43, 44, 60})
"""Hop-by-hop and destination options, routing, fragment."""
_FRAGMENT: Final = 44
_EXTENSIONS_MAX: Final = 8
_UDP: Final = 17
_ARP_HEAD: Final = bytes.fromhex("0806000108000604")
_ROCE_PORT: Final = 4791
_ROCE_PORT_BYTES: Final = _ROCE_PORT.to_bytes(2, "big")


def is_plainly_other(frame: bytes) -> bool:
    """Whether a frame is, to every stack, something else than RoCEv2: ARP, ICMPv6, TCP, other ports.

    It looks only at Ethernet type, IP version and header length, protocol and UDP port where these stand
    in a frame without VLAN tag and IP options, which rows of one run have in common. Of IPv6 the next header
    says it.
    """
    ethertype = frame[12:14]
    if ethertype in _VLAN_TAGS:
        return False
    if ethertype == _IPV6 and frame[14:15] >= b"\x60" and len(frame) > 20:
        return frame[20] != _UDP and frame[20] not in _IPV6_EXTENSIONS
    if frame[14:15] != b"\x45" or len(frame) < 38:
        return ethertype != _IPV4
    return frame[23] != _UDP or (frame[21] == 0 and not frame[20] & 0x1F and frame[36:38] != _ROCE_PORT_BYTES)


def lenient_connection(frame: bytes) -> tuple[bytes, bytes, int, int] | None:
    """(source IP, destination IP, destination QP, opcode); None if no stack could find one.

    IPv6 addresses are in their short form.

    The Ethernet type may say something else where all behind it is a RoCE packet's: no ICRC covers it, and
    what was damaged on one link can be right again behind the next. Never raises, and reads no byte that the
    frame does not have.
    """
    at = 12
    for _ in range(_VLAN_DEPTH_MAX):
        if frame[at : at + 2] not in _VLAN_TAGS:
            break
        at += 4
    if len(frame) < at + 22:
        return None
    ip = at + 2
    if frame[at:ip] == _IPV6 and frame[ip] >> 4 == 6:
        return _over_ipv6(frame, ip)
    if frame[at:ip] != _IPV4 and frame[ip] != 0x45:
        return None
    udp = ip + 4 * (frame[ip] & 15)
    bth = udp + 8
    first_fragment = not (frame[ip + 6] & 0x1F or frame[ip + 7])
    if frame[ip] >> 4 != 4 or udp < ip + 20 or frame[ip + 9] != _UDP or not first_fragment:
        return None
    if len(frame) < bth + 8 or int.from_bytes(frame[udp + 2 : udp + 4], "big") != _ROCE_PORT:
        return None
    qp = int.from_bytes(frame[bth + 5 : bth + 8], "big")
    return frame[ip + 12 : ip + 16], frame[ip + 16 : ip + 20], qp, frame[bth]


def _over_ipv6(frame: bytes, ip: int) -> tuple[bytes, bytes, int, int] | None:
    """The same of a frame with an IPv6 header at ``ip``, behind extension headers that stacks pass over."""
    at = ip + _IPV6_BYTES
    if len(frame) < at + 16:
        return None
    kind = frame[ip + 6]
    for _ in range(_EXTENSIONS_MAX):
        if kind not in _IPV6_EXTENSIONS:
            break
        if len(frame) < at + 8 or (kind == _FRAGMENT and (frame[at + 2] or frame[at + 3] & 0xF8)):
            return None
        kind, at = frame[at], at + (8 if kind == _FRAGMENT else 8 * (1 + frame[at + 1]))
    bth = at + 8
    if kind != _UDP or len(frame) < bth + 8 or frame[at + 2 : at + 4] != _ROCE_PORT_BYTES:
        return None
    qp = int.from_bytes(frame[bth + 5 : bth + 8], "big")
    return short_ip(frame[ip + 8 : ip + 24]), short_ip(frame[ip + 24 : ip + 40]), qp, frame[bth]


def contradicts_itself(frame: bytes) -> bool:
    """Whether it is an ARP packet (RFC 826) of another sender than its frame: one of the two is damaged."""
    return frame[12:20] == _ARP_HEAD and frame[22:28] != frame[6:12]
