"""On every flow results leave the switch in PSN order (protocol.md section 3, "Order").

New results follow one another without a hole; what left before may leave again. One exception: past a
hole in what the flow's own sender sent, one later result may pass, once for each hole. A hole is another
one only if packets of that sender came meanwhile that were still missing before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inaproto.core.ring_spec import RingSpec
from inaproto.sim.checkers.checker import Checker, Violated

if TYPE_CHECKING:
    from inaproto.sim.world import World
    from inaproto.units import Frames, PortId

_HALF = 1 << 23
_MASK = (1 << 24) - 1
_DATA_FRAME_BYTES_MIN = 66
"""A last packet with immediate and one word of payload; an ACK has 62."""


@dataclass(slots=True)
class _Flow:
    key: bytes
    rank: int
    ring_id: int
    next_psn: int
    """That is due."""
    passed: int | None = None
    """The PSN of the last result that was let past a hole, until it is due."""
    is_other_hole: bool = False
    """Since then packets came that may have filled the hole."""

    @property
    def name(self) -> str:
        return f"the flow of rank {self.rank} in ring {self.ring_id}"


class PsnOrder(Checker):
    name = "PSN order per flow"

    def begin(self, world: World) -> None:
        self._world = world
        self._flows: dict[bytes, _Flow] = {}
        self._watched: dict[bytes, _Flow] = {}
        """Flows of which the packets that come matter: those with a hole."""

    def ring_installed(self, spec: RingSpec) -> None:
        for flow in spec.flows:
            key = flow.src_ip + flow.dst_ip + flow.dst_qp.to_bytes(3, "big")
            first_psn = self._world.first_psn_of(flow)
            if first_psn is not None:
                self._flows[key] = _Flow(key, flow.rank, spec.ring_id, first_psn)

    def ring_removed(self, ring_id: int) -> None:
        self._flows = {key: flow for key, flow in self._flows.items() if flow.ring_id != ring_id}
        self._watched = {key: flow for key, flow in self._watched.items() if flow.ring_id != ring_id}

    def switch_rebooted(self) -> None:
        self._flows.clear()
        self._watched.clear()

    def switch_received(self, port: PortId, blocks: list[Frames]) -> None:
        if not self._watched:
            return
        for block in blocks:
            for row in block:
                frame = row.tobytes()
                flow = self._watched.get(frame[26:34] + frame[47:50])
                if flow is not None and _is_plain_roce(frame):
                    self._comes(flow, frame)

    def _comes(self, flow: _Flow, frame: bytes) -> None:
        psn = int.from_bytes(frame[51:54], "big")
        if flow.passed is not None and _ahead(psn, flow.next_psn) >= 0 and _ahead(flow.passed, psn) > 0:
            flow.is_other_hole = True

    def switch_sent(self, port: PortId, frames: Frames) -> None:
        if frames.shape[1] < _DATA_FRAME_BYTES_MIN:
            return
        for row in frames:
            frame = row.tobytes()
            flow = self._flows.get(frame[26:34] + frame[47:50])
            if flow is not None and 0x06 <= frame[42] <= 0x0B and _is_plain_roce(frame):
                self._leaves(flow, int.from_bytes(frame[51:54], "big"))

    def _leaves(self, flow: _Flow, psn: int) -> None:
        ahead = _ahead(psn, flow.next_psn)
        if ahead < 0:
            return
        if ahead == 0:
            flow.next_psn = (psn + 1) & _MASK
            if flow.next_psn == 0:
                self._world.mark("a PSN wrapped")
            if flow.passed is not None and _ahead(flow.passed, flow.next_psn) < 0:
                flow.passed = None
                del self._watched[flow.key]
            return
        if flow.passed is not None and not flow.is_other_hole:
            raise Violated(
                self.name,
                f"{flow.name}: PSN {psn} left where {flow.next_psn} is due, as {flow.passed} did before it",
            )
        flow.passed, flow.is_other_hole = psn, False
        self._watched[flow.key] = flow


def _is_plain_roce(frame: bytes) -> bool:
    """Not so when the weather hit the headers: then it is any frame, and switched as such."""
    whole = int.from_bytes(frame[16:18], "big") == len(frame) - 14 == int.from_bytes(frame[38:40], "big") + 20
    unfragmented = not (frame[20] & 0x3F or frame[21])
    return (
        whole
        and unfragmented
        and frame[12:15] == b"\x08\x00\x45"
        and (frame[23], frame[36:38]) == (17, b"\x12\xb7")
    )


def _ahead(later: int, earlier: int) -> int:
    return ((later - earlier + _HALF) & _MASK) - _HALF
