"""How a job goes on whose ring has ended by no fault of its ranks (docs/protocol.md 13.4).

A ring is one *generation* of a job: queue pairs, key, and a path on which it is summed. When it ends (a
switch restarted, a queue pair failed, an accelerator refused or lost it, a host lost its connection for a
while), every rank is halted and says how far it is; when all have said so the next generation begins where
the rank that is ahead was (:mod:`inaproto.core.host.recovery`), on a path that is chosen here:

- a ring that broke is made again on the same path; if it breaks again where it broke before, on another;
  if every path that the job may take breaks there, the job fails;
- one that the switches refused is summed by its hosts, and the switches are tried again after a while,
  doubled each time, or when another ring has made room; only then, if they said that trying helps no sooner;
  if they said that the present ones will never take it, not before one comes, or its ring ends by itself;
- a job that asked for a path by the hosts keeps it: the switches are never asked;
- one whose hosts are *predicted* to be faster than the switches (:mod:`~inaproto.core.rendezvous.path_costs`)
  is summed by them until its ring ends and the prediction is the other way round, or their path breaks;
- one whose rings are to be *shared*, one along its hosts and one through the switches, goes on with the first
  alone where the switches refuse the second, and the switches are tried again as above.

- ranks that are lost and come back, again and again, are waited for as long in all as once: then the job
  fails, unless it has made progress in between.

Invariants: a job waits for its ranks no longer than ``recover_ns`` at once, and no longer than twice that in
all without progress; every change of path has a reason, which is kept until the job is back on the fast path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from inaproto.units import Instant, S
from inaproto.wire.control_messages import PathAsked, RingPath

BREAKS_MAX: Final = 2
"""A path that broke this often without any progress is left."""
RETURN_FIRST_NS: Final = 1 * S
RETURN_LAST_NS: Final = 64 * S
ASKED: Final = "asked for"
"""Reason of a path that is no fallback."""


@dataclass(slots=True)
class JobRecovery:
    """Paths of one job, now and next. ``path`` is that of the present ring, or of the next while the job is
    halted."""

    path: RingPath = "switch"
    fallback: str = ""
    """Why the job is not summed in the switches; empty while it is."""
    fast: RingPath = "switch"
    """Its path through the switches, to which it returns: ``shared`` if that was asked for."""
    is_asked: bool = False
    """The job wants this path and no other, or can have no other."""
    is_predicted: bool = False
    """Its hosts sum because they are predicted to be faster."""
    reason: str = ""
    """Why the last ring ended."""
    recoveries: int = 0
    deadline: Instant | None = None
    """When waiting for ranks ends."""
    return_at: Instant | None = None
    """When the switches are to be tried again."""
    waits_for_room: bool = False
    """They are not tried again before that was made."""
    waits_for_switch: bool = False
    """Room by the end of another ring is of no use."""
    _is_refused: bool = False
    """The ring ends because of that."""
    _return_ns: int = RETURN_FIRST_NS
    _breaks: dict[RingPath, int] = field(default_factory=dict)
    """How often each path broke, since the job came past ``_broke_at``."""
    _broke_at: int = -1
    _waits_since: Instant | None = None
    _waited_ns: int = 0
    """In all, since the job came past ``_waited_at``; not the wait of now."""
    _waited_at: int = -1

    @staticmethod
    def on(asked: PathAsked) -> JobRecovery:
        """The state of a job that asks for that path."""
        match asked:
            case "auto":
                return JobRecovery()
            case "shared":
                return JobRecovery(asked, fast=asked)
            case "chain" | "overlay" | "ring":
                return JobRecovery(asked, ASKED, is_asked=True)
            case _:
                assert_never(asked)

    def wait(self, now: Instant, recover_ns: int) -> None:
        """Ranks are waited for from now on, if they are not already."""
        if self.deadline is None:
            self.deadline = Instant(now + recover_ns)
            self._waits_since = now

    def _waited(self, now: Instant) -> None:
        """The wait of now, if there is one, is over."""
        if self._waits_since is not None:
            self._waited_ns += now - self._waits_since
            self._waits_since = None

    def came(self, progress: int, now: Instant, recover_ns: int) -> bool:
        """All ranks are there, one as far as ``progress``; whether they have not used up their time."""
        before_ns = self._waited_ns
        self._waited(now)
        if progress > self._waited_at:
            self._waited_ns -= before_ns
            self._waited_at = progress
        self._waits_since = now
        return self._waited_ns <= recover_ns

    @property
    def in_vain(self) -> str:
        """Why there is no hope, where ``came`` says so."""
        return (
            f"makes no progress: its ranks were waited for {self._waited_ns / S:.3g} s in all since the last;"
            f" its ring had ended: {self.reason}"
        )

    def halt(self, reason: str, now: Instant, recover_ns: int) -> None:
        """The ring has ended."""
        if self.waits_for_switch and not self._is_refused:  # the next may be another ring, at other switches
            self.waits_for_room = self.waits_for_switch = False
        self._is_refused = False
        self.reason = reason
        self.recoveries += 1
        self.return_at = None
        self.deadline = None
        self._waited(now)
        self.wait(now, recover_ns)

    def refused(
        self, reason: str, path: RingPath, *, until_room: bool = False, until_switch: bool = False
    ) -> None:
        """The switches do not take the ring: the hosts sum themselves, on ``path``."""
        self.path = path
        self.fallback = reason
        self.is_predicted = False
        self.waits_for_room, self.waits_for_switch = until_room or until_switch, until_switch
        self._is_refused = True
        self._breaks[self.fast] = BREAKS_MAX  # no help for a path that breaks here

    def leaves_for_good(self, reason: str, path: RingPath) -> None:
        """The switches: its hosts sum themselves, on ``path``, as long as it lasts."""
        self.refused(reason, path)
        self.is_asked, self.return_at = True, None

    def predicted(self, reason: str, path: RingPath) -> None:
        """The hosts are faster than the switches on ``path``; not where that breaks."""
        if self._breaks.get(path, 0) < BREAKS_MAX:
            self.path, self.fallback, self.is_predicted = path, reason, True

    def predicted_switch(self) -> None:
        """The switches are faster now."""
        self.path, self.fallback, self.is_predicted = self.fast, "", False

    def broke(self, reason: str, progress: int, paths: Sequence[RingPath]) -> bool:
        """The ring broke, where a rank had come as far as ``progress``; ``paths`` are all that it may take.

        Whether there is hope: not every one of them broke as often as it may, with no progress in between.
        """
        if progress > self._broke_at:
            self._breaks.clear()
            self._broke_at = progress
        self._breaks[self.path] = self._breaks.get(self.path, 0) + 1
        if self._breaks[self.path] < BREAKS_MAX:
            return True
        other = next((path for path in paths if self._breaks.get(path, 0) < BREAKS_MAX), None)
        if other is None:
            return False
        self.path = other
        self.is_predicted = False
        self.fallback = "" if other == self.fast else reason
        return True

    def started(self, now: Instant) -> None:
        """The next ring runs."""
        self.deadline = None
        self._is_refused = False  # also where only the ring beside it was, and it has not ended by that
        self._waited(now)
        if self.path == self.fast:
            self.fallback = ""
            self.waits_for_room = self.waits_for_switch = False
        elif not self.is_asked and not self.is_predicted and not self.waits_for_room:
            self.return_at = Instant(now + self._return_ns)
            self._return_ns = min(2 * self._return_ns, RETURN_LAST_NS)

    def room_made(self, now: Instant, *, by_switch: bool = False) -> None:
        """Another ring has ended, or a switch or link is there again: the switches may take this one now."""
        if self.waits_for_switch and not by_switch:
            return
        is_running = self.deadline is None
        if self.return_at is not None or (self.waits_for_room and is_running):
            self.return_at = now
            self._return_ns = RETURN_FIRST_NS
        self.waits_for_room = self.waits_for_switch = False

    def return_to_switch(self) -> None:
        self.path = self.fast
        self.return_at = None
