"""The stage itself: all-reduce, reduce-scatter and all-gather for the processes of one host.

:class:`SharedMemoryStage` blocks, :class:`TrioSharedMemoryStage` waits in Trio; both run the same steps. A
stage belongs to one process and one thread or event loop. A call is made by all ranks, in the same order.

After a lost rank, a wait in vain or a cancelled call a stage is of no use any more: every rank's call ends
with an error that names who was missing. A mismatch of calls (``TensorMismatch``) leaves it as it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import numpy as np
import trio
from numpy.typing import NDArray

from inaproto.client.arrays import check_array, check_out, wire_dtype, wire_op
from inaproto.client.stage.access import rank_memory
from inaproto.client.stage.barrier import LOOKS, Barrier, Cause, State
from inaproto.client.stage.exchange import Call, Exchange, Kind
from inaproto.client.stage.handing_back import hand_back
from inaproto.client.stage.layout import CHUNK_BYTES, RANKS_MAX, Bytes, Cut, Layout
from inaproto.client.stage.meeting import Share, Terms, hosting, joining
from inaproto.client.stage.neighbours import Neighbours, writers
from inaproto.client.stage.views import Home
from inaproto.client.stage.waits import TURN, Clock, Steps, Wait, drive_blocking, drive_trio
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import JobError, LocalMisuse, RankLost, TensorMismatch, Unsupported
from inaproto.wire.ina_header import Op, signature

TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of an exact collective."""

    name: str
    exact_plan: bool
    """Results follow the reduction plan to the last bit."""
    ranks_max: int


CAPABILITIES: Final = Capabilities(name="shm", exact_plan=True, ranks_max=RANKS_MAX)


