"""What coordinators and seats promise each other in control worlds, each promise broken by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inaproto.core.sharing.events import Path, SharingRecord
from inaproto.core.sharing.seat import SharingSeat
from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.control.checkers.checkers import LocksEnd
from inaproto.sim.control.checkers.word_checkers import DecisionsKept, TurnsObeyed
from inaproto.sim.control.seat import SimSeat
from inaproto.sim.control.words import PeerSays, SeatSays, ToSeat
from inaproto.sim.control.world import ControlWorld
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Epoch, Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import (
    AT_ONCE,
    Abort,
    Commit,
    CoordinatorMessage,
    Decision,
    Done,
    Drained,
    EndTurn,
    Prepare,
    Refusal,
    Rule,
    SeatMessage,
    TellPeerDecision,
    Turn,
    Version,
    Vote,
)
from inaproto.wire.messages.slots import Lease
from tests.sim.test_control_world import world

LEASE = Lease("job0", 0, 1)
FIRST = Version(1, 1)


class Words:
    """Two seats of a job, of which the world knows, and what is said to them and by them."""

    def __init__(self, checker: ControlChecker, rule: Rule = Rule.BY_INDEX, turn_operations: int = 4) -> None:
        self.world = ControlWorld(world(turn_operations=turn_operations), checkers=[checker])
        self.checker = checker
        self.rule = rule
        checker.begin(self.world)
        self.sim = [self._seat(number) for number in range(2)]
        self.seats = tuple(seat.id for seat in self.sim if seat.id is not None)

    def _seat(self, number: int) -> SimSeat:
        host, job = self.world.hosts[number], self.world.jobs["job0"]
        host.is_up = True
        seat = host.seats[job.name] = job.seats[number] = SimSeat(host, job)
        seat.take(LEASE)
        return seat

    def tell(self, number: int, word: CoordinatorMessage) -> None:
        said = ToSeat(self.seats[number], word)
        self.checker.said(said)
        self.checker.heard(said)

    def answer(self, word: SeatMessage) -> None:
        self.checker.said(SeatSays(0, word))

    def peer(self, to: int, sender: int, decision: Decision | None, version: Version = FIRST) -> None:
        word = TellPeerDecision(self.seats[to], self.seats[sender], version, decision)
        said = PeerSays(self.seats[to], self.seats[sender], word)
        self.checker.said(said)
        self.checker.heard(said)

    def ask(self, version: Version = FIRST, *, ended: Epoch | None = None, over_below: int = 1) -> None:
        granted = JobId("job0") if ended is None else None
        for number, seat in enumerate(self.seats):
            self.tell(
                number,
                Prepare(
                    seat=seat,
                    term=1,
                    version=version,
                    rule=self.rule,
                    granted=granted,
                    ended=ended,
                    over_below=Epoch(over_below),
                    margin=2,
                    lease_ns=1000,
                    peers=self.seats,
                ),
            )

    def vote(self, *indices: int, version: Version = FIRST) -> None:
        for seat, index in zip(self.seats, indices, strict=False):
            self.answer(Vote(seat, version, OpIndex(index), False))

    def write(self, decision: Decision, version: Version = FIRST) -> None:
        self.world.store.disk["sharing/0"] = SharingRecord(1, Epoch(1), (), version, decision, self.seats)

    def commit(self, number: int, decision: Decision, version: Version = FIRST) -> None:
        self.tell(number, Commit(self.seats[number], 1, version, decision))

    def granted(self, *, until: int | None = 10) -> Decision:
        """A turn from operation 6 on, of which both seats have heard."""
        self.ask()
        self.vote(3, 4)
        decision = Decision(turn(6, until))
        self.write(decision)
        for number in range(2):
            self.commit(number, decision)
        return decision

    def begin(self, number: int, index: int, epoch: int | None) -> None:
        seat = self.sim[number]
        seat.operation = index
        seat.undrained[index] = seat.id
        path = Path.FALLBACK if epoch is None else Path.INA
        self.checker.began(seat, index, path, epoch, None if epoch is None else LEASE)


def turn(first: int, until: int | None, epoch: int = 1) -> Turn:
    return Turn(JobId("job0"), Epoch(epoch), OpIndex(first), None if until is None else OpIndex(until))


def broken(match: str, act: Callable[[], None]) -> None:
    with pytest.raises(Violated, match=match):
        act()


# --- decisions


def test_a_decision_of_all_votes_that_is_on_disk_is_right() -> None:
    words = Words(DecisionsKept())
    decision = words.granted()
    words.answer(Done(words.seats[0], FIRST))
    words.tell(0, Abort(words.seats[0], 1, FIRST))  # late, and it has done it
    words.peer(1, 0, decision)


def test_a_decision_that_is_not_on_disk_is_found() -> None:
    words = Words(DecisionsKept())
    words.ask()
    words.vote(3, 4)
    broken("not on disk", lambda: words.commit(0, Decision(turn(6, 10))))


@pytest.mark.parametrize("votes", [(), (3,)])
def test_a_decision_without_all_votes_is_found(votes: tuple[int, ...]) -> None:
    words = Words(DecisionsKept())
    words.ask()
    words.vote(*votes)
    words.write(Decision(turn(6, 10)))
    broken("have not voted", lambda: words.commit(0, Decision(turn(6, 10))))


@pytest.mark.parametrize("found", [turn(5, 9), turn(7, 11), turn(6, 11), turn(6, None)], ids=str)
def test_a_turn_from_or_to_another_operation_is_found(found: Turn) -> None:
    words = Words(DecisionsKept())
    words.ask()
    words.vote(3, 4)
    words.write(Decision(found))
    broken("is not \\(6, 10\\)", lambda: words.commit(0, Decision(found)))


def test_equal_indices_that_are_not_are_found() -> None:
    words = Words(DecisionsKept(), Rule.EQUAL_INDEX)
    words.ask()
    words.vote(3, 4)
    words.write(Decision(turn(4, 8)))
    broken("indices are", lambda: words.commit(0, Decision(turn(4, 8))))


@pytest.mark.parametrize("until", [8, 10])
def test_the_end_of_a_turn_at_another_operation_is_found(until: int) -> None:
    words = Words(DecisionsKept())
    words.granted()
    second = Version(1, 2)
    words.ask(second, ended=Epoch(1))
    words.vote(7, 6, version=second)
    wrong = Decision(None, Epoch(1), OpIndex(until))
    words.write(wrong, second)
    broken("a turn ends by", lambda: words.commit(0, wrong, second))


def test_an_epoch_that_does_not_grow_is_found() -> None:
    words = Words(DecisionsKept())
    words.granted()
    second = Version(1, 2)
    words.ask(second)
    words.vote(10, 10, version=second)
    again = Decision(turn(12, 16))
    words.write(again, second)
    broken("has epoch 1, after 1", lambda: words.commit(0, again, second))


def test_two_turns_that_stand_in_one_place_are_found() -> None:
    words = Words(DecisionsKept())
    words.granted()
    second = Version(1, 2)
    words.ask(second)
    words.vote(10, 10, version=second)
    other = Decision(turn(12, 16, epoch=2))
    words.write(other, second)
    broken("have one place of 1", lambda: words.commit(0, other, second))
    for seat in words.seats:
        words.answer(Drained(seat, Epoch(1)))
    words.commit(0, other, second)


def test_another_decision_than_was_asked_about_is_found() -> None:
    words = Words(DecisionsKept())
    words.ask()
    words.vote(3, 4)
    wrong = Decision(None, Epoch(1), OpIndex(6))
    words.write(wrong)
    broken("was to be", lambda: words.commit(0, wrong))


def test_a_version_that_is_used_twice_is_found() -> None:
    words = Words(DecisionsKept())
    words.ask()
    broken("version of two rounds", words.ask)


def test_a_seat_that_votes_twice_or_against_its_promise_is_found() -> None:
    words = Words(DecisionsKept())
    words.ask()
    words.vote(3)
    broken("and then", lambda: words.vote(4))
    words.answer(Refusal(words.seats[1], FIRST))
    broken("promised not to", lambda: words.vote(3, 4))
    second = Version(1, 2)
    words.ask(second)
    words.peer(1, 0, None, second)
    broken("promised not to", lambda: words.vote(3, version=second))


def test_whoever_says_of_a_decision_that_there_is_none_or_another_is_found() -> None:
    words = Words(DecisionsKept())
    words.ask()
    words.vote(3, 4)
    decision = Decision(turn(6, 10))
    words.write(decision)
    words.commit(0, decision)
    broken("the coordinator tells", lambda: words.tell(1, Abort(words.seats[1], 1, FIRST)))
    broken("host0.* tells .*host1", lambda: words.peer(1, 0, None))
    broken("says that", lambda: words.peer(1, 0, Decision(turn(7, 10))))
    broken("and then", lambda: words.commit(1, Decision(turn(7, 10))))


# --- turns


def test_operations_in_a_turn_that_was_heard_of_are_right() -> None:
    words = Words(TurnsObeyed())
    words.granted()
    for index, epoch in ((5, None), (6, 1), (9, 1)):
        words.begin(0, index, epoch)
        words.checker.drained(words.sim[0], index)
    words.answer(Drained(words.seats[0], Epoch(1)))
    words.begin(0, 10, None)


@pytest.mark.parametrize(("index", "epoch"), [(5, 1), (10, 1), (6, 2), (6, None), (9, None)])
def test_operations_beside_the_turn_are_found(index: int, epoch: int | None) -> None:
    words = Words(TurnsObeyed())
    words.granted()
    broken("begins operation", lambda: words.begin(0, index, epoch))


def test_operations_of_a_turn_that_nobody_has_heard_of_are_found() -> None:
    words = Words(TurnsObeyed())
    broken("not None", lambda: words.begin(0, 6, 1))


@pytest.mark.parametrize("by_round", [False, True])
def test_operations_past_the_end_that_was_heard_are_found(by_round: bool) -> None:
    words = Words(TurnsObeyed(), turn_operations=0)
    words.granted(until=None)
    if by_round:
        second = Version(1, 2)
        words.ask(second, ended=Epoch(1))
        words.vote(6, 7, version=second)
        words.commit(0, Decision(None, Epoch(1), OpIndex(9)), second)
    else:
        words.tell(0, EndTurn(words.seats[0], 1, Epoch(1), OpIndex(9)))
    words.begin(0, 8, 1)
    broken("begins operation 9", lambda: words.begin(0, 9, 1))
    words.begin(1, 9, None if by_round else 1)  # it has voted, and not heard; or not heard at all


def test_operations_in_doubt_are_found() -> None:
    words = Words(TurnsObeyed(), turn_operations=0)
    words.granted(until=None)
    second = Version(1, 2)
    words.ask(second, ended=Epoch(1))
    words.vote(6, 7, version=second)
    words.begin(0, 7, 1)
    broken("is open", lambda: words.begin(0, 8, 1))
    words.tell(0, Abort(words.seats[0], 1, second))
    words.begin(0, 8, 1)
    broken("is open", lambda: words.begin(1, 9, 1))
    words.peer(1, 0, None, second)
    words.begin(1, 9, 1)


def test_who_says_that_a_turn_has_drained_while_it_runs_is_found() -> None:
    words = Words(TurnsObeyed())
    words.granted()
    words.begin(0, 6, 1)
    broken("has drained", lambda: words.answer(Drained(words.seats[0], Epoch(1))))


def test_who_goes_on_after_it_has_drained_is_found() -> None:
    words = Words(TurnsObeyed())
    words.granted()
    words.answer(Drained(words.seats[0], Epoch(1)))
    broken("are over", lambda: words.begin(0, 6, 1))


def test_who_gave_a_turn_up_with_its_vote_and_goes_on_is_found() -> None:
    words = Words(TurnsObeyed())
    words.granted()
    second = Version(1, 2)
    words.ask(second, over_below=2)
    words.vote(6, 6, version=second)
    words.tell(0, Abort(words.seats[0], 1, second))
    broken("begins operation", lambda: words.begin(0, 6, 1))


def test_who_is_past_its_turn_and_does_not_say_so_is_found() -> None:
    words = Words(TurnsObeyed())
    words.granted()
    words.sim[0].operation = 8
    words.checker.sample()
    words.sim[0].operation = 9
    broken("past turn 1, and has not said so", words.checker.sample)


def test_what_a_seat_of_an_earlier_term_hears_concerns_nobody() -> None:
    words = Words(TurnsObeyed())
    words.granted()
    words.tell(0, EndTurn(words.seats[0], 2, Epoch(0), AT_ONCE))
    words.tell(0, EndTurn(words.seats[0], 1, Epoch(1), AT_ONCE))  # of a coordinator that is no more
    words.begin(0, 6, 1)


# --- waits


def test_a_seat_that_waits_without_a_timer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = LocksEnd()
    words = Words(checker)
    seat = words.sim[0]
    seat.hear_coordinator(
        Prepare(
            seat=words.seats[0],
            term=1,
            version=FIRST,
            rule=Rule.BY_INDEX,
            granted=JobId("job0"),
            over_below=Epoch(1),
            margin=2,
            lease_ns=1000,
            peers=words.seats,
        )
    )
    checker.participant_stepped(seat)
    monkeypatch.setattr(SharingSeat, "deadline", None)
    broken("waits for ever", lambda: checker.participant_stepped(seat))


# --- rings that are to leave


def test_a_seat_that_is_to_park_and_has_nothing_left_to_do_is_found() -> None:
    checker = TurnsObeyed()
    words = Words(checker)
    words.granted(until=10)
    seat = words.sim[0]
    seat.core._is_parking = False  # the core forgets it
    seat._wanted = None
    checker.sample()
    words.world.agenda.now = Instant(words.world.agenda.now + 1)
    checker.sample()  # it has a turn
    words.answer(Drained(words.seats[0], Epoch(1)))
    checker.sample()
    words.world.agenda.now = Instant(words.world.agenda.now + 1)
    broken("has not parked", checker.sample)
