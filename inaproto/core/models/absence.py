"""Whether this process itself was away: stopped, swapped out, or on a machine that slept (MLNet section 3.2).

What its neighbours said meanwhile waits to be read; to take them for dead for their silence would tear down a
tree in which nobody died (ours). With heartbeats a core is stepped each ``heartbeat_ns``, by a word or by its
own deadline. If it was not, all but one of the heartbeats between is time in which it was away. Silence that
lasts is noticed that much later.
"""

from __future__ import annotations

from inaproto.core.models.events import Patience
from inaproto.units import Instant


class Absence:
    def __init__(self, patience: Patience, now: Instant) -> None:
        self._beat_ns = patience.heartbeat_ns
        self._stepped = now

    @property
    def deadline(self) -> Instant | None:
        """When a step is due, so that it is known not to be away."""
        return None if self._beat_ns is None else Instant(self._stepped + self._beat_ns)

    def until(self, now: Instant) -> int:
        """At each step: for how many ns it was away since the last; 0 if it was not."""
        gap, self._stepped = now - self._stepped, now
        if self._beat_ns is None or gap <= self._beat_ns + self._beat_ns // 2:
            return 0
        return gap - self._beat_ns
