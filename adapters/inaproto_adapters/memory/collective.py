"""A collective library in memory: hosts of one process, which add in an order of their own, and faults.

``load_adapter("memory-collective").open("NAME")`` is the end of one host; all that have opened the same name
meet. Sums are taken from the last position to the first: another order than that of any path, and one.

Invariants: an operation is done when all hosts of an attempt have called the same; what was given up touches
no memory after ``release``; faults come from the seed alone (:mod:`inaproto.faults.collective`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import trio

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import FabricError, Unsupported
from inaproto.faults.collective import NO_FAULTS, CollectiveFates, CollectiveFaults, Outcome
from inaproto.faults.streams import Seed
from inaproto.ports import Adapter, CollectiveCapabilities, OutOfBand
from inaproto.wire.ina_header import Dtype, Op

OPERATION_BYTES_MAX: Final = 64 << 20
_ALL: Final = frozenset(Dtype), frozenset(Op)


def _error(phase: str, cause: str, *, retryable: bool) -> FabricError:
    return FabricError("collective", "the other hosts", phase, cause, retryable=retryable)


@dataclass(eq=False, slots=True)
class _Call:
    """Of one host, of the operation that is next."""

    source: memoryview
    into: memoryview
    dtype: Dtype
    op: Op
    ended: trio.Event = field(default_factory=trio.Event)
    error: FabricError | None = None

    def end(self, error: FabricError | None = None) -> None:
        self.error = error
        self.ended.set()


class _Key(NamedTuple):
    """Which attempt: a job may come again by the same name."""

    job: str
    attempt: int
    serial: int


@dataclass(eq=False, slots=True)
class _Group:
    """The hosts of one attempt."""

    key: _Key
    size: int
    outcomes: list[Outcome]
    operations: int = 0
    calls: dict[int, _Call] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    is_lost: bool = False


class MemoryTree:
    """What the ends of all hosts have in common. ``is_busy``, ``lacks`` and ``lose`` are for tests."""

    def __init__(self, seed: Seed = 0, faults: CollectiveFaults = NO_FAULTS) -> None:
        self.seed = seed
        self.faults = faults
        self.is_busy = False
        """No attempt succeeds."""
        self.lacks = ""
        """What turns out to be missing when it is used: no attempt and no operation succeeds."""
        self.operations = 0
        """Those that all hosts of an attempt have called."""
        self._groups: dict[_Key, _Group] = {}
        self._serial = 0

    def lose(self) -> None:
        """All attachments are lost, now."""
        for group in self._groups.values():
            group.is_lost = True
            self._end_all(group, _error("adding", "the tree is gone", retryable=False))

    def _end_all(self, group: _Group, error: FabricError) -> None:
        calls, group.calls = group.calls, {}
        for call in calls.values():
            call.end(error)

    def serial(self) -> int:
        """Another one each time."""
        self._serial += 1
        return self._serial

    def join(self, key: _Key, position: int, size: int) -> _Group:
        """Raises a ``FabricError`` where that host is refused, ``Unsupported`` where something is missing."""
        self.require_all()
        fates = CollectiveFates(self.seed, key.job, self.faults)
        group = self._groups.setdefault(key, _Group(key, size, fates.attach(key.attempt, size)))
        if self.is_busy or group.outcomes[position] is not Outcome.DONE:
            raise _error("attaching", "no resources", retryable=True)
        return group

    def require_all(self) -> None:
        """Raises ``Unsupported`` where something is missing."""
        if self.lacks:
            raise Unsupported("collective", self.lacks)

    def leave(self, group: _Group, position: int) -> None:
        """Its call is forgotten; those of other hosts never end."""
        group.calls.pop(position, None)
        group.left.add(position)
        if len(group.left) == group.size:
            self._groups.pop(group.key, None)

    def call(self, group: _Group, position: int, call: _Call) -> None:
        group.calls[position] = call
        if len(group.calls) < group.size:
            return
        calls, group.calls = [group.calls[at] for at in range(group.size)], {}
        self.operations += 1
        number, group.operations = group.operations, group.operations + 1
        if len({(each.dtype, each.op, len(each.source)) for each in calls}) > 1:
            group.is_lost = True
            for each in calls:
                each.end(_error("adding", "hosts have called different operations", retryable=False))
            return
        fates = CollectiveFates(self.seed, group.key.job, self.faults)
        self._end(group, calls, fates.operation(group.key.attempt, number, group.size))

    def _end(self, group: _Group, calls: list[_Call], outcomes: list[Outcome]) -> None:
        plan = ReductionPlan(tuple(reversed(range(group.size))))
        parts = [np.frombuffer(call.source, np.uint8) for call in calls]
        total = plan.reduce(parts, calls[0].dtype, calls[0].op).tobytes()
        group.is_lost = group.is_lost or Outcome.LOST in outcomes
        for call, outcome in zip(calls, outcomes, strict=True):
            if outcome in (Outcome.DONE, Outcome.WRONG):
                call.into[:] = total
                if outcome is Outcome.WRONG:
                    call.into[0] ^= 1
                call.end()
            elif outcome is not Outcome.NEVER:
                lost = outcome is Outcome.LOST
                call.end(_error("adding", "lost" if lost else "locked", retryable=not lost))


class MemoryAttachment:
    """One host's; see :class:`inaproto.ports.Attachment`."""

    def __init__(self, tree: MemoryTree, group: _Group, position: int) -> None:
        self._tree, self._group, self._position = tree, group, position
        self._buffers: dict[int, memoryview] = {}
        self._is_released = False

    async def register(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        self._check("registering memory")
        key = len(self._buffers)
        self._buffers[key] = buffer.cast("B")
        return key

    async def all_reduce(self, source: int, into: int, nbytes: int, dtype: Dtype, op: Op) -> None:
        await trio.lowlevel.checkpoint()
        self._check("adding")
        self._tree.require_all()
        if not (0 < nbytes <= len(self._buffers[source]) and nbytes <= len(self._buffers[into])):
            raise _error("adding", f"{nbytes} bytes are not in the memory that is registered", retryable=True)
        call = _Call(self._buffers[source][:nbytes], self._buffers[into][:nbytes], dtype, op)
        self._tree.call(self._group, self._position, call)
        await call.ended.wait()
        if call.error is not None:
            raise call.error

    def _check(self, phase: str) -> None:
        if self._is_released or self._group.is_lost:
            raise _error(phase, "the attachment is lost", retryable=False)

    async def release(self) -> None:
        self._is_released = True
        self._tree.leave(self._group, self._position)
        self._buffers.clear()
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()


class MemoryCollective:
    """The end of one host."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree

    @property
    def capabilities(self) -> CollectiveCapabilities:
        return CollectiveCapabilities("memory", *_ALL, OPERATION_BYTES_MAX)

    async def attach(self, job: str, attempt: int, others: OutOfBand) -> MemoryAttachment:
        """As the port has it: all hosts are asked whether they mean the same."""
        told = await others.all_gather(f"{self._tree.serial()} {attempt} {job}".encode())
        if len({said.partition(b" ")[2] for said in told}) > 1:
            raise _error("attaching", "hosts mean different attempts", retryable=True)
        key = _Key(job, attempt, int(told[0].partition(b" ")[0]))
        return MemoryAttachment(
            self._tree, self._tree.join(key, others.position, others.size), others.position
        )

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


_TREES: dict[str, MemoryTree] = {}


def tree_named(name: str) -> MemoryTree:
    """The one of that name in this process."""
    return _TREES.setdefault(name, MemoryTree())


def open_memory_collective(name: str = "") -> MemoryCollective:
    """The end of another host."""
    return MemoryCollective(tree_named(name))


COLLECTIVE = Adapter(name="memory-collective", kinds=frozenset({"collective"}), open=open_memory_collective)
