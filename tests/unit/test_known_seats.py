"""Seats of a pool that its controller knows: which rings are whole, and which of them jobs have."""

from __future__ import annotations

from inaproto.core.sharing.known_seats import KnownSeats, Ring
from inaproto.units import JobId
from inaproto.wire.messages.sharing import Seat, SeatHold


def seat(host: str, job: str = "a") -> Seat:
    return Seat(JobId(job), host, 1)


def known(*rings: tuple[str, int, str], seats_max: int = 100) -> KnownSeats:
    """Whole rings: job, its ring's id, and a letter for each host."""
    seats = KnownSeats((), seats_max)
    for ring in rings:
        put(seats, *ring)
    return seats


def put(seats: KnownSeats, job: str, ring_id: int, hosts: str) -> None:
    for host in hosts:
        hold = SeatHold(pool="pool", job=job, life=ring_id, ring_id=ring_id, hosts=len(hosts))
        seats.put(Seat(JobId(job), host, ring_id), hold)


def test_none_are_known_before_any_is_said() -> None:
    seats = known()
    assert not seats
    assert seats.of_ring(Ring(JobId("a"), 1, 0)) == ()
    put(seats, "a", 1, "x")
    assert seats


def test_what_is_said_again_changes_no_job() -> None:
    seats = known(("a", 1, "xy"))
    before = seats.jobs()
    put(seats, "a", 1, "xy")
    assert seats.jobs() is before


def test_jobs_have_seats_as_long_as_there_is_room() -> None:
    seats = known(("a", 1, "x"), ("b", 1, "wxyz"), ("c", 1, "xyz"), ("d", 1, "y"), seats_max=4)
    assert list(seats.jobs()) == ["a", "c"]


def test_a_ring_that_has_ended_at_one_host_is_no_job() -> None:
    seats = known(("a", 1, "xy"))
    assert list(seats.jobs()) == ["a"]
    seats.end(Ring(JobId("a"), 1, 0))
    assert not seats.jobs()


def test_a_seat_that_is_not_heard_of_since_a_restart_contradicts_nobody() -> None:
    seats = KnownSeats([seat("x")], 100)
    assert seats.ring(seat("x")) is None
    assert not seats.contradicts(seat("x"))


def test_an_older_ring_of_the_same_hosts_contradicts_nobody() -> None:
    seats = known(("a", 2, "xy"), ("a", 1, "xy"))
    assert not seats.contradicts(Seat(JobId("a"), "x", 1))
    put(seats, "a", 3, "z")
    assert seats.contradicts(Seat(JobId("a"), "z", 3))


def test_all_rings_none_of_whose_hosts_is_here_are_succeeded() -> None:
    seats = known(("a", 2, "xy"), ("a", 1, "xy"), ("a", 3, "z"), ("b", 1, "x"), ("b", 2, "z"))
    assert seats.succeeded("z") == [Ring(JobId("a"), 2, 0), Ring(JobId("b"), 1, 0)]
