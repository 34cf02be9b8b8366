"""What the accelerator sends: results in PSN order, replays from kept results, one result past a gap.

The rules are those of :mod:`inaproto.core.switch.accelerator`; frames are built in the arena, which the next
step uses again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.core.switch.bridge import Bridge
from inaproto.core.switch.events import Action, Counters, Egress, EmitFrames, RingState
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.packet_memory import OutputArena
from inaproto.core.switch.port_memory import LENT_BYTES_MIN, PortMemories, each
from inaproto.core.switch.region import Region, consecutive
from inaproto.units import Frames, PortId
from inaproto.wire.outer import dress

Spans = list[tuple[int, int]]
"""Offsets in a message, as (begin, end)."""

TWICE_PACKETS_MAX: Final = 32
"""Longer stretches of results leave once, even where nothing would show that one of them is lost."""


class Emission:
    def __init__(
        self, bridge: Bridge, counters: Counters, *, output_bytes_max: int, fill_packets_max: int
    ) -> None:
        self._bridge = bridge
        self._counters = counters
        self._arena = OutputArena(output_bytes_max)
        self.ports = PortMemories(self._arena)
        self.begin_step = self._arena.reset
        """Frames of the step before are void from here on."""
        self._fill_packets_max = fill_packets_max

    def replay(self, ring: RingState, flow: Flow, low: int, high: int, actions: list[Action]) -> None:
        """Answer a resend of positions ``low`` to ``high`` from kept results, up to the frontier.

        A short hole before it, since the resend in progress, is filled in PSN order.
        """
        array = ring.array
        frontier = flow.emitted(array.frontier)
        begin = low
        if flow.replay_next is not None and flow.replay_next < low:
            hole = array.spans_from(flow.replay_next, low)
            if sum(past - first for _, first, past in hole) <= self._fill_packets_max:
                begin = flow.replay_next
        rank = flow.row
        emitted = 0
        end = min(high + 1, frontier)
        for region, first, past in array.spans_from(begin, end) if begin < end else ():
            emitted += past - first
            for block in region.packets_out(slice(rank, rank + 1), first, past, self._arena):
                self._emit(flow, block[0], actions)
        following = array.after(high)
        flow.replay_next = following if following < frontier else None
        self._counters.replayed += emitted
        self._counters.replay_filled += emitted - max(0, end - low)

    def advance(self, ring: RingState, actions: list[Action]) -> None:
        array = ring.array
        if ring.spec.selective:
            self._as_done(ring, actions)
            return
        finished = False
        for serial, touched in ring.dirty.items():
            if touched.serial == serial and not touched.silent and touched.finish():
                finished = True
                position = serial * ring.spec.message_packets + touched.finished_last
                array.done_high = max(array.done_high, position)
        ring.dirty.clear()
        if finished:  # nothing else moves the frontier
            self._results(ring, array.advance(), actions)
        if array.done_high >= array.frontier:
            self._signal_gaps(ring, actions)

    def _as_done(self, ring: RingState, actions: list[Action]) -> None:
        """Send results of a selective ring as they are done: its receivers keep what comes behind a gap."""
        done = []
        for serial in sorted(ring.dirty):
            region = ring.dirty[serial]
            if region.serial == serial and region.finish():
                done += [(region, begin, end) for begin, end in region.untold()]
        ring.dirty.clear()
        self._results(ring, done, actions)
        if done:
            if ring.is_repaired:
                self._left(ring, done, actions)
            ring.array.advance()

    def _left(self, ring: RingState, done: list[tuple[Region, int, int]], actions: list[Action]) -> None:
        """These results have left. Of those before others, which are late, what left after them tells.

        That may be long in coming if no later message has begun. So they leave twice then, as the last one of
        all does while losses are expected.
        """
        array = ring.array
        twice = []
        for region, begin, end in done:
            base = region.serial * ring.spec.message_packets
            if base + begin < array.done_high:
                late = dict.fromkeys(range(base + begin, base + end), array.done_high + 1)
                for flow in ring.flows:
                    if flow.repair is not None:
                        flow.repair.copies.update(late)
                if goes_twice(array, region, end - begin):
                    twice.append((region, begin, end))
            elif end == region.packets and region.serial < ring.lossy_until and goes_twice(array, region, 1):
                twice.append((region, end - 1, end))
            array.done_high = max(array.done_high, base + end - 1)
        self._results(ring, twice, actions, is_first=False)

    def came_again(
        self, ring: RingState, flow: Flow, region: Region, offsets: NDArray[np.intp], actions: list[Action]
    ) -> None:
        """Packets of a selective ring came again for slots that are done, int (n,), n >= 1."""
        if region.told is None:
            return
        # A kernel may have filled the slot just now: its result is still to be sent to all.
        offsets = offsets[np.frombuffer(region.told, np.bool_)[offsets]]
        if len(offsets):
            _sender_asks(flow)
            self.repeat(ring, flow, region, consecutive(offsets), actions)

    def one_came_again(
        self, ring: RingState, flow: Flow, region: Region, offset: int, actions: list[Action]
    ) -> None:
        """What ``came_again`` does with one packet, of a ring that one switch sums."""
        if region.is_told(offset):
            _sender_asks(flow)
            self.repeat(ring, flow, region, [(offset, offset + 1)], actions)

    def repeat(
        self,
        ring: RingState,
        flow: Flow,
        region: Region,
        spans: Spans,
        actions: list[Action],
        *,
        way: bytes = b"",
    ) -> None:
        """Answer what came again of a selective ring, and is done, on its own flow; ``way``: under these
        addresses, to and from, not those of its packets."""
        rank = flow.row
        for begin, end in spans:
            self._counters.replayed += end - begin
            for block in region.packets_out(slice(rank, rank + 1), begin, end, self._arena):
                if way:
                    block[0][:, : len(way)] = np.frombuffer(way, np.uint8)
                self._emit(flow, block[0], actions)

    def _results(
        self,
        ring: RingState,
        passed: list[tuple[Region, int, int]],
        actions: list[Action],
        *,
        is_first: bool = True,
    ) -> None:
        """Send results on every flow."""
        if not passed:
            return
        size = ring.spec.size
        everyone = slice(0, size)
        egress = self._egress(ring)
        for region, begin, end in passed:
            if is_first:
                self._counters.results_out += (end - begin) * size
            else:
                self._counters.replayed += (end - begin) * size
            if region.kernels is None:
                actions += each(region.packets_out(everyone, begin, end, self._arena), egress)
                continue
            if self.ports.arenas and (end - begin) * ring.spec.mtu >= LENT_BYTES_MIN:
                self.ports.emit(region, region.kernels, begin, end, egress, actions)
                continue
            cut = region.cut_out(region.kernels, everyone, begin, end, self._arena)
            if cut.egress is not egress and cut.egress != egress:
                is_tagged = any(tag for _, tag in egress)  # with copies, which must be made anew
                cut.egress, cut.sent = None if is_tagged else egress, each(cut.blocks, egress)
            actions += cut.sent

    def _egress(self, ring: RingState) -> Egress:
        """Ports of the results of each flow: the bridge is asked when it may say otherwise."""
        ways = [(flow.dst_mac, flow.ingress, flow.tag) for flow in ring.flows]
        known, changes = ring.egress, self._bridge.changes
        if known is not None and known[0] == changes and known[1] == ways:
            return known[2]
        egress = [(self._bridge.egress(dst_mac, ingress), tag) for dst_mac, ingress, tag in ways]
        ring.egress = changes, ways, egress
        return egress

    def _signal_gaps(self, ring: RingState, actions: list[Action]) -> None:
        """Results are finished beyond the frontier: let each flow with a hole of its own know, once.

        Not while its sender is before the hole: it went back, and brings what is missing unasked.
        """
        array = ring.array
        length = ring.spec.message_packets
        for flow in ring.delivered:
            rank = flow.row
            hole: int | None = None
            for serial in range(array.next_serial, array.done_high // length + 1):
                region = array.region_of(serial)
                if region.serial != serial:  # nobody's first packet came
                    hole = serial * length if hole is None else hole
                    continue
                begin = array.next_offset if serial == array.next_serial else 0
                if hole is None:
                    missing = ~region.seen[rank, begin : region.packets]
                    if not missing.any():
                        continue
                    begin += int(missing.argmax())
                    hole = serial * length + begin
                if flow.reached < hole:
                    break
                done = region.final[begin : region.packets]
                if done.any():
                    if flow.gap_signalled != hole:
                        self._signal_gap(flow, region, begin + int(done.argmax()), actions)
                        flow.gap_signalled = hole
                    break

    def _signal_gap(self, flow: Flow, region: Region, at: int, actions: list[Action]) -> None:
        self._counters.gaps_signalled += 1
        rank = flow.row
        for block in region.packets_out(slice(rank, rank + 1), at, at + 1, self._arena):
            self._emit(flow, block[0], actions)

    def _emit(self, flow: Flow, frames: Frames, actions: list[Action]) -> None:
        egress = self._bridge.egress(flow.dst_mac, flow.barred_port)
        frames = dress(frames, flow.tag)
        actions.extend(EmitFrames(PortId(port), frames) for port in egress)


def _sender_asks(flow: Flow) -> None:
    """It sent again what was answered already: nothing more comes that could show a loss."""
    if flow.repair is not None:
        flow.repair.copies.clear()


def goes_twice(array: AggregatorArray, region: Region, packets: int) -> bool:
    """Whether so many results that leave out of order do so twice: those of the newest message."""
    return packets <= TWICE_PACKETS_MAX and array.region_of(region.serial + 1).serial <= region.serial
