"""On every flow results leave the switch that delivers them in PSN order (docs/protocol.md 6.6).

New results follow one another without a hole; what left before may leave again. One exception: past a
hole in what the flow's own sender sent, one later result may pass, once for each hole. A hole is another
one only if packets of that sender came meanwhile that were still missing before. If another switch delivers
than the one where the sender's packets come, it hears of holes late, and may let as many results pass as
there were holes. Between switches there is no order: the next one places packets by their PSN. While its
receiver has no link a flow's results leave by none: those before the first one on the next link are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from inaproto.core.switch.lookup_table import WAYS_MAX
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.sim.frames.checkers.checker import Checker, each_frame, is_intact
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World
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
    receiver: SimHost
    message_packets: int
    next_psn: int
    """The PSN that is due."""
    link: PortId | None = None
    """Of the receiver, where the results leave, when the last one that was due did."""
    source: SimSwitch | None = None
    """Where the sender's packets come and are summed."""
    target: SimSwitch | None = None
    """Where the results leave for the receiver."""
    holes: int = 0
    """Holes that were seen in what came."""
    hole_at: int | None = None
    """The PSN that is missing there."""
    passes: int = 0
    flooded: tuple[int, int] = (-1, -1)
    """The PSN that last left past a hole, and when."""
    passed: int | None = None
    """The PSN of the last result that was let past a hole, until it is due."""
    is_other_hole: bool = False
    """Since then packets came that may have filled the hole."""
    addresses: set[bytes] = field(default_factory=set)
    """Ethernet sources of first packets: damaged or not, later packets may come from there, too (6.5)."""
    opened_at: PortId | None = None
    """Where its last first packet came: by a router, later ones may come elsewhere, and are refused (6.5)."""
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
        self._left: dict[tuple[bytes, int], int] = {}
        """The PSN that was due when the ring left its switches, by flow and ring. It may come back."""

    def ring_installed(self, switch: SimSwitch, spec: RingSpec) -> None:
        if spec.selective:  # its receivers need no order
            return
        for flow in spec.flows:
            key = flow.src_ip + flow.dst_ip + flow.dst_qp.to_bytes(3, "big")
            found = self._flows.get(key)
            if found is None or found.ring_id != spec.ring_id:
                first_psn = self._left.get((key, spec.ring_id), self._world.first_psn_of(flow))
                sender, receiver = (
                    next((host for host in self._world.hosts if host.ip == ip), None)
                    for ip in (flow.src_ip, flow.dst_ip)
                )
                if first_psn is None or sender is None or receiver is None:
                    continue
                found = _Flow(flow.rank, spec.ring_id, sender, receiver, spec.message_packets, first_psn)
                self._flows[key] = found
            role = spec.role
            if role is None or flow.rank in role.ranks:
                found.source = switch
            if role is None or flow.rank in role.delivers:
                found.target = switch
                found.link = switch.port_of_mac(found.receiver.mac)

    def ring_removed(self, switch: SimSwitch, ring_id: int) -> None:
        self._forget(switch, lambda flow: flow.ring_id == ring_id)

    def switch_rebooted(self, switch: SimSwitch) -> None:
        self._forget(switch, lambda flow: True)

    def _forget(self, switch: SimSwitch, concerns: Callable[[_Flow], bool]) -> None:
        for flow in self._flows.values():
            if flow.source is switch and concerns(flow):
                flow.source = None
                flow.came.clear()
        for key, flow in list(self._flows.items()):
            if concerns(flow) and flow.target in (switch, None) and flow.source is None:
                del self._flows[key]
                self._left[key, flow.ring_id] = flow.next_psn

    def switch_received(self, switch: SimSwitch, port: PortId, blocks: list[Frames]) -> None:
        for block in blocks:
            if block.shape[1] < _DATA_FRAME_BYTES_MIN:
                continue
            for frame in each_frame(block):
                flow = self._flows.get(frame[26:34] + frame[47:50])
                if flow is not None and flow.source is switch and _is_plain_roce(frame):
                    self._comes(flow, port, frame)

    def _comes(self, flow: _Flow, port: PortId, frame: bytes) -> None:
        psn = int.from_bytes(frame[51:54], "big")
        ahead = _ahead(psn, flow.next_psn)
        if frame[42] in _OPENING and is_intact(frame):
            flow.addresses.add(frame[6:12])
            flow.opened_at = port
        if ahead < 0 or (flow.sender.router is not None and not self._is_known_way(flow, port, frame)):
            return
        if flow.passed is not None and _ahead(flow.passed, psn) > 0:
            flow.is_other_hole = True
        is_far = flow.target is not flow.source
        if is_far and self._world.damage and not self._may_be_taken(flow, port, frame):
            return
        before = flow.came.get(psn)
        if not (is_far and before is not None and self._is_taken(flow, *before)):
            flow.came[psn] = port, frame
        if frame[42] in _OPENING and (before is None or not self._is_taken(flow, *before)):
            self._drop_unplaced(flow, psn)
        if is_far:
            self._look_for_hole(flow)

    @staticmethod
    def _is_known_way(flow: _Flow, port: PortId, frame: bytes) -> bool:
        """Whether packets of a host behind a router are surely taken from there; of addresses that first
        packets had, damaged or not, a switch keeps a few."""
        if frame[42] in _OPENING:
            return True
        return port == flow.opened_at and frame[6:12] in flow.addresses and len(flow.addresses) <= WAYS_MAX

    @staticmethod
    def _drop_unplaced(flow: _Flow, first: int) -> None:
        """What came of a message before its first packet did could not be placed."""
        for later in range(1, flow.message_packets):
            psn = (first + later) & _MASK
            if psn in flow.came and flow.came[psn][1][42] in _OPENING:
                return
            flow.came.pop(psn, None)

    @classmethod
    def _look_for_hole(cls, flow: _Flow) -> None:
        """After a packet was taken in; a hole that is filled in part is another one."""
        due = flow.next_psn
        while due in flow.came and cls._is_taken(flow, *flow.came[due]):
            due = (due + 1) & _MASK
        if not any(_ahead(other, due) > 0 for other in flow.came):
            flow.hole_at = None
        elif due != flow.hole_at:
            flow.hole_at = due
            flow.holes += 1

    @classmethod
    def _is_taken(cls, flow: _Flow, port: PortId, frame: bytes) -> bool:
        """Whether the switch places it: a first packet has the ring's key, and may have a damaged address."""
        return cls._is_its_own(flow, port, frame) or (frame[42] in _OPENING and is_intact(frame))

    @classmethod
    def _may_be_taken(cls, flow: _Flow, port: PortId, frame: bytes) -> bool:
        """It is, or it has an address that a first packet had, as long as the switch keeps that."""
        return cls._is_taken(flow, port, frame) or (is_intact(frame) and frame[6:12] in flow.addresses)

    @staticmethod
    def _is_its_own(flow: _Flow, port: PortId, frame: bytes) -> bool:
        """Whether it came undamaged from where the flow's sender is."""
        if flow.source is None or not flow.source.leads_to(port, flow.sender):
            return False
        return frame[6:12] in flow.sender.sources and is_intact(frame)

    def _has_hole(self, flow: _Flow, psn: int) -> bool:
        """Whether a packet of the flow's sender is missing, or came damaged, before ``psn``."""
        if flow.source is None:
            return True
        for ahead in range(_ahead(psn, flow.next_psn)):
            port, frame = flow.came.get((flow.next_psn + ahead) & _MASK, (None, b""))
            if port is None or not self._is_its_own(flow, port, frame):
                return True
        return False

    def switch_sent(self, switch: SimSwitch, port: PortId, frames: Frames) -> None:
        if frames.shape[1] < _DATA_FRAME_BYTES_MIN:
            return
        for frame in each_frame(frames):
            flow = self._flows.get(frame[26:34] + frame[47:50])
            if flow is None or flow.target is not switch:
                continue
            if self._world.damage and switch.shards and not switch.sharded.takes(flow.ring_id, frame):
                continue  # its source port is damaged: another process passed it on, and its ICRC is wrong
            if 0x06 <= frame[42] <= 0x0B and _is_plain_roce(frame):
                self._leaves(flow, int.from_bytes(frame[51:54], "big"))

    def _leaves(self, flow: _Flow, psn: int) -> None:
        ahead = _ahead(psn, flow.next_psn)
        if ahead < 0:
            return
        link = None if flow.target is None else flow.target.port_of_mac(flow.receiver.mac)
        if ahead > 0 and link != flow.link:
            for gone in range(ahead):
                flow.came.pop((flow.next_psn + gone) & _MASK, None)
            ahead, flow.next_psn = 0, psn
        if ahead == 0:
            flow.link = link
            flow.came.pop(psn, None)
            flow.next_psn = (psn + 1) & _MASK
            if flow.next_psn == 0:
                self._world.mark("a PSN wrapped")
            if flow.passed is not None and _ahead(flow.passed, flow.next_psn) < 0:
                flow.passed = None
            return
        if (psn, self._world.agenda.now) == flow.flooded:  # at other ports: its host is not known now
            return
        flow.flooded = psn, self._world.agenda.now
        if flow.target is not flow.source:
            self._passes_far(flow, psn)
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

    def _passes_far(self, flow: _Flow, psn: int) -> None:
        """Past a hole that another switch saw. What it saw before it restarted is not known."""
        flow.passes += 1
        if flow.source is not None and flow.passes > flow.holes:
            raise Violated(
                self.name,
                f"{flow.name}: PSN {psn} left where {flow.next_psn} is due; {flow.passes} such passed, "
                f"for {flow.holes} holes in what its sender sent",
            )


def _is_plain_roce(frame: bytes) -> bool:
    """Not so when the weather hit the headers: then it is any frame, and switched as such."""
    ethertype, version, total, fragment, protocol, port, udp_length = _HEADERS.unpack_from(frame, 12)
    whole = total == len(frame) - 14 == udp_length + 20
    unfragmented = not fragment & 0x3FFF
    return whole and unfragmented and (ethertype, version, protocol, port) == (0x0800, 0x45, 17, 4791)


def _ahead(later: int, earlier: int) -> int:
    return ((later - earlier + _HALF) & _MASK) - _HALF
