"""What a training process holds: a communicator of one rank, Trio or blocking, and its operations.

``connect`` and ``connect_blocking`` differ in how they wait and in nothing else
(:mod:`inaproto.client.channel`). A communicator belongs to one thread (blocking) or one event loop,
and to one process: it survives neither ``fork`` nor pickling.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import numpy as np
import trio
from numpy.typing import DTypeLike, NDArray

from inaproto.client.arguments import check_sockets
from inaproto.client.arrays import check_array, check_in_place, check_out, wire_dtype, wire_op
from inaproto.client.channel import Channel, Clock, Steps
from inaproto.client.drivers import TrioDriver, drive_blocking
from inaproto.client.environment import who_joins
from inaproto.client.in_place import InPlace, InPlaceOperation, adds_in_place
from inaproto.client.memory import Region
from inaproto.client.parallel_rings import (
    RankChannel,
    SlicedOperation,
    joining_rings,
    leaving_all,
    waiting_for,
)
from inaproto.client.passage import Passage, passes_in_parts
from inaproto.client.protocol import PendingOperation, Waited
from inaproto.client.shrinking import FIRST, Survivors, shrinking
from inaproto.client.unix_stream import dial_unix
from inaproto.client.wishes import check_wishes
from inaproto.errors import LocalMisuse
from inaproto.ports import Dial
from inaproto.wire.control_messages import PathAsked

RECORDS_MAX = 1024
"""Operations whose times are kept."""

T = TypeVar("T")
Operation = PendingOperation | SlicedOperation | InPlaceOperation
Started = tuple[Operation, NDArray[Any], Passage | None, Region | None]


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """Times of one all-reduce, in ns of the communicator's clock (for the communication pattern)."""

    op_index: int
    nbytes: int
    submitted_ns: int
    wait_ns: int
    """When the wait for it began."""
    ended_ns: int
    daemon_ns: int
    """How long it took in the host daemon, from submission to result."""
    path: str


@dataclass(frozen=True, slots=True)
class CommunicatorStatistics:
    operations: int
    bytes: int
    wait_ns: int
    """Spent in waiting for results."""
    daemon_ns: int
    shared_bytes: int
    """Bytes of shared memory."""
    recent: tuple[OperationRecord, ...]
    copies: str = ""
    """Why ranks of one host that add in place copy large arrays through shared memory. Empty: they read them
    where they are, or have not added any."""
    reads: str = ""
    """Why those that read large arrays where they are read the sums of others, too, and write none. Empty:
    each writes its sums to all, ``copies`` has a reason, or they have not added any."""


class _Work:
    """One all-reduce that was started; shared by :class:`Work` and :class:`BlockingWork`."""

    def __init__(
        self,
        communicator: _Communicator,
        operation: Operation,
        array: NDArray[Any],
        passage: Passage | None = None,
        region: Region | None = None,
    ) -> None:
        self._communicator = communicator
        self._operation = operation
        self._result = array
        self._passage = passage
        self._region = region
        self._is_noted = False
        self._submitted_ns = communicator.now_ns()

    @property
    def op_index(self) -> int:
        return self._operation.op_index

    @property
    def done(self) -> bool:
        """Whether the result, or the error, is here as far as this process has read."""
        return self._operation.ended

    def _waiting(self, timeout: float | None) -> Steps[NDArray[Any]]:
        communicator, operation = self._communicator, self._operation
        began = communicator.now_ns()
        communicator.wait_began(began)
        if isinstance(operation, InPlaceOperation):
            yield from communicator.in_place.waiting(operation, timeout)
        else:
            yield from waiting_for(communicator.channel, operation, timeout, communicator.clock)
        communicator.wait_ended()
        if not self._is_noted:
            if self._passage is not None:
                self._passage.end()
            self._region = self._passage = None
            self._is_noted = True
            communicator.note(operation, self._result.nbytes, self._submitted_ns, began)
        return self._result


