"""Congestion at the ports of a switch: packets of one host are marked on their way in, and what receivers of
marked results would say to it is said for them: kernel devices of Soft-RoCE send no notifications (CNP)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from inaproto.ports import FramePort
from inaproto.units import Frames
from inaproto.wire.icrc import seal
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.packet import Packet, decode_packet
from inaproto.wire.roce import Opcode
from tests.hil.softroce.filtered_port import FilteredPort

CNP: Final = 0x81
MARK: Final = 3
_TOS, _IP, _UDP, _BTH, _BTH_END = 15, 14, 34, 42, 54
_BECN: Final = 0x40


def marked(frame: bytes) -> bytes:
    """With a congestion mark, and the IP checksum that belongs to it."""
    return _with_tos(frame, frame[_TOS] | MARK)


def notification(ack: Packet) -> bytes:
    """A CNP from who sent the acknowledgement, to the same queue pair: a BTH and 16 bytes that are 0."""
    frame = bytearray(ack.data[:_BTH_END] + bytes(16) + bytes(4))
    frame[_IP + 2 : _IP + 4] = (len(frame) - _IP).to_bytes(2, "big")
    frame[_UDP + 4 : _UDP + 6] = (len(frame) - _UDP).to_bytes(2, "big")
    frame[_BTH], frame[_BTH + 4] = CNP, _BECN
    frame[_BTH + 8 : _BTH_END] = bytes(4)
    sealed = bytearray(_with_tos(bytes(frame), frame[_TOS]))
    seal(sealed)
    return bytes(sealed)


def is_notification(frame: bytes) -> bool:
    return len(frame) > _BTH and frame[_BTH] == CNP and frame[_UDP + 2 : _UDP + 4] == b"\x12\xb7"


def _with_tos(frame: bytes, tos: int) -> bytes:
    changed = bytearray(frame)
    changed[_TOS] = tos
    changed[_IP + 10 : _IP + 12] = bytes(2)
    changed[_IP + 10 : _IP + 12] = internet_checksum(bytes(changed[_IP:_UDP])).to_bytes(2, "big")
    return bytes(changed)


class Congestion:
    """``wrap`` is for all ports of a switch; each ``nth`` data packet of ``host`` (IP address) is marked."""

    def __init__(self, host: bytes, nth: int) -> None:
        self._host, self._nth = host, nth
        self._came = 0
        self.marked_in = 0
        self.marked_out: Counter[bytes] = Counter()
        """By the host whose results they are."""
        self.said: list[bytes] = []
        """Notifications that went to the switch."""
        self.heard: list[tuple[str, bytes]] = []
        """Port and notification, that left it."""
        self.places: dict[bytes, str] = {}
        """Port at which each host is, by its Ethernet address."""

    def wrap(self, port: FramePort, name: str) -> FramePort:
        return _Port(port, name, self)

    def inward(self, frame: bytes, port: str) -> list[bytes]:
        """What comes to the switch in the place of a frame."""
        self.places[frame[6:12]] = port
        packet = decode_packet(frame)
        if packet is None:
            return [frame]
        if packet.opcode == Opcode.RC_ACK:
            if packet.dst_ip != self._host:
                return [frame]
            self.said.append(notification(packet))
            return [frame, self.said[-1]]
        if packet.src_ip != self._host:
            return [frame]
        self._came += 1
        if self._came % self._nth:
            return [frame]
        self.marked_in += 1
        return [marked(frame)]

    def outward(self, frames: Frames, port: str, *, is_result: bool) -> Frames:
        for frame in map(bytes, frames):
            if is_notification(frame):
                self.heard.append((port, frame))
            elif frame[_TOS] & MARK == MARK and (packet := decode_packet(frame)) is not None:
                self.marked_out[packet.src_ip] += 1
        return frames


class _Port(FilteredPort):
    def __init__(self, port: FramePort, name: str, congestion: Congestion) -> None:
        super().__init__(port, name, congestion.outward)
        self._congestion = congestion

    async def receive(self) -> Sequence[Frames]:
        rows = [bytes(row) for block in await self._port.receive() for row in block]
        come = [frame for row in rows for frame in self._congestion.inward(row, self._name)]
        return [np.frombuffer(frame, np.uint8)[None] for frame in come]
