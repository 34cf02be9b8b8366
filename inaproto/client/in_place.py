"""All-reduces of private arrays in place, where all ranks of a job are on one host: added by the ranks.

Otherwise a private array is copied into memory that the host daemon maps, and its result is copied back, each
as a whole: the owner may change the one, and gets nothing of the other before it is whole. An array that its
owner leaves alone until its result is here is read by the other ranks where it is; if that is forbidden, or
it is small, it goes through a few mebibytes that stay in the cache, chunk by chunk. Each rank adds its slice
(:mod:`inaproto.client.stage`; NetReduce section 3.4). The bytes are those
that the daemon would have given: the ranks are the same list of the plan.

Nothing moves while a rank does not wait. Whoever waits, for whichever operation, does what was called
before, too, in the order of the calls: others may wait for that first, and call the rest behind it. The
daemon hears nothing of it; it watches the processes, and what it says of the job ends these waits.

Invariants: an all-reduce that one rank adds up here, all ranks add up here, and in one order: it follows from
what the job is and from the calls alone. What ends in the middle ends the communicator, for all ranks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio
from numpy.typing import NDArray

from inaproto.client.channel import Channel, Clock, JobRank, Pollable, Wait, again
from inaproto.client.channel import Steps as ChannelSteps
from inaproto.client.meeting_places import NAME_CHARACTERS, private_directory
from inaproto.client.stage.access import rank_memory
from inaproto.client.stage.exchange import Kind
from inaproto.client.stage.layout import RANKS_MAX, Layout
from inaproto.client.stage.meeting import Share, Terms, hosting, joining
from inaproto.client.stage.stage import SharedMemoryStage
from inaproto.client.stage.waits import TURN, HasDescriptor, Steps
from inaproto.client.waits import EXPLAIN_S, ask_status, my_ring
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import ConfigError, JobError, OperationTimeout, RankLost, TensorMismatch, Unsupported

CHUNK_BYTES_MAX: Final = 4 << 20
AREA_BYTES: Final = 8 << 20
"""Chunks are shorter where there are many ranks: the area has room for two of each rank."""
CHUNK_BYTES_MIN: Final = 512 << 10
PATIENCE_S: Final = 600.0
"""A rank waits so long for another one, which is there and does nothing: as the daemon, by default."""
WARN_S: Final = 5.0
"""Who has waited so long looks whether others wait for it."""

log = logging.getLogger("inaproto.client")


@dataclass(slots=True, eq=False)
class InPlaceOperation:
    """An all-reduce of ``array``; to a communicator as :class:`inaproto.client.protocol.PendingOperation`."""

    array: NDArray[Any]
    op: str
    op_index: int
    """Number of the next all-reduce that the daemon will hear of."""
    words: str = ""
    """What the caller calls it, if it is something else."""
    ended: bool = False
    error: JobError | None = None
    path: str = "local"
    daemon_ns: int = field(default=0, init=False)
    told: Callable[[], None] | None = None

    def tell(self, told: Callable[[], None]) -> None:
        """As :meth:`inaproto.client.protocol.PendingOperation.tell`."""
        if self.ended:
            told()
        else:
            self.told = told

    def end(self, error: JobError | None = None) -> None:
        self.ended, self.error = True, error
        told, self.told = self.told, None
        if told is not None:
            told()


@dataclass(frozen=True, slots=True)
class _Source:
    """What a stage waits for, as a channel is waited for."""

    of: HasDescriptor
    has_output: bool = False

    def fileno(self) -> int:
        return self.of.fileno()

    @property
    def _is_open(self) -> bool:
        try:
            return self.of.fileno() >= 0
        except ValueError:
            return False

    async def wait_receivable(self) -> None:
        if not self._is_open:  # closed before this task has come so far
            raise trio.ClosedResourceError
        await trio.lowlevel.wait_readable(self.of)

    async def wait_sendable(self) -> None:
        await trio.lowlevel.wait_writable(self.of)


def adds_in_place(channel: object) -> bool:
    """Whether all ranks of the job are on this host, and can add up what is called in place."""
    if not isinstance(channel, Channel) or channel.protocol.joined is None or channel.who.wishes.elastic:
        return False
    return channel.protocol.joined.local and 1 < channel.who.size <= RANKS_MAX


def why_apart(channel: object) -> str:
    """Why the ranks of the job do not add among themselves, though all are on this host."""
    joined = channel.protocol.joined if isinstance(channel, Channel) else None
    return "" if joined is None else joined.apart


class InPlace:
    """What one rank has called in place, and the memory that it shares with the others for it.

    ``yields``: other tasks of the process are to have turns in between.
    """

    def __init__(self, channel: Channel, clock: Clock, *, yields: bool) -> None:
        rank_memory(os.environ)  # or refuse it before anybody has heard of this rank
        self._channel = channel
        self._clock = clock
        self._yields = yields
        self._pid = os.getpid()
        self._stage: SharedMemoryStage | None = None
        self._called: deque[InPlaceOperation] = deque()
        self._steps: Steps[None] | None = None
        """What is left to be done of the first of them."""
        self._waits_for: HasDescriptor | None = None

    @property
    def copies(self) -> str:
        """Why large arrays are copied through shared memory; empty: they are not, as far as is known."""
        return "" if self._stage is None else self._stage.copies

    @property
    def reads(self) -> str:
        """Why sums are read of others; empty: they are written to them, as far as is known."""
        return "" if self._stage is None else self._stage.reads

    def call(self, array: NDArray[Any], op: str, words: str = "") -> InPlaceOperation:
        """``array`` is C-contiguous, writable, of a type that is summed.

        ``words``: what the caller calls it, if not an all-reduce of one array.
        """
        operation = InPlaceOperation(array, op, self._channel.protocol.operations_called, words)
        self._called.append(operation)
        return operation

    def close(self) -> None:
        """Others that wait for this rank learn that it left; not by a child of a fork, which is no rank."""
        if os.getpid() != self._pid:
            return
        self._steps = None
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    @property
    def has_called(self) -> bool:
        """Something that was called has not ended."""
        return bool(self._called)

    def step(self) -> Wait | None:
        """Do some of what was called. What is to be waited for; None: it can go on, or has nothing to do."""
        failure = self._channel.protocol.failure
        if failure is not None:
            self._end_all(self._found(failure))
        if self._called and self._stage is None and self._channel.protocol.others_left:
            self._fail(self._lost())
        wait = self._advance() if self._called else None
        if wait is None or wait.source is not self._waits_for:
            self._waits_for = None if wait is None else wait.source
            self._channel.on_news()  # also for others that wait here
        if wait is None or wait is TURN:
            return None
        sources: Sequence[Pollable] = () if wait.source is None else (_Source(wait.source),)
        return Wait((*sources, *self._channel.channels), wait.until)

    def look(self) -> None:
        """Do what can be done of what was called first, without waiting."""
        called = len(self._called)
        while self._called and len(self._called) == called and self.step() is None:
            pass

    def waiting(
        self, operation: InPlaceOperation, timeout: float | None, until: float | None = None
    ) -> ChannelSteps[None]:
        """As :func:`inaproto.client.parallel_rings.waiting_for`."""
        if until is None and timeout is not None:
            until = self._clock() + timeout
        yield from self.advancing(lambda: operation.ended, until)
        if not operation.ended:
            raise self.late(timeout)
        if operation.error is not None:
            raise again(operation.error)

    def advancing(self, has_ended: Callable[[], bool], until: float | None) -> ChannelSteps[None]:
        """Do what was called, until something ``has_ended``, until ``until``, or until nothing is left."""
        warn_at: float | None = self._clock() + WARN_S
        while self._called and not has_ended():
            self._channel.pump()
            wait = self.step()
            if wait is not None:
                if has_ended() or (until is not None and self._clock() >= until):
                    return
                if warn_at is not None and self._clock() >= warn_at:
                    warn_at = None
                    yield from self._warning()
                    continue
                ends = [at for at in (wait.until, until, warn_at) if at is not None]
                yield Wait(wait.channels, min(ends) if ends else None)
            elif self._yields and not has_ended():
                yield Wait((), self._clock())

    def _warning(self) -> ChannelSteps[None]:
        """Tell this rank's log of ranks that have called something else, which waits for this one.

        No error: who has yet to wait for anything may have called this one, too, and add it later.
        """
        channel, who = self._channel, self._channel.who
        status = yield from ask_status(channel, self._clock() + EXPLAIN_S, self._clock)
        ring = my_ring(status or {}, who)
        waits_for = ring.get("waiting_for", ())
        index = (ring.get("operation") or {}).get("op_index")
        if not self._called or index != channel.protocol.operations_called or who.rank not in waits_for:
            return
        others = [str(rank) for rank in range(who.size) if rank not in waits_for]
        log.warning(
            "%s waits for the others in an all-reduce in place; the next of rank%s %s is not in place, and "
            "waits for this rank: all ranks say in_place alike, and wait for what they call",
            who,
            "s" if len(others) > 1 else "",
            ", ".join(others),
        )

    def late(self, timeout: float | None) -> OperationTimeout:
        """For whom a call waits in vain."""
        missing = [] if self._stage is None else self._stage.missing()
        names = f"; waits for rank {', '.join(map(str, missing))}" if missing else ""
        return OperationTimeout(
            f"an all-reduce in place of {self._channel.who} did not end within {timeout:g} s{names}"
        )

    def _advance(self) -> Any:
        """What is to be waited for; None when the first operation has ended."""
        operation = self._called[0]
        if self._steps is None:
            self._steps = self._performing(operation)
        try:
            return next(self._steps)
        except StopIteration:
            self._steps = None
            self._called.popleft()
            self._channel.protocol.operations_done += 1
            operation.end()
        except (JobError, ConfigError, Unsupported) as fault:
            error = fault if isinstance(fault, JobError) else JobError(str(fault))
            self._fail(error)
        return None

    def _fail(self, error: JobError) -> None:
        """It cannot go on: all others of the job hear why."""
        self._channel.leave(f"{type(error).__name__}: {error}")
        self._channel.end_all(error)
        self._end_all(error)
        self._channel.close()

    def _found(self, failure: JobError) -> JobError:
        """Who first finds that calls differ leaves the job for it; how they differ, all find themselves."""
        stage, steps = self._stage, self._steps
        if stage is None or steps is None or f"{TensorMismatch.__name__}: " not in str(failure):
            return failure
        try:
            while next(steps) is TURN:
                pass
        except TensorMismatch as error:
            error.operations_done = failure.operations_done
            self._channel.protocol.failure = error
            return error
        except (StopIteration, JobError):
            pass
        return failure

    def _lost(self) -> RankLost:
        """Some have left, and have never met the others: no pipe tells of them, the host daemon does."""
        who = self._channel.who
        left = sorted(self._channel.protocol.others_left)
        names = f"rank{'s' if len(left) > 1 else ''} {', '.join(map(str, left))}"
        have = "have" if len(left) > 1 else "has"
        return RankLost(f"{names} of job {who.job!r} {have} left; {who} waits for an all-reduce in place")

    def _performing(self, operation: InPlaceOperation) -> Steps[None]:
        if self._stage is None:
            self._stage = yield from self._opening()
        array, words = operation.array, operation.words
        home = self._channel.memory.home(array)
        yield from self._stage.all_reducing(array, operation.op, array, _kind(words), words, home)[1]

    def _opening(self) -> Steps[SharedMemoryStage]:
        """All ranks meet, at a socket that rank 0 makes for that time."""
        who = self._channel.who
        chunk_bytes = min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, AREA_BYTES // who.size))
        terms = Terms(ReductionPlan.flat(who.size), Layout(who.size, chunk_bytes))
        place = self._meeting_place()
        meeting: Steps[Share]
        if who.rank == 0:
            meeting = hosting(place, terms, PATIENCE_S, self._clock)
        else:
            meeting = joining(place, who.rank, terms, PATIENCE_S, self._clock)
        share = yield from meeting
        stage = SharedMemoryStage(who.rank, terms, share, PATIENCE_S, self._clock, looks=not self._yields)
        try:
            yield from stage.starting()
        except BaseException:
            stage.close()
            raise
        return stage

    def _meeting_place(self) -> Path:
        """The same on all ranks, and of no other job: the host daemon has chosen it."""
        joined, channel = self._channel.protocol.joined, self._channel
        assert joined is not None
        for named, directory in channel.meeting_places.items():
            if joined.meeting and named.split(" ")[0] == joined.meets:
                return private_directory(directory) / f"{_digest(joined.meeting, channel.who)}.meet"
        # A daemon of an older release chooses none: ranks must agree on their temporary directory.
        told = f"{channel.path.resolve()}\0{joined.ring_id}"
        return private_directory(Path(tempfile.gettempdir())) / f"{_digest(told, channel.who)}.meet"

    def _end_all(self, error: JobError) -> None:
        stage = self._stage
        self.close()
        if stage is not None and not str(error).endswith(stage.warning):
            told, error = error, type(error)(f"{error}{stage.warning}")
            error.operations_done = told.operations_done
        while self._called:
            self._called.popleft().end(error)


def _digest(told: str, who: JobRank) -> str:
    """A name that only ranks of the job know."""
    return hashlib.sha256(f"{told}\0{who.job}\0{who.key}".encode()).hexdigest()[:NAME_CHARACTERS]


def _kind(words: str) -> Kind:
    """The kind of what has these ``words`` (:mod:`inaproto.client.collectives`)."""
    if words.startswith("broadcast"):
        return Kind.BROADCAST
    if " of a list" in words:
        return Kind.LIST
    return Kind.AVERAGE if words else Kind.ALL_REDUCE
