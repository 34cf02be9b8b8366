"""Priorities at work (MLNet section 3.3): how fast channels of a process may use each direction of its link.

What a channel may receive is enforced by how fast it is read: the transport's own flow control then holds the
sender back, whichever that is (a TCP window, credits of a queue pair). What it may send, by how fast it is
given away. The rates are those of :mod:`inaproto.core.models.admission`; this measures, and waits.

Invariants: a channel without a limit never waits here; one with a limit exceeds it by one read at most; a
transfer is one message with an array, or what of them is in the queue of output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from inaproto.core.models.admission import (
    PRIORITY_MAX,
    Admission,
    AdmissionAction,
    AdmissionConfig,
    AdmissionEvent,
    Began,
    Ended,
    Limit,
    Moved,
    Refused,
    Woke,
)
from inaproto.daemon.shell import Alarm, current_instant

BURST_S: Final = 0.002
"""Time whose worth of its limit a channel may use at once."""
WRITE_BYTES: Final = 64 << 10
"""At once, of a channel that can be limited: at most."""
WRITE_BYTES_MIN: Final = 1 << 10
WRITE_S: Final = 0.1
"""Time whose worth of its limit is written at once."""
HELD_S: Final = 0.01
"""Time whose worth of the link lies in the transport, each way, of models that may have to make way, if each
has a channel."""
HELD_BYTES_MIN: Final = 8 << 10


class Meter:
    """Measures one channel in one direction; made by :meth:`LinkPacer.meter`."""

    def __init__(self, pacer: LinkPacer, priority: int) -> None:
        self._pacer = pacer
        self._priority = priority
        self._is_moving = False
        self.limit: int | None = None
        """Bytes/s; None: as fast as it can."""
        self._allowance = 0.0
        self._counted_s = 0.0
        self._changed = trio.Event()

    def began(self) -> None:
        """There are bytes of an array to move; said again, nothing."""
        if not self._is_moving:
            self._is_moving = True
            self._pacer.tell(Began(self, self._priority))

    def moved(self, nbytes: int) -> None:
        if self._is_moving:
            self._fill()
            self._allowance -= nbytes
            self._pacer.tell(Moved(self, nbytes))

    def ended(self) -> None:
        """None is left, or the channel has ended."""
        if self._is_moving:
            self._is_moving = False
            self._pacer.tell(Ended(self))
            self.set_limit(None)

    @property
    def write_bytes(self) -> int:
        """Bytes to be given away at once: little of a slow one, whose receiver would hear nothing for
        long."""
        if self.limit is None:
            return WRITE_BYTES
        return min(WRITE_BYTES, max(WRITE_BYTES_MIN, int(self.limit * WRITE_S)))

    @property
    def has_room(self) -> bool:
        self._fill()
        return self.limit is None or self._allowance > 0

    async def wait_for_room(self) -> None:
        while not self.has_room:
            assert self.limit is not None
            at = trio.current_time() + max(1e-6, -self._allowance / self.limit + 1e-6)
            with trio.move_on_at(at):
                await self._changed.wait()

    def set_limit(self, limit: int | None) -> None:
        """Told by the pacer."""
        self._fill()
        if self.limit is None and limit is not None:
            self._allowance, self._counted_s = 0.0, trio.current_time()
        self.limit = limit
        self._changed.set()
        self._changed = trio.Event()

    def _fill(self) -> None:
        at = trio.current_time()
        if self.limit is not None:
            gained = (at - self._counted_s) * self.limit
            self._allowance = min(self._allowance + gained, max(1.0, self.limit * BURST_S))
        self._counted_s = at


class LinkPacer:
    """Paces one direction of a process's link; :meth:`run` it."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._core = Admission(config)
        self._floor = max(1, config.rate * config.floor_permille // 1000)
        self._refused: set[Meter] = set()
        self._alarm = Alarm(lambda: self._core.deadline, partial(self.tell, Woke()))
        self.run = self._alarm.run

    def meter(self, priority: int) -> Meter:
        return Meter(self, priority)

    def tell(self, event: AdmissionEvent) -> None:
        transfer = getattr(event, "transfer", None)
        if transfer in self._refused and not isinstance(event, Began):
            if isinstance(event, Ended):
                self._refused.discard(transfer)
            return
        for action in self._core.step(event, current_instant()):
            self._perform(action)
        self._alarm.look()

    def _perform(self, action: AdmissionAction) -> None:
        meter = action.transfer
        assert isinstance(meter, Meter)
        if isinstance(action, Limit):
            meter.set_limit(action.rate)
        elif isinstance(action, Refused):  # too many at once: it goes at the floor, and is not measured
            self._refused.add(meter)
            meter.set_limit(self._floor)

    def status(self) -> dict[str, Any]:
        return self._core.view()._asdict()


@dataclass(frozen=True, slots=True)
class Paces:
    """Both directions of a link."""

    incoming: LinkPacer
    outgoing: LinkPacer
    highest: int
    """Highest of the priorities there are. Whose is less may have to make way, and keeps little in the
    transport: what is there has the link before what begins later, however important that is."""
    held_bytes: int
    """So much, each way."""

    @staticmethod
    def of(rate: int, priorities: Sequence[int] = (PRIORITY_MAX,)) -> Paces:
        """``rate``: bytes/s, each way. ``priorities``: of all models on it."""
        highest = max(priorities)
        below = sum(priority < highest for priority in priorities)
        held = max(HELD_BYTES_MIN, int(rate * HELD_S) // max(1, below))
        return Paces(LinkPacer(AdmissionConfig(rate)), LinkPacer(AdmissionConfig(rate)), highest, held)

    def status(self) -> dict[str, Any]:
        return {"incoming": self.incoming.status(), "outgoing": self.outgoing.status()}
