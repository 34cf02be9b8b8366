"""Which frames the kernel gives to a packet socket, where several processes have a port on one interface:
RoCE packets by their UDP source port (docs/shards.md).

Each socket has a filter of its own, and at most one of them takes a frame. So no process depends on another:
where one has ended, what was for it is for nobody, until it is back. (A fanout group of the kernel would give
it to the next socket, and numbers its sockets anew whenever one goes.)

The filter is classic BPF, which needs no permission: what it looks at are the headers as they are on the
wire, without VLAN tags, which the kernel has taken off. A long segment of a
sender's offload counts as a packet.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import Final

from inaproto.ports import Steering
from inaproto.wire.udp import ROCE_PORT

_SO_ATTACH_FILTER: Final = 26
_LOAD8: Final = 0x30
_LOAD16: Final = 0x28
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_ABOVE: Final = 0x25
_JUMP_IF_AT_LEAST: Final = 0x35
_JUMP_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_WHOLE: Final = 0xFFFF_FFFF
_OFFSET_BITS: Final = 0x1FFF
"""Of the IP header: this is not the first fragment."""


def instructions(steering: Steering) -> bytes:
    """The filter: RoCE packets with a source port in the range, or all other frames."""
    # Operation, where to jump if true and if false (labels, or on to the next row), value.
    rows: list[tuple[int, str, str, int]] = [
        (_LOAD16, "", "", 12),
        (_JUMP_IF_EQUAL, "", "other", 0x0800),
        (_LOAD8, "", "", 14),
        (_JUMP_IF_EQUAL, "", "other", 0x45),  # without options
        (_LOAD8, "", "", 23),
        (_JUMP_IF_EQUAL, "", "other", socket.IPPROTO_UDP),
        (_LOAD16, "", "", 20),
        (_JUMP_IF_ANY_BIT, "other", "", _OFFSET_BITS),
        (_LOAD16, "", "", 36),
        (_JUMP_IF_EQUAL, "", "other", ROCE_PORT),
        (_LOAD16, "", "", 34),
        (_JUMP_IF_AT_LEAST, "", "other", steering.first),
        (_JUMP_IF_ABOVE, "other", "", steering.last),
        (_RETURN, "", "", _WHOLE if steering.takes else 0),
        (_RETURN, "", "", 0 if steering.takes else _WHOLE),
    ]
    labels = {"other": len(rows) - 1}
    code = b""
    for at, (operation, true, false, value) in enumerate(rows):
        jumps = [labels[label] - at - 1 if label else 0 for label in (true, false)]
        code += struct.pack("=HBBI", operation, *jumps, value)
    return code


def steer(sock: socket.socket, steering: Steering) -> None:
    """From now on the socket gets those frames alone. Raises ``OSError``."""
    code = ctypes.create_string_buffer(instructions(steering))
    count = (len(code) - 1) // 8
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", count, ctypes.addressof(code)))
