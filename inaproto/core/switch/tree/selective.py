"""What a switch of a tree sends of a selective ring: results as they are done (docs/protocol.md 7.4, 7.8).

Between switches nothing changes: sums go up and results come down as they are complete, each end places
packets by PSN. On hosts' connections there is no order either, and so no frontier to wait for, no gap to
signal and no note of one: NICs that keep what comes behind a gap say themselves what is missing. What differs
from :class:`~inaproto.core.switch.tree.emission.TreeEmission`:

- A result leaves at once on every connection that ends here. On one that begins elsewhere, results of a
  message wait for the note that it opens, and then all leave that are there.
- What comes again is answered packet by packet: with the kept result where the connection ends, and else by
  a note of exactly these packets. Of sums whose results are not here, those go up once more that
  ``TreeRegion.to_ask_again`` chooses.
- A message's opening is told twice: with its last packet again. A note that was lost would otherwise bring
  the whole message again, as nothing of it can be placed behind the gap.

Invariant: a result that was sent on a connection is in ``region.told``, or its message is not open there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.events import Action, RingState
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.region import Region, consecutive
from inaproto.core.switch.tree.emission import TreeEmission
from inaproto.core.switch.tree.region import Span, TreeRegion
from inaproto.core.switch.tree.ring import TreeFlow, TreeRing
from inaproto.wire.tree_note import NoteKind


class SelectiveTreeEmission(TreeEmission):
    """All that an accelerator sends; what is said above is for selective rings of several switches alone."""

    def advance_tree(self, ring: TreeRing, actions: list[Action]) -> None:
        if not ring.spec.selective:
            super().advance_tree(ring, actions)
            return
        array = ring.tree_array
        self.sum_up(ring, actions)
        if ring.answered:
            self._as_they_are(ring, actions)
        if array.done_high >= array.frontier:
            self.ask_again(ring, actions)

    def _as_they_are(self, ring: TreeRing, actions: list[Action]) -> None:
        """Send the results of this step on every connection that ends here."""
        done: list[tuple[TreeRegion, int, int]] = []
        for serial in sorted(ring.answered):
            region = ring.region_at(serial)
            if region is not None:
                done += [(region, begin, end) for begin, end in region.untold()]
        ring.answered.clear()
        if not done:
            return
        self.deliver(ring, done, actions)
        ring.array.advance()
        for flow in ring.learnt.values():
            for region, begin, end in done:
                self._on_learnt(flow, region, [(begin, end)], actions)
            self._count_sent(ring, flow)

    def _on_learnt(
        self, flow: TreeFlow, region: TreeRegion, spans: list[Span], actions: list[Action]
    ) -> None:
        """Send results on a connection that begins elsewhere; none before the message is open there."""
        if not self.dress_learnt(region, flow, spans[-1][1]):
            return
        for begin, end in spans:
            self._counters.results_out += end - begin
            row = slice(flow.row, flow.row + 1)
            region.wear_marks(row, begin, end, of_hosts=True)
            for block in region.packets_out(row, begin, end, self._arena):
                self._emit(flow, block[0], actions)

    @staticmethod
    def _count_sent(ring: TreeRing, flow: TreeFlow) -> None:
        """Results of messages that are open there have been sent as far as the frontier."""
        array = ring.tree_array
        while flow.sent < array.frontier:
            serial = flow.sent // ring.spec.message_packets
            if flow.opening_of(serial) is None:
                return
            flow.sent = min(array.frontier, (serial + 1) * ring.spec.message_packets)

    def opened(self, ring: TreeRing, flow: TreeFlow, serial: int, actions: list[Action]) -> None:
        """The first note came that a message is open on a learnt connection: what waited for it leaves."""
        region = ring.region_at(serial)
        if region is not None and region.told is not None:
            told = np.frombuffer(region.told, np.bool_)
            if told.any():
                self._on_learnt(flow, region, consecutive(np.flatnonzero(told)), actions)
        self._count_sent(ring, flow)

    def tell_openings(self, ring: TreeRing, region: TreeRegion, actions: list[Action]) -> None:
        super().tell_openings(ring, region, actions)
        if not ring.spec.selective or region.packets == 1:
            return
        for flow in ring.told:
            again = ~flow.row  # what ``noted`` has of the second time
            is_due = flow.row in region.noted and region.seen[flow.row, region.packets - 1]
            if is_due and again not in region.noted:
                region.noted.add(again)
                position = region.serial * ring.spec.message_packets
                self.tell(ring, flow, NoteKind.OPENS, position, 0, actions)

    # -- repeats -------------------------------------------------------------------------------

    def came_again(
        self, ring: RingState, flow: Flow, region: Region, offsets: NDArray[np.intp], actions: list[Action]
    ) -> None:
        if isinstance(ring, TreeRing) and isinstance(flow, TreeFlow) and isinstance(region, TreeRegion):
            self._answer(ring, flow, region, offsets, actions)
        else:
            super().came_again(ring, flow, region, offsets, actions)

    def _answer(
        self,
        ring: TreeRing,
        flow: TreeFlow,
        region: TreeRegion,
        offsets: NDArray[np.intp],
        actions: list[Action],
    ) -> None:
        """An input sent packets again whose sums are done."""
        base = region.serial * ring.spec.message_packets
        for begin, end in consecutive(offsets):
            self.ask_above(ring, region, region.to_ask_again(flow.row, begin, end), actions)
            if flow.below:
                assert flow.link is not None, "an input from a switch below has a link to it"
                spans = region.answered(begin, end)
                self._counters.results_down_again += self.send(ring, [flow.link], region, spans, actions)
            elif flow.link is None:
                self.repeat(ring, flow, region, _told(region, begin, end), actions)
            else:
                self.tell(ring, flow, NoteKind.REPEATS, base + begin, end - begin, actions)
                if begin == 0:
                    self.tell(ring, flow, NoteKind.OPENS, base, 0, actions)

    def repeated_elsewhere(
        self, ring: TreeRing, flow: TreeFlow, low: int, high: int, actions: list[Action]
    ) -> None:
        if not ring.spec.selective:
            super().repeated_elsewhere(ring, flow, low, high, actions)
            return
        serial, begin = divmod(low, ring.spec.message_packets)
        region = ring.region_at(serial)
        if region is None:
            return
        end = min(begin + high - low + 1, region.packets)
        self.ask_above(ring, region, region.to_ask_again(flow.row, begin, end), actions)
        spans = _told(region, begin, end)
        if spans and self.dress_learnt(region, flow, spans[-1][1]):
            self.repeat(ring, flow, region, spans, actions)


def _told(region: Region, begin: int, end: int) -> list[Span]:
    """Slots from ``begin`` to ``end - 1`` whose results were sent."""
    if region.told is None:
        return []
    told = np.flatnonzero(np.frombuffer(region.told, np.bool_)[begin:end])
    return consecutive(begin + told) if len(told) else []
