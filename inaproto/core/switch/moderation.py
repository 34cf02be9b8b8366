"""How long a switch may leave alone what comes at its ports (interrupt moderation, as network cards have it).

Each time that a switch looks at its ports costs as much as part of a message, so on slow links most of its
work is looking. While hosts are amid long operations, their windows queue on the way to the switch, and what
it takes in a little later delays nobody: results come later by less than what waits at the links.

A rest is the time in which a part of the window of a ring comes at the busiest port, at the highest rate that
was measured there of late. A link that is full has always this rate, so its queue outlasts several rests. A
window that waits for its results comes in bursts at the rate of the link, so there the rest is short, and is
none where the link is fast.

The end of an operation comes later by up to a rest, so rests grow with the time for which it lasts.

Invariants: there is no rest unless every ring with messages that are not complete is sure to get more of the
same operations, so none delays the end of an operation, nor one that fits a message; nor with a ring that
spans several switches, whose rests would add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inaproto.core.switch.events import RingState
from inaproto.units import MS, Instant, PortId, S
from inaproto.wire.ina_header import FLAG_LAST, FLAGS_OFFSET

REST_PARTS: Final = 11
"""A rest is the time in which this part of a window comes: less than that of a message, of eight on the way.

So the last message of an operation, whose begin ends the rests, still comes while its results begin to leave.
"""
REST_BYTES_MAX: Final = 192 << 10
"""A rest is no longer than so many bytes take to come, which receive buffers and caches hold."""
REST_NS_MIN: Final = MS // 2
"""A shorter rest costs more than it saves."""
REST_NS_MAX: Final = 8 * MS
"""What else passes the switch waits for the end of a rest."""
LASTED_PARTS: Final = 8
"""A rest is no longer than this part of the time for which the operation has been going on."""
MEASURE_NS_MIN: Final = 2 * MS
"""Rates are those over times not shorter than this: frames come by segments of 64 KiB."""
MEASURE_NS_MAX: Final = 100 * MS
"""After a longer pause nothing is known of rates."""
FADING: Final = 4
"""The highest rate is forgotten by this part at each measurement."""


class Moderation:
    """``rings``: those that are installed, as they are at any time."""

    def __init__(self, rings: Mapping[int, RingState]) -> None:
        self._rings = rings
        self._came: dict[PortId, int] = {}
        self._since = Instant(0)
        self._peak = 0
        """Bytes a second, of the busiest port."""
        self._begun: Instant | None = None
        """When the operations that are on the way were seen first; None: there is a new one."""

    def came(self, port: PortId, nbytes: int) -> None:
        """So many bytes came at a port."""
        self._came[port] = self._came.get(port, 0) + nbytes

    def rest_ns(self, now: Instant) -> int:
        """For how long what comes may be left alone, now that all that came was taken in; 0: not at all."""
        lasted = now - self._since
        if lasted >= MEASURE_NS_MIN:
            rate = max(self._came.values(), default=0) * S // lasted
            self._came.clear()
            self._since = now
            self._peak = 0 if lasted > MEASURE_NS_MAX else max(rate, self._peak - self._peak // FADING)
        window = self._on_the_way()
        if not self._peak or not window:
            return 0
        if self._begun is None:
            self._begun = now
        share = min(window // REST_PARTS, REST_BYTES_MAX)
        rest = min(share * S // self._peak, REST_NS_MAX, (now - self._begun) // LASTED_PARTS)
        return rest if rest >= REST_NS_MIN else 0

    def _on_the_way(self) -> int:
        """The least window, in bytes, of the rings that are amid operations; 0 if one may end, or none is."""
        least = 0
        for ring in self._rings.values():
            array = ring.array
            serial = array.next_serial
            while (region := array.region_of(serial)).serial == serial:
                if region.agreed[FLAGS_OFFSET] & FLAG_LAST or ring.spec.role is not None:
                    self._begun = None
                    return 0
                serial += 1
            if serial > array.next_serial and not ring.failed:
                before = array.region_of(array.next_serial - 1)
                if before.agreed and before.agreed[FLAGS_OFFSET] & FLAG_LAST:
                    self._begun = None  # the first message of its operation
                window = ring.spec.window_messages * ring.spec.message_packets * ring.spec.mtu
                least = min(least, window) if least else window
        return least
