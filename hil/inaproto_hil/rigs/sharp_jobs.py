"""Jobs that are summed by SHARP where they can be: one rank at each of their hosts, step by step.

Tensors are whole numbers, so a sum has the same bytes in any order of additions: each result is compared
with numpy's. What ranks see of paths is kept beside what daemons tell of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import trio

import inaproto
from inaproto.errors import JobError, OperationTimeout
from inaproto_hil.rigs.sharp_cluster import SharpCluster

PATH: Final = "sharp"
THINKS_S: Final = 0.002
"""Between two all-reduces, as a training would."""
AWAIT_S: Final = 600.0
"""One that has not ended by then hangs: far above every deadline of the daemons."""


class Seen(NamedTuple):
    """An all-reduce as rank 0 saw it. ``at``: when it began, on Trio's clock."""

    at: float
    seconds: float
    path: str


@dataclass
class Told:
    """What the daemon of rank 0 has told of a job."""

    taken: int = 0
    redone: Counter[str] = field(default_factory=Counter)
    without: int = 0

    @property
    def fallbacks(self) -> int:
        """All-reduces that SHARP might have done and did not."""
        return self.redone.total() + self.without


class SharpJob:
    """``name`` runs at ``hosts``; ``token``: from the controller."""

    def __init__(
        self, cluster: SharpCluster, name: str, hosts: Sequence[int], token: str, *, elements: int = 16_384
    ) -> None:
        self.name, self.hosts = name, tuple(hosts)
        self._cluster, self._token, self._elements = cluster, token, elements
        self._joined: dict[int, inaproto.Communicator] = {}
        self._comms: list[inaproto.Communicator] = []
        self.seen: list[Seen] = []
        self.differs = 0
        """All-reduces whose results were not equal on all ranks, and numpy's."""
        self.failure: JobError | None = None
        self.hangs = 0
        self._is_held = self._is_over = False
        self._changed = trio.Event()
        self._is_idle = trio.Event()
        self.ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Join, and step until :meth:`finish`; an error of the job ends it, and is kept."""
        size = len(self.hosts)
        try:
            async with trio.open_nursery() as nursery:
                for rank in range(size):
                    nursery.start_soon(self._join, rank)
            self._comms = [self._joined[rank] for rank in range(size)]
            task_status.started()
            while await self._may_go_on():
                await self._step(len(self.seen))
                await trio.sleep(THINKS_S)
        except* JobError as failed:
            self.failure = _first(failed)
            self.hangs += isinstance(self.failure, OperationTimeout)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(AWAIT_S):
                for comm in self._joined.values():
                    await comm.aclose()
            self._is_idle.set()
            self.ended.set()

    async def _may_go_on(self) -> bool:
        """Now, or when it is held no more."""
        while self._is_held:
            self._is_idle.set()
            await self._changed.wait()
        return not self._is_over

    async def _join(self, rank: int) -> None:
        self._joined[rank] = await inaproto.connect(
            self.name,
            rank,
            size=len(self.hosts),
            socket=self._cluster.host_socket(self.hosts[rank]),
            key=self._token,
            exact_plan=False,
        )

    async def _step(self, index: int) -> None:
        base = (np.arange(self._elements, dtype=np.float32) + index) % 97
        began = trio.current_time()
        works = [comm.all_reduce(base + rank) for rank, comm in enumerate(self._comms)]
        results = [await work.wait(AWAIT_S) for work in works]
        size = len(self._comms)
        expected = (base * size + size * (size - 1) / 2).tobytes()
        self.differs += any(result.tobytes() != expected for result in results)
        paths = {str(comm.statistics().recent[-1].path) for comm in self._comms}
        self.differs += len(paths) > 1
        self.seen.append(Seen(began, trio.current_time() - began, min(paths)))

    # --- for who directs

    async def until(self, what: str, condition: Callable[[], bool], limit_s: float = 120.0) -> None:
        """Raises ``TimeoutError`` that says ``what``."""
        with trio.move_on_after(limit_s):
            while not condition():
                if self.failure is not None:
                    raise self.failure
                await trio.sleep(0.005)
            return
        raise TimeoutError(f"job {self.name}: {what}: not within {limit_s:g} s")

    async def until_by(self, path: str, *, steps: int = 20) -> None:
        """So many all-reduces have gone by that path, from now on."""
        first = len(self.seen)
        await self.until(
            f"{steps} all-reduces by {path}",
            lambda: sum(seen.path == path for seen in self.seen[first:]) >= steps,
        )

    async def until_not_by(self, path: str, *, steps: int = 1) -> None:
        first = len(self.seen)
        await self.until(
            f"{steps} all-reduces by another path than {path}",
            lambda: sum(seen.path != path for seen in self.seen[first:]) >= steps,
        )

    async def hold(self) -> None:
        """No all-reduce is under way when this returns."""
        if not self._is_held:
            self._is_idle, self._is_held = trio.Event(), True
        await self._is_idle.wait()

    def go_on(self) -> None:
        self._is_held = False
        self._changed.set()
        self._changed = trio.Event()

    def finish(self) -> None:
        """After the step under way."""
        self._is_over = True
        self.go_on()

    async def told(self) -> Told:
        """By the daemon of rank 0, while the job is there."""
        status = await trio.to_thread.run_sync(self._cluster.host_status, self.hosts[0])
        found = next((ring["collective"] for ring in status["rings"] if ring["job"] == self.name), None)
        return Told() if found is None else _told(found)


def _told(found: dict[str, Any]) -> Told:
    return Told(found["taken"], Counter(found["redone_by_code"]), found["without"])


def _first(group: BaseExceptionGroup[JobError]) -> JobError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, JobError)
    return error