class _Communicator:
    """What both kinds share: everything that does not wait."""

    _yields: ClassVar[bool]
    """Other tasks of the process have turns while a rank adds."""

    def __init__(
        self, channel: RankChannel, clock: Clock, dial: Dial = dial_unix, survivors: Survivors = FIRST
    ) -> None:
        self.channel = channel
        self.clock = clock
        self._dial = dial
        self._survivors = survivors
        self._operations = 0
        self._bytes = 0
        self._wait_ns = 0
        self._daemon_ns = 0
        self._records: deque[OperationRecord] = deque(maxlen=RECORDS_MAX)
        self._tells_waits = channel.who.wishes.path == "shared"
        self._wait_began: int | None = None
        """The first wait since the last all-reduce, ns."""
        self._wait_ended = 0
        self._in_place: InPlace | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.channel.who} of {self.size}>"

    def __reduce__(self) -> NoReturn:
        raise LocalMisuse("a communicator cannot be pickled; connect in the other process")

    @property
    def job(self) -> str:
        return self.channel.who.job

    @property
    def rank(self) -> int:
        return self.channel.who.rank

    @property
    def size(self) -> int:
        return self.channel.who.size

    @property
    def former_ranks(self) -> tuple[int, ...]:
        """After :meth:`shrink`, what each rank was before it, by its rank now; else empty."""
        return self._survivors.former_ranks

    @property
    def agreed_operations(self) -> int:
        """After :meth:`shrink`: all-reduces before it whose results all ranks of this communicator have.

        A rank may have the (one) result of one or more that follow, which others lack: ``operations_done``
        of its error says so.
        """
        return self._survivors.agreed_operations

    @property
    def operations_done(self) -> int:
        """All-reduces that have their results, as far as this process has read."""
        return self.channel.operations_done

    def buffer(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """An array of zeros in memory shared with the host daemon: ``all_reduce`` copies none of it.

        ``all_reduce`` of it, or of a contiguous part of it, puts the result in its place, as it comes in:
        after an operation that failed the array holds a mix of inputs and results, so keep the inputs
        elsewhere if the operation is to be done again. The memory stays registered until the communicator
        is closed; small buffers share segments, of which the host daemon takes a bounded number. Raises
        ``LocalMisuse`` when they are used up, ``MemoryError``, or the error that the job failed with.
        """
        kind = np.dtype(dtype)
        wire_dtype(kind)
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(length < 0 for length in lengths):
            raise LocalMisuse(f"buffer: shape {lengths}")
        nbytes = kind.itemsize
        for length in lengths:
            nbytes *= length
        self.channel.require_usable()
        region = self.channel.memory.register(nbytes)
        self.channel.announce()
        return region.array(lengths, kind)

    def statistics(self) -> CommunicatorStatistics:
        return CommunicatorStatistics(
            operations=self._operations,
            bytes=self._bytes,
            wait_ns=self._wait_ns,
            daemon_ns=self._daemon_ns,
            shared_bytes=self.channel.memory.nbytes,
            recent=tuple(self._records),
            copies="" if self._in_place is None else self._in_place.copies,
            reads="" if self._in_place is None else self._in_place.reads,
        )

    def now_ns(self) -> int:
        return int(self.clock() * 1e9)

    def wait_began(self, now_ns: int) -> None:
        if self._wait_began is None:
            self._wait_began = self._wait_ended = now_ns

    def wait_ended(self) -> None:
        if self._wait_began is not None:
            self._wait_ended = self.now_ns()

    def _waited(self) -> Waited | None:
        """What the host daemon is told of waits: it finds the training step in that."""
        began, self._wait_began = self._wait_began, None
        if began is None or not self._tells_waits:
            return None
        now = self.now_ns()
        return Waited(now - began, now - self._wait_ended)

    @property
    def in_place(self) -> InPlace:
        """What was called in place, where the ranks of one host add."""
        if self._in_place is None:
            assert isinstance(self.channel, Channel)
            self._in_place = InPlace(self.channel, self.clock, yields=self._yields)
        return self._in_place

    def close_in_place(self) -> None:
        """Give back what it needs."""
        if self._in_place is not None:
            self._in_place.close()

    def note(self, operation: Operation, nbytes: int, submitted_ns: int, wait_ns: int) -> None:
        """Record an operation that has its result."""
        ended = self.now_ns()
        self._operations += 1
        self._bytes += nbytes
        self._wait_ns += ended - wait_ns
        self._daemon_ns += operation.daemon_ns
        self._records.append(
            OperationRecord(
                operation.op_index, nbytes, submitted_ns, wait_ns, ended, operation.daemon_ns, operation.path
            )
        )

    def _start(self, array: object, op: str, out: object, in_place: bool) -> Started:
        """(operation, where the result goes, how it gets there from shared memory, and from which region)."""
        source = check_array(array, "array")
        dtype, operator = wire_dtype(source.dtype), wire_op(op)
        if in_place:
            out = check_in_place(source, out)
        result = None if out is None else check_out(out, source)
        channel = self.channel
        channel.require_usable()
        if in_place and adds_in_place(channel):
            return self.in_place.call(source, op), source, None, None
        channel.require_room()
        region = channel.memory.find(source)
        passage: Passage | None = None
        if region is None:
            region = channel.memory.allocate(source.nbytes)
            is_early = in_place or result is None
            result = np.empty_like(source) if result is None else result
            passage = Passage(source, region.array(source.shape, source.dtype), result, is_early=is_early)
            if isinstance(channel, Channel) and passes_in_parts(channel, source.nbytes):
                channel.announce()
                called = passage.call(channel, region, dtype, operator, source.shape, self._waited())
                return called, result, passage, region
            passage.fill()
        elif result is None or result is source:
            if not source.flags.writeable:
                raise LocalMisuse(
                    "all_reduce: a registered buffer gets its result in place; this one is read-only"
                )
            result = source
        else:
            passage = Passage(source, source, result, is_early=False)
        channel.announce()
        operation = channel.all_reduce(
            region, source.nbytes, dtype, operator, source.shape, waited=self._waited()
        )
        return operation, result, passage, region


# --- Trio


class Work(_Work):
    """An all-reduce under way: ``await`` it, as often as you like, from any task of its event loop."""

    _communicator: Communicator

    def __await__(self) -> Generator[Any, Any, NDArray[Any]]:
        return self.wait().__await__()

    async def wait(self, timeout: float | None = None) -> NDArray[Any]:
        """The result. Raises the job's error, or ``OperationTimeout``: the operation then still runs."""
        return await self._communicator.drive(self._waiting(timeout))


class Communicator(_Communicator):
    """One rank of a job, for Trio programs; made by :func:`connect`."""

    _yields = True

    def __init__(
        self, channel: RankChannel, driver: TrioDriver, dial: Dial, survivors: Survivors = FIRST
    ) -> None:
        super().__init__(channel, trio.current_time, dial, survivors)
        self._driver = driver

    def all_reduce(
        self,
        array: NDArray[Any],
        op: str = "sum",
        *,
        out: NDArray[Any] | None = None,
        in_place: bool = False,
    ) -> Work:
        """Start an all-reduce with all ranks of the job, and return at once.

        ``array``: C-contiguous, any shape, dtype float32, int32, float16, bfloat16 (ml_dtypes), float64
        or int64; the same shape, dtype and ``op`` ("sum", "max" or "min") on every rank. A private array
        is copied before this returns; its result comes as a new array, or in ``out``. An array from
        :meth:`buffer` is not copied, must be left alone until the result is here, and gets the result in
        place; if the operation fails, it is left with a mix of inputs and results. A private ``array``
        never changes, and ``out`` only with the whole result. With ``in_place``, which all ranks must say
        alike, the result replaces a private array, too, as it comes in: leave it alone until the result is
        here; after a failure it is a mix. Where all ranks are on one host they then add among themselves,
        while they wait, and copy less: the fastest way for large arrays that are not from :meth:`buffer`.
        Raises ``LocalMisuse`` before anything is sent (also when as many operations as the host daemon keeps
        have not ended), or the error that the job failed with.
        """
        return Work(self, *self._start(array, op, out, in_place))

    async def shrink(self, timeout: float | None = 30.0) -> Communicator:
        """After ``RankLost``: a communicator of the ranks that are left. The job must be ``elastic``.

        Every survivor has to call it, within the time that the switch waits (``--recover-ms``): it may get
        the error only from its next call, as an all-reduce that fails for one rank can have given another
        its result (the one exact result, never another). So go back to what all of them have::

            comm = await inaproto.connect("train", rank, size=4, elastic=True)
            done = 0                                 # all-reduces before this communicator
            while step < steps:
                try:
                    gradients = await comm.all_reduce(compute(weights, step))
                except inaproto.RankLost:
                    comm = await comm.shrink()       # comm.rank and comm.size are new
                    done += comm.agreed_operations
                    step, weights = done, kept[done]     # with one all-reduce a step; keep one step more
                    continue
                ...

        Ranks are numbered anew in the old order (``former_ranks``), the job is called ``train~1``, then
        ``train~2``. This communicator is closed, its buffers are no more shared. Raises ``LocalMisuse``
        unless the job was elastic and has failed with ``RankLost``; ``JoinRefused`` where this rank was taken
        for lost, or the switch was restarted; ``OperationTimeout``, which names who is missing, where one of
        them does not join. Ranks that are lost meanwhile are left out, too.
        """
        steps = shrinking(self.channel, timeout=timeout, clock=self.clock, dial=self._dial)
        channel, survivors = await self._driver.drive(steps)
        return Communicator(channel, self._driver, self._dial, survivors)

    async def drive(self, steps: Steps[T]) -> T:
        return await self._driver.drive(steps)

    async def aclose(self) -> None:
        """Leave the job. Operations that have not ended are lost, for all ranks."""
        self.close_in_place()
        with trio.CancelScope(shield=True):  # bounded: the daemon gets LEAVE_S to answer
            await self._driver.drive(leaving_all(self.channel, self.clock))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            self.close_in_place()
            self.channel.close()


async def connect(
    job: str | None = None,
    rank: int | None = None,
    *,
    size: int | None = None,
    key: str | None = None,
    socket: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    timeout: float | None = 30.0,
    path: PathAsked | None = None,
    exact_plan: bool = True,
    elastic: bool = False,
    dial: Dial = dial_unix,
) -> Communicator:
    """Join ``job`` as ``rank`` of ``size``, and wait until all ranks have joined.

    Under a launcher no argument is needed: what is not given here is read from the variables that ``inaproto
    run``, torchrun, Open MPI's ``mpirun``, ``mpiexec`` of MPICH or ``srun`` has set, or from
    ``$INAPROTO_JOB``, ``$INAPROTO_RANK``, ``$INAPROTO_SIZE`` and ``$INAPROTO_KEY``. ``key`` is a secret that
    all ranks of the job give alike, and who gives another is refused. Without one, any process that may use a
    host daemon's socket may join the job under its name.

    ``socket`` is that of the host daemon on this machine; by default ``$INAPROTO_HOST_SOCKET``, else the
    only one in the run directory. A machine with several NICs has a host daemon for each, and ``socket``
    lists theirs (the variable: with colons between them): each tensor is then cut into as many slices, which
    are reduced at the same time, each by a ring of its own (NetReduce section 3.4). All ranks of the job
    give equally many, those of one machine the same in the same order. Daemons and ranks may start in any
    order within ``timeout`` seconds. With ``elastic``, which all ranks must say, the others may go on when a
    rank is lost (:meth:`Communicator.shrink`); not with several sockets. ``dial`` connects to a socket; tests
    pass an in-memory one to reach daemons in the same process.

    ``path`` and ``exact_plan`` say how the job is to be summed, the same on all ranks. Whatever they are, all
    ranks get the same bytes. ``path`` is by default ``$INAPROTO_PATH``, else "auto":

    - "auto": in the switches, where each host sends a tensor once and gets its sum once; while these cannot,
      along a chain of the hosts, or up a tree of them.
    - "chain": along the chain always: the first host sends its tensor to the second, which adds its own, and
      so on, and the result goes round. It has the bytes of "auto", at twice the traffic on most links (three
      times with float16 and bfloat16, whose sums travel as float32).
    - "overlay": up a tree of the hosts always, shaped like the job's plan, and down again. It has the bytes
      of "auto", with fewer hops than a chain; hosts that gather from several others send and receive more.
    - "ring": an ordinary ring all-reduce of hosts, as other libraries have it: a chain that begins at
      another host with each message, so that all links carry alike, ``2 (P-1)/P`` of the tensor for P hosts.
      Each message is added in another order: sums of floats differ from those of "auto" in their last bits.
    - "shared": along the chain or in the switches, each all-reduce by one of them as jobs that share the
      memory of the switches take turns (MINA section IV-C). It has the bytes of "auto".

    The order of additions that "auto", "chain", "overlay" and "shared" keep is the job's *plan*: on each host
    in rank order, then over hosts by the tree of switches. With ``exact_plan``, "auto" keeps it by any means;
    a job whose hosts can neither as a chain, its ranks not being numbered rack by rank, nor as a tree, one of
    their daemons being of an older release, fails when the switches cannot sum. With ``exact_plan=False`` its
    hosts go on as a ring, and back when the switches can: one job, one result for all ranks, but which bits
    depends on what happened. "chain", "overlay" and "ring" never change.

    Raises ``LocalMisuse``, ``Unsupported``, or a ``JobError``: ``DaemonUnreachable``, ``SwitchUnreachable``,
    ``JoinRefused``, ``RankLost``, ``OperationTimeout`` when ranks are missing.
    """
    wishes = check_wishes(path, exact_plan, elastic, os.environ)
    who = who_joins(job, rank, size, key, timeout, wishes, os.environ)
    sockets = check_sockets(socket, who, os.environ)
    driver = TrioDriver()
    steps = joining_rings(sockets, who, timeout=timeout, clock=trio.current_time, dial=dial)
    return Communicator(await driver.drive(steps), driver, dial)


# --- blocking


class BlockingWork(_Work):
    """An all-reduce under way: :meth:`wait` for it."""

    def wait(self, timeout: float | None = None) -> NDArray[Any]:
        """The result. Raises the job's error, or ``OperationTimeout``: the operation then still runs."""
        return drive_blocking(self._waiting(timeout))


class BlockingCommunicator(_Communicator):
    """One rank of a job, for plain scripts; made by :func:`connect_blocking`."""

    _yields = False

    def all_reduce(
        self,
        array: NDArray[Any],
        op: str = "sum",
        *,
        out: NDArray[Any] | None = None,
        in_place: bool = False,
    ) -> BlockingWork:
        """As :meth:`Communicator.all_reduce`; the result is ``.wait()``."""
        return BlockingWork(self, *self._start(array, op, out, in_place))

    def shrink(self, timeout: float | None = 30.0) -> BlockingCommunicator:
        """As :meth:`Communicator.shrink`."""
        steps = shrinking(self.channel, timeout=timeout, clock=self.clock, dial=self._dial)
        channel, survivors = drive_blocking(steps)
        return BlockingCommunicator(channel, self.clock, self._dial, survivors)

    def close(self) -> None:
        """Leave the job. Operations that have not ended are lost, for all ranks."""
        self.close_in_place()
        drive_blocking(leaving_all(self.channel, self.clock))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.close_in_place()
            self.channel.close()


def connect_blocking(
    job: str | None = None,
    rank: int | None = None,
    *,
    size: int | None = None,
    key: str | None = None,
    socket: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    timeout: float | None = 30.0,
    path: PathAsked | None = None,
    exact_plan: bool = True,
    elastic: bool = False,
) -> BlockingCommunicator:
    """As :func:`connect`, for programs without an event loop."""
    wishes = check_wishes(path, exact_plan, elastic, os.environ)
    who = who_joins(job, rank, size, key, timeout, wishes, os.environ)
    sockets = check_sockets(socket, who, os.environ)
    steps = joining_rings(sockets, who, timeout=timeout, clock=time.monotonic, dial=dial_unix)
    return BlockingCommunicator(drive_blocking(steps), time.monotonic)
