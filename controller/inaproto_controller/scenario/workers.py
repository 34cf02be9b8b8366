"""Simulations side by side: in this process, in worker processes of this machine, or on a Ray cluster.

A worker takes no Ctrl-C, which a terminal sends to the whole process group: who hands out the work ends it.
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
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TypeVar

from inaproto.errors import ConfigError, InaprotoError, Unsupported

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
Work = Callable[[Task], Outcome]
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_DIED: Final = "a worker process died without an answer; was it killed for want of memory? Try fewer --jobs"


def outcomes(
    engine: str, jobs: int, work: Callable[[Task], Outcome], tasks: Iterable[Task]
) -> Generator[Outcome, None, None]:
    """Of each task, in the order in which they are done. ``engine``: local or ray.

    Raises what the work raised, and ``Unsupported`` without Ray. Workers are ended when nobody asks any more.
    """
    if engine == "ray":
        return _on_ray(work, tasks)
    return _in_process(work, tasks) if jobs == 1 else _local(jobs, work, tasks)


def _in_process(work: Callable[[Task], Outcome], tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
    for task in tasks:
        yield work(task)


def _local(
    jobs: int, work: Callable[[Task], Outcome], tasks: Iterable[Task]
) -> Generator[Outcome, None, None]:
    workers: list[_Worker] = []
    try:
        yield from _shared_out(work, iter(tasks), workers, jobs)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()


def _shared_out(
    work: Callable[[Task], Outcome], tasks: Iterator[Task], workers: list[_Worker], jobs: int
) -> Iterator[Outcome]:
    """One task after another to each of ``jobs`` workers, which are added to ``workers``."""
    busy: dict[Any, _Worker] = {}
    for task in tasks:
        with _held_back():
            worker = _Worker()
            workers.append(worker)
        worker.ask(work, task)
        busy[worker.channel] = worker
        if len(workers) == jobs:
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


@contextmanager
def _held_back() -> Iterator[None]:
    """A signal that would raise in the middle of this does so behind it.

    Not by a mask alone: a library's thread may take the signal, and this one run the handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before: list[Any] = [signal.signal(each, lambda number, _: held.append(number)) for each in _SIGNALS]
    try:
        yield
    finally:
        for each, was in zip(_SIGNALS, before, strict=True):
            signal.signal(each, was)
        if held:
            signal.raise_signal(held[0])


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
            raise InaprotoError(_DIED) from None

    def answer(self) -> Any:
        """Once ``channel`` can be read."""
        try:
            kind, answer = self.channel.recv()
        except (EOFError, OSError):
            raise InaprotoError(_DIED) from None
        if kind is not None:
            raise kind(answer)
        return answer

    def kill(self) -> None:
        self._process.kill()

    def join(self) -> None:
        self._process.join()
        self.channel.close()


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
        except ConfigError as error:
            answer = ConfigError, str(error)
        except Exception:  # noqa: BLE001  whatever it is, it is raised in the parent
            answer = RuntimeError, f"in a worker process:\n{traceback.format_exc()}"
        channel.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _on_ray(work: Callable[[Task], Outcome], tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
    """A Ray cluster, which has inaproto installed on every node."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise Unsupported("engine ray", "Ray is not installed: pip install 'inaproto[ray]'") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    in_flight = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    remote = ray.remote(work)
    flying: list[Any] = []
    for task in tasks:
        flying.append(remote.remote(task))
        if len(flying) >= in_flight:
            done, flying = ray.wait(flying)
            yield from ray.get(done)
    while flying:
        done, flying = ray.wait(flying)
        yield from ray.get(done)
