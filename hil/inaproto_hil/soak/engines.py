"""Where blocks of seeds run: in this process, in worker processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from inaproto.errors import Unsupported
from inaproto_hil.soak.worker import Worker

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


class Engine(Protocol):
    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
        """Of each task, in the order in which they are done. Tasks are taken up as there is room."""
        ...


class InProcess:
    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
        for task in tasks:
            yield work(task)


class Local:
    """``jobs`` processes, each fresh: no state of this one gets into a world.

    They end with this process, however it ends, and when the outcomes are no longer asked for.
    """

    def __init__(self, jobs: int, compiled: Path | None = None) -> None:
        """``compiled``: folder of the compiled copy that they are to run instead of the source."""
        self._jobs = jobs
        self._compiled = compiled

    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
        workers: list[Worker] = []
        try:
            yield from _shared_out(work, iter(tasks), workers, self._jobs, self._compiled)
        finally:
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.join()


def _shared_out(
    work: Callable[[Task], Outcome],
    tasks: Iterator[Task],
    workers: list[Worker],
    jobs: int,
    compiled: Path | None,
) -> Iterator[Outcome]:
    """One task after another to each of ``jobs`` workers, which are added to ``workers``."""
    busy: dict[Any, Worker] = {}
    for task in tasks:
        worker = Worker(compiled)
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

    def outcomes(
        self, work: Callable[[Task], Outcome], tasks: Iterable[Task]
    ) -> Generator[Outcome, None, None]:
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


def open_engine(name: str, jobs: int, compiled: Path | None = None) -> Engine:
    """``compiled`` is for worker processes. Raises ``Unsupported``."""
    if name == "ray":
        return OnRay()
    return InProcess() if jobs == 1 and compiled is None else Local(jobs, compiled)
