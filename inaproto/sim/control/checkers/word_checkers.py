"""What coordinators and seats promise each other, checked by what they say and hear (docs/protocol.md 15).

Whoever breaks such a promise often goes unpunished: the harm shows only if something else befalls the world
at the same time. So these checkers look at each word when it is said or heard, and keep accounts of their
own: of votes, decisions and turns, as a seat that has heard the same has to have them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inaproto.core.sharing.events import Path
from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.control.words import PeerSays, SeatSays, ToSeat
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.messages.sharing import (
    NO_VERSION,
    Abort,
    AskPeer,
    Commit,
    Decision,
    Done,
    Drained,
    EndTurn,
    Prepare,
    Refusal,
    Rule,
    Seat,
    TellPeerDecision,
    Version,
    Vote,
)
from inaproto.wire.messages.slots import Lease

if TYPE_CHECKING:
    from inaproto.sim.control.seat import SimSeat
    from inaproto.sim.control.world import ControlWorld


def _is_there(world: ControlWorld, seat: Seat) -> bool:
    """Whether its host takes in what it is told."""
    here = world.host_named(seat.host).seats.get(seat.job)
    return here is not None and here.id == seat


@dataclass(slots=True)
class _Round:
    """As its words have it."""

    prepare: Prepare
    votes: dict[Seat, Vote] = field(default_factory=dict)
    decision: Decision | None = None
    done: dict[Seat, None] = field(default_factory=dict)
    renounced: dict[Seat, None] = field(default_factory=dict)
    """Who has said never to vote on it."""


class DecisionsKept(ControlChecker):
    """A decision is what all votes come to, is on disk before it is said, and stays what it is."""

    name = "a decision is kept"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._rounds: dict[tuple[Seat, Version], _Round] = {}
        """Rounds by each seat that was asked."""
        self._granted: dict[tuple[Seat, int], None] = {}
        """Seats and epochs of turns."""
        self._turns: dict[str, dict[int, tuple[Seat, ...]]] = {}
        """Seats of turns by their epochs, by group."""
        self._drained: dict[Seat, int] = {}
        """Up to which epoch each seat has said so, or was given up."""
        self._ended: dict[tuple[str, int], Version] = {}
        """The round that has ended each turn, by group and epoch."""
        self._given_up: dict[Seat, Version] = {}
        """Up to which round: it may be told anything of these."""

    def given_up(self, seat: Seat, epoch: int, version: Version) -> None:
        self._drained[seat] = max(epoch, self._drained.get(seat, 0))
        self._given_up[seat] = version

    def said(self, message: Any) -> None:
        match message:
            case ToSeat(seat, Prepare() as prepare):
                self._asked(seat, prepare)
            case ToSeat(seat, Commit(_, _, version, decision)):
                self._committed(self._rounds[seat, version], version, decision)
            case SeatSays(_, Vote() as vote):
                self._voted(self._rounds[vote.seat, vote.version], vote)
            case SeatSays(_, Refusal(seat, version)):
                self._renounce(seat, version)
            case SeatSays(_, Done(seat, version)):
                self._rounds[seat, version].done[seat] = None
            case SeatSays(_, Drained(seat, epoch)):
                self._drained[seat] = max(epoch, self._drained.get(seat, 0))
            case PeerSays(to, sender, TellPeerDecision(_, _, version, decision)):
                self._told_by_peer(to, sender, version, decision)
            case _:
                pass

    def heard(self, message: Any) -> None:
        if isinstance(message, ToSeat) and isinstance(message.message, Abort):
            self._must_not_be_committed(message.seat, message.message.version, "the coordinator")

    def sample(self) -> None:
        """Between rounds all have done what is on disk."""
        controller = self.world.controller
        for group in controller.groups if controller.is_up and controller.is_ready else ():
            record = self.world.store.disk.get(group.name)
            if record is None or group.view().phase not in _BETWEEN:
                continue
            for seat in record.told:
                round_ = self._rounds.get((seat, record.version))
                is_late = record.version <= self._given_up.get(seat, NO_VERSION)
                if round_ is None or is_late or seat in round_.done:
                    continue
                if _is_there(self.world, seat):
                    raise Violated(self.name, f"{seat} was not heard to have done {record.version}")

    def _asked(self, seat: Seat, prepare: Prepare) -> None:
        if (seat, prepare.version) in self._rounds:
            raise Violated(self.name, f"{prepare.version} is the version of two rounds")
        of_others = self._rounds.get((prepare.peers[0], prepare.version))
        self._rounds[seat, prepare.version] = of_others or _Round(prepare)

    def _voted(self, round_: _Round, vote: Vote) -> None:
        if vote.seat in round_.renounced:
            raise Violated(self.name, f"{vote.seat} votes on {vote.version}, and had promised not to")
        if round_.votes.setdefault(vote.seat, vote) != vote:
            raise Violated(self.name, f"{vote.seat} votes {round_.votes[vote.seat]}, and then {vote}")

    def _renounce(self, seat: Seat, version: Version) -> None:
        round_ = self._rounds.get((seat, version))
        if round_ is not None and seat not in round_.votes:
            round_.renounced[seat] = None

    def _told_by_peer(self, to: Seat, sender: Seat, version: Version, decision: Decision | None) -> None:
        self._renounce(sender, version)
        if decision is None:
            self._must_not_be_committed(to, version, str(sender))
        elif decision != self._rounds[to, version].decision:
            raise Violated(self.name, f"{sender} says that {version} is {decision}")

    def _must_not_be_committed(self, seat: Seat, version: Version, who: str) -> None:
        round_ = self._rounds.get((seat, version))
        is_committed = round_ is not None and round_.decision is not None and seat not in round_.done
        is_given_up = version <= self._given_up.get(seat, NO_VERSION)
        if is_committed and not is_given_up and _is_there(self.world, seat):
            raise Violated(self.name, f"{who} tells {seat} that {version} was aborted, and it was committed")

    def _committed(self, round_: _Round, version: Version, decision: Decision) -> None:
        if round_.decision is None:
            self._check(round_, version, decision)
            round_.decision = decision
        if round_.decision != decision:
            raise Violated(self.name, f"{version} is {round_.decision}, and then {decision}")

    def _check(self, round_: _Round, version: Version, decision: Decision) -> None:
        """It is said for the first time."""
        disk = self.world.store.disk.items()
        records = {name: record for name, record in disk if name.startswith("sharing/")}
        groups = [name for name, one in records.items() if (one.version, one.decision) == (version, decision)]
        if not groups:
            raise Violated(self.name, f"{version} is said, and not on disk: {decision}")
        prepare = round_.prepare
        missing = [seat for seat in prepare.peers if seat not in round_.votes]
        if missing:
            raise Violated(self.name, f"{version} is committed, and {missing} have not voted")
        said = (None if decision.granted is None else decision.granted.job, decision.ended)
        if said != (prepare.granted, prepare.ended):
            raise Violated(self.name, f"{version} is {decision}, and was to be {prepare}")
        self._look_at_indices(round_, decision)
        if decision.ended is not None:
            self._ended |= {(group, decision.ended): version for group in groups}
        if decision.granted is not None:
            seats = tuple(seat for seat in prepare.peers if seat.job == decision.granted.job)
            for seat in seats:
                self._granted[seat, decision.granted.epoch] = None
            group = next(name for name in groups if set(seats) <= set(records[name].told))
            self._look_at_epoch(group, decision.granted.epoch, decision.ended, seats)

    def _look_at_epoch(self, group: str, epoch: int, ended: int | None, seats: tuple[Seat, ...]) -> None:
        """It is higher than all before, and in another place of the pool than turns that stand."""
        turns = self._turns.setdefault(group, {})
        newest = max(turns, default=0)
        if epoch <= newest:
            raise Violated(self.name, f"{group}: a turn has epoch {epoch}, after {newest}")
        capacity = self.world.config.pools[int(group.removeprefix("sharing/"))]
        for other, of in turns.items():
            if other != ended and other % capacity == epoch % capacity and self._stands(group, other, of):
                raise Violated(self.name, f"{group}: turns {epoch} and {other} have one place of {capacity}")
        self._turns[group] = {
            other: of for other, of in turns.items() if other == newest or self._stands(group, other, of)
        } | {epoch: seats}

    def _stands(self, group: str, epoch: int, seats: tuple[Seat, ...]) -> bool:
        """Somebody may use it: a seat that is there has not said that it has drained.

        One that was given up, for it did not say that it had done the round that ended the turn, is no such.
        """
        world = self.world
        ended = self._ended.get((group, epoch))
        return any(
            _is_there(world, seat)
            and self._drained.get(seat, 0) < epoch
            and not world.jobs[seat.job].is_over
            and (ended is None or self._given_up.get(seat, NO_VERSION) < ended)
            for seat in seats
        )

    def _look_at_indices(self, round_: _Round, decision: Decision) -> None:
        prepare = round_.prepare
        is_equal = prepare.rule is Rule.EQUAL_INDEX
        indices: dict[str, list[int]] = {}
        for vote in round_.votes.values():
            indices.setdefault(vote.seat.job, []).append(vote.index)
        if is_equal and any(len(set(found)) > 1 for found in indices.values()):
            raise Violated(self.name, f"{prepare.version} is committed, and indices are {indices}")
        margin = 0 if is_equal else prepare.margin
        granted, operations = decision.granted, self.world.config.turn_operations
        if granted is not None:
            first = max(max(indices[granted.job]) + margin, prepare.first)
            expected: tuple[int, int | None]
            if self.world.config.ahead >= 0 and operations:
                expected = min(first, prepare.first + operations), prepare.first + operations
            else:
                expected = first, first + operations if operations else None
            if (granted.first, granted.until) != expected:
                raise Violated(self.name, f"{granted} is not {expected}, by {indices}")
        whose = next((seat.job for seat in prepare.peers if (seat, prepare.ended) in self._granted), None)
        if whose is not None and decision.until != max(indices[whose]) + margin:
            raise Violated(self.name, f"a turn ends by {decision}, and indices are {indices}")


_BETWEEN = ("idle", "preparing", "backing off")


@dataclass(slots=True)
class _Known:
    """What a seat has to know, by what it has heard and said."""

    term: int = 0
    decided: Version = NO_VERSION
    asked: dict[Version, Prepare] = field(default_factory=dict)
    open: tuple[Prepare, Vote] | None = None
    """It has voted, and has not heard what came of it."""
    turns: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """First operation and end of each turn, by epoch."""
    floor: int = 0
    """Epochs below are not to be used any more."""
    running: dict[int, int] = field(default_factory=dict)
    """Operations by the switches, with their epochs."""
    followed: set[int] = field(default_factory=set)
    """Operations that a peer in doubt runs by the fallback, as it has told: these it may run so, too."""

    def end(self, epoch: int, until: int) -> None:
        first, before = self.turns[epoch]
        self.turns[epoch] = first, until if before is None else min(before, until)

    def is_doubtful(self, index: int) -> bool:
        if self.open is None:
            return False
        prepare, vote = self.open
        return prepare.rule is Rule.EQUAL_INDEX or index >= max(vote.index + prepare.margin, prepare.first)

    def epoch_of(self, index: int) -> int | None:
        """The turn that the operation is in."""
        epoch = max(self.turns, default=-1)
        if epoch < self.floor:
            return None
        first, until = self.turns[epoch]
        return epoch if first <= index and (until is None or index < until) else None


class TurnsObeyed(ControlChecker):
    """A seat uses the pool in turns that it heard of, not in doubt, not once it has drained, and parks."""

    name = "turns are obeyed"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._known: dict[Seat, _Known] = {}
        self._free: dict[Seat, int] = {}
        """Seats that are to park, and since when nothing is in the way."""

    def _of(self, seat: Seat) -> _Known:
        return self._known.setdefault(seat, _Known())

    # --- words

    def said(self, message: Any) -> None:
        match message:
            case SeatSays(_, Vote() as vote):
                known = self._of(vote.seat)
                prepare = known.asked[vote.version]
                known.open = prepare, vote
                known.floor = max(known.floor, prepare.over_below)
            case SeatSays(_, Drained(seat, epoch)):
                known = self._of(seat)
                known.floor = max(known.floor, epoch + 1)
                if any(of <= epoch for of in known.running.values()):
                    raise Violated(self.name, f"{seat} says that {epoch} has drained: {known.running}")
            case _:
                pass

    def heard(self, message: Any) -> None:
        match message:
            case ToSeat(seat, word) if _is_there(self.world, seat):
                known = self._of(seat)
                if word.term >= known.term:
                    known.term = word.term
                    self._told(known, seat, word)
            case PeerSays(to, sender, AskPeer(fell_back=int(index))) if _is_there(self.world, to):
                if sender.job == to.job:
                    self._of(to).followed.add(index)
            case PeerSays(to, _, TellPeerDecision(_, _, version, decision)) if _is_there(self.world, to):
                known = self._of(to)
                if known.open is not None and known.open[1].version == version:
                    known.open = None
                    self._decided(known, to, version, decision)

    def _told(self, known: _Known, seat: Seat, word: Any) -> None:
        match word:
            case Prepare():
                known.asked[word.version] = word
            case Commit(_, _, version, decision) if version >= known.decided:
                if known.open is not None and known.open[1].version <= version:
                    known.open = None
                self._decided(known, seat, version, decision)
            case Abort(_, _, version) if known.open is not None and known.open[1].version == version:
                known.open = None
            case EndTurn(_, _, epoch, until) if epoch in known.turns and epoch >= known.floor:
                if until is not None:
                    known.end(epoch, until)
            case EndTurn(_, _, epoch, until) if until is not None:
                known.floor = max(known.floor, epoch + 1)

    def _decided(self, known: _Known, seat: Seat, version: Version, decision: Decision | None) -> None:
        if decision is None or version < known.decided:
            return
        known.decided = version
        if decision.ended in known.turns:
            known.end(decision.ended, decision.until)
        granted = decision.granted
        if granted is not None and granted.job == seat.job and granted.epoch >= known.floor:
            known.turns.setdefault(granted.epoch, (granted.first, granted.until))
            known.floor = max(known.floor, granted.epoch)

    # --- operations

    def began(self, seat: SimSeat, index: int, path: Path, epoch: int | None, lease: Lease | None) -> None:
        by = seat.undrained.get(index)
        if by is None:
            return
        known = self._of(by)
        expected = None if known.is_doubtful(index) else known.epoch_of(index)
        if epoch is not None:
            known.running[index] = epoch
        if epoch is None and index in known.followed:
            return
        if epoch != expected:
            doubt = f", {known.open} is open" if known.open is not None else ""
            raise Violated(
                self.name,
                f"{by} begins operation {index} under epoch {epoch}, not {expected}: it has heard of "
                f"{known.turns}, epochs below {known.floor} are over{doubt}",
            )

    def sample(self) -> None:
        """Who has come to the end of a turn has said so: the job may pause there."""
        for job in self.world.jobs.values():
            for seat in job.seats.values():
                if seat.id is not None and not seat.is_closed:
                    self._look_for_drained(seat.id, seat.operation + 1)
        before, self._free = self._free, {}
        for host in self.world.hosts:
            for seat in host.seats.values():
                if seat.id is not None and seat.is_to_park:
                    self._look_for_parked(seat.id, before)

    def _look_for_drained(self, seat: Seat, following: int) -> None:
        known = self._of(seat)
        epoch = max(known.turns, default=-1)
        if epoch < known.floor or any(of <= epoch for of in known.running.values()):
            return
        _, until = known.turns[epoch]
        if until is not None and until <= following:
            raise Violated(self.name, f"{seat} is at {following}, past turn {epoch}, and has not said so")

    def _look_for_parked(self, seat: Seat, before: dict[Seat, int]) -> None:
        """Who has no turn, owes no word and is owed none leaves at once."""
        known, now = self._of(seat), self.world.agenda.now
        if known.open is not None or known.running or max(known.turns, default=-1) >= known.floor:
            return
        self._free[seat] = before.get(seat, now)
        if now > self._free[seat]:
            raise Violated(self.name, f"{seat} is to park, nothing is in the way, and it has not parked")

    def drained(self, seat: SimSeat, index: int) -> None:
        by = seat.undrained.get(index, seat.id)
        if by is not None:
            self._of(by).running.pop(index, None)

    def seat_gone(self, seat: SimSeat) -> None:
        if seat.id is not None:
            self._known.pop(seat.id, None)
