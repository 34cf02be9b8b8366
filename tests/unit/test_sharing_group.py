"""A sharing group without a controller: who has a seat, whose turn ends, and what is planned."""

from __future__ import annotations

import pytest

from inaproto.core.sharing.events import (
    FromSeat,
    JobDrained,
    Persist,
    Persisted,
    SharingConfig,
    SharingRecord,
    Tell,
    TurnRecord,
    TurnStands,
    TurnWanted,
    Woke,
)
from inaproto.core.sharing.group import (
    GroupAction,
    GroupConfig,
    GroupEvent,
    HostArrived,
    HostDeparted,
    HostReported,
    JobsHeld,
    Look,
    MayPlan,
    Plan,
    SeatForgotten,
    SeatMeasured,
    SeatMoved,
    SeatsContradict,
    SharingGroup,
    StoodStill,
    Wished,
)
from inaproto.errors import LocalMisuse
from inaproto.units import Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import Commit, Done, Drained, EndTurn, Prepare, Seat, SeatHold, Turn, Vote

A, B = JobId("A"), JobId("B")
LEASE_S = 30
HOSTS = ("h0", "h1")


class Group:
    """A group whose disk is quick, and whose seats answer what they are asked at once."""

    def __init__(self, record: SharingRecord | None = None) -> None:
        self.now = Instant(0)
        self.core = SharingGroup(GroupConfig(SharingConfig("pool", vote_ns=S), lease_ns=LEASE_S * S), record)
        self.actions: list[GroupAction] = []
        self.tell(Woke())

    def tell(self, event: GroupEvent) -> list[GroupAction]:
        """All that comes of it."""
        found = self.core.step(event, self.now)
        self.actions += found
        for action in list(found):
            if isinstance(action, Persist):
                found += self.tell(Persisted(action.token))
        return found

    def answer(self) -> None:
        """Each seat what it was asked last."""
        said, self.actions = self.actions, []
        for action in said:
            if not isinstance(action, Tell):
                continue
            seat, message = action.seat, action.message
            if isinstance(message, Prepare):
                self.tell(FromSeat(seat, Vote(seat, message.version, OpIndex(3), False)))
            elif isinstance(message, Commit):
                self.tell(FromSeat(seat, Done(seat, message.version)))
            elif isinstance(message, EndTurn) and message.until is not None:
                self.tell(FromSeat(seat, Drained(seat, message.epoch)))

    def arrive(self, *hosts: str) -> None:
        for host in hosts:
            self.tell(HostArrived(host))

    def report(self, host: str, *jobs: JobId, hosts: int = 2, stand: int = 0) -> list[GroupAction]:
        holds = (SeatHold(pool="pool", job=job, life=1, ring_id=5, hosts=hosts, stand=stand) for job in jobs)
        return self.tell(HostReported(host, tuple(holds)))

    def say(self, host: str, *rings: tuple[int, int], life: int = 1) -> list[GroupAction]:
        """All seats of ``host`` are of A, in rings of these ids and numbers of hosts."""
        holds = [SeatHold(pool="pool", job=A, life=life, ring_id=ring, hosts=hosts) for ring, hosts in rings]
        return self.tell(HostReported(host, tuple(holds)))

    def seats_of(self, job: JobId) -> list[str]:
        """Hosts of the seats that it may have turns at."""
        return [seat.host for seat in self.core.view().jobs.get(job, ())]

    def plan(self) -> list[JobId] | None:
        """Jobs that may have turns; None: it does not ask."""
        [*plans] = [action for action in self.tell(MayPlan()) if isinstance(action, Plan)]
        return [job for job, _ in plans[0].jobs] if plans else None

    def give_turn(self, job: JobId, operations: int | None = None) -> Epoch:
        self.actions.clear()
        self.tell(Wished(TurnWanted(job, operations)))
        self.answer()
        [stands] = [action for action in self.actions if isinstance(action, TurnStands)]
        self.answer()
        return stands.epoch

    def wake_at(self, seconds: float) -> list[GroupAction]:
        """Whenever it wants to be woken until then."""
        until, found = Instant(round(seconds * S)), list[GroupAction]()
        while (due := self.core.deadline) is not None and due <= until:
            self.now = max(self.now, due)
            found += self.tell(Woke())
        self.now = until
        return found

    @property
    def undrained(self) -> list[str]:
        return [seat.host for one in self.core.view().sharing.turns for seat in one.undrained]


@pytest.fixture
def group() -> Group:
    """Two jobs with a seat on each of two hosts."""
    made = Group()
    made.arrive(*HOSTS)
    for host in HOSTS:
        made.report(host, A, B)
    return made


