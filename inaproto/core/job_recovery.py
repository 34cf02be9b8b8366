"""How a job goes on whose ring has ended by no fault of its ranks (``protocol.md`` section 5).

A ring is one *generation* of a job: queue pairs, key, and a path on which it is summed. When it ends (a
switch restarted, a queue pair failed, an accelerator refused or lost it, a host lost its connection for a
while), every rank is halted and says how far it is; when all have said so the next generation begins where
the rank that is ahead was (:mod:`inaproto.core.recovery`), on a path that is chosen here:

- a ring that broke is made again on the same path; if it breaks again where it broke before, on the other;
  if that one breaks there as well, the job fails;
- one that the switches refused is summed along the chain of its hosts, and the switches are tried again
  after a while, doubled each time, or when another ring has made room.

Invariants: a job waits for its ranks no longer than ``recover_ns``; every change of path has a reason, which
is kept until the job is back on the fast path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from inaproto.units import Instant, S
from inaproto.wire.control_messages import RingPath

BREAKS_MAX: Final = 2
"""A path that broke this often without any progress is left."""
RETURN_FIRST_NS: Final = 1 * S
RETURN_LAST_NS: Final = 64 * S

_OTHER: Final[dict[RingPath, RingPath]] = {"switch": "chain", "chain": "switch"}


@dataclass(slots=True)
class JobRecovery:
    """Of one job. ``path`` is that of the present ring, or of the next while the job is halted."""

    path: RingPath = "switch"
    fallback: str = ""
    """Why the job is not summed in the switches; empty while it is."""
    reason: str = ""
    """Why the last ring ended."""
    recoveries: int = 0
    deadline: Instant | None = None
    """When waiting for ranks ends."""
    return_at: Instant | None = None
    """When the switches are to be tried again."""
    _return_ns: int = RETURN_FIRST_NS
    _breaks: dict[RingPath, int] = field(default_factory=dict)
    """Of each path, since the job came past ``_broke_at``."""
    _broke_at: int = -1

    def wait(self, now: Instant, recover_ns: int) -> None:
        """Ranks are waited for from now on, if they are not already."""
        if self.deadline is None:
            self.deadline = Instant(now + recover_ns)

    def halt(self, reason: str, now: Instant, recover_ns: int) -> None:
        """The ring has ended."""
        self.reason = reason
        self.recoveries += 1
        self.return_at = None
        self.deadline = None
        self.wait(now, recover_ns)

    def refused(self, reason: str) -> None:
        """The switches do not take the ring: the hosts sum themselves."""
        self.path = "chain"
        self.fallback = reason

    def broke(self, reason: str, progress: int) -> None:
        """The ring broke, where a rank had come as far as ``progress``."""
        if progress > self._broke_at:
            self._breaks.clear()
            self._broke_at = progress
        self._breaks[self.path] = self._breaks.get(self.path, 0) + 1
        if self._breaks[self.path] >= BREAKS_MAX:
            self.path = _OTHER[self.path]
            self.fallback = reason if self.path == "chain" else ""

    @property
    def is_hopeless(self) -> bool:
        """Every path broke as often as it may, with no progress in between."""
        return all(self._breaks.get(path, 0) >= BREAKS_MAX for path in _OTHER)

    def started(self, now: Instant) -> None:
        """The next ring runs."""
        self.deadline = None
        if self.path == "switch":
            self.fallback = ""
        else:
            self.return_at = Instant(now + self._return_ns)
            self._return_ns = min(2 * self._return_ns, RETURN_LAST_NS)

    def room_made(self, now: Instant) -> None:
        """Another ring has ended: the switches may take this one now."""
        if self.return_at is not None:
            self.return_at = now
            self._return_ns = RETURN_FIRST_NS

    def return_to_switch(self) -> None:
        self.path = "switch"
        self.return_at = None
