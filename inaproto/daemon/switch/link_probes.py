"""Who measures which link between hosts, and who may speak with whom for that: the switch's side.

A host that arrives measures the link to the one that came last of those that are there (the first is
measured from the second), if that has not been done lately; a host is in one probe at a time, others wait.
What both say to each other passes here, and nothing else does: words of a probe that was not ordered, or is
over, are dropped. A probe has a bound in time, as a host that is connected and says nothing would keep its
peer from being measured.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from inaproto.core.rendezvous.events import SessionId
from inaproto.core.rendezvous.link_measures import LinkMeasures
from inaproto.units import Instant, S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.probe import LinkProbe, LinkProbed, LinkProbeWord

FAILED_MAX: Final = 64
WAITING_MAX: Final = 1024
PROBE_NS: Final = 120 * S
"""Twice what the steps of a probe may take at the hosts (:mod:`inaproto.daemon.host.link_probing`)."""

log = logging.getLogger("inaproto.switch")


@dataclass(slots=True)
class _Ordered:
    ends: tuple[SessionId, SessionId]
    """Who measures, and to whom."""
    hosts: tuple[str, str]
    until: Instant | None = None
    """When it is over though nobody has said so; None: it waits."""


class LinkProbes:
    """``nbytes``: of a large write; 0: nothing is measured."""

    def __init__(
        self,
        nbytes: int,
        tell: Callable[[SessionId, Message], None],
        measured: Callable[[tuple[str, str], int, int], None],
    ) -> None:
        self._nbytes = nbytes
        self._tell = tell
        self._measured = measured
        self._ids = count(1)
        self._ordered: dict[int, _Ordered] = {}
        self._waiting: deque[_Ordered] = deque(maxlen=WAITING_MAX)
        self._here: dict[SessionId, str] = {}
        """Hosts, in the order in which they came."""
        self.failed: dict[str, str] = {}
        """Links that could not be measured, and why."""

    @property
    def deadline(self) -> Instant | None:
        """When :meth:`woke` is to be called."""
        return min((one.until for one in self._ordered.values() if one.until is not None), default=None)

    def woke(self, now: Instant) -> None:
        """The deadline may have passed."""
        late = [number for number, one in self._ordered.items() if one.until is not None and one.until <= now]
        for number in late:
            self._over(number, f"it is not over within {PROBE_NS // S} s")
        if late:
            self._order(now)

    def host_arrived(self, session: SessionId, host: str, known: LinkMeasures, now: Instant) -> None:
        """It is welcome, and measures links."""
        last = next(reversed(self._here.items()), None)
        self._here[session] = host
        if self._nbytes and last is not None and not known.is_fresh((host, last[1]), now):
            self._waiting.append(_Ordered((session, last[0]), (host, last[1])))
            self._order(now)

    def session_ended(self, session: SessionId, now: Instant) -> None:
        """The session of a host has ended."""
        for number in [number for number, one in self._ordered.items() if session in one.ends]:
            self._over(number, "a host of it is gone")
        self._waiting = deque((one for one in self._waiting if session not in one.ends), WAITING_MAX)
        self._here.pop(session, None)
        self._order(now)

    def said(self, session: SessionId, message: LinkProbeWord | LinkProbed, now: Instant) -> None:
        ordered = self._ordered.get(message.id or 0)
        if ordered is None or session not in ordered.ends:
            return
        if isinstance(message, LinkProbeWord):
            is_from = session == ordered.ends[0]
            if is_from == (message.kind in ("offer", "end")):
                self._tell(ordered.ends[1] if is_from else ordered.ends[0], message)
        elif session == ordered.ends[0]:
            self._over(message.id or 0, "" if message.rate_bps else message.why or "it says no reason")
            if message.rate_bps:
                self._measured(ordered.hosts, message.latency_ns, message.rate_bps)
            self._order(now)

    def _over(self, number: int, why: str) -> None:
        link = " to ".join(self._ordered.pop(number).hosts)
        self.failed.pop(link, None)
        if why:
            log.warning("the link %s is not measured: %s", link, why)
            self.failed[link] = why
            while len(self.failed) > FAILED_MAX:
                del self.failed[next(iter(self.failed))]

    def _order(self, now: Instant) -> None:
        busy = {end for one in self._ordered.values() for end in one.ends}
        for one in list(self._waiting):
            if busy.isdisjoint(one.ends):
                self._waiting.remove(one)
                busy.update(one.ends)
                number = next(self._ids)
                one.until = Instant(now + PROBE_NS)
                self._ordered[number] = one
                self._tell(one.ends[0], LinkProbe(id=number, peer=one.hosts[1], nbytes=self._nbytes))
