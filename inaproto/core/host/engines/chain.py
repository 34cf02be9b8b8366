"""All-reduces of one rank along a chain of hosts, without an accelerator (docs/protocol.md 9.2).

The connections are the ring's: each rank sends to its successor. Rank 0 starts a message with its own part;
each rank combines what comes with its own and passes the *accumulators* on
(:mod:`inaproto.core.plan.accumulators`); the last rank has the *result*, which goes on, once more around, to
the last rank but one. Of each tensor byte a host sends two (more where accumulators are wider or several); a
bandwidth-optimal ring sends almost as many, but adds in another order for each part.

A rank starts message m, or passes its accumulators on, only when it has the result of m - N. So whoever has
result m knows that all have result m - N: N receive slots for each of the two kinds are enough, and ranks
are never more than N results apart, as on the path through the accelerator.

Slots and invariants: those of :mod:`inaproto.core.host.engines.hosts`. A rank's turn is its number.

A result is passed on from the receive slot into which it was written. The predecessor writes the next one
there when the successor has this one, though its acknowledgement may still be on its way: a resend then has
other bytes, but the successor's transport has the message and drops what comes again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from inaproto.core.host.engines.hosts import HostsAction, HostsEngine
from inaproto.core.host.operation_queue import FROM_THE_START, OperationQueue, Part
from inaproto.core.host.operations import ResultArrived, RingConfig
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.accumulators import Accumulators
from inaproto.errors import Blame
from inaproto.units import Instant
from inaproto.wire.host_header import Kind


class _Forward(NamedTuple):
    serial: int
    part: Part


class ChainEngine(HostsEngine):
    """One rank of one ring; see the module for its invariants."""

    def __init__(
        self,
        config: RingConfig,
        accumulators: Accumulators,
        operations: OperationQueue | None = None,
        recovery: Recovery = FROM_THE_START,
    ) -> None:
        super().__init__(config, accumulators, operations, recovery)
        self._begun = self._first
        """Message of this path that this rank contributes to next; the job's serial, where no other path is
        beside it."""
        self._parts: deque[Part] = deque()
        """Contributed, their results not here."""
        self._arrived: deque[ResultArrived] = deque()
        """Accumulators that this rank has not added to yet."""
        self._forwards: deque[_Forward] = deque()
        """Results to be passed on."""

    def begin(self, now: Instant) -> list[HostsAction]:
        """The operation that was started is bound to this path, one of two."""
        self.has_turn = True
        return self._advance(now)

    @property
    def _contributed(self) -> int:
        return self._begun - self._first

    # --- what this rank can do now

    def _advance(self, now: Instant) -> list[HostsAction]:
        actions: list[HostsAction] = []
        while self._runs and not self._is_over:
            actions += self._start_next(now)
            if self._forwards and self._messages.may_send(Kind.RESULT, self._forwards[0].serial):
                actions.append(self._pass_on(*self._forwards.popleft()))
            elif self._may_contribute():
                actions += self._contribute(now)
            else:
                break
        return actions

    def _may_contribute(self) -> bool:
        rank = self._config.rank
        kind = Kind.RESULT if rank == self._last_turn else Kind.ACCUMULATOR
        return (
            self.has_turn
            and self._operations.unsent > 0
            and self._begun < self._due + self._config.window_messages
            and (rank == 0 or bool(self._arrived))
            and self._messages.may_send(kind, self._begun)
        )

    def _contribute(self, now: Instant) -> list[HostsAction]:
        rank, part, serial = self._config.rank, self._operations.next_part(), self._begun
        self._begun += 1
        self._parts.append(part)
        return self._add(serial, part, rank, self._arrived.popleft() if rank else None, now)

    def _has_result(self, serial: int, now: Instant) -> list[HostsAction]:
        return self._take(serial, self._parts.popleft(), now)

    # --- what comes in

    def _arrival(self, event: ResultArrived, now: Instant) -> list[HostsAction]:
        is_result = event.imm & 1
        rank, kind = self._config.rank, Kind.RESULT if is_result else Kind.ACCUMULATOR
        due = self._due if is_result else self._begun + len(self._arrived)
        expected = self._messages.msg_id(kind, due)
        name = kind.name.lower()
        evidence = f"{name} {event.imm} where {expected} is due"
        if rank == (self._last_turn if is_result else 0):
            return self._break(Blame("predecessor", f"{name} at the wrong end of the chain", evidence))
        if event.imm != expected:
            return self._break(Blame("predecessor", f"{name} out of order", evidence))
        if not is_result:
            if len(self._arrived) == self._config.window_messages:
                return self._break(Blame("predecessor", "accumulator beyond the window", evidence))
            self._arrived.append(event)
            return []
        if not self._parts:
            return self._break(Blame("predecessor", "result of a message not sent", evidence))
        part = self._parts[0]
        wrong = self._messages.contradiction(event, kind, due, part, part.nbytes)
        if wrong is not None:
            return self._break(*wrong)
        if rank < self._last_turn - 1:
            self._forwards.append(_Forward(due, part))
        return self._has_result(due, now)
