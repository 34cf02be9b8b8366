"""A wire that is cut in the middle of a job, at all ports of the switch, until its hosts have given up."""

from __future__ import annotations

from collections import defaultdict

from inaproto.ports import FramePort
from inaproto.units import Frames
from inaproto.wire.packet import decode_packet
from inaproto.wire.roce import Opcode
from tests.hil.softroce.filtered_port import FilteredPort


class Cut:
    """From the ``after``-th frame that the switch gets on nothing passes, either way.

    Mended when a host sends to another queue pair of its peer than before the cut: that the first has spent
    its retries, and was made anew, is then a fact, however long it took on a machine that may stand still.
    """

    def __init__(self, *, after: int) -> None:
        self._left = after
        self._qpns: dict[tuple[bytes, bytes], set[int]] = defaultdict(set)
        self._is_mended = False
        self.frames_lost = 0

    def wrap(self, port: FramePort, name: str) -> FramePort:
        return FilteredPort(port, name, self._what_passes)

    def _what_passes(self, frames: Frames, port: str, *, is_result: bool) -> Frames:
        if not is_result and not self._is_mended:
            self._look(frames)
        if self._left > 0 or self._is_mended:
            return frames
        self.frames_lost += len(frames)
        return frames[:0]

    def _look(self, frames: Frames) -> None:
        for row in frames:
            packet = decode_packet(bytes(row))
            if packet is not None and packet.opcode != Opcode.RC_ACK:
                known = self._qpns[packet.src_ip, packet.dst_ip]
                if self._left > 0:
                    known.add(packet.dest_qp)
                elif known and packet.dest_qp not in known:
                    self._is_mended = True
        self._left -= len(frames)