def test_a_job_is_planned_for_when_the_seats_of_all_its_hosts_are_known() -> None:
    group = Group()
    group.arrive(*HOSTS)
    group.report("h0", A)
    assert group.plan() == []
    group.report("h1", A)
    assert group.plan() == [A]
    group.tell(HostDeparted("h1"))
    assert group.plan() == [], "it cannot be asked"


def test_seats_of_two_standings_of_a_ring_are_no_job() -> None:
    group = Group()
    group.arrive(*HOSTS)
    group.report("h0", A, stand=1)
    group.report("h1", A, stand=2)
    assert group.plan() == []


def test_where_a_ring_has_ended_at_one_host_it_has_at_those_that_are_away(group: Group) -> None:
    group.tell(HostDeparted("h1"))
    forgotten = [one.seat.host for one in group.report("h0", B) if isinstance(one, SeatForgotten)]
    assert forgotten == ["h0", "h1"]
    assert Seat(B, "h1", 1) in group.core.view().jobs[B]


def test_a_host_that_is_away_is_waited_for_for_the_lease(group: Group) -> None:
    """It may use the pool: nobody else has a turn until then."""
    group.give_turn(A)
    group.tell(HostDeparted("h1"))
    group.wake_at(LEASE_S / 2)
    group.arrive("h1")  # and does not say what it has
    assert not any(isinstance(one, SeatForgotten) for one in group.wake_at(LEASE_S - 0.1))
    forgotten = [one for one in group.wake_at(LEASE_S) if isinstance(one, SeatForgotten)]
    assert [(one.seat.host, one.is_lost) for one in forgotten] == [("h1", True)] * 2
    assert "h1" not in group.undrained


def test_a_host_that_says_what_it_has_in_time_keeps_its_seats(group: Group) -> None:
    group.give_turn(A)
    group.tell(HostDeparted("h1"))
    group.wake_at(LEASE_S / 2)
    group.arrive("h1")
    group.report("h1", A, B)
    assert not any(isinstance(one, SeatForgotten) for one in group.wake_at(3 * LEASE_S))


def test_after_a_restart_nothing_is_decided_before_all_that_had_turns_are_known() -> None:
    seats = tuple(Seat(A, host, 1) for host in HOSTS)
    turn = Turn(A, Epoch(7), OpIndex(3), None)
    group = Group(SharingRecord(4, Epoch(7), (TurnRecord(turn, seats),)))
    group.arrive("h0", "h2")
    group.report("h2", B, hosts=1)
    group.report("h0", A)
    assert group.plan() is None
    assert not group.core.view().knows_seats
    group.wake_at(LEASE_S)
    assert group.plan() == [B]
    assert group.core.view().knows_seats


def test_a_turn_in_which_nothing_goes_on_ends_where_another_job_waits(group: Group) -> None:
    epoch = group.give_turn(A)
    for host in HOSTS:
        group.tell(SeatMoved(Seat(A, host, 1), 4, is_running=True, since=Instant(0)))
    group.plan()
    assert not any(isinstance(one, StoodStill) for one in group.wake_at(4.9))
    assert StoodStill(A, epoch) in group.wake_at(5.1)
    group.answer()
    assert group.core.view().sharing.turns == ()


def test_a_turn_goes_on_while_one_of_its_seats_does(group: Group) -> None:
    group.give_turn(A)
    for host in HOSTS:
        group.tell(SeatMoved(Seat(A, host, 1), 4, is_running=True, since=Instant(0)))
    group.plan()
    group.wake_at(3)
    group.tell(SeatMoved(Seat(A, "h1", 1), 5, is_running=True, since=group.now))
    assert not any(isinstance(one, StoodStill) for one in group.wake_at(7.9))
    assert any(isinstance(one, StoodStill) for one in group.wake_at(8.1))


def test_a_wish_does_not_end_a_round_that_is_under_way(group: Group) -> None:
    group.actions.clear()
    group.tell(Wished(TurnWanted(A, 4)))
    assert group.tell(Wished(TurnWanted(B, 4))) == []
    group.answer()
    assert [one.job for one in group.actions if isinstance(one, TurnStands)] == [A]
    assert Look() in group.actions, "and is asked for again"


def test_a_wish_for_one_turn_counts_again_once_that_is_given(group: Group) -> None:
    first = group.give_turn(A, 4)
    for host in HOSTS:
        group.tell(FromSeat(Seat(A, host, 1), Drained(Seat(A, host, 1), first)))
    assert group.give_turn(A, 4) == first + 1


def test_a_wish_that_cannot_be_leaves_the_group_as_it_was(group: Group) -> None:
    with pytest.raises(LocalMisuse, match="a turn of 0 operations"):
        group.tell(Wished(TurnWanted(A, 0)))
    assert group.give_turn(A) == 1


