"""Who reads for a blocking communicator, and drives its waits: the thread that waits, or one of its own.

Most programs have one thread that calls and waits; it reads then, and nobody else needs to. A progress thread
is started when something is to happen by itself (a callback, a future, a descriptor), or when a second thread
calls while one waits. From then on it alone touches the channel: others put what they want into its orders,
and wake it up. It begins queued operations in the order of their calls while the daemon has room, settles
those that have ended, sees to deadlines, and drives all other waits, the same generators
(:mod:`inaproto.client.channel`), to their ends.

Invariants: the channel is used by one thread at a time: under ``lock`` while there is no progress thread, by
that thread alone while it serves. It rests when nothing is left for it to do, so that a program that called
for it once has waits without it again; but not after two threads have met. A thread that waits gives the lock
back while it waits. No callback of the user runs in the progress thread. Whatever ends that thread, nothing
is left under way. It never keeps the interpreter from ending.
"""

from __future__ import annotations

import atexit
import heapq
import logging
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from numpy.typing import NDArray

from inaproto.client.alarm import Alarm
from inaproto.client.channel import Clock, Pollable, Steps, Wait, again
from inaproto.client.completions import COMPLETIONS
from inaproto.client.in_place import InPlace
from inaproto.client.parallel_rings import ParallelRings, RankChannel
from inaproto.errors import JobError, LocalMisuse

T = TypeVar("T")

QUEUED_MAX: Final = 1 << 16
"""Operations that wait to begin."""
DEADLINES_MIN: Final = 64
"""With fewer nobody looks for those that are of no account any more."""
DRAIN_S: Final = 1.0
"""Whoever closes a communicator waits so long for callbacks."""
EXIT_S: Final = 0.5
"""The end of the interpreter takes this much longer, at most, for what is under way."""

log = logging.getLogger("inaproto.client")


class Work(Protocol):
    """An operation as its caller holds it (:class:`inaproto.client.works.BlockingWork`)."""

    _communicator: Any
    _operation: Any
    _op_index: int
    _until: float | None
    _timeout: float | None
    operations: int
    """How many the host daemon hears of."""
    _is_settled: bool
    _is_watched: bool

    @property
    def _has_ended(self) -> bool: ...
    def begin(self) -> None: ...
    def event(self) -> threading.Event: ...
    def settle(self) -> None: ...
    def expire(self, late: JobError | None = None) -> None: ...
    def refuse(self, error: JobError) -> None: ...
    def _outcome(self) -> NDArray[Any]: ...
    def _waiting(self, timeout: float | None) -> Steps[NDArray[Any]]: ...
    def _explaining(self, timeout: float | None) -> Steps[JobError | None]: ...


