"""Seats of hosts, without daemons: what they do while there is no controller, and what they tell one."""

from __future__ import annotations

from collections.abc import Callable

import trio
from trio.testing import MockClock

from inaproto.core.host.engines.two_paths import Binding, Wait
from inaproto.core.host.operations import BASE, INA
from inaproto.daemon.host.turn_seats import JobSeat, TurnSeats
from inaproto.units import MS, Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.sharing import (
    Commit,
    CoordinatorMessage,
    Decision,
    Drained,
    PeerMessage,
    Prepare,
    Rule,
    Seat,
    SharingPattern,
    SharingSeats,
    TellPeerDecision,
    Turn,
    Version,
    Vote,
)

JOB = JobId("train")
LEASE_MS = 200


def prepare(seat: Seat, peers: tuple[Seat, ...], rule: Rule) -> Prepare:
    return Prepare(
        seat=seat,
        term=1,
        version=Version(1, 1),
        rule=rule,
        granted=JOB,
        over_below=Epoch(1),
        margin=2,
        lease_ns=LEASE_MS * MS,
        peers=peers,
    )


class Hosts:
    """Two, of one job, a controller whose words are given by the test, and a network between the hosts."""

    def __init__(self) -> None:
        self.now = Instant(0)
        self.heard: list[list[Message]] = [[], []]
        self.words: list[PeerMessage] = []
        self.seats = [
            TurnSeats(
                f"h{number}", clock=lambda: self.now, random_bits=lambda bits: 7, tell_peer=self.words.append
            )
            for number in range(2)
        ]
        self.asked_again = [0, 0]
        self.jobs = [seats(JOB) for seats in self.seats]
        for number, seats in enumerate(self.seats):
            seats.connected(self.heard[number].append)
            self.jobs[number].begin(
                ring_id=5, hosts=2, next_operation=OpIndex(0), changed=self._changed(number)
            )

    def _changed(self, number: int) -> Callable[[], None]:
        def changed() -> None:
            self.asked_again[number] += 1

        return changed

    def peers(self) -> tuple[Seat, ...]:
        return tuple(Seat(JOB, f"h{number}", 7) for number in range(2))

    def prepare(self, number: int, rule: Rule = Rule.BY_INDEX) -> CoordinatorMessage:
        return prepare(self.peers()[number], self.peers(), rule)

    def commit(self, number: int) -> CoordinatorMessage:
        turn = Turn(JOB, Epoch(1), OpIndex(2), OpIndex(6))
        return Commit(self.peers()[number], 1, Version(1, 1), Decision(turn))

    def run(self, job: JobSeat, index: int) -> Binding | Wait:
        """An operation from its start to its end."""
        binding = job.bind(OpIndex(index), self.now)
        if isinstance(binding, Binding):
            job.bound(OpIndex(index), binding.path)
            job.done(OpIndex(index))
            if binding.path == INA:
                job.drained(OpIndex(index))
        return binding

    def deliver(self) -> None:
        while self.words:
            word = self.words.pop(0)
            self.seats[int(word.seat.host[1:])].heard_of_peer(word)


async def test_an_operation_that_a_decision_may_concern_waits_for_it() -> None:
    hosts = Hosts()
    job = hosts.jobs[0]
    hosts.seats[0].heard(hosts.prepare(0))
    assert any(isinstance(one, Vote) for one in hosts.heard[0])
    assert [hosts.run(job, index) for index in range(2)] == [Binding(BASE)] * 2  # below vote and margin
    assert hosts.run(job, 2) == Wait(Instant(LEASE_MS * MS))
    hosts.seats[0].heard(hosts.commit(0))
    assert hosts.asked_again[0] == 1
    assert [hosts.run(job, index) for index in range(2, 7)] == [Binding(INA, Epoch(1))] * 4 + [Binding(BASE)]
    assert any(isinstance(one, Drained) and one.epoch == 1 for one in hosts.heard[0])


async def test_without_a_controller_a_doubt_is_ended_by_the_other_host() -> None:
    hosts = Hosts()
    for number, seats in enumerate(hosts.seats):
        seats.heard(hosts.prepare(number))
    hosts.seats[0].heard(hosts.commit(0))
    doubtful = hosts.jobs[1]
    assert [hosts.run(doubtful, index) for index in range(2)] == [Binding(BASE)] * 2
    hosts.now = Instant((LEASE_MS + 1) * MS)
    doubtful.woke()  # asks the controller first
    hosts.now = Instant((LEASE_MS + 102) * MS)
    doubtful.woke()
    assert [word.seat.host for word in hosts.words] == ["h0"]
    hosts.deliver()
    assert hosts.run(doubtful, 2) == Binding(INA, Epoch(1))


