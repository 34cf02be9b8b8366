"""Parallel rings (NetReduce section 3.4): a tensor is cut in m slices, and each is reduced by a ring of its
own.

A machine with m NICs runs m host daemons, and each rank is connected to all of them. Slice j goes to daemon
j, which adds up slice j of all ranks of its machine (reduce-scatter), reduces the sum with the daemons j of
the other machines (ring j, a job of its own for the switches, :mod:`inaproto.client.ring_names`), and
writes the result into the memory of all its ranks (all-gather). All daemons map the same memory: nothing is
copied more often than with one.

Departure: the paper has a ring for each GPU of a machine. Here m is the number of NICs, and may be smaller
than the number of ranks of a machine, or larger.

Invariants: every ring takes part in every all-reduce, if with no element, so a ring never takes one all-
reduce for another; what any ring fails with ends the communicator, in words that name the ring, and all
other rings are left at once with these words, so that no rank waits for this one; each slice has one
result, by the plan of the job, hence the tensor has the bytes that one ring would have given it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from inaproto.client.channel import Channel, Clock, JobRank, Steps, again, wait_until
from inaproto.client.joining import ask_to_join, connecting, reach_daemon, trace_operations
from inaproto.client.memory import ALIGNMENT, Region
from inaproto.client.protocol import PendingOperation, Waited, tell_when_all
from inaproto.client.ring_names import ring_job
from inaproto.client.waits import (
    EXPLAIN_S,
    ask_status,
    explain_join,
    explain_operation,
    leaving,
    my_ring,
    rings_of,
    until_joined,
    until_left,
)
from inaproto.errors import JobError, JoinRefused
from inaproto.ports import Dial
from inaproto.wire.ina_header import Dtype, Op


def slices(elements: int, itemsize: int, rings: int) -> list[tuple[int, int]]:
    """(first element, elements) for each ring, in order; they cover the tensor.

    All begin at multiples of 64 bytes, a cache line, and their lengths differ by at most as much: where there
    are fewer than ``rings`` cache lines, some are empty.
    """
    unit = max(1, ALIGNMENT // itemsize)
    each, more = divmod(elements // unit, rings)
    found, first = [], 0
    for ring in range(rings - 1):
        length = (each + (ring < more)) * unit
        found.append((first, length))
        first += length
    return [*found, (first, elements - first)]


class SlicedOperation:
    """An all-reduce whose slices are under way, one in each ring; as :class:`PendingOperation`."""

    def __init__(self, rings: ParallelRings, parts: Sequence[PendingOperation]) -> None:
        self.rings = rings
        self.parts = tuple(parts)

    @property
    def op_index(self) -> int:
        return self.parts[0].op_index

    @property
    def ended(self) -> bool:
        return all(part.ended for part in self.parts)

    @property
    def error(self) -> JobError | None:
        """Error of the ring that failed first."""
        for ring, part in enumerate(self.parts):
            if part.error is not None:
                return self.rings.failure or self.rings.named(ring, part.error)
        return None

    def tell(self, told: Callable[[], None]) -> None:
        """As :meth:`PendingOperation.tell`: when the last slice ends."""
        tell_when_all(self.parts, told)

    @property
    def path(self) -> str:
        """Paths by which its slices were summed, each once."""
        return "+".join(sorted({part.path for part in self.parts}))

    @property
    def daemon_ns(self) -> int:
        return max(part.daemon_ns for part in self.parts)


class ParallelRings:
    """The channels of one rank to the host daemons of its machine, in the order of their rings.

    To a communicator it is what :class:`Channel` is where there is one ring.
    """

    def __init__(self, rings: Sequence[Channel], who: JobRank) -> None:
        self.who = who
        self.rings = tuple(rings)
        self.memory = rings[0].memory
        for ring in rings[1:]:
            ring.memory = self.memory.share()
        self.failure: JobError | None = None
        self.operations_done = 0
        """All-reduces that have the results of all their slices, as far as this process has read."""
        self._pid = os.getpid()
        self._running: deque[SlicedOperation] = deque()

    @property
    def channels(self) -> Sequence[Channel]:
        return [ring for ring in self.rings if not ring.is_closed]

    @property
    def paths(self) -> Sequence[Path]:
        """As :attr:`Channel.paths`, in the order of the rings."""
        return [ring.path for ring in self.rings]

    @property
    def is_closed(self) -> bool:
        return not self.channels

    @property
    def returns(self) -> int:
        """As :attr:`Channel.returns`, of all rings."""
        return sum(ring.returns for ring in self.rings)

    @property
    def operations_called(self) -> int:
        """All-reduces that the daemon was asked for."""
        return self.rings[0].protocol.operations_called

    def named(self, ring: int, error: JobError) -> JobError:
        """``error``, saying where."""
        channel = self.rings[ring]
        found = type(error)(f"ring {ring} of {len(self.rings)} (host daemon at {channel.path}): {error}")
        found.operations_done = error.operations_done
        return found

    def require_usable(self) -> None:
        """As :meth:`Channel.require_usable`."""
        if os.getpid() == self._pid:
            self._settle()
        if self.failure is not None:
            raise again(self.failure)
        for ring in self.rings:
            ring.require_usable()

    def has_room(self, operations: int) -> bool:
        """As :meth:`Channel.has_room`: in all rings, for an all-reduce begins in all or in none."""
        return all(ring.has_room(operations) for ring in self.rings)

    def require_room(self, operations: int = 1) -> None:
        """As :meth:`Channel.require_room`, in all rings."""
        if not self.has_room(operations):
            self.pump()
            self.require_usable()
        for ring in self.rings:
            ring.protocol.require_room(operations)

    def announce(self) -> None:
        """As :meth:`Channel.announce`, to all daemons."""
        for segment in self.memory.take_unannounced():
            for ring in self.rings:
                ring.announce_segment(segment)

    def all_reduce(
        self,
        region: Region,
        nbytes: int,
        dtype: Dtype,
        op: Op,
        shape: tuple[int, ...],
        *,
        waited: Waited | None = None,
        call: str = "",
    ) -> SlicedOperation:
        """Submit the tensor at the beginning of ``region``, a slice to each ring."""
        size = dtype.itemsize
        parts = [
            ring.all_reduce(
                region,
                length * size,
                dtype,
                op,
                (length,),
                at=first * size,
                whole=shape,
                waited=waited,
                call=call,
            )
            for ring, (first, length) in zip(
                self.rings, slices(nbytes // size, size, len(self.rings)), strict=True
            )
        ]
        operation = SlicedOperation(self, parts)
        self._running.append(operation)
        return operation

    def pump(self) -> None:
        """Write and read all that does not block, of all rings."""
        for ring in self.rings:
            ring.pump()
        self._settle()

    def _settle(self) -> None:
        """Count what has ended; where a ring has failed, leave all."""
        while self._running and self._running[0].ended:
            self.operations_done += self._running.popleft().error is None
        if self.failure is not None:
            return
        for number, ring in enumerate(self.rings):
            if ring.protocol.failure is not None:
                self.fail(self.named(number, ring.protocol.failure))
                break

    def fail(self, error: JobError) -> None:
        """End all that is pending, and leave all rings: their other ranks are told ``error``."""
        if self.failure is None:
            if all(ring.protocol.joined is not None for ring in self.rings):
                error.operations_done = self.operations_done
            else:
                error.operations_done = None
            self.failure = error
            for ring in self.rings:
                if ring.protocol.failure is None:
                    ring.leave(f"{type(error).__name__} in {error}")
        self.close()

    def close(self) -> None:
        """As :meth:`Channel.close`."""
        if self.failure is None:
            self.failure = JobError(f"{self.who}: the communicator was closed; connect again")
            self.failure.operations_done = self.operations_done
        for ring in self.rings:
            ring.close()
        self._running.clear()

    # --- waits

    def joining(self, until: float | None, timeout: float | None, clock: Clock) -> Steps[None]:
        """Join all rings, and wait until all ranks have joined all. Raises ``JobError``."""
        began = time.time_ns()
        for ring in self.rings:
            ask_to_join(ring)
        yield from until_joined(
            self,
            lambda: self.failure is not None or all(ring.protocol.joined for ring in self.rings),
            until,
            clock,
        )
        for number, ring in enumerate(self.rings):
            if self.failure is None and ring.protocol.joined is None:
                late = yield from explain_join(ring, timeout, clock)
                if late is not None:
                    self._raise(number, late)
        if self.failure is None:
            yield from self._check_order(clock)
        if self.failure is not None:
            raise again(self.failure)
        first = self.rings[0].protocol.joined
        for ring in self.rings:
            trace_operations(ring, 0 if first is None else first.ring_id, began)
        self.memory.segments_max = min(
            ring.protocol.joined.segments_max for ring in self.rings if ring.protocol.joined is not None
        )

    def _check_order(self, clock: Clock) -> Steps[None]:
        """Fail where processes of this machine do not list the same sockets in the same order.

        Slices would be added up by other plans than the whole tensor: no sum would be wrong, and none that of
        one ring.
        """
        here: list[Sequence[int]] = []
        for number, ring in enumerate(self.rings):
            status = yield from ask_status(ring, clock() + EXPLAIN_S, clock)
            if status is None or self.failure is not None:  # or it does not fit in a message
                return
            others = {found["job"] for found in rings_of(status, self.who.job)} - {ring.who.job}
            here.append([rank["rank"] for rank in my_ring(status, ring.who).get("ranks", [])])
            if others or here[-1] != here[0]:
                text = (
                    f"ranks {_words(here[-1])} of this host are here, {_words(here[0])} in ring 0"
                    + (f", and some in {', '.join(sorted(others))}" if others else "")
                    + "; all processes of a host must list the same sockets in the same order"
                )
                self._raise(number, JoinRefused(f"{self.who}: {text}"))

    def _raise(self, ring: int, error: JobError) -> NoReturn:
        found = self.named(ring, error)
        self.fail(found)
        raise found

    def explaining(
        self, operation: SlicedOperation, timeout: float | None, clock: Clock
    ) -> Steps[JobError | None]:
        """As :func:`inaproto.client.waits.explain_operation`."""
        for number, part in enumerate(operation.parts):
            if not part.ended:
                late = yield from explain_operation(self.rings[number], part, timeout, clock)
                if late is not None:
                    return self.named(number, late)
        self._settle()
        return None

    def leaving(self, clock: Clock) -> Steps[None]:
        """As :func:`inaproto.client.waits.leaving`."""
        try:
            self.pump()
            if self.failure is None:
                for ring in self.rings:
                    ring.leave()
                yield from until_left(self, clock)
        finally:
            self.close()


def _words(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"


# --- one ring or several

RankChannel = Channel | ParallelRings
"""What a communicator speaks by."""


def joining_rings(
    sockets: Sequence[Path], who: JobRank, *, timeout: float | None, clock: Clock, dial: Dial
) -> Steps[RankChannel]:
    """Find the host daemons, join the job, wait until all ranks have. Raises ``JobError``.

    Without ``sockets``, the only daemon of this machine is looked for.
    """
    if len(sockets) < 2:
        path = sockets[0] if sockets else None
        return (yield from connecting(path, who, timeout=timeout, clock=clock, dial=dial))
    until = None if timeout is None else clock() + timeout
    channels: list[Channel] = []
    try:
        for number, path in enumerate(sockets):
            place = replace(who, job=ring_job(who.job, number, len(sockets)))
            channels.append((yield from reach_daemon(path, place, until, timeout, clock, dial)))
        rings = ParallelRings(channels, who)
        yield from rings.joining(until, timeout, clock)
    except BaseException:
        for channel in channels:
            channel.close()
        raise
    return rings


def waiting_for(
    channel: RankChannel,
    operation: PendingOperation | SlicedOperation,
    timeout: float | None,
    clock: Clock,
    until: float | None = None,
) -> Steps[None]:
    """Wait for an operation's end. Raises its error, or ``OperationTimeout``: it then still runs.

    ``until``: the end of the ``timeout`` where that did not begin now.
    """
    if until is None and timeout is not None:
        until = clock() + timeout
    ended = yield from wait_until(channel, lambda: operation.ended, until, clock)
    if not ended:
        late = yield from explaining(channel, operation, timeout, clock)
        if late is not None:
            raise late
    if operation.error is not None:
        raise again(operation.error)


def explaining(
    channel: RankChannel,
    operation: PendingOperation | SlicedOperation,
    timeout: float | None,
    clock: Clock,
) -> Steps[JobError | None]:
    """Why it did not end within ``timeout``, as far as the daemon knows. None if it ended meanwhile."""
    if isinstance(operation, SlicedOperation):
        return (yield from operation.rings.explaining(operation, timeout, clock))
    assert isinstance(channel, Channel)
    return (yield from explain_operation(channel, operation, timeout, clock))


def leaving_all(channel: RankChannel, clock: Clock) -> Steps[None]:
    """Tell the daemons that this rank is finished, and close."""
    if isinstance(channel, ParallelRings):
        yield from channel.leaving(clock)
    else:
        yield from leaving(channel, clock)