class _Task(Generic[T]):
    """Steps that the progress thread drives for another one."""

    def __init__(self, steps: Steps[T]) -> None:
        self.steps = steps
        self.wait: Wait | None = None
        self._ended = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def step(self) -> bool:
        """Whether it has ended."""
        try:
            self.wait = next(self.steps)
        except StopIteration as stop:
            self.end(stop.value)
        except BaseException as error:  # noqa: BLE001  whoever waits for the outcome raises it
            self.end(None, error)
        return self._ended.is_set()

    def end(self, result: T | None, error: BaseException | None = None) -> None:
        self._result, self._error = result, error
        self._ended.set()

    def outcome(self) -> T:
        """Wait for it, and return or raise what the steps did."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class Engine:
    """Who reads for one communicator; all methods but ``_run`` and what it calls are for any thread."""

    def __init__(self, channel: RankChannel, clock: Clock) -> None:
        self.channel = channel
        self.in_place: InPlace | None = None
        self.lock = threading.RLock()
        """Guards the channel while no progress thread serves, and the order of the calls in any case."""
        self.listening = threading.RLock()
        """Guards what the works tell whom; nobody waits for anything while it is held."""
        self._clock = clock
        self._pid = os.getpid()
        self._is_driving = False
        """A thread waits, and has given the lock back meanwhile."""
        self._alarm = Alarm()
        self._is_polling = False
        self._thread: threading.Thread | None = None
        self._is_serving = False
        """The progress thread has the channel."""
        self._has_begun = False
        """It is awake, or about to poll: not only called for."""
        self._stays = False
        """It does not rest."""
        self._wanted = threading.Event()
        """It is to serve, or to end."""
        self._ordering = threading.RLock()
        """Guards the orders, and ``_is_serving``: nothing is ordered of a thread that rests or has ended."""
        self._is_to_end = False
        self._orders: deque[Callable[[], object]] = deque()
        self._queue: deque[Work] = deque()
        self._queued = 0
        """In ``_queue``, and in orders that bring it there."""
        self._next_index = 0
        self._ended: deque[Work] = deque()
        self._unsettled = 0
        """Operations under way that tell when they have ended, and those in ``_ended``."""
        self._tasks: list[_Task[Any]] = []
        self._deadlines: list[tuple[float, int, weakref.ref[Work]]] = []
        self._deadlines_max = DEADLINES_MIN
        self._numbers = count()

    # --- for the threads of the program

    def require_process(self) -> None:
        """Raises ``LocalMisuse`` in a child of a fork."""
        if os.getpid() != self._pid:
            raise LocalMisuse(
                f"{self.channel.who}: a communicator does not survive fork; connect in the new process"
            )

    def require_usable(self) -> None:
        """Raises what the communicator has failed with; ``LocalMisuse`` in a child of a fork."""
        self.require_process()
        if self.channel.failure is not None:
            raise again(self.channel.failure)

    @property
    def is_shared(self) -> bool:
        """A progress thread has the channel; it is started where another thread waits. With the lock."""
        if not self._is_serving and self._is_driving:
            self._stays = True
            self._start()
        return self._is_serving

    def queues(self, operations: int) -> bool:
        """A call of so many operations is for :meth:`submit`; with the lock."""
        return self.is_shared or (self._thread is not None and not self.channel.has_room(operations))

    def start(self) -> None:
        """From now on operations go on by themselves."""
        self.require_process()
        with self.lock:
            self._stays = True
            if not self._is_serving:
                self._start()

    def drive(self, steps: Steps[T]) -> T:
        """Take ``steps`` to their end: in this thread, or by the progress thread if there is one."""
        self.require_process()
        with self.lock:
            if not self.is_shared:
                is_done, result = self._drive_here(steps)
                if is_done:
                    return cast("T", result)
        return self._perform(steps)

    def wait(self, work: Work, timeout: float | None) -> NDArray[Any]:
        """Wait for its result, as :meth:`inaproto.client.works.BlockingWork.wait`."""
        self.require_process()
        until = None if timeout is None else self._clock() + timeout
        with self.lock:
            self._take_back(work)
            if not self.is_shared:
                try:
                    steps = work._waiting(timeout)
                    is_done, result = self._drive_here(steps)
                finally:
                    self._give_again()
                if is_done:
                    return cast("NDArray[Any]", result)
                steps.close()  # a progress thread has been started meanwhile
        work._communicator.wait_began(work._communicator.now_ns())
        self.watch(work)
        ended = work.event()
        while not ended.wait(None if until is None else max(0.0, until - self._clock())):
            late = self.drive(work._explaining(timeout))
            if late is not None and not ended.is_set():
                raise late
            until = None  # it has ended, and will be settled
        work._communicator.wait_ended()
        return work._outcome()

    def look(self) -> None:
        """Read what is there, without waiting, unless somebody else does."""
        if os.getpid() != self._pid or not self.lock.acquire(blocking=False):
            return
        try:
            if not self._is_serving and not self._is_driving:
                self.channel.pump()
                if self.in_place is not None:
                    self.in_place.look()
        finally:
            self.lock.release()

    def submit(self, work: Work) -> None:
        """Queue it, with the lock held, where a progress thread serves, or did a moment ago.

        Raises ``LocalMisuse``, or what the communicator has failed with.
        """
        if self._queued >= QUEUED_MAX:
            raise LocalMisuse(f"all_reduce: {self._queued} of them wait to begin, the limit; wait for some")
        with self._ordering:  # so that it does not rest in between
            if self._thread is not None and not self._is_serving and not self._is_to_end:
                self._start()
            work._is_watched, work._op_index = True, self._next_index
            if not self._order(partial(self._take, work)):
                self.require_usable()
                raise LocalMisuse(f"{self.channel.who}: the interpreter ends")
        self._queued += 1
        self._next_index += work.operations

    def watch(self, work: Work) -> None:
        """Have it settled as soon as it has ended."""
        self.require_process()
        with self.lock:
            if work._is_watched or work._is_settled:
                return
            work._is_watched = True
            with self._ordering:  # so that it does not rest in between
                if not self.is_shared and not work._has_ended:
                    self._start()
                if not self._order(partial(self._watch, work)):
                    work.settle()  # it has ended: the channel is closed, or the thread has just failed

    def expire(self, work: Work) -> None:
        """Look at its deadline, where nobody else does."""
        self.require_process()
        with self.lock:
            is_late = work._until is not None and self._clock() >= work._until
            if is_late and not self._is_serving and not self._is_driving:
                work.expire()

    def close(self, steps: Steps[None]) -> None:
        """Drive ``steps``, which close the channel, and end the thread. In a child of a fork: nothing."""
        if os.getpid() != self._pid:
            steps.close()
            return
        try:
            self.drive(steps)
        finally:
            thread = self._end_thread()
            if thread is not None and thread is not threading.current_thread():
                thread.join()
                COMPLETIONS.drain(DRAIN_S)

    def abandon(self) -> None:
        """Nobody has the communicator any more: close the channel, as without a progress thread."""
        if self._thread is not None and os.getpid() == self._pid:
            if not self._order(self.channel.close):
                self.channel.close()  # it rests, and nobody else is left who might use the channel
            self._end_thread()

    def end_at_exit(self) -> None:
        """The interpreter ends: nothing is begun or called any more."""
        thread = self._end_thread()
        if thread is not None:
            thread.join(EXIT_S)

    def _end_thread(self) -> threading.Thread | None:
        self._is_to_end = True
        thread = self._thread
        if thread is not None:
            self._alarm.ring()
            self._wanted.set()
        return thread

    def _start(self) -> None:
        """With the lock held."""
        with self._ordering:
            self._is_to_end = False
            self._next_index = self.channel.operations_called
            self._is_serving, self._has_begun = True, False
            if self._thread is None:
                name = f"inaproto {self.channel.who}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                _RUNNING.add(self)
                self._thread.start()
            else:
                self._wanted.set()
        if self._is_driving:
            self._alarm.ring()

    def _take_back(self, work: Work) -> None:
        """Whoever waits for the only work under way does without a thread that has yet to wake up for it.

        With the lock held.
        """
        with self._ordering:
            if self._has_begun or not self._is_serving or self._stays or self._is_to_end:
                return
            if self._unsettled or self._queue or self._tasks or len(self._orders) != 1:
                return
            if not work._is_watched or work._operation is None:
                return
            self._orders.popleft()()
            self._is_serving = False

    def _give_again(self) -> None:
        """As :meth:`_take_back`, when the wait is over, for what has not ended. With the lock held."""
        with self._ordering:
            if self._is_serving:
                return
            self._settle_ended()
            if self._unsettled:
                self._start()

    def _order(self, order: Callable[[], object]) -> bool:
        """Have the progress thread do it, in the order of these calls. False: none serves."""
        with self._ordering:
            if not self._is_serving:
                return False
            self._orders.append(order)
        if self._is_polling:  # else it looks once more before it polls
            self._alarm.ring()
        return True

    def _perform(self, steps: Steps[T]) -> T:
        task = _Task(steps)
        if not self._order(partial(self._tasks.append, task)):
            return self.drive(steps)
        try:
            return task.outcome()
        except BaseException:
            self._order(partial(self._give_up, task))  # this thread was interrupted, or the steps have ended
            raise

    def _drive_here(self, steps: Steps[T]) -> tuple[bool, T | None]:
        """With the lock held. False: a progress thread was started meanwhile, which has to go on."""
        self._is_driving = is_mine = True
        try:
            while True:
                wait = next(steps)
                self._poll_unlocked(wait)
                if self._is_serving:
                    is_mine = False
                    return False, None
        except StopIteration as stop:
            return True, stop.value
        finally:
            self._is_driving = False
            if is_mine:
                steps.close()

    def _poll_unlocked(self, wait: Wait) -> None:
        poll = select.poll()
        poll.register(self._alarm, select.POLLIN)
        for channel in wait.channels:
            poll.register(channel, select.POLLIN | (select.POLLOUT if channel.has_output else 0))
        left = None if wait.until is None else max(0.0, wait.until - self._clock()) * 1000 + 1
        self.lock.release()
        try:
            poll.poll(left)
        finally:
            self.lock.acquire()

    # --- the progress thread

    def _run(self) -> None:
        try:
            self._wait_for_calls()
            while not self._is_to_end:
                waits = self._step()
                if not self._rested():
                    self._settle_ended()
                    self._poll(waits)
        except BaseException as fault:
            log.exception("%s: its progress thread failed", self.channel.who)
            self._fail(JobError(f"{self.channel.who}: its progress thread failed: {fault!r}"))
        finally:
            with self._ordering:
                if self._is_serving:
                    self._end_all()
                _RUNNING.discard(self)
                self._thread, self._is_serving = None, False

    def _rested(self) -> bool:
        """Leave the channel to whoever waits next, until wanted again; False: there is something to do."""
        if self._stays or self._unsettled > len(self._ended) or self._queue or self._tasks:
            return False
        with self._ordering:
            is_adding = self.in_place is not None and self.in_place.has_called
            if self._orders or is_adding or self._is_driving or self._is_to_end:
                return False
            self._alarm.quiet()  # or whoever waits next is woken by it again and again
            self._is_serving = False
        with self.lock:  # who waited for these finds nobody at the channel when it goes on
            self._settle_ended()
        self._wait_for_calls()
        return True

    def _wait_for_calls(self) -> None:
        while True:
            with self._ordering:
                self._wanted.clear()  # before a look at what is changed by who does not hold the orders
                self._has_begun = self._is_serving
                if self._is_serving or self._is_to_end:
                    return
            self._wanted.wait()

    def _step(self) -> list[Wait]:
        """Do all that can be done now. What has to be waited for; none: nothing, there is more to be done."""
        self._is_polling = False
        while self._orders:
            self._orders.popleft()()
        self.channel.pump()
        while self._queue and (
            self.channel.failure is not None or self.channel.has_room(self._queue[0].operations)
        ):
            self._begin(self._queue.popleft())
        waits = []
        if self.in_place is not None and self.in_place.has_called:
            wait = self.in_place.step()
            waits.append(wait or Wait((), self._clock()))
        for task in [task for task in self._tasks if task.step()]:
            self._tasks.remove(task)
        waits += [task.wait for task in self._tasks if task.wait is not None]
        channels = () if self.channel.is_closed else self.channel.channels
        waits.append(Wait(channels, self._next_deadline()))
        return waits

    def _poll(self, waits: list[Wait]) -> None:
        sources: dict[int, tuple[Pollable, int]] = {}
        until: float | None = None
        for wait in waits:
            for source in wait.channels:
                events = select.POLLIN | (select.POLLOUT if source.has_output else 0)
                sources[id(source)] = (source, events)
            if wait.until is not None:
                until = wait.until if until is None else min(until, wait.until)
        left = None if until is None else max(0.0, until - self._clock()) * 1000
        self._is_polling = True
        if self._orders or self._ended or self._is_to_end or left == 0:
            return
        poll = select.poll()
        poll.register(self._alarm, select.POLLIN)
        for source, events in sources.values():
            if source.fileno() >= 0:  # else it was closed since, by another task
                poll.register(source, events)
        poll.poll(None if left is None else left + 1)
        if not self._is_driving:  # else it is what a thread hears that has yet to hand its wait over
            self._alarm.quiet()

    def _take(self, work: Work) -> None:
        self._queue.append(work)
        if work._until is not None:
            self._note_deadline(work)

    def _watch(self, work: Work) -> None:
        """It was begun before there was a progress thread."""
        operation = work._operation
        if operation is not None:
            self._unsettled += 1
            operation.tell(partial(self._ended.append, work))
            if work._until is not None:
                self._note_deadline(work)

    def _settle_ended(self) -> None:
        while self._ended:
            self._ended.popleft().settle()
            self._unsettled -= 1

    def _begin(self, work: Work) -> None:
        self._queued -= 1
        try:
            if self.channel.failure is not None:
                raise again(self.channel.failure)
            work.begin()
        except JobError as error:
            work.refuse(error)
        except BaseException as fault:  # noqa: BLE001  whatever it is, the works are told
            # The others may have begun it: without it, numbers of operations would not agree any more.
            why = JobError(f"{self.channel.who}: all-reduce {work._op_index} could not begin: {fault!r}")
            self._fail(why)
            work.refuse(why)
        else:
            assert work._operation is not None
            self._unsettled += 1
            work._operation.tell(partial(self._ended.append, work))

    def _note_deadline(self, work: Work) -> None:
        assert work._until is not None
        heapq.heappush(self._deadlines, (work._until, next(self._numbers), weakref.ref(work)))
        if len(self._deadlines) > self._deadlines_max:
            kept = [each for each in self._deadlines if _is_under_way(each[2]())]
            heapq.heapify(kept)
            self._deadlines = kept
            self._deadlines_max = max(DEADLINES_MIN, 2 * len(kept))

    def _next_deadline(self) -> float | None:
        """The earliest one; the works whose time is over are asked after."""
        while self._deadlines:
            until, _, reference = self._deadlines[0]
            work = reference()
            if work is not None and _is_under_way(work):
                if self._clock() < until:
                    return until
                self._tasks.append(_Task(_expiring(work)))
                self._alarm.ring()
            heapq.heappop(self._deadlines)
        return None

    def _give_up(self, task: _Task[Any]) -> None:
        if task in self._tasks:
            self._tasks.remove(task)
            task.steps.close()

    def _fail(self, error: JobError) -> None:
        channel = self.channel
        if isinstance(channel, ParallelRings):
            channel.fail(error)
        elif channel.failure is None:
            channel.leave(str(error))
            channel.end_all(error)
            channel.close()

    def _end_all(self) -> None:
        """What is left when the thread ends; nothing, if the channel is open: the interpreter ends."""
        while self._orders:
            self._orders.popleft()()
        failure = self.channel.failure
        if failure is None:
            return
        if self.in_place is not None and self.in_place.has_called:
            self.in_place.step()  # which ends all that was called
        while self._queue:
            self._begin(self._queue.popleft())
        self._settle_ended()
        while self._tasks:
            task = self._tasks.pop()
            task.steps.close()
            task.end(None, again(failure))


def _is_under_way(work: Work | None) -> bool:
    return work is not None and not work._has_ended


def _expiring(work: Work) -> Steps[None]:
    late = yield from work._explaining(work._timeout)
    if late is not None:
        work.expire(late)  # unless it has ended


_RUNNING: weakref.WeakSet[Engine] = weakref.WeakSet()
"""Those that have progress threads."""


def _end_at_exit() -> None:
    for engine in list(_RUNNING):
        engine.end_at_exit()
    COMPLETIONS.drain(EXIT_S)


def _forget_in_child() -> None:
    _RUNNING.clear()


atexit.register(_end_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)
