"""Where many tasks are done: in this process, in worker processes of this machine, or on a Ray cluster.

A worker process does one task after another for the process that made it, and never outlives that. It takes
no Ctrl-C, which a terminal sends to the whole process group: who hands out the work ends it in good order.
It ends when its pipe is closed, and in the middle of a task as soon as its parent is gone, whatever that
died of.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Final, Protocol, TypeVar

from inaproto.errors import ConfigError, InaprotoError, Unsupported

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_DIED: Final = "a worker process died without an answer; was it killed for want of memory? Try fewer --jobs"


class WorkerDied(InaprotoError):
    """A worker process ended without an answer; usually the system killed it for want of memory."""


class Engine(Protocol):
    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
        """Outcomes of the tasks, in the order in which they are done. Tasks are taken up as there is room."""
        ...


def open_engine(name: str, jobs: int) -> Engine:
    """``name``: local, in ``jobs`` processes, this one if that is one; or ray. Raises ``Unsupported``."""
    if name == "ray":
        return OnRay()
    return InProcess() if jobs == 1 else Local(jobs)


class InProcess:
    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
        for task in tasks:
            yield work(task)


class Local:
    """``jobs`` processes, each fresh: no state of this one gets into them.

    They end with this process, however it ends, and when the outcomes are no longer asked for. What work
    raises is ``ConfigError`` here too, for an ``OSError`` ``InaprotoError``, else ``RuntimeError``.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
        """Raises ``WorkerDied``, too."""
        workers: list[_Worker] = []
        try:
            yield from self._shared_out(work, iter(tasks), workers)
        finally:
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.join()

    def _shared_out(
        self, work: Callable[[Task], Outcome], tasks: Iterator[Task], workers: list[_Worker]
    ) -> Iterator[Outcome]:
        """One task after another to each worker, all of which are added to ``workers``."""
        busy: dict[Any, _Worker] = {}
        for task in tasks:
            with _signals_held_back():
                worker = _Worker()
                workers.append(worker)
            worker.ask(work, task)
            busy[worker.channel] = worker
            if len(workers) == self._jobs:
                break
        while busy:
            for channel in wait(list(busy)):
                worker = busy.pop(channel)
                outcome: Outcome = worker.answer()
                for task in tasks:
                    worker.ask(work, task)
                    busy[channel] = worker
                    break
                yield outcome


class OnRay:
    """A Ray cluster with inaproto installed on every node: that of ``RAY_ADDRESS``, else this machine.

    Errors are those of ``Local``. What ran on a node that is lost runs again on another.
    """

    def __init__(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers who uses it
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise Unsupported("engine ray", "Ray is not installed: pip install 'inaproto[ray]'") from None
        self._ray = ray
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        self._in_flight = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
        """Raises ``WorkerDied``, too."""
        ray = self._ray
        remote = ray.remote(work)
        flying: list[Any] = []
        try:
            for task in tasks:
                flying.append(remote.remote(task))
                if len(flying) >= self._in_flight:
                    yield from self._done(flying)
            while flying:
                yield from self._done(flying)
        finally:
            for one in flying:
                ray.cancel(one, force=True)

    def _done(self, flying: list[Any]) -> list[Any]:
        """Outcomes of some that have ended, which are in flight no more."""
        ray = self._ray
        done, flying[:] = ray.wait(flying)
        try:
            found: list[Any] = ray.get(done)
        except ray.exceptions.RayTaskError as error:
            kind, text = _told(error.cause, str(error))
            raise kind(text) from None
        except ray.exceptions.RayError as error:
            raise WorkerDied(f"a node of the Ray cluster gave no answer: {error}") from None
        return found


# --- a worker process, as seen by the one that makes it


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        resource_tracker.ensure_running()  # else it would be started next, and let the signal through
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited until it is ignored
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def ask(self, work: Callable[[Task], Any], task: Task) -> None:
        try:
            self.channel.send((work, task))
        except OSError:
            raise WorkerDied(_DIED) from None

    def answer(self) -> Any:
        """The answer of the task, once ``channel`` can be read."""
        try:
            kind, answer = self.channel.recv()
        except (EOFError, OSError):
            raise WorkerDied(_DIED) from None
        if kind is not None:
            raise kind(answer)
        return answer

    def kill(self) -> None:
        self._process.kill()

    def join(self) -> None:
        self._process.join()
        self.channel.close()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """A signal whose handler would raise in the middle of this does so behind it.

    Not by a mask alone: a library's thread may take the signal, and this one run the handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    try:
        with ExitStack() as restored:
            for each in _SIGNALS:
                restored.callback(signal.signal, each, signal.getsignal(each))
            for each in _SIGNALS:
                signal.signal(each, hold)
            yield
    finally:
        for number in held:  # each: what the second one does may be something else
            signal.raise_signal(number)


# --- and in itself


def _serve(channel: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            work, task = channel.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, Any] = None, work(task)
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised in the parent
            answer = _told(error, traceback.format_exc())
        channel.send(answer)


def _told(error: BaseException, trace: str) -> tuple[type[Exception], str]:
    """What is raised where the outcome is asked for."""
    if isinstance(error, ConfigError):
        return ConfigError, str(error)
    if isinstance(error, OSError):
        return InaprotoError, str(error)
    return RuntimeError, f"in a worker process:\n{trace}"


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
