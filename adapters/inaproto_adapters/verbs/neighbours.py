"""Resolving a peer's address before the kernel has to: connecting to an unresolved one stops the process.

The verb that connects a queue pair waits for ARP in the kernel, up to a second, with the interpreter's lock
held, so that nothing else of the process runs. A datagram to nobody from the device's own address makes the
kernel ask in the background; the answer shows in its table.
"""

from __future__ import annotations

import ipaddress
import socket
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


def is_resolved(own: bytes, peer: bytes, interface: str, table: Path = _TABLE) -> bool:
    """Whether the kernel knows the peer's MAC address now."""
    if own == peer:
        return True
    address = str(ipaddress.IPv4Address(peer))
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
    """Make the kernel ask for the peer's MAC address, and wait for it; whether it knows it in the end."""
    with trio.move_on_after(WAIT_S):
        for look in count():
            if look % _LOOKS_PER_ASK == 0:
                _ask(own, peer)
            if is_resolved(own, peer, interface, table):
                return True
            await trio.sleep(_LOOK_S)
    return False


def _ask(own: bytes, peer: bytes) -> None:
    # Without a route there is no answer either.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.setblocking(False)
        sock.bind((str(ipaddress.IPv4Address(own)), 0))
        sock.sendto(b"", (str(ipaddress.IPv4Address(peer)), _DISCARD_PORT))
