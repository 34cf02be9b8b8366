"""The wire between RoCE hosts when no switch is on it: a learning bridge that can do harm to chosen frames.

What crosses it is kept in order, decoded. A fault looks at each RoCE frame with its number on the wire, data
packets and acknowledgements counted apart, and says what is to be sent instead, and when. A data packet that
is sent again keeps its number: which one a fault is for does not depend on when a timer went off.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import trio

from inaproto.ports import FramePort, PortClosed
from inaproto.units import Frames
from inaproto.wire.icrc import verify
from inaproto.wire.packet import Packet, decode_packet
from inaproto.wire.roce import Opcode
from inaproto_adapters.frames import open_frame_listener
from tests.hil.softroce.congestion import is_notification
from tests.hil.softroce.recording import Recording

_MULTICAST: Final = 1
NAK: Final = 0x60


@dataclass(frozen=True, slots=True)
class Seen:
    """A RoCE frame that came to the wire."""

    packet: Packet
    number: int
    """From 0, among frames of its kind; of data packets, among those that came for the first time."""
    is_data: bool
    is_nak: bool
    is_intact: bool
    """Its ICRC is right."""
    psn: int
    came_s: float
    is_again: bool
    """A data packet whose PSN came before on this connection."""


@dataclass(frozen=True, slots=True)
class Sent:
    frame: bytes
    after_s: float = 0.0


Fault = Callable[[Seen], Sequence[Sent]]


def unharmed(seen: Seen) -> Sequence[Sent]:
    return (Sent(seen.packet.data),)


@dataclass(slots=True)
class Count:
    """What crossed the wire since it was told to begin anew."""

    seen: list[Seen] = field(default_factory=list)
    other: int = 0
    """Frames that are no RoCE."""
    notifications: int = 0
    """Of congestion (CNP), among these."""
    _numbers: dict[tuple[bytes, bytes, int, int], int] = field(default_factory=dict)
    """Numbers of data packets."""
    _answers: int = 0

    def look(self, packet: Packet) -> Seen:
        """What there is to say of the next one; it is counted."""
        is_data = packet.opcode != Opcode.RC_ACK
        key = (packet.src_ip, packet.dst_ip, packet.dest_qp, packet.psn)
        is_again = is_data and key in self._numbers
        if is_data:
            number = self._numbers.setdefault(key, len(self._numbers))
        else:
            number = self._answers
            self._answers += 1
        seen = Seen(
            packet,
            number,
            is_data,
            is_nak=not is_data and packet.data[packet.header_bytes - 4] & 0xE0 == NAK,
            is_intact=verify(packet.data),
            psn=packet.psn,
            came_s=trio.current_time(),
            is_again=is_again,
        )
        self.seen.append(seen)
        return seen

    @property
    def data(self) -> int:
        return sum(one.is_data for one in self.seen)

    @property
    def acks(self) -> int:
        return sum(not one.is_data and not one.is_nak for one in self.seen)

    @property
    def naks(self) -> int:
        return sum(one.is_nak for one in self.seen)

    @property
    def again(self) -> int:
        """Data packets that were sent anew."""
        return sum(one.is_again for one in self.seen)


class Wire:
    """Frame ports that find each other by source address."""

    def __init__(self, path: Path, recording: Recording | None = None) -> None:
        self.path = path
        self._recording = recording
        self.count = Count()
        self.fault: Fault = unharmed
        self._ports: list[FramePort] = []
        self._places: dict[bytes, FramePort] = {}
        self._late: list[tuple[float, int, bytes]] = []
        self._order = 0

    def begin(self, fault: Fault = unharmed) -> None:
        """Count from now on; with ``fault``."""
        self.count = Count()
        self.fault = fault

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled; started when NICs can connect."""
        listener = await open_frame_listener(self.path)
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    port: FramePort = await listener.accept()
                    if self._recording is not None:
                        port = self._recording.wrap(port, f"port{len(self._ports) + 1}")
                    self._ports.append(port)
                    nursery.start_soon(port.run)
                    nursery.start_soon(self._serve, port, nursery)
        finally:
            with trio.CancelScope(shield=True):
                await listener.aclose()

    async def _serve(self, port: FramePort, nursery: trio.Nursery) -> None:
        try:
            while True:
                for block in await port.receive():
                    for row in block:
                        self._take(port, bytes(row), nursery)
        except PortClosed:
            pass
        finally:
            self._ports.remove(port)
            with trio.CancelScope(shield=True):  # closing does not wait
                await port.aclose()

    def _take(self, port: FramePort, frame: bytes, nursery: trio.Nursery) -> None:
        self._places[frame[6:12]] = port
        packet = decode_packet(frame)
        if packet is None:
            self.count.other += 1
            self.count.notifications += is_notification(frame)
            self._forward(frame)
            return
        seen = self.count.look(packet)
        for sent in self.fault(seen):
            if sent.after_s:
                self._order += 1
                due = seen.came_s + sent.after_s
                heapq.heappush(self._late, (due, self._order, sent.frame))
                nursery.start_soon(self._send_due, due)
            else:
                self._forward(sent.frame)

    async def _send_due(self, due: float) -> None:
        """In the order in which they are due, whichever task is run first."""
        await trio.sleep_until(due)
        while self._late and self._late[0][0] <= due:
            _, _, frame = heapq.heappop(self._late)
            self._forward(frame)

    def _forward(self, frame: bytes) -> None:
        to = self._places.get(frame[:6])
        ports = [to] if to is not None and not frame[0] & _MULTICAST else self._ports
        block = _block(frame)
        for one in ports:
            if one is not self._places[frame[6:12]]:
                one.send_nowait(block)


def _block(frame: bytes) -> Frames:
    return np.frombuffer(frame, np.uint8).reshape(1, -1)