class _Stage:
    """What both kinds share: everything that does not wait."""

    capabilities: Final = CAPABILITIES

    def __init__(
        self, rank: int, terms: Terms, share: Share, timeout: float, clock: Clock, *, looks: bool = False
    ) -> None:
        """``looks``: nothing else in this process has a turn when the rank looks whether others have come."""
        memory = np.frombuffer(share.memory, np.uint8)
        self.rank = rank
        self.plan = terms.plan
        self.timeout = timeout
        self._layout = terms.layout
        self._mapping = share.memory
        has_processor = terms.layout.ranks <= len(os.sched_getaffinity(0))
        control = terms.layout.control(memory)
        self._barrier = Barrier(
            rank, share.descriptors, control, clock, looks=LOOKS if looks and has_processor else 0
        )
        self._exchange = Exchange(rank, terms.plan, terms.layout, memory)
        self._pid = os.getpid()
        self._busy = False
        self._failure: JobError | None = None
        self.copies = ""
        """Why large arrays go through shared memory; empty: they are read where they are."""
        self.reads = ""
        """Why sums are then read of others, too; empty: they are written to them."""
        self.warning = ""
        """What the owner of the last call's array has to know of it, after a failure."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}>"

    def __reduce__(self) -> NoReturn:
        raise LocalMisuse("a stage cannot be pickled; open it in the other process")

    @property
    def size(self) -> int:
        return self._layout.ranks

    def slice_bounds(self, elements: int) -> tuple[int, int]:
        """First element of this rank's slice of a tensor of ``elements``, and the one behind its last."""
        return Cut(self._layout, elements, 1).slice_bounds(self.rank)

    def starting(self) -> Steps[None]:
        """All ranks have mapped the memory when this ends; at rank 0, everybody can be heard."""
        return self._waiting(self._looking_around(), "opening the stage")

    def _looking_around(self) -> Iterator[Wait | None]:
        """Whether all ranks may read each other's memory."""
        memory = np.frombuffer(self._mapping, np.uint8)
        neighbours = Neighbours(self.rank, self._layout.control(memory), self._layout.hands(memory))
        try:
            neighbours.show()
            yield None
            neighbours.look()
            yield None
            self.copies = neighbours.why_not()
            self.reads = "" if self.copies else neighbours.why_only_read()
            neighbours.agree()
        finally:
            neighbours.forget()
        if not self.copies:
            self._exchange.neighbours = neighbours

    def missing(self) -> list[int]:
        """Who has not come to where this rank waits."""
        return self._barrier.missing()

    def all_reducing(
        self,
        array: NDArray[Any],
        op: str,
        out: NDArray[Any] | None,
        kind: Kind = Kind.ALL_REDUCE,
        words: str = "",
        home: Home | None = None,
    ) -> tuple[NDArray[Any], Steps[None]]:
        """``words``: what a caller calls it who calls it something else; all ranks must say the same.
        ``home``: the shared segment in which ``array`` and ``out`` lie, if others may map it.
        """
        source = check_array(array, "array")
        result = np.empty_like(source) if out is None else check_out(out, source)
        _refuse_overlap(source, result, but_at=0)
        call = _call(kind, source, wire_op(op), words)
        return result, self._calling(
            call, self._exchange.all_reduce(call, _bytes(source), _bytes(result), home)
        )

    def _reduce_scattering(
        self, array: NDArray[Any], op: str, out: NDArray[Any] | None
    ) -> tuple[NDArray[Any], Steps[None]]:
        source = check_array(array, "array")
        first, end = self.slice_bounds(source.size)
        own = np.empty(end - first, source.dtype)
        result = own if out is None else check_out(out, own)
        _refuse_overlap(source, result)
        call = _call(Kind.REDUCE_SCATTER, source, wire_op(op))
        steps = self._exchange.reduce_scatter(call, _bytes(source), _bytes(result))
        return result, self._calling(call, steps)

    def _all_gathering(self, part: NDArray[Any], out: NDArray[Any]) -> tuple[NDArray[Any], Steps[None]]:
        source, result = check_array(part, "part"), check_array(out, "out")
        check_out(result, result)
        first, end = self.slice_bounds(result.size)
        if source.size != end - first or source.dtype != result.dtype:
            raise LocalMisuse(
                f"all_gather: rank {self.rank}'s slice of {result.size} {result.dtype} has {end - first} "
                f"elements; part has {source.size} {source.dtype}"
            )
        _refuse_overlap(source, result, but_at=first * result.itemsize)
        call = _call(Kind.ALL_GATHER, result, Op.SUM)
        return result, self._calling(call, self._exchange.all_gather(call, _bytes(source), _bytes(result)))

    def _calling(self, call: Call, steps: Iterator[Wait | None]) -> Steps[None]:
        self._require_usable()
        return self._waiting(steps, f"{call}, call {self._exchange.calls + 1} of the stage")

    def _waiting(self, steps: Iterator[Wait | None], what: str) -> Steps[None]:
        """Perform ``steps``; wherever they stop without a word, pass the barrier."""
        self._require_usable()  # another task may have come first
        self._busy = True
        try:
            for step in steps:
                if step is None:
                    yield from self._barrier.passing(what, self.timeout)
                yield TURN
        except TensorMismatch:
            raise
        except JobError as error:
            raise self._fail(self._cause(error, what)) from None
        except BaseException:
            given_up = JobError(f"rank {self.rank}: {what} was given up in the middle; open a new stage")
            self._fail(Cause([], given_up))
            raise
        finally:
            self._busy = False

    def _cause(self, error: JobError, what: str) -> Cause:
        neighbours = self._exchange.neighbours
        if neighbours is None or neighbours.lost is None:
            return Cause(self._barrier.missing(), error)
        state = State.SAW_END if isinstance(error, RankLost) else State.GAVE_UP
        return self._barrier.cause(neighbours.lost, what) or Cause([neighbours.lost], error, state)

    def _fail(self, cause: Cause) -> JobError:
        """What is to be raised."""
        error = cause.error
        if self._failure is None:
            self._failure = error
            self._barrier.give_up(cause)
            self._take_back()
            error = self._failure = type(error)(f"{error}{self.warning}")
        return error

    def _take_back(self) -> None:
        """Let nobody write to this rank any more; the array of the call is its owner's again."""
        if self._exchange.neighbours is not None:
            self._exchange.neighbours.withdraw()
        array, self._exchange.given = self._exchange.given, None
        if array is not None and os.getpid() == self._pid:
            self.warning = hand_back(array, self._writers)

    def _writers(self) -> list[str]:
        """Who may be about to write to this rank."""
        found = writers(self._layout.hands(np.frombuffer(self._mapping, np.uint8)), self.rank)
        return [self._barrier.name(rank) for rank in found if not self._barrier.has_ended(rank)]

    def _require_usable(self) -> None:
        if os.getpid() != self._pid:
            raise LocalMisuse("a stage does not survive fork; open one in the new process")
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)
        if self._busy:
            raise LocalMisuse(f"rank {self.rank}: a call of this stage has not ended; one after the other")

    def _close(self) -> None:
        """Idempotent; whoever waits for this rank learns that it left."""
        if self._failure is None:
            self._failure = JobError(f"rank {self.rank}: the stage was closed; open a new one")
            self._take_back()
        self._barrier.close()
        if self._exchange.neighbours is not None:
            self._exchange.neighbours.views.close()
        self._exchange.forget_memory()
        self._mapping.close()


