"""By what a stop of training is judged: the lease of the job's seats that was in force then.

A coordinator gives seats longer leases while their votes are late, so a slow machine stretches them. One that
was stretched counts for the job and the time for which it was told, and for no other stop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from inaproto.core.sharing.events import ParticipantConfig, SharingConfig
from inaproto.units import JobId, S
from inaproto.wire.messages.sharing import Seat

SEAT_LEASE_S: Final = SharingConfig("").lease_ns / S
"""As controllers are configured here."""
LONGEST_S: Final = ParticipantConfig(Seat(JobId(""), "")).lease_max_ns / S


class Leases:
    """Leases of seats as they were told, by job; ``told`` in the order of time."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[list[float], list[float]]] = {}
        """When, and for how long, seconds."""

    def told(self, job: str, at: float, lease_s: float) -> None:
        times, lengths = self._told.setdefault(job, ([], []))
        times.append(at)
        lengths.append(lease_s)

    def in_force(self, job: str, began: float, ended: float) -> float:
        """The longest that ran at any time between; what is configured where none did, or a shorter one."""
        times, lengths = self._told.get(job, ([], []))
        some = range(bisect_left(times, began - LONGEST_S), bisect_right(times, ended))
        return max([SEAT_LEASE_S, *(lengths[one] for one in some if times[one] + lengths[one] >= began)])

    @property
    def longest_s(self) -> float:
        return max((length for _, lengths in self._told.values() for length in lengths), default=SEAT_LEASE_S)
