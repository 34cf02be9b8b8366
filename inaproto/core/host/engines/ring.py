"""All-reduces of one rank by a bandwidth-optimal ring of hosts, without an accelerator.

NetReduce's baseline, flat ring all-reduce (section 3.4, appendix A equation (1)); docs/protocol.md 9.4. It is
the chain (:mod:`inaproto.core.host.engines.chain`) with its first rank moved on by one with " "every message:
message m, of P ranks, begins at rank ``m mod P``; each rank in turn combines what comes with its own part and
passes the *accumulators* on; the last, which is the first one's predecessor, has the *result*, which goes on,
once more around, to the last but one. Of P messages each rank sends P-1 accumulators and P-1 results: ``2
(P-1)/P`` of the tensor, all links alike (accumulators of half-precision sums are wider).

A message needs ``2 (P-1)`` hops and at most N messages are on their way: for all links to be busy, N has to
be about that, more than on the other paths.

Falling back from or to this path redoes no operation (docs/protocol.md 9.4). A message has one result,
by whatever path; what has a result keeps it, what has none is summed by the next path.

Each message is summed in another order of the ranks, so the path follows no reduction plan. It has one result
all the same: one rank completes it, all others copy it.

A rank contributes to message m - starts it, or combines and passes on - only when it has taken all results up
to m - N. So if result m exists, all ranks have contributed to m, hence have taken all results up to m - N.
That makes N receive slots for each of the two kinds enough, although messages that began at different ranks
overtake each other:

- accumulators m come from a rank that has taken result m - N, to which this rank has therefore contributed:
  its accumulators, in the slot that is written now, have been combined;
- result m lies, wherever it is written, in the slot of result m - N, which this rank has taken, and its
  successor too: it was passed on, though its acknowledgement may still be on its way.

Results are taken in the order of their messages; one that overtook others waits in its slot, and was passed
on at once. Hence ranks are never more than N results apart, as on all paths, and nobody has one after the
largest progress (:mod:`inaproto.core.host.recovery`). A result that waits may lie where a *kept* one was; of
that one it is the proof that nobody lacks it any more.

Nothing waits for ever while the transport delivers and completes: of the first message whose result some rank
has not taken, whoever has its accumulators may add to it, and what began at one rank stays in its order, on
every link.

Slots and invariants: those of :mod:`inaproto.core.host.engines.hosts`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from inaproto.core.host.engines.hosts import HostsAction, HostsEngine
from inaproto.core.host.operation_queue import FROM_THE_START, OperationQueue, Part
from inaproto.core.host.operations import ResultArrived, RingConfig
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.accumulators import RotatedAccumulators
from inaproto.errors import Blame
from inaproto.units import Instant
from inaproto.wire.host_header import Kind


class _Forward(NamedTuple):
    serial: int
    part: Part


class RingAllReduceEngine(HostsEngine):
    """One rank of one ring; see the module for its invariants."""

    def __init__(
        self,
        config: RingConfig,
        accumulators: RotatedAccumulators,
        operations: OperationQueue | None = None,
        recovery: Recovery = FROM_THE_START,
    ) -> None:
        super().__init__(config, accumulators, operations, recovery)
        self._next = self._first
        """Serial of the first message that was not looked up yet."""
        self._parts: dict[int, Part] = {}
        """Parts by serial, from ``due`` to ``next``."""
        self._owed: deque[int] = deque()
        """Parts among them to which this rank has not contributed; ascending."""
        self._arrived: dict[int, ResultArrived] = {}
        """Accumulators that this rank has not added to yet, by serial."""
        self._results: set[int] = set()
        """Serials of results that are here and wait for earlier ones."""
        self._forwards: deque[_Forward] = deque()
        """Results to be passed on."""
        started = {(self._first + at) % config.ring_size: self._first + at for at in range(config.ring_size)}
        completed_here = (config.rank + 1) % config.ring_size
        self._accumulators_due = {start: due for start, due in started.items() if start != config.rank}
        """The next serial to come, by the rank at which messages begin; those that come to this one."""
        self._results_due = {start: due for start, due in started.items() if start != completed_here}
        """The same of results: they do not come to the rank that completes them."""

    @property
    def _contributed(self) -> int:
        return self._next - self._first - len(self._owed)

    # --- what this rank can do now

    def _advance(self, now: Instant) -> list[HostsAction]:
        actions: list[HostsAction] = []
        while self._runs and not self._is_over:
            actions += self._start_next(now)
            self._look_up_parts()
            if self._forwards and self._messages.may_send(Kind.RESULT, self._forwards[0].serial):
                actions.append(self._pass_on(*self._forwards.popleft()))
                continue
            serial = self._contributable()
            if serial is None:
                break
            actions += self._contribute(serial, now)
        return actions

    def _look_up_parts(self) -> None:
        """Looks up parts of the messages that the window lets this rank contribute to."""
        while self._operations.unsent > 0 and self._next < self._due + self._config.window_messages:
            self._parts[self._next] = self._operations.next_part()
            self._owed.append(self._next)
            self._next += 1

    def _turn(self, serial: int) -> int:
        return (self._config.rank - serial) % self._config.ring_size

    def _contributable(self) -> int | None:
        """The lowest message to which this rank has all that it needs, if its header slot is free.

        None overtakes it: what began at one rank has to stay in its order.
        """
        for serial in self._owed:
            turn = self._turn(serial)
            if turn == 0 or serial in self._arrived:
                kind = Kind.RESULT if turn == self._last_turn else Kind.ACCUMULATOR
                return serial if self._messages.may_send(kind, serial) else None
        return None

    def _contribute(self, serial: int, now: Instant) -> list[HostsAction]:
        self._owed.remove(serial)
        turn = self._turn(serial)
        return self._add(serial, self._parts[serial], turn, self._arrived.pop(serial) if turn else None, now)

    def _has_result(self, serial: int, now: Instant) -> list[HostsAction]:
        """Take it and those that waited for it, or let it wait."""
        self._results.add(serial)
        actions: list[HostsAction] = []
        while self._due in self._results:
            self._results.remove(self._due)
            actions += self._take(self._due, self._parts.pop(self._due), now)
        return actions

    # --- what comes in

    def _arrival(self, event: ResultArrived, now: Instant) -> list[HostsAction]:
        if event.imm & 1:
            kind, since, due = Kind.RESULT, self._due, self._results_due
        else:
            kind, due = Kind.ACCUMULATOR, self._accumulators_due
            since = self._owed[0] if self._owed else self._next
        serial = since + ((event.imm >> 1) - since) % (1 << self._config.id_bits - 1)
        wrong = self._out_of_turn(event.imm, kind, serial, since, due)
        if wrong is not None:
            return self._break(wrong)
        due[serial % self._config.ring_size] += self._config.ring_size
        if kind is Kind.ACCUMULATOR:
            self._arrived[serial] = event
            return []
        part = self._parts[serial]
        contradiction = self._messages.contradiction(event, kind, serial, part, part.nbytes)
        if contradiction is not None:
            return self._break(*contradiction)
        if self._turn(serial) < self._last_turn - 1:
            self._forwards.append(_Forward(serial, part))
        return self._has_result(serial, now)

    def _out_of_turn(
        self, imm: int, kind: Kind, serial: int, since: int, due: dict[int, int]
    ) -> Blame | None:
        """What is wrong with the number of a message: ``serial``, if it is one of the N from ``since`` on."""
        name = kind.name.lower()
        start = serial % self._config.ring_size
        if serial >= since + self._config.window_messages:
            window = [self._messages.msg_id(kind, since + at) for at in (0, self._config.window_messages - 1)]
            evidence = f"{name} {imm} where {window[0]} to {window[1]} may come"
            return Blame("predecessor", f"{name} outside the window", evidence)
        if start not in due:
            evidence = f"{name} {imm} of the messages that begin at rank {start}"
            return Blame("predecessor", f"{name} at a rank to which it does not come", evidence)
        expected = self._messages.msg_id(kind, due[start])
        evidence = f"{name} {imm} where {expected} is due of the messages that begin at rank {start}"
        if imm != expected:
            return Blame("predecessor", f"{name} out of order", evidence)
        if kind is Kind.RESULT and (serial in self._owed or serial >= self._next):
            return Blame("predecessor", "result of a message not sent", evidence)
        return None
