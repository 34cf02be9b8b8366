"""Losses of selective rings that the switch itself finds and repairs (docs/protocol.md 6.14).

A packet that is lost before the switch is missing on every flow behind it, so all receivers would ask all
senders for it, who would all send again what one of them has lost. The switch knows better who lost what:

* What a rank sent is missing here while something that it sent later has come. The rank is told what has come
  here of the message, by a NAK that acknowledges nothing (:class:`~inaproto.wire.behind_gap.AtSwitch`), each
  time that more of it comes.
* A receiver's NAK ends here. What it misses and was sent to it goes to it again from the kept results; what
  was not is on its way to the switch, or is asked for there. The sender hears of the NAK's acknowledgement
  alone, and once for each message that results are lost, so that its timers are short ones.

A result is sent again if one that left for the first time after it, and after its last copy, has come: so
each copy is given up for lost once. A sender that asks (4.1.3) says that no more comes that could show it,
and what was sent again may then go once more.

Only for flows whose senders have said that they know of it, of rings that one switch sums. NetReduce 3.2
leaves all repairs to the hosts' go-back-N.

Invariants: nothing is said of messages whose first packet has not come but that this is missing; what is said
to have come is summed, or will be: its sender need not send it again unless it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from inaproto.core.switch.early_packets import EarlyPackets
from inaproto.core.switch.emission import Emission, goes_twice
from inaproto.core.switch.events import Action, Counters, EmitFrames, RingState
from inaproto.core.switch.lookup_table import NOWHERE, Flow, FlowRepair, MessageEntry
from inaproto.units import PortId
from inaproto.wire.behind_gap import BEHIND_PACKETS_MAX, AtSwitch, BehindGap
from inaproto.wire.outer import dress
from inaproto.wire.packet import Packet, PacketBuilder
from inaproto.wire.roce import SYNDROME_NAK, Opcode
from inaproto.wire.vector import BTH_END, FlowTemplate, RoceRun

_ACK_SYNDROME: Final = 0x1F
_UDP_SOURCE_PORT: Final = 0xC000
"""As NICs choose those of their packets, from the dynamic range."""
_ONE: Final = (False,)
LOSSY_MESSAGES: Final = 64
"""So many messages after a loss, losses are expected."""

Answered = tuple[bytes, bytes, int]
"""Addresses of who answers, and of whom, and the queue pair there."""
Repaired = tuple[RingState, Flow, FlowRepair]


class Repairs:
    def __init__(self, emission: Emission, early: EarlyPackets, counters: Counters) -> None:
        self._emission = emission
        self._early = early
        self._counters = counters
        self._of: dict[Answered, Repaired] = {}
        self._ip_id = 0

    def add(self, ring: RingState) -> None:
        """A ring is installed."""
        if not ring.spec.selective or ring.spec.role is not None:
            return
        for flow in ring.flows:
            spec = flow.spec
            if spec.src_qp:
                ring.is_repaired = True
                flow.repair = FlowRepair(ring.array.first_serial)
                self._of[spec.dst_ip, spec.src_ip, spec.src_qp] = ring, flow, flow.repair

    def remove(self, ring: RingState) -> None:
        """It is removed."""
        for flow in ring.flows:
            spec = flow.spec
            known = self._of.get((spec.dst_ip, spec.src_ip, spec.src_qp))
            if known is not None and known[1] is flow:
                del self._of[spec.dst_ip, spec.src_ip, spec.src_qp]

    # ---- before the switch -----------------------------------------------------------------------

    def look(self, ring: RingState, flow: Flow, repair: FlowRepair, actions: list[Action]) -> None:
        """More has come of a flow: tell its rank what is missing before it, if anything is."""
        if ring.failed or (opened := newest_of(flow, repair)) is None:
            return
        array, rank, newest = ring.array, flow.row, opened.serial
        region = array.region_of(newest)
        if max(repair.whole, array.next_serial) >= newest == region.serial:
            whole = region.first_missing(rank)
            if whole >= region.top[rank]:  # as ever, unless something is lost
                if whole == region.packets:
                    repair.whole = newest + 1
                    if self._early.waiting:
                        self._next_opening(ring, flow, repair, opened, actions)
                return
        missing, end, came = -1, -1, 0
        for serial in range(max(repair.whole, array.next_serial), newest + 1):
            found = self._of_message(ring, flow, serial, is_newest=serial == newest)
            if found is None:
                end += 1  # its first packet has not come; else it would be known
                break
            psn, packets, seen = found
            end = psn + packets
            hole = (~seen & seen + 1).bit_length() - 1
            if missing >= 0:
                came |= seen << (psn - missing & flow.psn_mask)
            elif hole < packets:
                missing, came = psn + hole, seen >> hole
            elif packets == array.region_of(serial).packets:
                repair.whole = serial + 1
        if missing >= 0:
            reach = min(end - 1 - missing & flow.psn_mask, BEHIND_PACKETS_MAX)
            word = AtSwitch(reach, came & (1 << reach + 1) - 1)
            self._tell(ring, flow, repair, missing, word, actions)

    def _next_opening(
        self, ring: RingState, flow: Flow, repair: FlowRepair, newest: MessageEntry, actions: list[Action]
    ) -> None:
        """All of the newest message is here: what waits, if anything does, is of one that has not opened."""
        psn, came = newest.psn0 + newest.packets, 0
        for waits in self._early.psns(flow):
            distance = waits - psn & flow.psn_mask
            if 0 < distance <= BEHIND_PACKETS_MAX:
                came |= 1 << distance
        if came:
            self._tell(ring, flow, repair, psn, AtSwitch(came.bit_length() - 1, came), actions)

    def _of_message(
        self, ring: RingState, flow: Flow, serial: int, *, is_newest: bool
    ) -> tuple[int, int, int] | None:
        """First PSN of a message, packets of it up to the newest that came, and which came, bit by bit.

        None: it is not known where it begins or ends.
        """
        entries = flow.entries
        entry, region = entries[serial % len(entries)], ring.array.region_of(serial)
        following = entries[(serial + 1) % len(entries)]
        if entry is not None and entry.serial == serial == region.serial:
            packets = region.top[flow.row] if is_newest else region.packets
            row = np.packbits(region.seen[flow.row, :packets], bitorder="little")
            return entry.psn0, packets, int.from_bytes(row.tobytes(), "little")
        before = entries[(serial - 1) % len(entries)]
        if before is None or before.serial != serial - 1:
            return None
        if following is None or following.serial != serial + 1:
            return None
        # Its first packet has not come. What has come behind that waits for it, and is told when that comes.
        psn = before.psn0 + before.packets
        packets = following.psn0 - psn & flow.psn_mask
        if not 0 < packets <= ring.spec.message_packets:  # its sender contradicts itself
            return None
        return psn, packets, (1 << packets) - 2

    def _send(
        self,
        ring: RingState,
        flow: Flow,
        repair: FlowRepair,
        psn: int,
        aeth: tuple[int, int],
        payload: bytes,
        actions: list[Action],
    ) -> None:
        """An acknowledge packet to the sender, as if its receiver had sent it."""
        if flow.ingress == NOWHERE:
            return
        newest = newest_of(flow, repair)
        tos = 0 if newest is None else ring.array.region_of(newest.serial).traffic_class(flow.row)
        way = flow.src_mac, flow.dst_mac, tos
        if repair.builder is None or repair.way != way:
            template = FlowTemplate(
                src_mac=flow.dst_mac,
                dst_mac=flow.src_mac,
                src_ip=flow.spec.dst_ip,
                dst_ip=flow.spec.src_ip,
                udp_source_port=_UDP_SOURCE_PORT,
                dest_qp=flow.spec.src_qp,
                tos=tos,
            )
            repair.way, repair.builder = way, PacketBuilder(template)
        self._ip_id = (self._ip_id + 1) & 0xFFFF
        frames = repair.builder.build(
            opcode=Opcode.RC_ACK,
            psn=psn & flow.psn_mask,
            ack_requests=_ONE,
            ip_id=self._ip_id,
            payload=payload,
            aeth=aeth,
        )
        actions.append(EmitFrames(PortId(flow.ingress), dress(frames, flow.tag)))

    def _tell(
        self,
        ring: RingState,
        flow: Flow,
        repair: FlowRepair,
        psn: int,
        word: AtSwitch,
        actions: list[Action],
    ) -> None:
        self._counters.losses_told += 1
        ring.lossy_until = ring.array.next_serial + LOSSY_MESSAGES
        self._send(ring, flow, repair, psn, (SYNDROME_NAK, 0), word.encode(), actions)

    # ---- behind the switch -----------------------------------------------------------------------

    def naks(self, run: RoceRun, actions: list[Action]) -> bool:
        """Answer NAKs of a receiver that ask for what is missing, and tell its sender what they acknowledge.

        False: they are none, or of no ring that is repaired.
        """
        known = self._of.get((run.src_ip, run.dst_ip, run.dest_qp))
        if known is None or run.aeth is None or run.aeth[0] != SYNDROME_NAK or known[0].failed:
            return False
        right = run.verify()
        if not right.all():
            self._counters.drop("wrong ICRC", int(len(right) - right.sum()))
        for row in np.flatnonzero(right).tolist():
            self._answer(known, int(run.psn[row]), run.aeth[1], run.payload()[row].tobytes(), actions)
        return True

    def asked(self, packet: Packet) -> Repaired | None:
        """Whose NAK an acknowledge packet is that ``nak`` is to answer; None: that of nobody."""
        if packet.data[BTH_END] != SYNDROME_NAK:
            return None
        known = self._of.get((packet.src_ip, packet.dst_ip, packet.dest_qp))
        return None if known is None or known[0].failed else known

    def nak(self, known: Repaired, packet: Packet, actions: list[Action]) -> None:
        """What ``naks`` does with one."""
        if not packet.intact():
            self._counters.drop("wrong ICRC", 1)
            return
        data = packet.data
        msn = int.from_bytes(data[BTH_END + 1 : BTH_END + 4], "big")
        self._answer(known, packet.psn, msn, packet.payload(), actions)

    def _answer(
        self, known: Repaired, psn: int, msn: int, said: bytes | memoryview, actions: list[Action]
    ) -> None:
        ring, flow, repair = known
        self._counters.naks_in += 1
        behind = BehindGap.decode(said) or BehindGap(1, 0)
        self._nak(ring, flow, repair, psn, behind, actions)
        # Each time, as the one before may be lost.
        self._send(ring, flow, repair, psn - 1, (_ACK_SYNDROME, msn), b"", actions)

    def _nak(
        self,
        ring: RingState,
        flow: Flow,
        repair: FlowRepair,
        psn: int,
        behind: BehindGap,
        actions: list[Action],
    ) -> None:
        length = ring.spec.message_packets
        first = _place(flow, psn)
        newest = _place(flow, psn + behind.reach)
        if first is None or newest is None:
            return
        came = newest[0].serial * length + newest[1]
        copies = repair.copies
        oldest = first[0].serial * length + first[1]
        for position in [position for position in copies if position < oldest]:
            del copies[position]
        lost: dict[int, list[int]] = {}
        for distance in _unset(behind.arrived << 1, behind.reach + 1):
            place = _place(flow, psn + distance)
            if place is None:
                continue
            entry, offset = place
            position = entry.serial * length + offset
            region = ring.array.region_of(entry.serial)
            if (
                region.serial == entry.serial
                and region.is_told(offset)
                and came >= copies.get(position, position)
            ):
                lost.setdefault(entry.serial, []).append(offset)
        # Its packets may have come by a way that is no more, and they do not come again for this.
        way = flow.dst_mac + flow.src_mac
        for serial, offsets in lost.items():
            region = ring.array.region_of(serial)
            for _ in range(2 if goes_twice(ring.array, region, len(offsets)) else 1):
                self._emission.repeat(ring, flow, region, list(_spans(offsets)), actions, way=way)
            copies.update(dict.fromkeys((serial * length + at for at in offsets), ring.array.done_high + 1))
        if not lost:
            return
        ring.lossy_until = ring.array.next_serial + LOSSY_MESSAGES
        if repair.warned != (serial := next(iter(lost))):
            repair.warned = serial
            self._tell(ring, flow, repair, psn, AtSwitch(0, 0), actions)


def newest_of(flow: Flow, repair: FlowRepair) -> MessageEntry | None:
    """The newest message that has opened on a flow, wherever its last packet went; None: there is none."""
    return flow.entries[repair.place]


def _place(flow: Flow, psn: int) -> tuple[MessageEntry, int] | None:
    """As ``Flow.find``, of what a receiver says: it changes nothing."""
    for entry in flow.entries:
        if entry is not None and (offset := psn - entry.psn0 & flow.psn_mask) < entry.packets:
            return entry, offset
    return None


def _unset(bits: int, count: int) -> Iterator[int]:
    """Places of the bits below ``count`` that are not set, in order."""
    left = ~bits & (1 << count) - 1
    while left:
        lowest = left & -left
        left ^= lowest
        yield lowest.bit_length() - 1


def _spans(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Rising offsets as (begin, end) of those that follow one another."""
    begin = end = offsets[0]
    for offset in offsets:
        if offset > end:
            yield begin, end
            begin = offset
        end = offset + 1
    yield begin, end
