"""Where blocks of seeds run: in this process, in worker processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from inaproto.errors import InaprotoError, Unsupported

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


class WorkerDied(InaprotoError):
    """A worker process ended without an answer; usually the system killed it for want of memory."""


class Engine(Protocol):
    def outcomes(self, work: Callable[[Task], Outcome], tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Of each task, in the order in which they are done. Tasks are taken up as there is room."""
        ...


class InProcess:
    def outcomes(self, work: Callable[[Task], Outcome], tasks: Iterable[Task]) -> Iterator[Outcome]:
        return map(work, tasks)


class Local:
    """``jobs`` processes, each fresh: no state of this one gets into a world."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def outcomes(self, work: Callable[[Task], Outcome], tasks: Iterable[Task]) -> Iterator[Outcome]:
        pool = ProcessPoolExecutor(
            self._jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_interrupts
        )
        flying: set[Future[Outcome]] = set()
        try:
            for task in tasks:
                flying.add(pool.submit(work, task))
                if len(flying) >= self._jobs + 2:  # enough to keep all busy, few to wait for after Ctrl-C
                    done, flying = wait(flying, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            while flying:
                done, flying = wait(flying, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            raise WorkerDied(
                "a worker process died without an answer; was it killed for want of memory? Try fewer --jobs"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C goes to the whole process group; the process that hands out the work ends it in good order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class OnRay:
    """A Ray cluster, which has inaproto installed on every node."""

    def __init__(self) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise Unsupported("engine ray", "Ray is not installed: pip install 'inaproto[ray]'") from None
        self._ray = ray
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        self._in_flight = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def outcomes(self, work: Callable[[Task], Outcome], tasks: Iterable[Task]) -> Iterator[Outcome]:
        ray = self._ray
        remote = ray.remote(work)
        flying: list[Any] = []
        for task in tasks:
            flying.append(remote.remote(task))
            if len(flying) >= self._in_flight:
                done, flying = ray.wait(flying)
                yield from ray.get(done)
        while flying:
            done, flying = ray.wait(flying)
            yield from ray.get(done)


def open_engine(name: str, jobs: int) -> Engine:
    """Raises ``Unsupported``."""
    if name == "ray":
        return OnRay()
    return InProcess() if jobs == 1 else Local(jobs)