def test_jobs_that_are_held_have_no_turn_until_they_are_not(group: Group) -> None:
    group.give_turn(A)
    held = JobsHeld((A,))
    group.actions.clear()
    group.tell(held)
    while JobDrained(A) not in group.actions:
        group.answer()
        group.wake_at(group.now / S + 0.1)
    assert group.plan() == [B]
    assert group.tell(held) == []
    group.tell(JobsHeld(()))
    assert group.plan() == [A, B]


def test_what_is_said_of_a_seat_that_is_not_known_concerns_nobody(group: Group) -> None:
    stranger = Seat(A, "h0", 2)
    assert group.tell(SeatMoved(stranger, 4, is_running=True, since=group.now)) == []
    assert group.tell(FromSeat(stranger, Drained(stranger, Epoch(1)))) == []


def test_a_group_of_which_nothing_is_left_is_over(group: Group) -> None:
    group.give_turn(A)
    assert not group.core.view().is_over
    for host in HOSTS:
        group.report(host)
    group.wake_at(1)
    assert group.core.view().is_over
    assert group.core.view().epoch == 1


def moved(host: str, operation: int, *, is_running: bool = False, since: int = 0) -> SeatMoved:
    return SeatMoved(Seat(A, host, 1), operation, is_running, Instant(since * S))


def stands_until(group: Group, epoch: Epoch, seconds: float) -> None:
    assert not any(isinstance(one, StoodStill) for one in group.wake_at(seconds - 0.1))
    assert StoodStill(A, epoch) in group.wake_at(seconds)


def test_a_turn_whose_seats_say_nothing_ends_a_while_after_it_was_given(group: Group) -> None:
    group.wake_at(10)
    epoch = group.give_turn(A)
    group.plan()
    stands_until(group, epoch, 15)


def test_a_turn_whose_seats_are_past_it_and_do_not_drain_ends_a_while_after_that_was_seen(
    group: Group,
) -> None:
    epoch = group.give_turn(A, 4)
    [turn] = [one.turn for one in group.core.view().sharing.turns]
    assert turn.until is not None
    for host in HOSTS:
        group.tell(moved(host, turn.until))
    group.now = Instant(S)
    group.plan()
    stands_until(group, epoch, 3)


@pytest.mark.parametrize(
    ("is_running", "measured", "seconds"), [(True, 0, 5), (True, 1, 8), (False, 0, 2), (False, 3, 6)]
)
def test_how_long_a_turn_stands_depends_on_what_its_job_does(
    group: Group, is_running: bool, measured: int, seconds: int
) -> None:
    """``measured``: seconds of its step, and of the greatest all-reduce of it."""
    epoch = group.give_turn(A)
    for host in HOSTS:
        group.tell(SeatMeasured(Seat(A, host, 1), measured * S, measured * S))
        group.tell(moved(host, 4, is_running=is_running))
    group.plan()
    stands_until(group, epoch, seconds)


@pytest.mark.parametrize(
    ("is_running", "hosts", "planned"), [(True, HOSTS, [B]), (False, HOSTS, [A, B]), (True, ("h0",), [A, B])]
)
def test_a_job_that_stands_in_an_all_reduce_is_not_planned_for(
    group: Group, is_running: bool, hosts: tuple[str, ...], planned: list[JobId]
) -> None:
    """One that pauses is: it may come back. So is one of which not all seats were heard of."""
    for host in hosts:
        group.tell(moved(host, 4, is_running=is_running and host == "h0"))
    group.wake_at(4.9)
    assert group.plan() == [A, B]
    group.wake_at(5)
    assert group.plan() == planned


def test_before_it_is_woken_a_group_knows_no_seats() -> None:
    core = SharingGroup(GroupConfig(SharingConfig("pool")))
    assert not core.view().knows_seats
    core.step(Woke(), Instant(0))
    assert core.view().knows_seats


# --- who contradicts others


def of_two_hosts_and_another() -> Group:
    group = Group()
    group.arrive("h0", "h1", "h2", "h3")
    group.say("h0", (5, 2))
    group.say("h1", (5, 2))
    assert group.seats_of(A) == ["h0", "h1"]
    return group


def test_a_host_too_many_in_a_ring_is_none_of_it_and_comes_and_goes_for_nothing() -> None:
    group = of_two_hosts_and_another()
    assert SeatsContradict(A, "h2") in group.say("h2", (5, 2))
    assert group.seats_of(A) == ["h0", "h1"]
    group.say("h2")
    assert group.seats_of(A) == ["h0", "h1"]
    assert SeatsContradict(A, "h2") not in group.say("h2", (5, 7)), "once"
    assert group.seats_of(A) == ["h0", "h1"]