class SharedMemoryStage(_Stage):
    """For plain programs; made by :func:`open_stage`."""

    def all_reduce(
        self, array: NDArray[Any], out: NDArray[Any] | None = None, *, op: str = "sum"
    ) -> NDArray[Any]:
        """Reduce the ``array`` of all ranks in the order of the plan; every rank gets the result.

        ``array``: C-contiguous, any shape, of a dtype that ``Communicator.all_reduce`` takes; the same shape,
        dtype and ``op`` ("sum", "max" or "min") on every rank. The result is a new array, or ``out``, which
        may be ``array`` itself. After an error ``out`` holds a mix. Raises ``LocalMisuse`` before anything is
        exchanged, ``TensorMismatch``, ``RankLost``, ``OperationTimeout``.
        """
        result, steps = self.all_reducing(array, op, out)
        drive_blocking(steps)
        return result

    def reduce_scatter(
        self, array: NDArray[Any], out: NDArray[Any] | None = None, *, op: str = "sum"
    ) -> NDArray[Any]:
        """As :meth:`all_reduce`, but this rank gets only its slice, one-dimensional (``slice_bounds``)."""
        result, steps = self._reduce_scattering(array, op, out)
        drive_blocking(steps)
        return result

    def all_gather(self, part: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """Put every rank's ``part``, its slice of ``out``, together in ``out``; returns ``out``.

        ``part`` may be its place in ``out``.
        """
        result, steps = self._all_gathering(part, out)
        drive_blocking(steps)
        return result

    def close(self) -> None:
        """Give memory and descriptors back. Ranks that are in a call get an error that names this one."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class TrioSharedMemoryStage(_Stage):
    """For Trio programs; made by :func:`open_trio_stage`. A cancelled call fails the stage, for all ranks."""

    async def all_reduce(
        self, array: NDArray[Any], out: NDArray[Any] | None = None, *, op: str = "sum"
    ) -> NDArray[Any]:
        """As :meth:`SharedMemoryStage.all_reduce`."""
        result, steps = self.all_reducing(array, op, out)
        await drive_trio(steps)
        return result

    async def reduce_scatter(
        self, array: NDArray[Any], out: NDArray[Any] | None = None, *, op: str = "sum"
    ) -> NDArray[Any]:
        """As :meth:`SharedMemoryStage.reduce_scatter`."""
        result, steps = self._reduce_scattering(array, op, out)
        await drive_trio(steps)
        return result

    async def all_gather(self, part: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """As :meth:`SharedMemoryStage.all_gather`."""
        result, steps = self._all_gathering(part, out)
        await drive_trio(steps)
        return result

    def close(self) -> None:
        """As :meth:`SharedMemoryStage.close`. Raises ``LocalMisuse`` while a task is in a call: cancel it."""
        if self._busy:
            raise LocalMisuse(
                f"rank {self.rank}: a task is in a call of this stage; cancel it before closing"
            )
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_stage(
    path: str | os.PathLike[str],
    rank: int,
    *,
    plan: ReductionPlan,
    chunk_bytes: int = CHUNK_BYTES,
    timeout: float = TIMEOUT_S,
) -> SharedMemoryStage:
    """Meet the other ranks of this host at ``path``, where rank 0 makes a UNIX socket for that time.

    ``plan`` is over the ranks of the host, ``0 .. plan.size - 1``, and the same for all, as
    ``chunk_bytes`` is. ``timeout`` in seconds bounds the meeting, and later every single wait for another
    rank. Raises ``Unsupported``, ``ConfigError``, ``LocalMisuse``, ``JoinRefused``, ``RankLost``,
    ``OperationTimeout``.
    """
    meeting, terms = _meeting(path, rank, plan, chunk_bytes, timeout, time.monotonic)
    stage = SharedMemoryStage(rank, terms, drive_blocking(meeting), timeout, time.monotonic, looks=True)
    try:
        drive_blocking(stage.starting())
    except BaseException:
        stage.close()
        raise
    return stage


async def open_trio_stage(
    path: str | os.PathLike[str],
    rank: int,
    *,
    plan: ReductionPlan,
    chunk_bytes: int = CHUNK_BYTES,
    timeout: float = TIMEOUT_S,
) -> TrioSharedMemoryStage:
    """As :func:`open_stage`, in Trio; the two kinds can be ranks of one stage."""
    meeting, terms = _meeting(path, rank, plan, chunk_bytes, timeout, trio.current_time)
    stage = TrioSharedMemoryStage(rank, terms, await drive_trio(meeting), timeout, trio.current_time)
    try:
        await drive_trio(stage.starting())
    except BaseException:
        stage.close()
        raise
    return stage


def _meeting(
    path: str | os.PathLike[str],
    rank: int,
    plan: ReductionPlan,
    chunk_bytes: int,
    timeout: float,
    clock: Clock,
) -> tuple[Steps[Share], Terms]:
    for name in ("memfd_create", "eventfd"):
        if not hasattr(os, name):
            raise Unsupported("the shared-memory stage", f"this system has no {name}; it needs Linux")
    rank_memory(os.environ)  # or refuse it before anybody has heard of this rank
    terms = Terms(plan, Layout(plan.size, chunk_bytes))
    if not 0 <= rank < plan.size:
        raise LocalMisuse(f"rank {rank} of a shared-memory stage; the plan {plan} has 0 to {plan.size - 1}")
    if timeout <= 0:
        raise LocalMisuse(f"a timeout of {timeout:g} s; every wait needs some time, and an end")
    where = Path(path)
    if rank == 0:
        return hosting(where, terms, timeout, clock), terms
    return joining(where, rank, terms, timeout, clock), terms


def _call(kind: Kind, tensor: NDArray[Any], op: Op, words: str = "") -> Call:
    dtype = wire_dtype(tensor.dtype)
    digest = signature(dtype, op, tensor.shape, words)
    return Call(kind, dtype, op, tensor.size, digest, tensor.shape, words)


def _bytes(values: NDArray[Any]) -> Bytes:
    return values.reshape(-1).view(np.uint8)


def _refuse_overlap(source: NDArray[Any], out: NDArray[Any], *, but_at: int | None = None) -> None:
    """Raises ``LocalMisuse`` if they share bytes, unless ``source`` lies in ``out`` at byte ``but_at``."""
    if not np.may_share_memory(source, out):  # both are contiguous: sharing bounds is sharing bytes
        return
    offset = source.__array_interface__["data"][0] - out.__array_interface__["data"][0]
    if offset != but_at:
        raise LocalMisuse("the result would overwrite inputs that are still needed; give another out")
