"""Clock vectors: how far each worker is (MLNet section 3.1; docs/protocol.md 18.1).

The clock of a worker is the number of updates that it has finished; update ``t`` lies between its clocks
``t - 1`` and ``t``. A vector that says ``worker: t`` of weights says that they contain its updates 1 to t,
each once, and none after.

Invariants: a :class:`Clocks` never changes; its workers are sorted, so that equal vectors are iterated and
printed alike. A worker that is not in it is not known to whoever made it, which is not the same as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NewType

from inaproto.wire.messages.fields import Integer, Many, Refused

WorkerId = NewType("WorkerId", int)
"""A worker of the model, 0 to W - 1."""

FOREVER: Final = 1 << 62
"""The clock of a worker that has left: nobody waits for it any more."""
REMOVED: Final = FOREVER + 1
"""The clock of one that was removed: nobody waits for it either, and nothing that it says counts any more."""
CLOCK_MAX: Final = (1 << 63) - 1
"""Largest clock that a message may say; those above are below it."""
NODES_MAX: Final = 1 << 15
"""Most nodes of a tree; half as many numbers as a message may have in one array."""
NAMED: Final[Mapping[int, str]] = {FOREVER: "forever", REMOVED: "removed"}


class Clocks:
    """An immutable vector, worker -> clock; hashable."""

    __slots__ = ("_by_worker", "_hash")

    def __init__(self, by_worker: Mapping[WorkerId, int] | Iterable[tuple[WorkerId, int]] = ()) -> None:
        self._by_worker: dict[WorkerId, int] = dict(sorted(dict(by_worker).items()))
        self._hash: int | None = None

    @classmethod
    def alike(cls, workers: Iterable[WorkerId], clock: int = 0) -> Clocks:
        """The vector in which all of ``workers`` are at ``clock``."""
        return cls((worker, clock) for worker in workers)

    def __getitem__(self, worker: WorkerId) -> int:
        """Raises ``KeyError`` for a worker that is not in it."""
        return self._by_worker[worker]

    def get(self, worker: WorkerId) -> int | None:
        return self._by_worker.get(worker)

    def __contains__(self, worker: object) -> bool:
        return worker in self._by_worker

    def __len__(self) -> int:
        return len(self._by_worker)

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._by_worker)

    def items(self) -> Iterator[tuple[WorkerId, int]]:
        """In the order of the workers."""
        return iter(self._by_worker.items())

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(self._by_worker)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Clocks) and self._by_worker == other._by_worker

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._by_worker.items()))
        return self._hash

    def __repr__(self) -> str:
        said = ", ".join(f"{w}: {NAMED.get(c, c)}" for w, c in self._by_worker.items())
        return f"Clocks({{{said}}})"

    def minimum(self, of: Iterable[WorkerId] | None = None) -> int:
        """The least clock, of those of the workers ``of`` that are in it; ``FOREVER`` if there is none.

        Of the root's vector this is the model's clock ``c_model`` (MLNet 3.1).
        """
        if of is None:
            return min(self._by_worker.values(), default=FOREVER)
        return min((self._by_worker[w] for w in of if w in self._by_worker), default=FOREVER)

    def covers(self, other: Clocks) -> bool:
        """Whether each worker of ``other`` is in this one, at its clock there or a later one."""
        mine = self._by_worker
        return all(worker in mine and mine[worker] >= clock for worker, clock in other.items())

    def restricted(self, to: Iterable[WorkerId]) -> Clocks:
        """The part of it that concerns the workers ``to``."""
        return Clocks((worker, self._by_worker[worker]) for worker in to if worker in self._by_worker)

    def with_(self, other: Clocks) -> Clocks:
        """This one, but of the workers in ``other`` their clocks there."""
        return Clocks({**self._by_worker, **other._by_worker})

    def joined(self, other: Clocks) -> Clocks:
        """The later clock of each worker in either."""
        joined = dict(self._by_worker)
        for worker, clock in other.items():
            joined[worker] = max(clock, joined.get(worker, clock))
        return Clocks(joined)


NO_CLOCKS: Final = Clocks()


@dataclass(frozen=True, slots=True)
class ClocksKind:
    """Kind of a field of clocks: pairs of a worker and its clock, each worker once."""

    pairs = Many(Many(Integer(0, CLOCK_MAX), 2), NODES_MAX)

    def take(self, value: Any) -> Clocks:
        found: dict[WorkerId, int] = {}
        for pair in self.pairs.take(value):
            if len(pair) != 2 or pair[0] in found:
                raise Refused(f"has clocks of which one is {pair}, or twice there")
            found[WorkerId(pair[0])] = pair[1]
        return Clocks(found)

    def give(self, value: Clocks) -> list[Any]:
        if not isinstance(value, Clocks):
            raise Refused(f"is {value!r:.60}, not clocks")
        return self.pairs.give(tuple(value.items()))


ClocksField = Annotated[Clocks, ClocksKind()]
