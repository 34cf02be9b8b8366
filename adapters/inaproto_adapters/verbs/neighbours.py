"""Resolving a peer's address before the kernel has to: connecting to an unresolved one stops the process.

The verb that connects a queue pair waits for ARP in the kernel, up to a second, with the interpreter's lock
held, so that nothing else of the process runs. A datagram to nobody from the device's own address makes the
kernel ask in the background; the answer shows in its table.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import time
from pathlib import Path
from typing import Final

_TABLE: Final = Path("/proc/net/arp")
_COMPLETE: Final = 0x2
_DISCARD_PORT: Final = 9
_WAIT_S: Final = 0.2
"""Longest; among machines on one network it takes less than a millisecond."""
_LOOK_S: Final = 0.001


def resolve(own: bytes, peer: bytes, interface: str) -> bool:
    """Whether the kernel knows the peer's MAC address now; waits a little for it."""
    address = str(ipaddress.IPv4Address(peer))
    if own == peer or _is_known(address, interface):
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        try:
            sock.bind((str(ipaddress.IPv4Address(own)), 0))
            sock.sendto(b"", (address, _DISCARD_PORT))
        except OSError:
            return False  # no route: the verb will say so
        until = time.monotonic() + _WAIT_S
        while time.monotonic() < until:
            if _is_known(address, interface):
                return True
            select.select([], [], [], _LOOK_S)
    return False


def _is_known(address: str, interface: str) -> bool:
    try:
        lines = _TABLE.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return False
    for line in lines:
        fields = line.split()
        if fields[0] == address and fields[-1] == interface:
            return bool(int(fields[2], 16) & _COMPLETE)
    return False
