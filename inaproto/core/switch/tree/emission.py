"""What a switch of a tree sends: sums up, results down and to its hosts, repeats, and notes (NetReduce 3.3).

Rings of one switch are :class:`~inaproto.core.switch.emission.Emission`'s alone. For the others, beyond it:

- A sum goes up as soon as its inputs are there, and from the root a result down as soon as it is complete:
  virtual connections need no order, each end places packets by PSN. Only hosts' connections are in PSN
  order. So a switch below has later results at hand when one of its own ranks has a gap.
- A repeat from below of a sum whose result is here gets the result, on that connection alone. One whose
  result is not here goes up once more. So a repeat of a host reaches whoever has the result. Where several
  senders repeat, one of them is heeded (``TreeRegion.to_ask_again``).
- Later results that come down before one whose sum is complete here are a sign of loss: the sum goes up
  again at once, once for each hole. Where only another rack is late, that is one packet in vain.
- A connection that begins here and ends elsewhere gets notes: a message opens, a host repeats, a gap. That
  it opens is told again when its first packet comes again.
- On a connection that begins elsewhere results wait until the note of their message has come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inaproto.core.switch.emission import Emission
from inaproto.core.switch.events import Action, EmitFrames, RingState
from inaproto.core.switch.lookup_table import NOWHERE, Flow
from inaproto.core.switch.message_packets import HEADER_BYTES
from inaproto.core.switch.region import Region
from inaproto.core.switch.tree.region import Span, TreeRegion
from inaproto.core.switch.tree.ring import Link, TreeFlow, TreeRing
from inaproto.core.switch.tree.translation import packet_header, share_of
from inaproto.units import Frames, PortId
from inaproto.wire.crc import crc32
from inaproto.wire.icrc import ICRC_BYTES
from inaproto.wire.outer import dress
from inaproto.wire.roce import Opcode
from inaproto.wire.tree_note import NoteKind, TreeNote


class TreeEmission(Emission):
    def replay(self, ring: RingState, flow: Flow, low: int, high: int, actions: list[Action]) -> None:
        if isinstance(ring, TreeRing) and isinstance(flow, TreeFlow):
            self._repeated(ring, flow, low, high, actions)
        else:
            super().replay(ring, flow, low, high, actions)

    def advance_tree(self, ring: TreeRing, actions: list[Action]) -> None:
        """What ``advance`` is for rings of one switch."""
        array = ring.tree_array
        self.sum_up(ring, actions)
        if ring.answered:
            ring.answered.clear()
            self._deliver(ring, actions)
        if array.sum_high >= array.frontier:
            self._tell_gaps(ring, actions)
        if array.done_high >= array.frontier:
            self._signal_gaps(ring, actions)
            for flow in ring.learnt.values():
                self.signal_told_gap(ring, flow, actions)
            self.ask_again(ring, actions)

    def sum_up(self, ring: TreeRing, actions: list[Action]) -> None:
        """Add up what is complete, and send it up; from the root, down."""
        array = ring.tree_array
        length = ring.spec.message_packets
        for serial in sorted(ring.dirty):
            region = ring.region_at(serial)
            if region is None:
                continue
            self.tell_openings(ring, region, actions)
            if not region.finish():
                continue
            array.sum_high = max(array.sum_high, serial * length + region.finished_last)
            spans = region.newly_done()
            if ring.parent is not None:
                self._counters.sums_up += self.send(ring, [ring.parent], region, spans, actions)
            else:
                ring.answered.add(serial)
                array.done_high = array.sum_high
                self.results_down(ring, region, spans, actions)
        ring.dirty.clear()

    # -- tree links ----------------------------------------------------------------------------

    def results_down(
        self, ring: TreeRing, region: TreeRegion, spans: list[Span], actions: list[Action]
    ) -> None:
        """Results to every switch below."""
        self._counters.results_down += self.send(ring, ring.children, region, spans, actions)

    def ask_above(self, ring: TreeRing, region: TreeRegion, spans: list[Span], actions: list[Action]) -> None:
        """Send these sums up again: their results have not come."""
        if ring.parent is not None:
            self._counters.sums_up_again += self.send(ring, [ring.parent], region, spans, actions)

    def ask_again(self, ring: TreeRing, actions: list[Action]) -> None:
        array = ring.tree_array
        begin = max(array.frontier, ring.asked_to)
        if ring.parent is None or begin >= array.done_high:
            return
        for serial in range(
            begin // ring.spec.message_packets, array.done_high // ring.spec.message_packets + 1
        ):
            region = ring.region_at(serial)
            if region is not None:
                base = serial * ring.spec.message_packets
                low, high = max(begin - base, 0), min(array.done_high - base, region.packets)
                if low < high:
                    self.ask_above(ring, region, region.unanswered(low, high), actions)
        ring.asked_to = array.done_high

    def send(
        self, ring: TreeRing, links: list[Link], region: TreeRegion, spans: list[Span], actions: list[Action]
    ) -> int:
        """What the slots hold, on links whose rows follow each other; returns how many packets."""
        if not links or not spans:
            return 0
        for link in links:
            self._dress(ring, region, link, spans[-1][1])
        rows = slice(links[0].row, links[-1].row + 1)
        count = 0
        for begin, end in spans:
            region.wear_marks(rows, begin, end, of_hosts=False)
            for block in region.packets_out(rows, begin, end, self._arena):
                for link, frames in zip(links, block, strict=True):
                    count += self._out(link, frames, actions)
        return count

    def _dress(self, ring: TreeRing, region: TreeRegion, link: Link, end: int) -> None:
        headers = region.virtual_headers(link.base, ring.spec.message_packets)
        if not region.wears(link.row):
            ina = region.ina_of(link.connection.rank, result=link is not ring.parent)
            region.dress(link.row, headers, ina)
        if end == region.packets:
            region.dress_last(link.row, headers)

    def _out(self, link: Link, frames: Frames, actions: list[Action]) -> int:
        if link.port not in self._bridge.ports:
            self._counters.links_down += len(frames)
            return 0
        actions.append(EmitFrames(link.port, frames))
        return len(frames)

    # -- repeats -------------------------------------------------------------------------------

    def _repeated(self, ring: TreeRing, flow: TreeFlow, low: int, high: int, actions: list[Action]) -> None:
        """An input sent positions ``low`` to ``high`` of a message again."""
        serial, begin = divmod(low, ring.spec.message_packets)
        end = begin + high - low + 1
        region = ring.region_at(serial)
        if region is None:
            return
        self.ask_above(ring, region, region.to_ask_again(flow.row, begin, end), actions)
        if flow.link is None:
            super().replay(ring, flow, low, high, actions)
        elif not flow.below:
            # In this order: what a first OPENS sets free need not be sent twice.
            self.tell(ring, flow, NoteKind.REPEATS, low, end - begin, actions)
            if begin == 0:
                self.tell(ring, flow, NoteKind.OPENS, low - begin, 0, actions)
        else:
            spans = region.answered(begin, end)
            self._counters.results_down_again += self.send(ring, [flow.link], region, spans, actions)

    def repeated_elsewhere(
        self, ring: TreeRing, flow: TreeFlow, low: int, high: int, actions: list[Action]
    ) -> None:
        """A note says that the host of a learnt connection sent positions of a message again."""
        serial, begin = divmod(low, ring.spec.message_packets)
        region = ring.region_at(serial)
        if region is None or begin >= region.packets:
            return
        end = min(begin + high - low + 1, region.packets)
        self.ask_above(ring, region, region.to_ask_again(flow.row, begin, end), actions)
        if low < flow.sent:  # its headers may have been told anew
            self.dress_learnt(region, flow, min(end, flow.sent - low + begin))
        super().replay(ring, flow, low, low + end - begin - 1, actions)

    # -- hosts' connections --------------------------------------------------------------------

    def _deliver(self, ring: TreeRing, actions: list[Action]) -> None:
        """Send results that the frontier passed, on every connection that ends here."""
        passed = ring.tree_array.advance()
        if not passed:
            return
        self.deliver(ring, passed, actions)
        for flow in ring.learnt.values():
            self.catch_up(ring, flow, actions)

    def deliver(
        self, ring: TreeRing, passed: Sequence[tuple[Region, int, int]], actions: list[Action]
    ) -> None:
        """Send results on every connection that begins and ends here."""
        for rows, flows in ring.groups:
            egress = [self._ports_to(flow) for flow in flows]
            tags = [flow.worn_tag for flow in flows]
            for region, begin, end in passed:
                self._counters.results_out += (end - begin) * len(flows)
                if isinstance(region, TreeRegion):
                    region.wear_marks(rows, begin, end, of_hosts=True)
                for block in region.packets_out(rows, begin, end, self._arena):
                    for ports, frames in zip(egress, map(dress, block, tags), strict=True):
                        for port in ports:
                            actions.append(EmitFrames(PortId(port), frames))  # noqa: PERF401  the hot loop

    def _ports_to(self, flow: TreeFlow) -> tuple[int, ...]:
        """Where the receiver's own packets come from; the address table is for when a link was down since."""
        receiver = flow.successor
        if receiver is not None and receiver.ingress != NOWHERE:
            return (receiver.ingress,)
        known = self._bridge.egress(flow.dst_mac, NOWHERE)
        return tuple(port for port in known if port not in flow.barred)

    def _emit(self, flow: Flow, frames: Frames, actions: list[Action]) -> None:
        if isinstance(flow, TreeFlow):
            frames = dress(frames, flow.worn_tag)
            actions.extend(EmitFrames(PortId(port), frames) for port in self._ports_to(flow))
        else:
            super()._emit(flow, frames, actions)

    def catch_up(self, ring: TreeRing, flow: TreeFlow, actions: list[Action]) -> None:
        """Send results on a learnt connection up to the frontier, or to a message whose note is missing."""
        array = ring.tree_array
        length = ring.spec.message_packets
        while flow.sent < array.frontier:
            serial, begin = divmod(flow.sent, length)
            region = ring.region_at(serial)
            if region is None:
                return
            end = array.next_offset if serial == array.next_serial else region.packets
            if not self.dress_learnt(region, flow, end):
                return
            self._counters.results_out += end - begin
            row = slice(flow.row, flow.row + 1)
            region.wear_marks(row, begin, end, of_hosts=True)
            for block in region.packets_out(row, begin, end, self._arena):
                self._emit(flow, block[0], actions)
            flow.sent = serial * length + end if end < region.packets else (serial + 1) * length

    @staticmethod
    def dress_learnt(region: TreeRegion, flow: TreeFlow, end: int) -> bool:
        """Make the headers of a learnt connection's packets up to ``end``; False if no note told of them."""
        header = flow.opening_of(region.serial)
        if header is None:
            return False
        headers = region.told_headers(header)
        if not region.wears(flow.row):
            region.dress(flow.row, headers, region.ina_of(flow.spec.rank, result=True))
        if end == region.packets:
            region.dress_last(flow.row, headers)
        return True

    def signal_told_gap(self, ring: TreeRing, flow: TreeFlow, actions: list[Action]) -> None:
        """Let one result past the gap that a note told of, once."""
        array = ring.tree_array
        length = ring.spec.message_packets
        if flow.hole < flow.sent or flow.gap_signalled == flow.hole or array.done_high <= flow.hole:
            return
        for serial in range(flow.hole // length, array.done_high // length + 1):
            region = ring.region_at(serial)
            if region is None:
                continue
            begin = max(flow.hole + 1 - serial * length, 0)
            final = region.final[begin : region.packets]
            if final.any():
                at = begin + int(final.argmax())
                if self.dress_learnt(region, flow, at + 1):
                    self._signal_gap(flow, region, at, actions)
                    flow.gap_signalled = flow.hole
                return

    # -- notes ---------------------------------------------------------------------------------

    def tell_openings(self, ring: TreeRing, region: TreeRegion, actions: list[Action]) -> None:
        for flow in ring.told:
            row = flow.row
            if row not in region.noted and region.seen[row, 0]:
                region.noted.add(row)
                self.tell(ring, flow, NoteKind.OPENS, region.serial * ring.spec.message_packets, 0, actions)

    def _tell_gaps(self, ring: TreeRing, actions: list[Action]) -> None:
        """Sums are complete beyond the frontier: tell of the first hole of each told connection, once."""
        array = ring.tree_array
        length = ring.spec.message_packets
        for flow in ring.told:
            for serial in range(array.next_serial, array.sum_high // length + 1):
                region = ring.region_at(serial)
                packets = length if region is None else region.packets
                seen = np.zeros(packets, np.bool_) if region is None else region.seen[flow.row, :packets]
                last = min(array.sum_high - serial * length, packets)
                if seen[:last].all():
                    continue
                hole = serial * length + int((~seen[:last]).argmax())
                if flow.hole != hole and flow.reached > hole:
                    flow.hole = hole
                    self.tell(ring, flow, NoteKind.GAP, hole, 0, actions)
                break

    def tell(
        self, ring: TreeRing, flow: TreeFlow, kind: NoteKind, position: int, count: int, actions: list[Action]
    ) -> None:
        assert flow.link is not None, "what is told has a link to tell it on"
        spec = ring.spec
        serial, offset = divmod(position, spec.message_packets)
        header = b""
        if kind is NoteKind.OPENS:
            raw = ring.tree_array.region_of(serial).header[flow.row, 0]
            header = raw[: HEADER_BYTES[int(raw[42])]].tobytes()
        note = TreeNote(
            kind=kind,
            rank=flow.spec.rank,
            ring_id=spec.ring_id,
            epoch=ring.epoch,
            msg_id=serial & ((1 << spec.msg_id_bits) - 1),
            offset=offset,
            count=count,
            key=spec.key,
            header=header,
        )
        self.send_note(flow.link, note.encode(), actions)

    def send_note(self, link: Link, record: bytes, actions: list[Action]) -> None:
        """A record on a virtual connection, as a RoCE SEND."""
        header = packet_header(link.base, Opcode.RC_SEND_ONLY, 0, len(record))
        tail = record + bytes(-len(record) % 4)
        icrc = share_of(header, len(tail)) ^ crc32(tail)
        frame = header + tail + icrc.to_bytes(ICRC_BYTES, "little")
        self._counters.notes_out += self._out(link, np.frombuffer(frame, np.uint8)[None], actions)
