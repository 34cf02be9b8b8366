"""How long a switch may leave alone what comes at its ports (interrupt moderation, as network cards have it).

Each time that a switch looks at its ports costs as much as part of a message, so on slow links most of its
work is looking. While hosts are amid operations of several messages, what is taken in a little later costs
little: results leave later by a rest. However many rests there are, an operation ends later by about the
longest of them, for a link takes results away as fast as another one brings packets. So rests are equally
long from the first message of an operation to its last one.

A rest is the time in which a part of the window of a ring comes at the busiest port, at the highest rate that
was measured there of late. A link that is full has always this rate, so its queue outlasts several rests. A
window that waits for its results comes as slowly as rests let it, so it is a small part that is rested.

It is also no longer than a part of its operation takes to come. That has one message more than have begun, as
long as none of them says that it is the last one, or as many as the operation of the same shape before it. A
rest is over when the last message of an operation can be there as a whole.

Invariants: there is no rest unless every ring with messages that are not complete is in operations of several
messages, and none with a ring that spans several switches, whose rests would add up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from inaproto.core.switch.events import RingState
from inaproto.units import MS, Instant, PortId, S
from inaproto.wire.ina_header import FLAG_LAST, FLAGS_OFFSET

REST_PARTS: Final = 11
"""A rest is the time in which this part of a window comes: less than that of a message, of eight."""
REST_BYTES_MAX: Final = 192 << 10
"""A rest is no longer than so many bytes take to come, which receive buffers and caches hold."""
REST_NS_MIN: Final = MS // 2
"""A shorter rest costs more than it saves."""
REST_NS_MAX: Final = 8 * MS
"""What else passes the switch waits for the end of a rest."""
OPERATION_PARTS: Final = 20
"""A rest is no longer than this part of an operation takes to come."""
OPERATION_MESSAGES_MIN: Final = 2
"""Operations of fewer messages keep the switch from resting."""
SHAPES_MAX: Final = 256
"""Shapes of which it is remembered how many messages they have."""
MEASURE_NS_MIN: Final = 8 * MS
"""Rates are those over times not shorter than this: frames come by segments of 64 KiB, each of a good
while."""
MEASURE_NS_MAX: Final = 100 * MS
"""After a longer pause nothing is known of rates."""
FADING: Final = 4
"""The highest rate is forgotten by this part at each measurement."""

_KIND: Final = slice(5, 7)
_SIGNATURE: Final = slice(28, 30)
"""Where ``Region.agreed`` has type and reduction, and the digest of the shape."""


class _Operations:
    """What of a ring's operations has begun to come."""

    __slots__ = ("begun", "ends", "messages_min", "next")

    def __init__(self, serial: int) -> None:
        self.next = serial
        """The first message that has not begun to come."""
        self.begun = serial
        """The first message of the operation that this one is of."""
        self.messages_min = 0
        """How many messages that operation has at least; if it has not begun, those of one before it."""
        self.ends: deque[tuple[int, int]] = deque()
        """The last messages of operations that come still, and how many messages each has."""


class Moderation:
    """``rings``: those that are installed, as they are at any time."""

    def __init__(self, rings: Mapping[int, RingState]) -> None:
        self._rings = rings
        self._operations: dict[int, _Operations] = {}
        self._messages: dict[tuple[int, bytes], int] = {}
        """How many the last operation of a ring had that was of a shape."""
        self._came: dict[PortId, int] = {}
        self._since = Instant(0)
        self._peak = 0
        """Bytes a second, of the busiest port."""
        self._is_busy = False
        """Whether messages were on the way when it was asked last."""

    def came(self, port: PortId, nbytes: int) -> None:
        """So many bytes came at a port."""
        self._came[port] = self._came.get(port, 0) + nbytes

    def rest_ns(self, now: Instant) -> int:
        """For how long what comes may be left alone, now that all that came was taken in; 0: not at all."""
        share = self._share_of_all()
        lasted = now - self._since
        if lasted > MEASURE_NS_MAX:
            self._peak = 0
        was_busy, self._is_busy = self._is_busy, share is not None
        if not was_busy or not self._is_busy or lasted > MEASURE_NS_MAX:  # pauses say nothing of links
            self._measure_from(now)
        elif lasted >= MEASURE_NS_MIN:
            rate = max(self._came.values(), default=0) * S // lasted
            self._peak = max(rate, self._peak - self._peak // FADING)
            self._measure_from(now)
        if not self._peak or not share:
            return 0
        rest = min(share * S // self._peak, REST_NS_MAX)
        return rest if rest >= REST_NS_MIN else 0

    def _measure_from(self, now: Instant) -> None:
        self._came.clear()
        self._since = now

    def _share_of_all(self) -> int | None:
        """How many bytes may come at a port in a rest, 0: there is none; None: no message is on the way."""
        least: int | None = None
        for ring in self._rings.values():
            share = self._share(ring)
            if share is not None and (least is None or share < least):
                least = share
        return least

    def _share(self, ring: RingState) -> int | None:
        """The same, as far as that ring is concerned."""
        spec, array = ring.spec, ring.array
        operations = self._look(ring)
        if operations.next <= array.next_serial or ring.failed:
            return None
        if spec.role is not None:
            return 0
        ends = operations.ends
        while ends and ends[0][0] < array.next_serial:
            ends.popleft()
        messages = operations.messages_min
        for _, number in ends:
            messages = min(messages, number)
        if messages < OPERATION_MESSAGES_MIN:
            return 0
        message_bytes = spec.message_packets * spec.mtu
        share = min(
            spec.window_messages * message_bytes // REST_PARTS,
            REST_BYTES_MAX,
            messages * message_bytes // OPERATION_PARTS,
        )
        if ends:
            last = ends[0][0]
            end = last * spec.message_packets + array.region_of(last).packets
            reached = end - 1
            for flow in ring.flows:
                reached = min(reached, flow.reached)
            share = min(share, (end - 1 - reached) * spec.mtu)
        return share

    def _look(self, ring: RingState) -> _Operations:
        """What has begun by now."""
        ring_id, array = ring.spec.ring_id, ring.array
        operations = self._operations.get(ring_id)
        if operations is None:
            for gone in self._operations.keys() - self._rings.keys():
                del self._operations[gone]
            operations = self._operations[ring_id] = _Operations(array.next_serial)
        serial = operations.next
        while (region := array.region_of(serial)).serial >= serial:
            if region.serial > serial:  # it was not looked at for long
                serial = operations.begun = max(serial + 1, array.next_serial)
                operations.ends.clear()
                continue
            agreed, serial = region.agreed, serial + 1
            shape = ring_id, agreed[_KIND] + agreed[_SIGNATURE]
            messages = serial - operations.begun
            if agreed[FLAGS_OFFSET] & FLAG_LAST:
                operations.ends.append((serial - 1, messages))
                operations.begun = serial
                if len(self._messages) >= SHAPES_MAX:
                    self._messages.clear()
                self._messages[shape] = messages
            else:
                operations.messages_min = max(messages + 1, self._messages.get(shape, 0))
        operations.next = serial
        return operations
