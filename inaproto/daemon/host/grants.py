"""All that a controller grants a host: seats of ranks, and places in its collective library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inaproto.daemon.host.places import Places
from inaproto.daemon.host.seats import HostSeats
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentWelcome, GrantRecord, HoldRecord


class HostGrants:
    """``GrantHolder`` and ``AgentSide`` of :mod:`inaproto.daemon.net.controller_link`."""

    hears: tuple[type[Message], ...] = ()

    def __init__(self, seats: HostSeats, places: Places) -> None:
        self._seats, self._places = seats, places

    def want(self, grants: Sequence[GrantRecord]) -> None:
        self._seats.want([grant for grant in grants if grant.kind == "seats"])
        self._places.wish([grant for grant in grants if grant.kind == "place"])

    def holds(self) -> list[HoldRecord]:
        return [*self._seats.holds(), *self._places.holds()]

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        """What it says of places holds until another one is there."""
        self._places.connected(welcome.gives_places)

    def disconnected(self) -> None:
        """The host goes on with what it has."""

    def heard(self, message: Message) -> None:
        """Wishes come by :meth:`want`."""
