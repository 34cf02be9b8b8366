"""All that a controller grants a host: seats of ranks, and places in its collective library.

The rules are in :mod:`inaproto.core.grants`; here is who hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inaproto.core.grants.places import Places
from inaproto.core.grants.seats import HostSeats
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentWelcome, GrantRecord, HoldRecord


class HostGrants:
    """``GrantHolder`` and ``AgentSide`` of :mod:`inaproto.daemon.net.controller_link`.

    ``cut_off(job, ranks, why)`` ends those processes, each of which is then reported by ``left``;
    ``given_up`` is called when processes may wait for a seat that is no more, ``changed`` when there is
    something new to report, ``moved`` when a job may attach to the collective library that might not, or the
    other way round.
    """

    hears: tuple[type[Message], ...] = ()

    def __init__(
        self,
        *,
        cut_off: Callable[[str, range, str], None],
        given_up: Callable[[], None],
        changed: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        self._cut_off, self._given_up, self.changed, self._moved = cut_off, given_up, changed, moved
        self.seats = HostSeats()
        self.places = Places(self.seats.has_job)

    def want(self, grants: Sequence[GrantRecord]) -> None:
        cut_off = self.seats.want([grant for grant in grants if grant.kind == "seats"])
        self.places.wish([grant for grant in grants if grant.kind == "place"])
        for job, ranks, why in cut_off:
            self._cut_off(job, ranks, why)
        self._given_up()
        self._moved()

    def holds(self) -> list[HoldRecord]:
        return [*self.seats.holds(), *self.places.holds()]

    # --- ranks

    def joined(self, job: str, rank: int, key: str) -> None:
        """A rank's ring stands; said again for each ring."""
        self.seats.joined(job, rank, key)
        self.changed()

    def follows(self, job: str, rank: int, key: str, next_place: tuple[str, int]) -> None:
        """That rank has been told its place in the job that goes on without a lost one."""
        self.seats.follows(job, rank, key, next_place)
        self.changed()

    def left(self, job: str, rank: int, *, failure: str) -> None:
        """A rank is gone. ``failure``: why, if it did not leave in order."""
        self.seats.left(job, rank, failure=failure)
        self.changed()

    # --- the controller

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        """What it says of places holds until another one is there."""
        self.places.connected(welcome.gives_places)
        self._moved()

    def disconnected(self) -> None:
        """The host goes on with what it has."""

    def heard(self, message: Message) -> None:
        """Wishes come by :meth:`want`."""
