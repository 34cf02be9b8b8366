"""How fast an aggregation tree goes whose adders are what limits it (PARING section III), in virtual time.

Every rank sends segments, one after the other, at most ``cap`` Gbit/s. An adder serves what comes to it, from
ranks and from adders below, one segment at a time, earlier rounds first, each for as long as its capacity
needs; when it has served a round's segment of all its inputs, their sum goes up at once. At the root a
round is done, all ranks have its result, and each may send the segment ``window`` rounds later: as many are
under way as a host keeps by its window of messages. Links take no time, as in the paper's model; switches
that steer pass on.

Nothing here divides a capacity by a load. The rate is read off when it has become steady: rounds done by the
time that they took, over a whole period of the run. It is steady if the times between rounds repeat over all
of the run's second half, several times; else the run goes on until it is twice as long. Capacities that are
nearly alike take long to fall in step: of 999 and 1000 Gbit/s one gains a round on the other in a thousand.

Times are integers: multiples of the tick of which all services are a whole number. So two runs agree, and a
rate is a fraction, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import islice, pairwise
from math import lcm
from typing import Final, NamedTuple

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.errors import InvariantBroken, LocalMisuse, Unsupported

WINDOW: Final = 64
_WINDOWS: Final = 40
"""Windows that a run has at least."""
ROUNDS_MAX: Final = 1 << 17
"""Most rounds of a run that does not become steady."""
_REPEATS: Final = 3
"""Repeats of a period, in the second half of a run."""
_SERVED: Final = -1


class Adder(NamedTuple):
    capacity: Fraction | None
    """Gbit/s that it adds up, of all inputs together; None: it takes no time."""
    free: int = 0
    """How many of its inputs, the first ones, are served in no time."""


@dataclass(frozen=True, slots=True)
class SteadyRate:
    rate: Fraction
    """Gbit/s of each rank."""
    period: int
    """Rounds after which the times between rounds repeat."""
    rounds: int
    """Rounds of the run, the time before it was steady included."""


def steady_rate(
    root: TreeSwitch,
    adders: Mapping[str, Adder],
    cap: Fraction,
    *,
    window: int = WINDOW,
    rounds_max: int = ROUNDS_MAX,
) -> SteadyRate:
    """``adders``: of every switch that aggregates. Raises ``LocalMisuse`` for one that cannot add, and
    ``Unsupported`` where the rate has not become steady in ``rounds_max`` rounds."""
    if cap <= 0 or window < 1:
        raise LocalMisuse(f"a rate of {cap} Gbit/s, a window of {window}: both are more than 0")
    engine = _Engine(root, adders, cap, window)
    coming = engine.rounds_done()
    done: list[int] = []
    while len(done) < rounds_max:
        done += islice(coming, min(rounds_max - len(done), max(len(done), window * _WINDOWS)))
        gaps = [after - before for before, after in pairwise(done)]
        period = period_of(gaps[len(gaps) // 2 :])
        if period:
            took = done[-1] - done[-1 - period]
            return SteadyRate(Fraction(period * engine.ticks, took), period, len(done))
    raise Unsupported(
        "a steady rate",
        f"{len(done)} rounds of a tree of {len(adders)} adders: some are nearly alike, but not quite",
    )


def period_of(gaps: Sequence[int]) -> int:
    """After which they repeat, ``_REPEATS`` times at least; 0: they do not."""
    for period in range(1, len(gaps) // _REPEATS + 1):
        is_likely = gaps[-1] == gaps[-1 - period] and gaps[period : 2 * period] == gaps[:period]
        if is_likely and gaps[period:] == gaps[:-period]:
            return period
    return 0


class _Engine:
    """A segment is a gigabit: it takes an adder 1 / capacity seconds."""

    def __init__(self, root: TreeSwitch, adders: Mapping[str, Adder], cap: Fraction, window: int) -> None:
        self._window = window
        self._ranks = root.ranks
        self._parent: list[tuple[int, int]] = []
        """The adder above each, and which of its inputs it is; the root is its own."""
        self._inputs: list[int] = []
        self._at: dict[int, tuple[int, int]] = {}
        """The adder of each rank, and which of its inputs it is."""
        found: list[Adder] = []
        self._lay(root, adders, found)
        times = [1 / cap, *(1 / one.capacity for one in found if one.capacity is not None)]
        self.ticks = lcm(*(time.denominator for time in times))
        """A second."""
        self._sending = int(self.ticks / cap)
        self._service = [0 if one.capacity is None else int(self.ticks / one.capacity) for one in found]
        self._free_inputs = [one.free for one in found]
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in found]
        """At each adder: (round, input) of the segments that have come."""
        self._is_busy = [False] * len(found)
        self._missing: dict[tuple[int, int], int] = {}
        """Inputs that have not been served, by adder and round."""
        self._heap: list[tuple[int, int, int, int, int]] = []
        """(when, serial, adder, input, round): a segment comes, or has been served."""
        self._serial = 0

    def _lay(self, root: TreeSwitch, adders: Mapping[str, Adder], found: list[Adder]) -> None:
        ahead = [(root, 0, 0)]
        while ahead:
            switch, parent, place = ahead.pop()
            adder = adders.get(switch.name)
            if adder is None or (adder.capacity is not None and adder.capacity <= 0):
                raise LocalMisuse(f"{switch.name} is to add up, but has no capacity for it")
            number = len(found)
            found.append(adder)
            self._parent.append((parent, place))
            inputs = list(_inputs(switch))
            self._inputs.append(len(inputs))
            for one, child in enumerate(inputs):
                if isinstance(child, int):
                    self._at[child] = number, one
                else:
                    ahead.append((child, number, one))

    def rounds_done(self) -> Iterator[int]:
        """When each was done at the root, in ticks; without end."""
        heap = self._heap
        sent_at = dict.fromkeys(self._ranks, 0)

        def send(number: int, now: int) -> None:
            for rank in self._ranks:
                sent_at[rank] = ends = max(now, sent_at[rank]) + self._sending
                self._push(ends, *self._at[rank], number)

        for number in range(self._window):
            send(number, 0)
        while heap:
            now, _, adder, place, number = heappop(heap)
            if place >= 0:
                heappush(self._waiting[adder], (number, place))
                if not self._is_busy[adder]:
                    self._serve(adder, now)
                continue
            self._is_busy[adder] = False
            self._serve(adder, now)
            left = self._missing.get((adder, number), self._inputs[adder]) - 1
            self._missing[adder, number] = left
            if left:
                continue
            del self._missing[adder, number]
            if adder:
                self._push(now, *self._parent[adder], number)
            else:
                yield now
                send(number + self._window, now)
        raise InvariantBroken("a tree has come to a stand: no segment is under way")

    def _push(self, when: int, adder: int, place: int, number: int) -> None:
        self._serial += 1
        heappush(self._heap, (when, self._serial, adder, place, number))

    def _serve(self, adder: int, now: int) -> None:
        """The next that waits, if any."""
        if self._waiting[adder]:
            number, place = heappop(self._waiting[adder])
            service = 0 if place < self._free_inputs[adder] else self._service[adder]
            self._is_busy[adder] = True
            self._push(now + service, adder, _SERVED, number)


def _inputs(switch: TreeSwitch) -> Iterator[TreeSwitch | int]:
    """Those of a switch that steers are inputs of the one above it."""
    for child in switch.children:
        if isinstance(child, int) or child.aggregates:
            yield child
        else:
            yield from _inputs(child)
