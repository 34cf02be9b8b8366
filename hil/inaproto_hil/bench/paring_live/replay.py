"""The same arrivals without daemons: who would have got which hosts and which tree by another planner.

As a controller does, in the order of arrival: who does not fit holds up those behind it, and who fits and has
no tree has hosts all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.live_tree import LivePlace, LiveTree
from inaproto_controller.planning.paring.live_trees import LiveTrees
from inaproto_hil.bench.paring_live.drawn import Arrival


@dataclass
class Tally:
    """What became of jobs: with a tree, at which rate, over how many links for each gradient byte."""

    jobs: int = 0
    rates: list[Fraction] = field(default_factory=list)
    links: list[int] = field(default_factory=list)

    def add(self, tree: LiveTree | None) -> None:
        self.jobs += 1
        if tree is not None:
            self.rates.append(tree.rate)
            self.links.append(tree.links)

    @property
    def admitted(self) -> float | None:
        """Share of jobs with a tree."""
        return len(self.rates) / self.jobs if self.jobs else None

    @property
    def rate(self) -> float | None:
        """Mean of those that have one, Gbit/s."""
        return float(sum(self.rates) / len(self.rates)) if self.rates else None

    @property
    def links_each(self) -> float | None:
        return sum(self.links) / len(self.links) if self.links else None


class Turnover:
    """Who comes when, and who leaves: the same for daemons and for a replay.

    Each item of ``steps`` is the jobs that leave, then the one that comes (None: no more come). Whoever plays
    says by ``placed`` that a job has hosts: it leaves after its time.
    """

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals = arrivals
        self._leaves: dict[str, int] = {}
        self._now = 0

    def placed(self, job: Arrival) -> None:
        self._leaves[job.name] = self._now + job.stays

    def steps(self) -> Iterator[tuple[list[str], Arrival | None]]:
        coming = deque(self._arrivals)
        while coming or self._leaves:
            leaving = [name for name, at in self._leaves.items() if at <= self._now]
            for name in leaving:
                del self._leaves[name]
            yield leaving, coming.popleft() if coming else None
            self._now += 1


def replayed(
    live: LiveTrees, hosts: Sequence[str], arrivals: Sequence[Arrival], *, is_joint: bool = True
) -> Iterator[tuple[Arrival, LiveTree | None]]:
    """Each job that gets hosts, and its tree if there is one. ``is_joint``: else it gets the first hosts that
    are free, and then a tree for these."""
    turnover = Turnover(arrivals)
    running: dict[str, LivePlace] = {}
    bare: dict[str, tuple[str, ...]] = {}
    waiting: deque[Arrival] = deque()

    def those_that_fit() -> Iterator[tuple[Arrival, LiveTree | None]]:
        while waiting:
            taken = {host for place in running.values() for host in place.hosts}.union(*bare.values())
            idle = [host for host in hosts if host not in taken]
            if len(idle) < waiting[0].hosts:
                return
            job = waiting.popleft()
            turnover.placed(job)
            found = _place(live, idle, job.hosts, [one.tree for one in running.values()], is_joint)
            if isinstance(found, Infeasible):
                bare[job.name] = tuple(idle[: job.hosts])
                yield job, None
            else:
                running[job.name] = found
                yield job, found.tree

    for leaving, coming in turnover.steps():
        for name in leaving:  # one after the other, and who fits then does not wait for the next one
            running.pop(name, None)
            bare.pop(name, None)
            yield from those_that_fit()
        waiting += [] if coming is None else [coming]
        yield from those_that_fit()


def _place(
    live: LiveTrees, idle: Sequence[str], count: int, taken: Iterable[LiveTree], is_joint: bool
) -> LivePlace | Infeasible:
    free, first = live.free(taken), idle[:count]
    if is_joint:
        return live.placed(count, idle, free, first)
    tree = live.planned(first, free)
    return tree if isinstance(tree, Infeasible) else LivePlace(tuple(first), tree)
