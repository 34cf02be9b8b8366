"""Resolving a peer's address before the kernel has to: connecting to an unresolved one stops the process.

The verb that connects a queue pair waits for ARP in the kernel, up to a second, with the interpreter's lock
held, so that nothing else of the process runs. A datagram to nobody from the device's own address makes the
kernel ask in the background; the answer shows in its table. Of a peer in another subnet it is the router's
address that is needed, and asked for. With IPv6 it is neighbour discovery in ARP's place, and the kernel is
asked for what it knows by rtnetlink: no file has that table.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import trio

_TABLE: Final = Path("/proc/net/arp")
_COMPLETE: Final = 0x2
_DISCARD_PORT: Final = 9
WAIT_S: Final = 3.0
"""Longest: the kernel asks three times, a second apart. On one network, a millisecond is enough."""
_LOOK_S: Final = 0.001
_LOOKS_PER_ASK: Final = 500

_NETLINK_S: Final = 1.0
"""The kernel answers at once."""
_MESSAGE: Final = struct.Struct("=IHHII")
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NEW_ROUTE, _GET_ROUTE = 24, 26
_NEW_NEIGHBOUR, _GET_NEIGHBOUR = 28, 30
_USABLE_STATES: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
"""Reachable, stale, delay, probe, no ARP, permanent: all in which the kernel knows an address."""
_IPV4_BYTES: Final = 4
_REQUEST: Final = 1
_TO, _FROM, _OUTGOING, _GATEWAY = 1, 2, 4, 5
"""Of routes; the address of a neighbour has the number of ``_TO``, too."""


def next_hop(own: bytes, peer: bytes, interface: str) -> bytes:
    """The router to ``peer``, by rtnetlink; ``peer`` itself where there is none, or no route at all."""
    bits = 8 * len(peer)
    try:
        outgoing = struct.pack("=i", socket.if_nametoindex(interface))
        route = _ROUTE.pack(_family(peer), bits, bits, 0, 0, 0, 0, 0, 0)
        answer = _asked(_GET_ROUTE, route, (_TO, peer), (_FROM, own), (_OUTGOING, outgoing))
    except OSError:
        return peer
    if _MESSAGE.unpack_from(answer)[1] != _NEW_ROUTE:
        return peer
    at = _MESSAGE.size + _ROUTE.size
    while at + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if kind == _GATEWAY:
            return answer[at + _ATTRIBUTE.size : at + length]
        at += max(_ATTRIBUTE.size, -(-length // 4) * 4)
    return peer


def is_resolved(own: bytes, peer: bytes, interface: str, table: Path = _TABLE) -> bool:
    """Whether the kernel knows now the MAC address to which packets for the peer go."""
    if own == peer:
        return True
    hop = next_hop(own, peer, interface)
    if len(hop) != _IPV4_BYTES:
        return _is_neighbour(hop, interface)
    address = str(ipaddress.IPv4Address(hop))
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return False
    for line in lines:
        fields = line.split()
        if fields[0] == address and fields[-1] == interface:
            return bool(int(fields[2], 16) & _COMPLETE)
    return False


async def resolve(own: bytes, peer: bytes, interface: str, table: Path = _TABLE) -> bool:
    """Make the kernel ask for that MAC address, and wait for it; whether it knows it in the end."""
    with trio.move_on_after(WAIT_S):
        for look in count():
            if look % _LOOKS_PER_ASK == 0:
                _ask(own, peer)
            if is_resolved(own, peer, interface, table):
                return True
            await trio.sleep(_LOOK_S)
    return False


def _family(ip: bytes) -> socket.AddressFamily:
    return socket.AF_INET if len(ip) == _IPV4_BYTES else socket.AF_INET6


def _is_neighbour(ip: bytes, interface: str) -> bool:
    """Whether the kernel knows the MAC address of this very IPv6 address."""
    try:
        entry = _NEIGHBOUR.pack(_family(ip), socket.if_nametoindex(interface), 0, 0, 0)
        answer = _asked(_GET_NEIGHBOUR, entry, (_TO, ip))
    except OSError:
        return False
    if _MESSAGE.unpack_from(answer)[1] != _NEW_NEIGHBOUR:
        return False
    state: int = _NEIGHBOUR.unpack_from(answer, _MESSAGE.size)[2]
    return bool(state & _USABLE_STATES)


def _asked(kind: int, body: bytes, *attributes: tuple[int, bytes]) -> bytes:
    """The kernel's answer to one question by rtnetlink."""
    for number, value in attributes:
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), number) + value
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
        asking.settimeout(_NETLINK_S)
        asking.send(_MESSAGE.pack(_MESSAGE.size + len(body), kind, _REQUEST, 0, 0) + body)
        return asking.recv(1 << 12)


def _ask(own: bytes, peer: bytes) -> None:
    # Without a route, or a descriptor, there is no answer either.
    with suppress(OSError), socket.socket(_family(own), socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind((socket.inet_ntop(_family(own), own), 0))
        sock.sendto(b"", (socket.inet_ntop(_family(peer), peer), _DISCARD_PORT))
