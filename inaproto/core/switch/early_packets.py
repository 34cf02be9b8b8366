"""Packets that came before the first one of their message, and wait for it.

Only a first packet says which message it opens, so what comes before it cannot be placed. Where a network
has several paths (ECMP, a LAG, adaptive routing) packets may overtake the first one of their message by as
much as these differ. They are kept for a while, and taken in when their message opens; what waits in vain is
dropped, as if it had never come, and go-back-N brings it. NICs of a selective ring send again what was lost
and nothing else. So what came behind a first packet that was lost waits there until a timer has brought that.

Bounds: packets of the switch and of a connection, and a time. A packet waits only if its PSN can be of a
message that is still to open: less than a window before the connection's newest one, or at most a window
behind it. With each message that opens, what cannot be any more is dropped; so a PSN never means another
message than the one that it was sent in, however long it waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.events import Counters
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import Frames, Instant, PortId

FIRST_NOT_SEEN: Final = "first packet of the message not seen"
Connection = tuple[bytes, bytes, int]


class Early(NamedTuple):
    """Packets that came together, without their VLAN tag."""

    until: Instant
    port: PortId
    tag: bytes
    frames: Frames
    psns: NDArray[np.int64]


class EarlyPackets:
    def __init__(
        self, counters: Counters, *, packets_max: int, flow_packets_max: int, wait_ns: int, selective_ns: int
    ) -> None:
        self._counters = counters
        self._packets_max = packets_max
        self._flow_packets_max = flow_packets_max
        self._wait_ns = wait_ns
        self._selective_ns = selective_ns
        self._of: dict[Connection, list[Early]] = {}
        self.waiting = 0
        """Packets that wait now."""

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Those of which packets wait."""
        return tuple(self._of)

    def wait_ns(self, spec: RingSpec) -> int:
        """How long packets of that ring wait."""
        return self._selective_ns if spec.selective else self._wait_ns

    def keep(self, flow: Flow, spec: RingSpec, early: Early) -> None:
        """Have packets wait that no message of the flow has; drop those that are of none to come."""
        may = _may_open(flow, spec, early.psns)
        known = self._of.setdefault(flow.spec.connection, [])
        room = self._flow_packets_max - sum(len(each.frames) for each in known)
        room = min(room, self._packets_max - self.waiting)
        rows = np.flatnonzero(may)[: max(0, room)]
        if len(rows):
            kept = early._replace(frames=early.frames[rows], psns=early.psns[rows])  # copies, of port memory
            known.append(kept)
            self.waiting += len(rows)
            self._counters.early += len(rows)
        if not known:
            del self._of[flow.spec.connection]
        if len(rows) < len(early.frames):
            self._counters.drop(FIRST_NOT_SEEN, len(early.frames) - len(rows))

    def opened(self, flow: Flow, spec: RingSpec) -> Iterator[Early]:
        """What the flow's messages have now, in the order in which it came; what none can have is dropped."""
        left: list[Early] = []
        for early in self._of.pop(flow.spec.connection, ()):
            known, placed = np.zeros((2, len(early.psns)), np.bool_)
            for _, rows, offsets in flow.locate(early.psns):
                known[rows] = True
                placed[rows] = np.arange(spec.message_packets)[offsets] > 0  # where a first packet stands
            stays = ~known & _may_open(flow, spec, early.psns)
            gone = int(np.count_nonzero(~stays))
            self.waiting -= gone
            taken = int(np.count_nonzero(placed))
            if taken < gone:
                self._counters.drop(FIRST_NOT_SEEN, gone - taken)
            if stays.any():
                left.append(early._replace(frames=early.frames[stays], psns=early.psns[stays]))
            if taken:
                self._counters.early_taken += taken
                yield early._replace(frames=early.frames[placed], psns=early.psns[placed])
        if left:
            self._of[flow.spec.connection] = left

    def psns(self, flow: Flow) -> list[int]:
        """Those of the packets that wait on a flow."""
        return [psn for early in self._of.get(flow.spec.connection, ()) for psn in early.psns.tolist()]

    def expire(self, now: Instant) -> None:
        """Drop what has waited for its time."""
        for connection, known in list(self._of.items()):
            if now < known[0].until:
                continue
            left = [early for early in known if now < early.until]
            self._dropped(sum(len(early.frames) for early in known) - sum(len(each.frames) for each in left))
            if left:
                self._of[connection] = left
            else:
                del self._of[connection]

    def forget(self, flow: Flow) -> None:
        """The flow's ring is removed."""
        self._dropped(sum(len(early.frames) for early in self._of.pop(flow.spec.connection, ())))

    def _dropped(self, packets: int) -> None:
        if packets:
            self.waiting -= packets
            self._counters.drop(FIRST_NOT_SEEN, packets)


def _may_open(flow: Flow, spec: RingSpec, psns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which PSNs can be of a message that is still to open on the flow: bool (n,).

    A window before its newest message all have opened: that one's sender had their results.
    """
    known = [entry for entry in flow.entries if entry is not None]
    if not known:
        return np.ones(len(psns), np.bool_)
    window = spec.window_messages
    newest = max(known)
    begin = newest.psn0 - (window - 1) * spec.message_packets
    over = [entry for entry in known if entry.serial <= newest.serial - window]
    if over:
        begin = max(over).psn0 + max(over).packets
    reach = ((newest.psn0 + newest.packets - begin) & flow.psn_mask) + window * spec.message_packets
    within: NDArray[np.bool_] = ((psns - begin) & flow.psn_mask) < reach
    return within
