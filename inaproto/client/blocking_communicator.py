"""The communicator of plain scripts: it blocks, and any thread may use it.

It differs from the one under Trio (:mod:`inaproto.client.communicator`) in how it waits and in nothing else.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from inaproto.client import collectives
from inaproto.client.arguments import check_sockets
from inaproto.client.calls import Collectives
from inaproto.client.channel import Channel, Clock, Steps
from inaproto.client.collectives import Collective
from inaproto.client.communicator import AnyCommunicator
from inaproto.client.drivers import drive_blocking
from inaproto.client.environment import who_joins
from inaproto.client.in_place import InPlace
from inaproto.client.parallel_rings import RankChannel, joining_rings, leaving_all
from inaproto.client.progress import Engine
from inaproto.client.shrinking import FIRST, Survivors, shrinking
from inaproto.client.splitting import Row, group_of, row_of, row_of_group
from inaproto.client.unix_stream import dial_unix
from inaproto.client.wishes import check_wishes
from inaproto.client.works import BlockingWork
from inaproto.ports import Dial
from inaproto.wire.control_messages import PathAsked


class BlockingCommunicator(AnyCommunicator, Collectives[BlockingWork]):
    """One rank of a job, for plain scripts; made by :func:`connect_blocking`.

    Any thread may use it: operations are numbered in the order of the calls, and results may be waited for
    in any order and by any thread. All ranks must call the same operations in the same order; where several
    threads call, the program has to bring that about. In a child of ``fork`` it raises ``LocalMisuse``.
    """

    _yields = False

    def __init__(
        self, channel: RankChannel, clock: Clock, dial: Dial = dial_unix, survivors: Survivors = FIRST
    ) -> None:
        super().__init__(channel, clock, dial, survivors)
        self.engine = Engine(channel, clock)
        weakref.finalize(self, self.engine.abandon).atexit = False

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        in_place: bool = False,
        timeout: float | None = None,
    ) -> BlockingWork:
        """Start an all-reduce with all ranks of the job, and return at once; ``.wait()`` gives the result.

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
        on all ranks where they did not call the same. Of the whole list of errors see
        :meth:`BlockingWork.wait`::

            total = comm.all_reduce(gradient).wait()                    # float32 (1000,), as gradient is
            works = [comm.all_reduce(each, in_place=True) for each in gradients]    # several under way
            for work in works:
                work.wait()

        While there is a progress thread (:class:`BlockingWork`) a call never waits for room, nor is it
        refused for want of it: it queues.
        """
        return self._start(collectives.all_reduce(array, op, out, in_place, self.size), timeout)

    def sum_for(self, array: Any, what: str, timeout: float | None = None) -> BlockingWork:
        """Start a sum in place of which the caller makes ``what``, the same words on all ranks.

        As :meth:`all_reduce` with ``in_place``: for libraries whose operations are sums, and more.
        """
        return self._start(collectives.summed_for(array, what, self.size), timeout)

    def _start(
        self, collective: Collective, timeout: float | None = None, call: str = "all_reduce"
    ) -> BlockingWork:
        called = self._call(collective, timeout, call)
        work = BlockingWork(self, called)
        engine = self.engine
        with engine.lock:
            if not engine.queues(called.operations):
                self._begin_now(work, called)
                return work
        called.place(self.channel.memory, is_filled=True)
        with engine.lock:
            engine.submit(work)
        return work

    def buffer(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        self._require_usable()  # before the lock, which another thread may have held when this process forked
        with self.engine.lock:
            return super().buffer(shape, dtype)

    buffer.__doc__ = AnyCommunicator.buffer.__doc__

    def _open_in_place(self, channel: Channel) -> InPlace:
        with self.engine.lock:
            if self.engine.in_place is None:
                self.engine.in_place = super()._open_in_place(channel)
            return self.engine.in_place

    def _require_usable(self) -> None:
        self.engine.require_usable()

    def _announce(self) -> None:
        if not self.engine.is_shared:  # else before the first operation that begins
            self.channel.announce()

    def shrink(self, timeout: float | None = 30.0) -> BlockingCommunicator:
        """After ``RankLost``: a communicator of the ranks that are left. The job must be ``elastic``.

        Every survivor has to call it, within the time that the switch waits (``--recover-ms``): it may get
        the error only from its next call, as an all-reduce that fails for one rank can have given another
        its result (the one exact result, never another). So go back to what all of them have::

            comm = inaproto.connect_blocking("train", rank, size=4, elastic=True)
            done = 0                                 # all-reduces before this communicator
            while step < steps:
                try:
                    gradients = comm.all_reduce(compute(weights, step)).wait()
                except inaproto.RankLost:
                    comm = comm.shrink()             # comm.rank and comm.size are new
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
        channel, survivors = self.engine.drive(steps)
        self.engine.abandon()
        return BlockingCommunicator(channel, self.clock, self._dial, survivors)

    def split(
        self, color: int | None, key: int = 0, *, timeout: float | None = 30.0
    ) -> BlockingCommunicator | None:
        """A communicator of the ranks that give the same ``color``, made by all ranks; None for color None.

        Ranks are in the order of ``key``, then in that of this communicator. The group is a job of its own,
        with a name and a key that follow from this job's, at the same host daemons, asked for the same path;
        elastic if this one is. It lives on its own: close it, too::

            rows = comm.split(comm.rank // 4)

        ``timeout``, in seconds, is for the question and for joining. Raises ``LocalMisuse``, what this job
        failed with, or what :func:`connect_blocking` raises.
        """
        return self._grouped(row_of(color, key), "split", timeout)

    def group(self, ranks: Sequence[int], *, timeout: float | None = 30.0) -> BlockingCommunicator | None:
        """A communicator of ``ranks`` alone, in their order, made by all ranks; None for the others.

        All ranks name the same, or all get ``LocalMisuse``. What it is, ``timeout`` and other errors are as
        with :meth:`split`::

            first = comm.group([0, 1, 2])
        """
        return self._grouped(row_of_group(ranks, self.channel.who), "group", timeout)

    def _grouped(self, row: Row, call: str, timeout: float | None) -> BlockingCommunicator | None:
        number, self._groups = self._groups, self._groups + 1
        gathered = collectives.all_gather(row, None, self.rank, self.size, call)
        who = group_of(self._start(gathered).wait(timeout), self.channel.who, number)
        if who is None:
            return None
        steps = joining_rings(self.channel.paths, who, timeout=timeout, clock=self.clock, dial=self._dial)
        return BlockingCommunicator(drive_blocking(steps), self.clock, self._dial)

    def close(self) -> None:
        """Leave the job. Operations that have not ended are lost, for all ranks."""
        self.engine.close(self._closing(leaves=True))

    def _closing(self, *, leaves: bool) -> Steps[None]:
        self.close_in_place()
        if leaves:
            yield from leaving_all(self.channel, self.clock)
        else:
            self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.engine.close(self._closing(leaves=False))


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
    """Join ``job`` as ``rank`` of ``size``, and wait until all ranks have joined; for plain scripts.

    ::

        with inaproto.connect_blocking("train", rank, size=4, key="secret") as comm:
            total = comm.all_reduce(gradient).wait()

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
    rank is lost (:meth:`BlockingCommunicator.shrink`); not with several sockets.

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
    wishes = check_wishes(path, exact_plan, elastic, os.environ)
    who = who_joins(job, rank, size, key, timeout, wishes, os.environ)
    sockets = check_sockets(socket, who, os.environ)
    steps = joining_rings(sockets, who, timeout=timeout, clock=time.monotonic, dial=dial_unix)
    return BlockingCommunicator(drive_blocking(steps), time.monotonic)
