"""The RoCEv2 connection of a frame as a lenient receiver would see it.

The vector decoder takes only what a NIC emits. Some stacks accept more: VLAN tags, IP options, lengths
that do not fit, opcodes unknown here. Whoever must keep such a frame from a connection (the accelerator)
asks here whose it is; nothing is decoded beyond that.
"""

from __future__ import annotations

from typing import Final

_VLAN_TAGS: Final = frozenset({b"\x81\x00", b"\x88\xa8"})
_VLAN_DEPTH_MAX: Final = 3
_IPV4: Final = b"\x08\x00"
_UDP: Final = 17
_ARP_HEAD: Final = bytes.fromhex("0806000108000604")
_ROCE_PORT: Final = 4791
_ROCE_PORT_BYTES: Final = _ROCE_PORT.to_bytes(2, "big")


def is_plainly_other(frame: bytes) -> bool:
    """Whether a frame is, to every stack, something else than RoCEv2 over IPv4: ARP, IPv6, TCP, other ports.

    It looks only at Ethernet type, IP version and header length, protocol and UDP port where these stand
    in a frame without VLAN tag and IP options, which rows of one run have in common.
    """
    ethertype = frame[12:14]
    if ethertype in _VLAN_TAGS:
        return False
    if frame[14:15] != b"\x45" or len(frame) < 38:
        return ethertype != _IPV4
    return frame[23] != _UDP or (frame[21] == 0 and not frame[20] & 0x1F and frame[36:38] != _ROCE_PORT_BYTES)


def lenient_connection(frame: bytes) -> tuple[bytes, bytes, int, int] | None:
    """(source IP, destination IP, destination QP, opcode); None if no stack could find one.

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


def contradicts_itself(frame: bytes) -> bool:
    """Whether it is an ARP packet (RFC 826) of another sender than its frame: one of the two is damaged."""
    return frame[12:20] == _ARP_HEAD and frame[22:28] != frame[6:12]
