"""What a training process holds: a communicator of one rank, and its operations.

``connect`` and ``connect_blocking`` differ in how they wait and in nothing else
(:mod:`inaproto.client.channel`). A communicator belongs to one event loop, a blocking one
(:mod:`inaproto.client.blocking_communicator`) to all threads of its process; it survives neither ``fork`` nor
pickling.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import numpy as np
import trio
from numpy.typing import DTypeLike, NDArray

from inaproto.client import collectives
from inaproto.client.arguments import check_sockets, check_timeout, require_trio
from inaproto.client.arrays import wire_dtype
from inaproto.client.calls import Collectives
from inaproto.client.channel import Channel, Clock, JobRank, Steps
from inaproto.client.collectives import Collective
from inaproto.client.drivers import TrioDriver
from inaproto.client.environment import who_joins
from inaproto.client.in_place import InPlace, adds_in_place, why_apart
from inaproto.client.parallel_rings import RankChannel, joining_rings, leaving_all
from inaproto.client.protocol import Waited
from inaproto.client.shrinking import FIRST, Survivors, shrinking
from inaproto.client.splitting import Row, group_of, row_of, row_of_group
from inaproto.client.starting import Call, Operation
from inaproto.client.unix_stream import dial_unix
from inaproto.client.wishes import check_wishes
from inaproto.client.works import AnyWork, Work
from inaproto.errors import LocalMisuse
from inaproto.ports import Dial
from inaproto.wire.control_messages import PathAsked

RECORDS_MAX = 1024
"""Operations whose times are kept."""

T = TypeVar("T")


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
    """What one rank has all-reduced, of :meth:`Communicator.statistics`; times are in ns."""

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
    apart: str = ""
    """Why the ranks do not add in place among themselves though all are on one host: the host daemon does,
    and large arrays are copied."""


class AnyCommunicator:
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
        self._groups = 0
        """How many were asked for."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.channel.who} of {self.size}>"

    def __reduce__(self) -> NoReturn:
        raise LocalMisuse("a communicator cannot be pickled; connect in the other process")

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.channel.who.job

    @property
    def who(self) -> JobRank:
        """Rank and job, as errors name them."""
        return self.channel.who

    @property
    def rank(self) -> int:
        """This rank, 0 to ``size - 1``."""
        return self.channel.who.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
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

    @property
    def returns(self) -> int:
        """How often this rank has gone on through the successor of a host daemon, as far as this process has
        read."""
        return self.channel.returns

    def buffer(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """An array of zeros in memory shared with the host daemon: ``all_reduce`` in place copies none of it.

        That is ``all_reduce(array, in_place=True)`` of it, or of a contiguous part of it; ``broadcast``
        alike. After an operation that failed the array holds a mix of inputs and results, so keep the inputs
        elsewhere if the operation is to be done again. Without ``in_place`` it is an array as others. The
        memory stays registered until the communicator
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
        self._require_usable()
        region = self.channel.memory.register(nbytes)
        self._announce()
        return region.array(lengths, kind)

    def _announce(self) -> None:
        self.channel.announce()

    def statistics(self) -> CommunicatorStatistics:
        """What this rank has all-reduced since it joined, bytes and times, with the last 1,024 one by one."""
        return CommunicatorStatistics(
            operations=self._operations,
            bytes=self._bytes,
            wait_ns=self._wait_ns,
            daemon_ns=self._daemon_ns,
            shared_bytes=self.channel.memory.nbytes,
            recent=tuple(self._records),
            copies="" if self._in_place is None else self._in_place.copies,
            reads="" if self._in_place is None else self._in_place.reads,
            apart=why_apart(self.channel),
        )

    def now_ns(self) -> int:
        """Now, in ns of the communicator's clock, as in ``statistics().recent``."""
        return int(self.clock() * 1e9)

    def wait_began(self, now_ns: int) -> None:
        """A work is waited for from now on."""
        if self._wait_began is None:
            self._wait_began = self._wait_ended = now_ns

    def wait_ended(self) -> None:
        """A work is waited for no more."""
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
            self._in_place = self._open_in_place(self.channel)
        return self._in_place

    @property
    def called_in_place(self) -> InPlace | None:
        """The same, if anything was ever called in place."""
        return self._in_place

    def _open_in_place(self, channel: Channel) -> InPlace:
        return InPlace(channel, self.clock, yields=self._yields)

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

    def _call(self, collective: Collective, timeout: float | None, call: str) -> Call:
        """What is called. Raises ``LocalMisuse``, or what the communicator has failed with."""
        check_timeout(call, timeout)
        self._require_usable()
        adds = collective.in_place and adds_in_place(self.channel)
        if adds:
            _ = self.in_place  # or refuse it now
        else:
            self._require_named(collective)
        return Call(collective, timeout, adds_in_place=adds)

    def _require_usable(self) -> None:
        self.channel.require_usable()

    def _require_named(self, collective: Collective) -> None:
        """Raises ``LocalMisuse`` where a daemon would take another collective for the all-reduce that it is
        carried out as: it could not tell two that differ apart (docs/protocol.md 11)."""
        call = next((made.call for made in collective.reductions if made.call), "")
        for channel in self.channel.channels if call else ():
            joined = channel.protocol.joined
            if joined is not None and not joined.named:
                raise LocalMisuse(
                    f"{call}: the host daemon of this rank is of an older release, which carries all-reduces "
                    "of one array alone; upgrade the host daemons of the job"
                )

    def begin(self, call: Call) -> Operation:
        """Start it. Raises ``JobError``; ``LocalMisuse`` where the daemon has no room."""
        return call.begin(self.channel, lambda: self.in_place, self._waited)

    def _begin_now(self, work: AnyWork, call: Call) -> None:
        """Start it, if the daemon has room."""
        if call.operations:
            self.channel.require_room(call.operations)
        call.place(self.channel.memory)
        work.begin()


# --- Trio


class Communicator(AnyCommunicator, Collectives[Work]):
    """One rank of a job, for Trio programs; made by :func:`connect`."""

    _yields = True

    def __init__(
        self, channel: RankChannel, driver: TrioDriver, dial: Dial, survivors: Survivors = FIRST
    ) -> None:
        super().__init__(channel, trio.current_time, dial, survivors)
        self._driver = driver
        for each in channel.channels:
            each.on_news = driver.note_news

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        in_place: bool = False,
        timeout: float | None = None,
    ) -> Work:
        """Start an all-reduce with all ranks of the job, and return at once.

        ``array``: C-contiguous, any shape, dtype float32, int32, float16, bfloat16 (ml_dtypes), float64
        or int64: numpy's, a tensor of torch on the CPU, something else with ``__array__`` or DLPack on the
        CPU, a number; the same shape, dtype and ``op`` on every rank. A list of arrays is reduced as one
        vector for each dtype, and the result is a list; all ranks give the same shapes in the same order.
        ``op``: "sum", "max", "min", or for floats "avg", which is the sum divided by the number of ranks:
        rounded to nearest, even, once more than the sum (float16 and bfloat16: divided as float32).

        ``array`` is copied before this returns and does not change; the result is a new array, or ``out``,
        which is returned and changes only with the whole result. With ``in_place``, which all ranks must say
        alike, the result replaces ``array`` as it comes in, and ``array`` is returned: leave it alone until
        then; after a failure it is a mix of inputs and results. Of an array from :meth:`buffer`, or a part of
        one, nothing is copied then. Where all ranks are on one host they add among themselves, while they
        wait, and copy less.
        With ``timeout``, in seconds, the work fails with ``OperationTimeout`` if it has not ended by then,
        whether or not anybody waits; the operation still runs, as all other ranks take part in it.
        Raises ``LocalMisuse`` before anything is sent (also when as many operations as the host daemon keeps
        have not ended), or the error that the job failed with; the wait raises that, and ``TensorMismatch``
        on all ranks where they did not call the same. Of the whole list of errors see :meth:`Work.wait`::

            total = await comm.all_reduce(gradient)                     # float32 (1000,), as gradient is
            works = [comm.all_reduce(each, in_place=True) for each in gradients]    # several under way
            for work in works:
                await work
        """
        return self._start(collectives.all_reduce(array, op, out, in_place, self.size), timeout)

    def _start(self, collective: Collective, timeout: float | None = None, call: str = "all_reduce") -> Work:
        called = self._call(collective, timeout, call)
        work = Work(self, called)
        self._begin_now(work, called)
        return work

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

    async def split(
        self, color: int | None, key: int = 0, *, timeout: float | None = 30.0
    ) -> Communicator | None:
        """A communicator of the ranks that give the same ``color``, made by all ranks; None for color None.

        Ranks are in the order of ``key``, then in that of this communicator. The group is a job of its own,
        with a name and a key that follow from this job's, at the same host daemons, asked for the same path;
        elastic if this one is. It lives on its own: close it, too::

            rows = await comm.split(comm.rank // 4)

        ``timeout``, in seconds, is for the question and for joining. Raises ``LocalMisuse``, what this job
        failed with, or what :func:`connect` raises.
        """
        return await self._grouped(row_of(color, key), "split", timeout)

    async def group(self, ranks: Sequence[int], *, timeout: float | None = 30.0) -> Communicator | None:
        """A communicator of ``ranks`` alone, in their order, made by all ranks; None for the others.

        All ranks name the same, or all get ``LocalMisuse``. What it is, ``timeout`` and other errors are as
        with :meth:`split`::

            first = await comm.group([0, 1, 2])
        """
        return await self._grouped(row_of_group(ranks, self.channel.who), "group", timeout)

    async def _grouped(self, row: Row, call: str, timeout: float | None) -> Communicator | None:
        number, self._groups = self._groups, self._groups + 1
        gathered = collectives.all_gather(row, None, self.rank, self.size, call)
        who = group_of(await self._start(gathered).wait(timeout), self.channel.who, number)
        if who is None:
            return None
        driver = TrioDriver()
        steps = joining_rings(self.channel.paths, who, timeout=timeout, clock=self.clock, dial=self._dial)
        return Communicator(await driver.drive(steps), driver, self._dial)

    async def drive(self, steps: Steps[T]) -> T:
        """Take ``steps`` to their end."""
        return await self._driver.drive(steps)

    def look(self) -> None:
        """Read what is there, without waiting. Tasks that wait look again."""
        self.channel.pump()
        if self._in_place is not None:
            self._in_place.look()

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
    """Join ``job`` as ``rank`` of ``size``, and wait until all ranks have joined; for Trio programs.

    ::

        async with await inaproto.connect("train", rank, size=4, key="secret") as comm:
            total = await comm.all_reduce(gradient)

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
    depends on what happened. "chain", "overlay" and "ring" never change. Only a job on "auto" with
    ``exact_plan=False`` is summed by a collective library (SHARP) where all its hosts have one, as path
    "sharp": in an order of the library's own, which another run need not have.

    Raises ``LocalMisuse``, ``Unsupported``, or a ``JobError``: ``DaemonUnreachable``, ``SwitchUnreachable``,
    ``JoinRefused``, ``RankLost``, ``OperationTimeout`` when ranks are missing.
    """
    require_trio("connect", "connect_blocking")
    wishes = check_wishes(path, exact_plan, elastic, os.environ)
    who = who_joins(job, rank, size, key, timeout, wishes, os.environ)
    sockets = check_sockets(socket, who, os.environ)
    driver = TrioDriver()
    steps = joining_rings(sockets, who, timeout=timeout, clock=trio.current_time, dial=dial)
    return Communicator(await driver.drive(steps), driver, dial)
