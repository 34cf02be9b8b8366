"""The packets of a message as a switch sees them: which may stand where, and what all ranks send alike.

A message is one RDMA WRITE with immediate that begins with the INA header (NetReduce section 3.1). Opcodes
are plain numbers here, as they are compared for each packet.
"""

from __future__ import annotations

from typing import Final

from inaproto.core.switch.lookup_table import Rows
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import RoceRun

FIRST: Final = int(Opcode.RC_WRITE_FIRST)
MIDDLE: Final = int(Opcode.RC_WRITE_MIDDLE)
LAST: Final = int(Opcode.RC_WRITE_LAST)
LAST_IMM: Final = int(Opcode.RC_WRITE_LAST_IMM)
ONLY: Final = int(Opcode.RC_WRITE_ONLY)
ONLY_IMM: Final = int(Opcode.RC_WRITE_ONLY_IMM)
DATA_OPCODES: Final = frozenset({FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM})
OPENING_OPCODES: Final = frozenset({FIRST, ONLY, ONLY_IMM})
LAST_OPCODES: Final = frozenset({LAST, LAST_IMM})
ONLY_OPCODES: Final = frozenset({ONLY, ONLY_IMM})
HEADER_BYTES: Final = {FIRST: 70, MIDDLE: 54, LAST: 54, LAST_IMM: 58, ONLY: 70, ONLY_IMM: 74}
"""Ethernet header to the last extension header, by opcode."""
TOS: Final = 15
"""Byte of a frame, without VLAN tag, that has the traffic class."""
UDP_CHECKSUM: Final = slice(40, 42)
"""It is 0 in results: there is none (RFC 768). A sender's would be that of its own payload."""


def without_rank(header: bytes) -> bytes:
    """An encoded INA header less its rank: equal on all ranks for one message."""
    return header[:24] + header[26:]


def constant_part(header: bytes) -> bytes:
    """An encoded INA header less serial numbers and rank: equal in all messages of like operations."""
    return header[:16] + header[26:]


def packet_fault(run: RoceRun, offsets: Rows, packets: int, mtu: int) -> str | None:
    """Why packets with ``run``'s opcode and length cannot stand at ``offsets`` of a message, if so."""
    low, high = (
        (offsets.start, offsets.stop - 1)
        if isinstance(offsets, slice)
        else (int(offsets.min()), int(offsets.max()))
    )
    if run.opcode == MIDDLE:
        right = low >= 1 and high <= packets - 2
    elif run.opcode == FIRST:
        right = low == high == 0 and packets > 1
    elif run.opcode in (LAST, LAST_IMM):
        right = low == high == packets - 1 and packets > 1
    else:
        right = low == high == 0 and packets == 1
    if not right:
        return f"opcode {run.opcode:#04x} at packets {low} to {high} of {packets}"
    if run.opcode in (FIRST, MIDDLE) and run.payload_bytes != mtu:
        return f"{run.payload_bytes} payload bytes in a packet that is not the last; the MTU is {mtu}"
    if run.pad != -run.payload_bytes % 4:
        return f"{run.pad} pad bytes behind {run.payload_bytes}"
    if not 0 < run.payload_bytes <= mtu:
        return f"{run.payload_bytes} payload bytes; the MTU is {mtu}"
    return None