def test_a_ring_of_other_hosts_waits_for_the_one_that_is_there() -> None:
    group = of_two_hosts_and_another()
    assert SeatsContradict(A, "h2") in group.say("h2", ((1 << 32) - 1, 1))
    assert group.seats_of(A) == ["h0", "h1"]
    assert group.plan() == [A]
    group.say("h0")
    assert group.seats_of(A) == ["h2"], "that one has ended"


def test_a_newer_ring_that_has_a_host_of_the_older_one_takes_its_place() -> None:
    group = of_two_hosts_and_another()
    group.say("h2", (6, 2))
    assert group.seats_of(A) == ["h0", "h1"], "not whole"
    assert not any(isinstance(one, SeatsContradict) for one in group.say("h0", (6, 2), life=2))
    assert group.seats_of(A) == ["h0", "h2"]


def test_an_older_ring_takes_no_place() -> None:
    group = of_two_hosts_and_another()
    group.tell(
        HostReported(
            "h1",
            (
                SeatHold(pool="pool", job=A, life=1, ring_id=5, hosts=2),
                SeatHold(pool="pool", job=A, life=2, ring_id=4, hosts=1),
            ),
        )
    )
    assert group.seats_of(A) == ["h0", "h1"]


def test_a_surplus_seat_fills_no_place_that_a_lease_has_freed() -> None:
    group = of_two_hosts_and_another()
    group.say("h2", (5, 2))
    group.tell(HostDeparted("h1"))
    group.wake_at(40)
    assert group.seats_of(A) == [], "h1 is lost, and h2 was never of this ring"
    assert group.plan() == []
    group.arrive("h1")
    group.say("h1", (5, 2))
    assert group.seats_of(A) == ["h0", "h1"]


def test_a_host_that_says_late_what_a_lost_one_had_is_of_no_ring() -> None:
    group = of_two_hosts_and_another()
    group.tell(HostDeparted("h1"))
    group.wake_at(40)
    assert SeatsContradict(A, "h2") in group.say("h2", (5, 2))
    assert group.seats_of(A) == []


def test_a_ring_nobody_is_left_of_is_forgotten_with_its_members() -> None:
    group = of_two_hosts_and_another()
    group.say("h2", (5, 2))
    group.say("h3", (5, 2))
    for host in HOSTS:
        group.say(host)
    for host in ("h2", "h3"):
        group.say(host)
    group.say("h2", (5, 2))
    group.say("h3", (5, 2))
    assert group.seats_of(A) == ["h2", "h3"]


def test_a_ring_of_other_hosts_need_not_wait_for_one_all_of_whose_hosts_are_gone() -> None:
    """They crashed, and the job began anew elsewhere: the lease is for hosts that may come back."""
    group = of_two_hosts_and_another()
    group.give_turn(A)
    group.tell(HostDeparted("h0"))
    group.say("h2", (9, 2))
    group.say("h3", (9, 2))
    assert group.seats_of(A) == ["h0", "h1"], "one of its hosts is here"
    found = group.tell(HostDeparted("h1"))
    forgotten = [one.seat.host for one in found if isinstance(one, SeatForgotten) and one.is_lost]
    assert forgotten == ["h0", "h1"], "they may still use the pool"
    assert group.seats_of(A) == ["h2", "h3"]
    assert group.plan() == [A]
    group.arrive("h0", "h1")
    group.say("h0", (5, 2))
    assert SeatsContradict(A, "h1") in group.say("h1", (5, 2))
    assert group.seats_of(A) == ["h2", "h3"], "those were there first now"


def test_a_ring_of_other_hosts_that_comes_later_finds_the_place_of_one_that_is_gone() -> None:
    group = of_two_hosts_and_another()
    for host in HOSTS:
        group.tell(HostDeparted(host))
    assert group.seats_of(A) == ["h0", "h1"], "they may come back"
    group.say("h2", (9, 2))
    assert group.seats_of(A) == ["h0", "h1"], "not whole"
    group.say("h3", (9, 2))
    assert group.seats_of(A) == ["h2", "h3"]


def test_a_ring_of_hosts_that_are_not_here_either_takes_no_place() -> None:
    group = of_two_hosts_and_another()
    group.say("h2", (9, 2))
    group.say("h3", (9, 2))
    for host in ("h3", *HOSTS):
        group.tell(HostDeparted(host))
    assert group.seats_of(A) == ["h0", "h1"]
    group.arrive("h3")
    group.say("h3", (9, 2))
    assert group.seats_of(A) == ["h2", "h3"]
