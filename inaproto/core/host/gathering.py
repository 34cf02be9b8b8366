"""All-reduces that some ranks of a host have called and others of them have not, yet.

The host takes part in an all-reduce when all its ranks have called it, alike; until then whoever has called
it waits. Such a wait is reported and limited as one in the ring is
(:mod:`inaproto.core.host.operation_queue`); its clock runs from when the ring had nothing else to do.

Invariants: a rank's calls are numbered from 0 without gaps; operations are handed on in this order, each
once, when all ranks have called it with the same type, operation, bytes and signature.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from inaproto.core.host.operations import Operation, Overdue, Stalled
from inaproto.errors import LocalMisuse
from inaproto.units import Instant


@dataclass(slots=True)
class _Wait:
    """For ranks that have not called the next operation."""

    since: Instant
    reported: Instant
    is_overdue: bool = False


class Gathering:
    """Gathers the calls of the ranks ``ranks`` of one host. Times in nanoseconds; ``timeout_ns`` 0: no
    limit."""

    def __init__(self, ranks: Iterable[int], *, stall_ns: int, timeout_ns: int, first: int = 0) -> None:
        """``first``: the operation that they call next."""
        self._called: dict[int, deque[Operation]] = {rank: deque() for rank in sorted(ranks)}
        self._stall_ns = stall_ns
        self._timeout_ns = timeout_ns
        self._next = first
        self._wait: _Wait | None = None

    def call(self, rank: int, operation: Operation) -> None:
        """``rank`` calls its next all-reduce. Raises ``LocalMisuse`` for another one."""
        due = self._next + len(self._called[rank])
        if operation.index != due:
            raise LocalMisuse(f"rank {rank} calls operation {operation.index} where {due} is next")
        self._called[rank].append(operation)

    def take(self) -> Operation | None:
        """The next operation, if all ranks have called it alike. It is no longer here."""
        calls = list(self._called.values())
        if not all(calls) or self.differs:
            return None
        self._next += 1
        self._wait = None
        operation, *others = [each.popleft() for each in calls]
        if not others:
            return operation
        return replace(operation, memory=sum((each.memory for each in others), operation.memory))

    @property
    def waiting(self) -> dict[int, Operation]:
        """The next operation as each of the ranks has called it that have."""
        return {rank: calls[0] for rank, calls in self._called.items() if calls}

    def called_by(self, rank: int) -> list[Operation]:
        """What it has called and others here have not, yet, in order."""
        return [*self._called.get(rank, ())]

    @property
    def differs(self) -> bool:
        """Ranks have called different all-reduces: the next one will never be complete."""
        return len(set(self.waiting.values())) > 1

    # --- the clock

    @property
    def deadline(self) -> Instant | None:
        """When the wait is to be reported (again), or is overdue."""
        wait = self._wait
        if wait is None:
            return None
        stalled = Instant(wait.reported + self._stall_ns)
        if not self._timeout_ns or wait.is_overdue:
            return stalled
        return min(stalled, Instant(wait.since + self._timeout_ns))

    def begin(self, now: Instant) -> None:
        """The ring has nothing else to do: whoever has called the next operation waits, from now on."""
        if self._wait is None and self.waiting:
            self._wait = _Wait(now, now)

    @property
    def since(self) -> Instant | None:
        """When the wait began; None if nobody waits for ranks here."""
        return None if self._wait is None else self._wait.since

    def woke(self, now: Instant) -> list[Stalled | Overdue]:
        """What the clock says of the wait; the operation as the lowest of those ranks called it."""
        wait = self._wait
        if wait is None:
            return []
        operation, for_ns = next(iter(self.waiting.values())), now - wait.since
        actions: list[Stalled | Overdue] = []
        if now >= wait.reported + self._stall_ns:
            wait.reported = now
            actions.append(Stalled(operation, for_ns, messages=1, results=0))
        if self._timeout_ns and not wait.is_overdue and for_ns >= self._timeout_ns:
            wait.is_overdue = True
            actions.append(Overdue(operation, for_ns, messages=1, results=0))
        return actions
