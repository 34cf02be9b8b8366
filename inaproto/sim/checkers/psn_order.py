"""On every flow results leave the switch in PSN order (protocol.md section 3, "Order").

New results follow one another without a hole; what left before may leave again. One exception: past a
hole in what the flow's own sender sent, one later result may pass, once for each hole. A hole is another
one only if packets of that sender came meanwhile that were still missing before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from inaproto.core.ring_spec import RingSpec
from inaproto.sim.checkers.checker import Checker, Violated, each_frame, is_intact

if TYPE_CHECKING:
    from inaproto.sim.host import SimHost
    from inaproto.sim.world import World
    from inaproto.units import Frames, PortId

_HALF = 1 << 23
_MASK = (1 << 24) - 1
_OPENING = (0x06, 0x0A, 0x0B)
_DATA_FRAME_BYTES_MIN = 66
"""A last packet with immediate and one word of payload; an ACK has 62."""
_HEADERS = Struct(">HBxH2xHxB12xHH")
"""EtherType, IP version and length, total length, fragment, protocol, UDP port, UDP length."""


@dataclass(slots=True)
class _Flow:
    rank: int
    ring_id: int
    sender: SimHost
    message_packets: int
    next_psn: int
    """That is due."""
    passed: int | None = None
    """The PSN of the last result that was let past a hole, until it is due."""
    is_other_hole: bool = False
    """Since then packets came that may have filled the hole."""
    came: dict[int, tuple[PortId, bytes]] = field(default_factory=dict)
    """What came of the flow's sender and is due or later, by PSN: the port and the frame."""

    @property
    def name(self) -> str:
        return f"the flow of rank {self.rank} in ring {self.ring_id}"


class PsnOrder(Checker):
    name = "PSN order per flow"

    def begin(self, world: World) -> None:
        self._world = world
        self._flows: dict[bytes, _Flow] = {}

    def ring_installed(self, spec: RingSpec) -> None:
        for flow in spec.flows:
            key = flow.src_ip + flow.dst_ip + flow.dst_qp.to_bytes(3, "big")
            first_psn = self._world.first_psn_of(flow)
            sender = next((host for host in self._world.hosts if host.ip == flow.src_ip), None)
            if first_psn is not None and sender is not None:
                self._flows[key] = _Flow(flow.rank, spec.ring_id, sender, spec.message_packets, first_psn)

    def ring_removed(self, ring_id: int) -> None:
        self._flows = {key: flow for key, flow in self._flows.items() if flow.ring_id != ring_id}

    def switch_rebooted(self) -> None:
        self._flows.clear()

    def switch_received(self, port: PortId, blocks: list[Frames]) -> None:
        for block in blocks:
            if block.shape[1] < _DATA_FRAME_BYTES_MIN:
                continue
            for frame in each_frame(block):
                flow = self._flows.get(frame[26:34] + frame[47:50])
                if flow is not None and _is_plain_roce(frame):
                    self._comes(flow, port, frame)

    @staticmethod
    def _comes(flow: _Flow, port: PortId, frame: bytes) -> None:
        psn = int.from_bytes(frame[51:54], "big")
        ahead = _ahead(psn, flow.next_psn)
        if ahead < 0:
            return
        if flow.passed is not None and _ahead(flow.passed, psn) > 0:
            flow.is_other_hole = True
        flow.came[psn] = port, frame
        if frame[42] in _OPENING:  # what came before its message's first packet could not be placed
            for later in range(1, flow.message_packets):
                flow.came.pop((psn + later) & _MASK, None)

    def _has_hole(self, flow: _Flow, psn: int) -> bool:
        """Whether a packet of the flow's sender is missing, or came damaged, before ``psn``."""
        here = self._world.switch.port_of_mac(flow.sender.mac)
        for ahead in range(_ahead(psn, flow.next_psn)):
            port, frame = flow.came.get((flow.next_psn + ahead) & _MASK, (None, b""))
            if port is None or port != here or frame[6:12] != flow.sender.mac or not is_intact(frame):
                return True
        return False

    def switch_sent(self, port: PortId, frames: Frames) -> None:
        if frames.shape[1] < _DATA_FRAME_BYTES_MIN:
            return
        for frame in each_frame(frames):
            flow = self._flows.get(frame[26:34] + frame[47:50])
            if flow is not None and 0x06 <= frame[42] <= 0x0B and _is_plain_roce(frame):
                self._leaves(flow, int.from_bytes(frame[51:54], "big"))

    def _leaves(self, flow: _Flow, psn: int) -> None:
        ahead = _ahead(psn, flow.next_psn)
        if ahead < 0:
            return
        if ahead == 0:
            flow.came.pop(psn, None)
            flow.next_psn = (psn + 1) & _MASK
            if flow.next_psn == 0:
                self._world.mark("a PSN wrapped")
            if flow.passed is not None and _ahead(flow.passed, flow.next_psn) < 0:
                flow.passed = None
            return
        if not self._has_hole(flow, psn):
            raise Violated(
                self.name,
                f"{flow.name}: PSN {psn} left where {flow.next_psn} is due, and its sender's are all here",
            )
        if flow.passed is not None and not flow.is_other_hole:
            raise Violated(
                self.name,
                f"{flow.name}: PSN {psn} left where {flow.next_psn} is due, as {flow.passed} did before it",
            )
        flow.passed, flow.is_other_hole = psn, False


def _is_plain_roce(frame: bytes) -> bool:
    """Not so when the weather hit the headers: then it is any frame, and switched as such."""
    ethertype, version, total, fragment, protocol, port, udp_length = _HEADERS.unpack_from(frame, 12)
    whole = total == len(frame) - 14 == udp_length + 20
    unfragmented = not fragment & 0x3FFF
    return whole and unfragmented and (ethertype, version, protocol, port) == (0x0800, 0x45, 17, 4791)


def _ahead(later: int, earlier: int) -> int:
    return ((later - earlier + _HALF) & _MASK) - _HALF
