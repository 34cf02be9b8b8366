"""The turns of a pool that stand, and which of their seats have not drained: what the coordinator keeps.

Part of :mod:`inaproto.core.sharing.coordinator`. A turn stands from its commit until each of its seats has
drained, or is gone. Invariants: a job has at most one turn that is not fenced, and a pool at most
``capacity`` of these, no two in one place; a turn that is *fenced* (no switch takes anything of it any more)
takes no room. Epochs that would share a place are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from inaproto.core.sharing.events import Tell, TurnRecord, TurnStands, TurnView
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.sharing import AT_ONCE, EndTurn, Seat, Turn


@dataclass(slots=True)
class Standing:
    turn: Turn
    seats: tuple[Seat, ...]
    undrained: dict[Seat, None]
    told: OpIndex | None
    """The ``until`` of which its seats were told, at least once."""
    is_fenced: bool = False
    _known: tuple[Seat, ...] | None = None
    """Seats that were seen to be its own: the same tuple need not be compared again."""

    @property
    def is_open(self) -> bool:
        """It goes on until a round ends it."""
        return self.turn.until is None

    def is_of(self, seats: tuple[Seat, ...]) -> bool:
        """Whether these are its seats, in whatever order."""
        is_new = seats is not self._known and len(seats) == len(self.seats)
        if is_new and frozenset(seats) == frozenset(self.seats):
            self._known = seats
        return seats is self._known

    def shorten(self, until: OpIndex) -> None:
        if self.turn.until is None or until < self.turn.until:
            self.turn = replace(self.turn, until=until)


class StandingTurns:
    """In the order of their epochs."""

    def __init__(self, records: Iterable[TurnRecord]) -> None:
        self._all: list[Standing] = []
        for one in records:
            self.begin(one.turn, one.seats)

    def __iter__(self) -> Iterator[Standing]:
        return iter(tuple(self._all))

    @property
    def count(self) -> int:
        return len(self._all)

    @property
    def occupied(self) -> int:
        """Units of the pool."""
        return sum(not one.is_fenced for one in self._all)

    def of_job(self, job: JobId) -> Standing | None:
        """The one that takes room."""
        return next((one for one in self._all if one.turn.job == job and not one.is_fenced), None)

    def with_epoch(self, epoch: Epoch | None) -> Standing | None:
        return next((one for one in self._all if one.turn.epoch == epoch), None)

    def next_epoch(self, epoch: Epoch, capacity: int, ended: Standing | None) -> Epoch:
        """The first after ``epoch`` whose place at a switch, ``epoch mod capacity``, no turn has; but
        ``ended``, which is over by then. Asked when there is room."""
        taken = {one.turn.epoch % capacity for one in self._all if not one.is_fenced and one is not ended}
        found = epoch + 1
        while found % capacity in taken and len(taken) < capacity:
            found += 1
        return Epoch(found)

    def begin(self, turn: Turn, seats: tuple[Seat, ...]) -> None:
        """What is left of older turns of the job is forgotten: its seats gave them up when they voted."""
        self._all = [one for one in self._all if one.turn.job != turn.job]
        self._all.append(Standing(turn, seats, dict.fromkeys(seats), turn.until))

    def end(self, epoch: Epoch) -> None:
        self._all = [one for one in self._all if one.turn.epoch != epoch]

    def drained(self, seat: Seat, epoch: Epoch) -> None:
        """What the seat says. It has given up a turn that was open: the turn ends for all."""
        for one in self._all:
            if one.turn.job == seat.job and one.turn.epoch <= epoch and seat in one.undrained:
                del one.undrained[seat]
                if one.is_open:
                    one.shorten(AT_ONCE)

    def gone(self, seat: Seat) -> None:
        for one in self._all:
            one.undrained.pop(seat, None)

    def revoke(self, epoch: Epoch) -> None:
        standing = self.with_epoch(epoch)
        if standing is not None:
            standing.shorten(AT_ONCE)

    def fence(self, job: JobId, epoch: Epoch) -> list[Epoch]:
        """The turns that took room until now."""
        fenced = []
        for one in self._all:
            if one.turn.job == job and one.turn.epoch <= epoch and not one.is_fenced:
                one.is_fenced = True
                one.shorten(AT_ONCE)
                fenced.append(one.turn.epoch)
        return fenced

    def remove_drained(self) -> list[Epoch]:
        """Remove the turns all of whose seats have drained; those that took room."""
        over = [one for one in self._all if not one.undrained]
        self._all = [one for one in self._all if one.undrained]
        return [one.turn.epoch for one in over if not one.is_fenced]

    def records(self) -> tuple[TurnRecord, ...]:
        return tuple(TurnRecord(one.turn, one.seats) for one in self._all if not one.is_fenced)

    def view(self) -> tuple[TurnView, ...]:
        return tuple(TurnView(one.turn, tuple(one.undrained)) for one in self._all)


def stands(one: Standing) -> TurnStands:
    return TurnStands(one.turn.job, one.turn.epoch, one.turn.first, one.turn.until)


def end_for(one: Standing, seats: Iterable[Seat], term: int) -> list[Tell]:
    return [Tell(seat, EndTurn(seat, term, one.turn.epoch, one.turn.until)) for seat in seats]