async def test_when_the_controller_is_gone_the_other_host_is_asked_at_once() -> None:
    hosts = Hosts()
    for number, seats in enumerate(hosts.seats):
        seats.heard(hosts.prepare(number))
    hosts.seats[0].heard(hosts.commit(0))
    doubtful = hosts.jobs[1]
    assert [hosts.run(doubtful, index) for index in range(2)] == [Binding(BASE)] * 2
    assert isinstance(hosts.run(doubtful, 2), Wait)
    for seats in hosts.seats:
        seats.disconnected()
    hosts.deliver()
    assert hosts.asked_again[1] >= 1
    assert hosts.run(doubtful, 2) == Binding(INA, Epoch(1))


async def test_when_the_controller_is_gone_and_nobody_knows_no_operation_waits_for_the_lease() -> None:
    hosts = Hosts()
    for number, seats in enumerate(hosts.seats):
        seats.heard(hosts.prepare(number))
        assert [hosts.run(hosts.jobs[number], index) for index in range(2)] == [Binding(BASE)] * 2
        assert hosts.run(hosts.jobs[number], 2) == Wait(Instant(LEASE_MS * MS))
        seats.disconnected()
    assert hosts.asked_again == [1, 1]
    for job in hosts.jobs:
        assert hosts.run(job, 2) == Wait(Instant(LEASE_MS * MS // 4))
    hosts.now = Instant(LEASE_MS * MS // 4)
    assert [hosts.run(job, 2) for job in hosts.jobs] == [Binding(BASE)] * 2


async def test_seats_of_other_jobs_are_not_asked() -> None:
    """MINA section IV-B, all of a group vote; but nobody carries a word from one job to another."""
    hosts = Hosts()
    peers = (*hosts.peers(), Seat(JobId("other"), "h1", 7))
    hosts.seats[0].heard(prepare(peers[0], peers, Rule.EQUAL_INDEX))
    hosts.seats[0].disconnected()
    assert [(word.seat.job, word.seat.host) for word in hosts.words] == [(JOB, "h1")]


async def test_a_host_whose_operation_is_on_the_switches_says_so_when_another_s_is_not() -> None:
    hosts = Hosts()
    differing: list[tuple[int, str]] = []
    sure, doubtful = hosts.jobs
    sure.begin(
        ring_id=6,
        hosts=2,
        next_operation=OpIndex(0),
        changed=lambda: None,
        differs=lambda index, host: differing.append((index, host)),
    )
    for number, seats in enumerate(hosts.seats):
        seats.heard(hosts.prepare(number))
        assert [hosts.run(hosts.jobs[number], index) for index in range(2)] == [Binding(BASE)] * 2
    hosts.seats[0].heard(hosts.commit(0))
    assert sure.bind(OpIndex(2), hosts.now) == Binding(INA, Epoch(1))
    sure.bound(OpIndex(2), INA)
    hosts.now = Instant((LEASE_MS + 1) * MS)
    assert hosts.run(doubtful, 2) == Binding(BASE)
    assert differing == []
    hosts.deliver()
    assert differing == [(2, "h1")]
    assert hosts.run(doubtful, 3) == Binding(INA, Epoch(1)), "it was answered as well"


async def test_who_has_no_seat_in_the_round_ends_no_doubt() -> None:
    """A host of the fabric that has ranks of a job of that name, and would give itself, or it, a turn."""
    hosts = Hosts()
    job = hosts.jobs[1]
    asked, decided = hosts.prepare(1), hosts.commit(1)
    assert isinstance(asked, Prepare)
    assert isinstance(decided, Commit)
    hosts.seats[1].heard(asked)
    for life in (7, 8):  # of h0, whose life is 7
        forged = TellPeerDecision(
            seat=asked.seat,
            sender=Seat(job=JOB, host="h9" if life == 7 else "h0", life=life),
            version=asked.version,
            decision=decided.decision,
        )
        hosts.seats[1].heard_of_peer(forged)
    assert [hosts.run(job, index) for index in range(2)] == [Binding(BASE)] * 2
    assert isinstance(hosts.run(job, 2), Wait)


async def test_a_doubt_that_nobody_can_end_costs_the_lease_and_then_nothing() -> None:
    hosts = Hosts()
    job = hosts.jobs[1]
    hosts.seats[1].heard(hosts.prepare(1))
    assert [hosts.run(job, index) for index in range(2)] == [Binding(BASE)] * 2
    assert isinstance(hosts.run(job, 2), Wait)
    hosts.now = Instant((LEASE_MS + 1) * MS)
    assert [hosts.run(job, index) for index in range(2, 20)] == [Binding(BASE)] * 18


async def test_a_ring_that_ends_gives_its_turn_up_and_is_no_seat_any_more() -> None:
    hosts = Hosts()
    job, heard = hosts.jobs[0], hosts.heard[0]
    hosts.seats[0].heard(hosts.prepare(0))
    hosts.seats[0].heard(hosts.commit(0))
    for index in range(2):
        hosts.run(job, index)
    job.bound(OpIndex(2), INA)  # under way
    job.ring_ended()
    job.ring_ended()
    drained = [index for index, one in enumerate(heard) if isinstance(one, Drained)]
    reports = [index for index, one in enumerate(heard) if one == SharingSeats(seats=())]
    assert drained[-1] < reports[-1]
    assert job.bind(OpIndex(3), hosts.now) == Binding(BASE)


# --- rings that leave their switches


async def test_a_seat_without_a_turn_is_given_up_at_once_and_comes_back_with_another_life() -> None:
    hosts = Hosts()
    job, heard = hosts.jobs[0], hosts.heard[0]
    for index in range(3):
        hosts.run(job, index)
    parked: list[int] = []
    job.park(lambda: parked.append(len(heard)))
    assert len(parked) == 1
    assert heard[-1] == SharingSeats(seats=())
    assert job.bind(OpIndex(3), hosts.now) == Binding(BASE)
    job.bound(OpIndex(3), BASE)
    job.done(OpIndex(3))
    hosts.seats[0].random_bits = lambda bits: 8
    job.begin(
        ring_id=5, hosts=2, next_operation=OpIndex(4), changed=lambda: None, pool="shared@spine1", stand=9
    )
    [seats] = [one for one in heard[parked[0] :] if isinstance(one, SharingSeats)]
    [hold] = seats.seats
    assert (hold.pool, hold.ring_id, hold.life, hold.stand) == ("shared@spine1", 5, 8, 9)
    assert job.status()["pool"] == "shared@spine1"
    assert len(parked) == 1


async def test_a_seat_with_a_turn_is_given_up_when_that_is_over_and_nothing_of_it_is_on_its_way() -> None:
    hosts = Hosts()
    job = hosts.jobs[0]
    hosts.seats[0].heard(hosts.prepare(0))
    hosts.seats[0].heard(hosts.commit(0))  # operations 2 to 5
    for index in range(5):
        hosts.run(job, index)
    parked: list[int] = []
    job.park(lambda: parked.append(1))
    assert isinstance(job.bind(OpIndex(5), hosts.now), Binding)
    job.bound(OpIndex(5), INA)
    job.done(OpIndex(5))
    assert parked == [], "its sends are not acknowledged"
    job.drained(OpIndex(5))
    assert parked == [1]
    assert any(isinstance(one, Drained) and one.epoch == 1 for one in hosts.heard[0])


async def test_a_seat_that_has_voted_waits_for_the_answer() -> None:
    """The turn may have begun for the other hosts."""
    hosts = Hosts()
    job = hosts.jobs[0]
    hosts.seats[0].heard(hosts.prepare(0))
    parked: list[int] = []
    job.park(lambda: parked.append(1))
    assert parked == []
    hosts.seats[0].heard(hosts.commit(0))
    assert parked == [], "now it has a turn"
    for index in range(6):
        hosts.run(job, index)
    assert parked == [1]


async def test_a_seat_in_doubt_is_not_given_up_before_that_is_ended() -> None:
    hosts = Hosts()
    job = hosts.jobs[1]
    for number, seats in enumerate(hosts.seats):
        seats.heard(hosts.prepare(number))
    hosts.seats[0].heard(hosts.commit(0))
    parked: list[int] = []
    job.park(lambda: parked.append(1))
    for after_ms in (1, 102):
        hosts.now = Instant((LEASE_MS + after_ms) * MS)
        job.woke()
    assert parked == []
    hosts.deliver()
    hosts.deliver()
    assert parked == [], "the other host knows of a turn"
    for index in range(6):
        hosts.run(job, index)
    assert parked == [1]


async def test_a_ring_that_ends_before_it_could_be_parked_says_nothing_of_it() -> None:
    hosts = Hosts()
    job = hosts.jobs[0]
    hosts.seats[0].heard(hosts.prepare(0))
    parked: list[int] = []
    job.park(lambda: parked.append(1))
    job.ring_ended()
    job.begin(ring_id=6, hosts=2, next_operation=OpIndex(0), changed=lambda: None)
    hosts.run(job, 0)
    assert parked == []


async def test_a_ring_may_end_while_an_operation_is_held_by_a_lock() -> None:
    """MINA section IV-B, the paper's rule: nothing of that operation is on the switches."""
    hosts = Hosts()
    job = hosts.jobs[0]
    hosts.seats[0].heard(hosts.prepare(0, Rule.EQUAL_INDEX))
    assert hosts.run(job, 0) == Wait(Instant(LEASE_MS * MS))
    job.ring_ended()
    assert hosts.run(job, 0) == Binding(BASE)
    job.begin(ring_id=6, hosts=2, next_operation=OpIndex(1), changed=lambda: None)
    assert hosts.run(job, 1) == Binding(BASE)


async def test_a_held_operation_of_a_ring_that_has_no_choice_ends_as_any_other() -> None:
    hosts = Hosts()
    job = hosts.jobs[0]
    hosts.seats[0].heard(hosts.prepare(0, Rule.EQUAL_INDEX))
    assert hosts.run(job, 0) == Wait(Instant(LEASE_MS * MS))
    job.bound(OpIndex(0), BASE)
    job.done(OpIndex(0))
    hosts.seats[0].heard(hosts.commit(0))
    assert [hosts.run(job, index) for index in range(1, 4)] == [Binding(BASE)] + [Binding(INA, Epoch(1))] * 2


async def test_a_new_ring_counts_on_though_nobody_asked_for_what_went_by_the_base_ring() -> None:
    hosts = Hosts()
    job = hosts.jobs[0]
    for index in range(5):
        job.bound(OpIndex(index), BASE)
        job.done(OpIndex(index))
    hosts.seats[0].heard(hosts.prepare(0))
    votes = [one.index for one in hosts.heard[0] if isinstance(one, Vote)]
    assert votes == [5]


async def test_a_host_of_many_jobs_tells_its_controller_no_more_than_that_takes(
    autojump_clock: MockClock,
) -> None:
    """Whoever sends more is cut off (:data:`inaproto_controller.service.agents.LIMITS`)."""
    heard: list[Message] = []
    seats = TurnSeats("h0", clock=lambda: Instant(int(trio.current_time() * S)), random_bits=lambda bits: 7)
    seats.connected(heard.append)
    jobs = [seats(f"train{number}") for number in range(20)]
    for job in jobs:
        job.begin(ring_id=5, hosts=2, next_operation=OpIndex(0), changed=lambda: None)
    assert len(heard) < 3 * len(jobs)
    began, before = trio.current_time(), len(heard)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(seats.run)
        for index in range(500):
            for job in jobs:
                job.bound(OpIndex(index), BASE)
                job.done(OpIndex(index))
            await trio.sleep(0.0001)
        nursery.cancel_scope.cancel()
    assert len(heard) - before <= 4000 * (trio.current_time() - began) + 2 * len(jobs)


async def test_a_training_step_is_found_in_calls_and_waits_and_told() -> None:
    hosts = Hosts()
    job = hosts.jobs[0]
    index = 0
    for _ in range(12):
        for number, nbytes in enumerate((400, 800)):
            hosts.now = Instant(hosts.now + 10 * MS)
            job.called(OpIndex(index), nbytes, None if number else (8 * MS, 6 * MS))
            job.bound(OpIndex(index), BASE)
            hosts.now = Instant(hosts.now + MS)
            job.done(OpIndex(index))
            index += 1
    pattern = next(one for one in reversed(hosts.heard[0]) if isinstance(one, SharingPattern))
    assert pattern.nbytes == (400, 800)
    assert pattern.ready_ns == (6 * MS, 17 * MS)
    assert pattern.duration_ns == 6 * MS + 11 * MS + 3 * MS  # until the wait: 8 ms before the next call
    assert pattern.bandwidth == 600_000
    await trio.lowlevel.checkpoint()


async def test_operations_whose_last_messages_are_acknowledged_late_are_no_misuse() -> None:
    """In a window of 1024 messages as many all-reduces of one message end before an acknowledgement comes."""
    hosts = Hosts()
    job = hosts.jobs[0]
    hosts.seats[0].heard(hosts.prepare(0))
    turn = Turn(JOB, Epoch(1), OpIndex(2), None)
    commit = Commit(hosts.peers()[0], 1, Version(1, 1), Decision(turn))
    hosts.seats[0].heard(commit)
    late = range(2, 2 + 2 * 1024)
    for index in range(2):
        hosts.run(job, index)
    for index in late:
        binding = job.bind(OpIndex(index), hosts.now)
        assert isinstance(binding, Binding)
        job.bound(OpIndex(index), binding.path)
        job.done(OpIndex(index))
    for index in late:
        job.drained(OpIndex(index))
    assert hosts.run(job, late.stop) == Binding(INA, Epoch(1))
