"""Long segments of RoCE packets, received as the packets that they stand for: each payload is copied once, by
the kernel, to where its packet is.

What ``offloads.cut`` does with any long segment costs two copies more and a checksum over every payload; RoCE
packets have none. Segments that follow each other become one block of rows, as a message is.
"""

from __future__ import annotations

import socket
from struct import Struct
from typing import Final

import numpy as np

from inaproto.errors import InvariantBroken
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.run_builder import IDS, IP_CHECKSUMS, folded
from inaproto_adapters.frames.offloads import GSO_UDP, NEEDS_CHECKSUM, VNET_BYTES, VnetHeader

HEADERS_BYTES: Final = 42
"""Ethernet, IPv4 and UDP."""
_ETHERNET_BYTES: Final = 14
_UDP_AT: Final = 34
_IPV4: Final = b"\x08\x00\x45"
_ROCE_PORT: Final = (4791).to_bytes(2, "big")
_WORDS: Final = Struct(">10H")
_TWO: Final = Struct(">HH")
_MEMORY_BYTES: Final = 2 << 20
"""Holds what one ``take`` of a ring receives."""
_CUTS_MAX: Final = 64
PACKETS_MAX: Final = 512
"""Of one segment; a system call takes no more than 1024 pieces."""


def is_long_roce(first: bytes, header: VnetHeader, length: int) -> bool:
    """Whether a segment of ``length`` bytes that begins with ``first`` is one of equal RoCE packets."""
    return (
        header == VnetHeader(NEEDS_CHECKSUM, GSO_UDP, header.header_bytes, header.gso_bytes, _UDP_AT, 6)
        and first[12:15] == _IPV4
        and not first[20] & 0x3F
        and first[21] == 0
        and first[23] == socket.IPPROTO_UDP
        and first[36:38] == _ROCE_PORT
        and 0 < header.gso_bytes <= FRAME_BYTES_MAX - HEADERS_BYTES
        and (length - HEADERS_BYTES) % header.gso_bytes == 0
        and (length - HEADERS_BYTES) // header.gso_bytes <= PACKETS_MAX
        and length > HEADERS_BYTES
    )


class RoceSegments:
    """Memory that segments are received into, from ``reset`` to ``reset``."""

    def __init__(self) -> None:
        self.memory: Frames = np.empty(_MEMORY_BYTES, np.uint8)
        self.used = 0
        """Bytes that are in use."""
        self._block: Frames | None = None
        """The last one, which ends where the next packets go."""
        self._head = bytearray(VNET_BYTES + HEADERS_BYTES)
        self._cuts: dict[tuple[int, int, int], tuple[Frames, list[memoryview]]] = {}

    def reset(self) -> None:
        """What was received before is not looked at any more."""
        self.used = 0
        self._block = None

    def receive(self, sock: socket.socket, step: int, payload_bytes: int, blocks: list[Frames]) -> bool:
        """Put the packets of the segment that ``sock`` gives next behind ``blocks``, into the last of them if
        that ends where they begin; each has 42 + ``step`` bytes.

        False, and nothing is received, where there is no room for them. Raises ``OSError``.
        """
        n, length = payload_bytes // step, HEADERS_BYTES + step
        if self.used + n * length > _MEMORY_BYTES:
            return False
        rows, cuts = self._room(n, length)
        nbytes, _, _, _ = sock.recvmsg_into([self._head, *cuts])
        if nbytes != len(self._head) + payload_bytes:
            raise InvariantBroken(f"a slot told of {payload_bytes} bytes of packets, {nbytes} bytes came")
        _number(rows, bytes(self._head[VNET_BYTES:]))
        end = self.used + n * length
        if blocks and blocks[-1] is self._block and self._block.shape[1] == length:
            begin = self.used - self._block.size
            self._block = blocks[-1] = self.memory[begin:end].reshape(-1, length)
        else:
            self._block = rows
            blocks.append(rows)
        self.used = end
        return True

    def _room(self, n: int, length: int) -> tuple[Frames, list[memoryview]]:
        """Rows where the next packets go, and their payloads."""
        key = (self.used, n, length)
        found = self._cuts.get(key)
        if found is None:
            if len(self._cuts) >= _CUTS_MAX:
                self._cuts.clear()
            rows = self.memory[self.used : self.used + n * length].reshape(n, length)
            found = self._cuts[key] = rows, [row[HEADERS_BYTES:].data for row in rows]
        return found


def _number(rows: Frames, head: bytes) -> None:
    """Give packets the headers of their segment, with their own lengths, identifications and checksums."""
    n, length = rows.shape
    words = list(_WORDS.unpack_from(head, _ETHERNET_BYTES))
    first_id = words[2]
    words[1], words[2], words[5] = length - _ETHERNET_BYTES, 0, 0
    udp = _TWO.pack(length - _UDP_AT, 0)
    own = head[:_ETHERNET_BYTES] + _WORDS.pack(*words) + head[_UDP_AT : _UDP_AT + 4] + udp
    rows[:, :HEADERS_BYTES] = np.frombuffer(own, np.uint8)
    at = folded(words)
    ids, checks = rows[:, 18:20].view(">u2")[:, 0], rows[:, 24:26].view(">u2")[:, 0]
    whole = min(n, len(IDS) - first_id)  # the others have wrapped
    for begin, end, ident in ((0, whole, first_id), (whole, n, 0)):
        ids[begin:end] = IDS[ident : ident + end - begin]
        checks[begin:end] = IP_CHECKSUMS[at + ident : at + ident + end - begin]
        if end == n:
            break
