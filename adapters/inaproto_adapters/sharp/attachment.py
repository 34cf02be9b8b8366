"""A host's place in SHARP: the driver of a session's core, its lane, its memory and its operations.

The core decides; this performs. Whatever waits has a deadline, that of the core or of the operation. A call
cannot be cancelled: where the caller is, callbacks are refused, the call unwinds, and what was acquired is
given back before the cancellation goes on.

An operation's failure is told to the caller of this rank, which has all ranks do it anew by another way: the
order of additions is the switches' own, so no rank may keep a sum that another does not have.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, assert_never

import trio

from inaproto.core.collective.events import (
    FINE,
    Agree,
    Agreed,
    Attached,
    AttachWanted,
    Begin,
    Call,
    Died,
    Drain,
    Drained,
    ExchangeLost,
    NotAttached,
    OperationFailed,
    Outcome,
    Phase,
    Redo,
    Refuse,
    Released,
    ReleaseWanted,
    Returned,
    SessionAction,
    SessionEvent,
    SessionView,
    Vote,
    Voted,
    Weight,
    Woke,
)
from inaproto.core.collective.session import CollectiveSession
from inaproto.errors import FabricError, LocalMisuse
from inaproto.ports import OutOfBand, RandomBits
from inaproto.units import Instant
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp.bell import Bell
from inaproto_adapters.sharp.callbacks import announce, withdraw
from inaproto_adapters.sharp.calls import ContextCalls
from inaproto_adapters.sharp.codes import error_of, outcome_of
from inaproto_adapters.sharp.config import OP_NUMBERS, SharpConfig
from inaproto_adapters.sharp.lane import Lane, Operation
from inaproto_adapters.sharp.library import SharpLibrary
from inaproto_adapters.sharp.memory import Region, Regions
from inaproto_adapters.sharp.rounds import Rounds
from inaproto_adapters.sharp.words import About, Said

log = logging.getLogger("inaproto.sharp")

_PEERS: Final = "the job's other hosts"
_CALLS: Final = tuple(Call)
PREPARED_MAX: Final = 256
Prepared = tuple[Any, tuple[Region, Region]]
"""Of an all-reduce: its struct, and its memory."""
_kept: Final[list[object]] = []
"""Memory of contexts that died in the middle of an operation: the library may still write to it."""


class _Pending:
    """An operation that somebody may wait for."""

    __slots__ = "done", "index", "outcome", "until"

    def __init__(self, index: int, until: float, bell: Bell | None) -> None:
        self.index = index
        self.until = until
        self.outcome = FINE
        self.done = trio.Event() if bell is None else bell
        """What wakes who waits."""

    def end(self) -> None:
        if isinstance(self.done, trio.Event):
            self.done.set()


class SharpAttachment:
    """See the module; made by :meth:`SharpAttachment.attached`."""

    def __init__(
        self, library: SharpLibrary, config: SharpConfig, job: str, others: OutOfBand, bits: RandomBits
    ) -> None:
        self._config, self._job, self._bits = config, job, bits
        self._caps = config.capabilities
        self._prepared: dict[tuple[int, int, int, Dtype, Op], Prepared] = {}
        """All-reduces by their arguments: to look at these again takes longer than a small one does."""
        self._session = CollectiveSession(config.session)
        self._inbox: deque[SessionEvent] = deque()
        self._wake = trio.Event()
        self._rounds = Rounds(others, lambda: self._session.deadline, self._post)
        self._key = announce(self._rounds)
        self._calls = ContextCalls(library, config, others.position, others.size, self._key)
        self._lane = Lane(library, f"sharp {job}")
        self._bell = Bell()
        self._operation_s = config.operation_ns / 1e9
        self._watching = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._watch)
        self._asks: Agree | Vote | None = None
        self._answers: deque[Attached | NotAttached | Released] = deque()
        self._regions = Regions()
        self._indices = count()
        self._pending: dict[Operation, _Pending] = {}
        self._lost: Outcome | None = None
        self._is_released = False
        self._releasing = trio.Lock()
        self.call_ns: dict[Call, int] = {}
        """How long each call has taken, the last time."""
        self.counters = dict.fromkeys(("attempts", "operations", "redone", "died"), 0)

    @classmethod
    async def attached(
        cls, library: SharpLibrary, config: SharpConfig, job: str, others: OutOfBand, bits: RandomBits
    ) -> SharpAttachment:
        """With its place. Raises ``FabricError``; then, and when cancelled, nothing is held."""
        made = cls(library, config, job, others, bits)
        try:
            answer = await made._drive(AttachWanted())
        except BaseException:
            await made.release()
            raise
        if isinstance(answer, Attached):
            return made
        await made.release()
        raise error_of("attach", _PEERS, "attaching", made._session.view().last)

    def view(self) -> SessionView:
        """Where it is, for status."""
        return self._session.view()

    # --- the core's driver

    async def _drive(self, event: SessionEvent) -> Attached | NotAttached | Released:
        """Until the core answers the caller."""
        self._answers.clear()
        self._step(event)
        while not self._answers:
            if self._asks is not None:
                asks, self._asks = self._asks, None
                self._step(await self._ask(asks))
            else:
                self._step(await self._next())
        return self._answers.popleft()

    async def _next(self) -> SessionEvent:
        deadline = self._session.deadline
        until = float("inf") if deadline is None else deadline / 1e9
        with trio.move_on_at(until):
            while not self._inbox:
                self._wake = trio.Event()
                await self._wake.wait()
        return self._inbox.popleft() if self._inbox else Woke()

    async def _ask(self, asks: Agree | Vote) -> SessionEvent:
        try:
            if isinstance(asks, Vote):
                return Voted(await self._rounds.vote(_CALLS.index(asks.call), asks.outcome))
            own = self._bits(64).to_bytes(8, "little")
            said = await self._rounds.say(Said(About.AGREE, asks.attempt, own))
            if any((its.about, its.mark) != (About.AGREE, asks.attempt) for its in said):
                return ExchangeLost("the ranks are not at the same try")
            return Agreed(int.from_bytes(said[0].data, "little"))
        except FabricError as error:
            return ExchangeLost(error.cause)

    def _post(self, event: SessionEvent) -> None:
        self._inbox.append(event)
        self._wake.set()

    def _step(self, event: SessionEvent) -> None:
        now = Instant(round(trio.current_time() * 1e9) + 1)
        for action in self._session.step(event, now):
            self._perform(action)

    def _perform(self, action: SessionAction) -> None:
        match action:
            case Agree() | Vote():
                if isinstance(action, Agree):
                    self.counters["attempts"] += 1
                    self._rounds.allow()
                self._asks = action
            case Begin():
                self._begin(action)
            case Refuse():
                self._rounds.refuse()
            case Drain():
                if not self._pending:
                    self._post(Drained())
            case Redo(index, outcome):
                self.counters["redone"] += 1
                log.warning("job %s: all-reduce %d is to be redone: %s", self._job, index, outcome.why)
            case Died(outcome):
                self._died(outcome)
            case Attached():
                log.info("job %s: attached to SHARP at try %d", self._job, action.attempts)
                self._answers.append(action)
            case NotAttached(outcome):
                log.warning("job %s: not attached to SHARP: %s", self._job, outcome.why)
                self._answers.append(action)
            case Released():
                self._answers.append(action)
            case _:
                assert_never(action)

    def _begin(self, action: Begin) -> None:
        match action.call:
            case Call.INIT:
                run: Callable[[], Outcome] = partial(self._calls.init, action.job_id)
            case Call.COMM:
                run = self._calls.comm_init
            case Call.DEREGISTER:
                self._lane.context = None
                run = partial(self._calls.deregister, self._regions.take_all())
            case Call.DESTROY:
                run = self._calls.destroy
            case Call.FINALIZE:
                run = self._calls.finalize
            case _:
                assert_never(action.call)
        self._lane.call(partial(self._timed, action.call, run), partial(self._returned, action.call))

    def _timed(self, call: Call, run: Callable[[], Outcome]) -> Outcome:
        began = time.perf_counter_ns()
        try:
            return run()
        finally:
            self.call_ns[call] = time.perf_counter_ns() - began

    def _returned(self, call: Call, outcome: Outcome | None, error: BaseException | None) -> None:
        """In Trio, when the lane's call has returned; what it raised is ours, not the library's."""
        if error is not None or outcome is None:
            outcome = Outcome(0, Weight.PERMANENT, f"{call.value}: {type(error).__name__}: {error}")
        elif outcome.weight:
            outcome = Outcome(outcome.code, outcome.weight, f"{call.value}: {outcome.why}")
        if call is Call.COMM and outcome.weight is Weight.FINE:
            self._lane.context = self._calls.context
        self._post(Returned(call, outcome))

    def _died(self, outcome: Outcome) -> None:
        self.counters["died"] += 1
        self._lost = outcome
        log.error("job %s: SHARP's context is lost, and is not used any more: %s", self._job, outcome.why)
        for pending in self._pending.values():
            pending.outcome = outcome
            pending.end()
        if not self._bell.is_free:
            self._bell.ring()

    # --- memory

    async def register(self, buffer: memoryview) -> int:
        """See :class:`inaproto.ports.Attachment`; the same memory has the same key. It has to be writable."""
        self._require_attached("register")
        key, region, is_new = self._regions.add(buffer)
        if not is_new:
            return key
        outcome = await self._called(partial(self._calls.register, region), self._config.session.call_ns)
        if outcome.weight:
            self._regions.forget(key)
            undo_late(self._lane, self._calls, region)
            raise error_of("register", "the NIC", "registering memory", outcome)
        return key

    async def unregister(self, key: int) -> None:
        """One use of the memory less; after the last, nothing touches it.

        In a place that is lost or given back, that is up to ``release``. Raises ``LocalMisuse`` while an
        operation uses it.
        """
        if self._session.phase is not Phase.ATTACHED:
            return
        region = self._regions.at(key)
        if any(region in operation.buffers for operation in self._pending):
            raise LocalMisuse("an operation still uses this memory")
        if self._regions.drop(key) is not None:
            self._prepared.clear()
            await self._called(partial(self._calls.deregister, [region]), self._config.session.call_ns)

    async def _called(self, run: Callable[[], Outcome], within_ns: int) -> Outcome:
        """A call in the lane; it is waited for even if the caller is cancelled."""
        done, found = trio.Event(), [Outcome(0, Weight.FATAL, "the call has not returned in time")]

        def ended(outcome: Outcome | None, error: BaseException | None) -> None:
            found[0] = Outcome(0, Weight.PERMANENT, str(error)) if outcome is None else outcome
            done.set()

        self._lane.call(run, ended)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + within_ns / 1e9):
            await done.wait()
        return found[0]

    @property
    def calls(self) -> ContextCalls:
        """The context's calls, for who measures: only to be used in :meth:`in_lane`."""
        return self._calls

    async def in_lane(self, run: Callable[[], None]) -> None:
        """Have the context's thread run it, between operations. Raises ``FabricError`` where it fails."""

        def called() -> Outcome:
            run()
            return FINE

        outcome = await self._called(called, self._config.session.call_ns)
        if outcome.weight:
            raise error_of("a call", "the library", "measuring", outcome)

    def spec_of(self, source: int, into: int, nbytes: int, dtype: Dtype, op: Op) -> Any:
        """The struct of an all-reduce of memory that is registered."""
        return self._calls.all_reduce_spec(
            self._regions.at(source), self._regions.at(into), nbytes, dtype, op
        )

    # --- operations

    async def all_reduce(self, source: int, into: int, nbytes: int, dtype: Dtype, op: Op) -> None:
        """See :class:`inaproto.ports.Attachment`."""
        self._require_attached("all-reduce")
        prepared = self._prepared.get((source, into, nbytes, dtype, op))
        if prepared is None:
            prepared = self._prepare(source, into, nbytes, dtype, op)
        bell = self._bell if self._bell.is_free else None
        operation = Operation(self._calls.comm, *prepared, self._ended, bell)
        until = trio.current_time() + self._operation_s
        self._pending[operation] = pending = _Pending(next(self._indices), until, bell)
        self.counters["operations"] += 1
        self._lane.post(operation)
        await (pending.done.wait() if bell is None else self._rung(operation, bell))
        if pending.outcome.weight:
            raise _failed(pending.outcome)

    async def _watch(self) -> None:
        """End what is late. One task for all operations: a deadline of each one's own costs half as much as a
        small one does."""
        with self._watching:
            while True:
                now = trio.current_time()
                first = next(iter(self._pending.values()), None)
                if first is not None and first.until <= now:  # a dead session hears it, and does nothing
                    late = f"an all-reduce has not ended in {self._operation_s:g} s"
                    self._step(OperationFailed(first.index, Outcome(0, Weight.FATAL, late)))
                    first = None
                await trio.sleep_until(now + self._operation_s if first is None else first.until)

    async def _rung(self, operation: Operation, bell: Bell) -> None:
        """Until it has ended, or died. Who is cancelled leaves the bell to the lane, which may ring it."""
        bell.is_free = False
        try:
            await bell.wait()
            bell.is_free = operation.code is not None
        finally:
            operation.is_left = True
            if operation.code is not None:
                self._ended(operation, operation.code)

    def _prepare(self, source: int, into: int, nbytes: int, dtype: Dtype, op: Op) -> Prepared:
        """Raises ``LocalMisuse``. The library only reads the struct, so it serves all operations of these."""
        its, to = self._regions.at(source), self._regions.at(into)
        self._require(its, to, nbytes, dtype, op)
        if len(self._prepared) >= PREPARED_MAX:
            self._prepared.clear()
        found = self._calls.all_reduce_spec(its, to, nbytes, dtype, op), (its, to)
        self._prepared[source, into, nbytes, dtype, op] = found
        return found

    def _require(self, source: Region, into: Region, nbytes: int, dtype: Dtype, op: Op) -> None:
        caps = self._caps
        if dtype not in caps.dtypes or op not in OP_NUMBERS:
            raise LocalMisuse(f"SHARP is not offered for {dtype.name} and {op.name}")
        if not 0 < nbytes <= min(source.nbytes, into.nbytes, caps.operation_bytes_max):
            raise LocalMisuse(f"{nbytes} bytes of buffers of {source.nbytes} and {into.nbytes}")
        if nbytes % dtype.itemsize:
            raise LocalMisuse(f"{nbytes} bytes are no whole number of {dtype.name}")

    def _require_attached(self, what: str) -> None:
        if self._session.phase is not Phase.ATTACHED or self._lost is not None:
            why = "the place is given back" if self._lost is None else self._lost.why
            raise FabricError(what, _PEERS, "being not attached", why, retryable=False)

    def _ended(self, operation: Operation, code: int) -> None:
        """In Trio, from the lane."""
        pending = self._pending.pop(operation, None)
        if pending is None:
            return  # who waited for it has seen the code, too
        if code and not pending.outcome.weight:
            pending.outcome = outcome_of(code)
            if pending.outcome.weight is not Weight.BUSY:
                self._lost = pending.outcome
            self._step(OperationFailed(pending.index, pending.outcome))
        pending.end()
        if not self._pending and self._session.phase is Phase.DRAIN:
            self._post(Drained())

    # --- the end

    async def release(self) -> None:
        """See :class:`inaproto.ports.Attachment`.

        Where the library does not return from a call, or an operation has not ended, the memory of that is
        kept until this process ends: nobody else gets it.
        """
        with trio.CancelScope(shield=True):
            async with self._releasing:
                if not self._is_released:
                    self._is_released = True
                    await self._give_back()

    async def _give_back(self) -> None:
        answer = await self._drive(ReleaseWanted())
        while not isinstance(answer, Released):  # first, that an attach under way has ended
            answer = await self._drive(ReleaseWanted())
        withdraw(self._key)
        self._watching.cancel()
        if answer.is_clean:
            self._lane.close()
        else:
            await self._abandon()
        with trio.move_on_after(self._config.session.unwind_ns / 1e9):
            await self._lane.wait_ended()
            self._bell.close()

    async def _abandon(self) -> None:
        """Without registrations the NIC cannot write any more, if the library still takes them back."""
        regions = self._regions.take_all()
        self._lane.forget()
        if self._calls.context is not None and regions:
            await self._called(partial(self._calls.deregister, regions), self._config.session.unwind_ns)
        _kept.extend([*self._pending, *regions, self._calls])
        self._lane.abandon()


def undo_late(lane: Lane, calls: ContextCalls, region: Region) -> None:
    """Give back memory whose registration has failed here, and may succeed when the library returns: the lane
    does this behind that call."""
    lane.call(partial(calls.deregister, [region]), lambda outcome, error: None)


def _failed(outcome: Outcome) -> FabricError:
    error = error_of("all-reduce", _PEERS, "summing in the switches", outcome)
    error.retryable = outcome.weight is Weight.BUSY
    return error


def statistics(attachment: SharpAttachment) -> dict[str, Any]:
    """Counters and phase, for status."""
    view = attachment.view()
    return {**attachment.counters, "phase": view.phase.value, "last": view.last.why}
