"""Seats of a host: what a controller hears of the ranks that take them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.grants.seats import ENDED_MAX, HostSeats
from inaproto.core.rendezvous.tokens import hash_of
from inaproto.wire.control_messages import encode_message
from inaproto.wire.messages.controller import AgentReport, GrantRecord

LOST = "rank 2: it is gone"


def grant(number: int, *, name: str = "train", first_rank: int = 2, ranks: int = 2) -> GrantRecord:
    return GrantRecord(
        grant=number, job=1, name=name, kind="seats", slots=(), first_rank=first_rank, ranks=ranks, size=4
    )


def test_a_rank_of_parallel_rings_is_there_until_the_last_of_them() -> None:
    host = HostSeats()
    host.want([grant(7)])
    for job in ("train#0/2", "train#1/2"):
        for rank in (2, 3):
            host.joined(job, rank)
    assert phases(host) == [(7, "running", "")]
    for rank in (2, 3):
        host.left("train#0/2", rank, failure="")
    assert phases(host) == [(7, "running", "")]
    assert [job for job, *_ in host.want([])] == ["train"]
    for rank in (2, 3):
        host.left("train#1/2", rank, failure="")
    assert phases(host) == []


def test_one_failed_ring_fails_the_seat() -> None:
    host = HostSeats()
    host.want([grant(7, ranks=1)])
    for job in ("train#0/2", "train#1/2"):
        host.joined(job, 2)
    host.left("train#0/2", 2, failure="it is gone")
    host.left("train#1/2", 2, failure="")
    assert phases(host) == [(7, "failed", "rank 2: it is gone")]


def test_what_a_process_says_of_its_end_fits_in_a_report() -> None:
    """Else a process could end its host's daemon by it."""
    host = HostSeats()
    host.want([grant(7, ranks=1)])
    host.joined("train", 2)
    host.left("train", 2, failure=8192 * "\N{SNOWMAN}")
    encode_message(AgentReport(revision=1, holds=tuple(host.holds())))


def test_a_seat_is_for_who_shows_its_token() -> None:
    host = HostSeats()
    host.joined("train", 2, "guessed")  # before the seat was heard of
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    assert phases(host) == [(7, "held", "")]
    host.joined("train", 3, "guessed")
    assert phases(host) == [(7, "held", "")]
    host.joined("train", 2, "token")
    host.joined("train", 3, "token")
    assert phases(host) == [(7, "running", "")]


@pytest.mark.parametrize(
    ("job", "rank", "key", "words"),
    [
        ("train", 2, "token", ""),
        ("train", 2, "guessed", "which is not what it shows as its key"),
        ("train", 2, "", "it does not show as its key"),
        ("train", 2, "guessed", "belongs in INAPROTO_KEY"),
        ("train#1/2", 2, "guessed", "not what it shows"),
        ("train~1", 0, "guessed", "not what it shows"),
        ("train", 1, "token", "has given this host ranks 2 to 4"),
        ("train~1", 1, "token", ""),
        ("other", 0, "", ""),
    ],
)
def test_who_may_not_join(job: str, rank: int, key: str, words: str) -> None:
    host = HostSeats()
    host.want([grant(6, name="next"), replace(grant(7, ranks=3), token_hash=hash_of("token"))])
    found = host.refusal_of(job, rank, key)
    assert words in found
    assert bool(words) == bool(found)
    host.want([])
    assert host.refusal_of(job, rank, key) == ""


def phases(host: HostSeats) -> list[tuple[int, str, str]]:
    return [(hold.grant, hold.phase, hold.reason) for hold in host.holds()]


def test_it_runs_when_all_have_joined_and_ends_when_all_have_left() -> None:
    host = HostSeats()
    host.want([grant(7)])
    host.joined("train", 2)
    host.joined("train", 1)  # of another host's seats: not ours to count
    host.joined("other", 3)
    assert phases(host) == [(7, "held", "")]
    host.joined("train", 3)
    assert phases(host) == [(7, "running", "")]
    host.left("train", 1, failure="it is gone")
    host.left("train", 2, failure="")
    assert phases(host) == [(7, "running", "")]
    host.left("train", 3, failure="")
    assert phases(host) == [(7, "ended", "")]


def test_it_has_failed_when_none_is_left_and_one_went_without_leaving() -> None:
    host = HostSeats()
    host.want([grant(7)])
    for rank in (2, 3):
        host.joined("train", rank)
    host.left("train", 3, failure="process 9 ended without leaving")
    assert phases(host)[0][1] == "running"  # a job may go on with those that are left
    host.left("train", 2, failure="")
    assert phases(host) == [(7, "failed", "rank 3: process 9 ended without leaving")]


def test_an_end_that_is_told_twice_or_of_who_never_came_changes_nothing() -> None:
    host = HostSeats()
    host.want([grant(7, ranks=1)])
    host.left("train", 2, failure="it is gone")
    host.joined("train", 2)
    host.left("train", 2, failure="")
    host.left("train", 2, failure="it is gone")
    assert phases(host) == [(7, "ended", "")]


def test_the_seat_of_a_rank_is_one_that_is_wished_now() -> None:
    host = HostSeats()
    host.want([grant(7)])
    host.joined("train", 2)
    assert host.has_seat("train", 2)
    assert not host.has_seat("train", 1)
    assert not host.has_seat("other", 2)
    host.want([])
    assert not host.has_seat("train", 2), "it is held, and not given"


def test_seats_that_are_wished_again_are_the_same_and_others_come_beside_them() -> None:
    host = HostSeats()
    host.want([grant(7)])
    for rank in (2, 3):
        host.joined("train", rank)
    host.left("train", 2, failure="it is gone")
    host.want([grant(7), grant(8, name="next")])
    assert phases(host) == [(7, "running", LOST), (8, "held", "")]


def test_all_seats_that_are_given_up_have_their_processes_cut_off() -> None:
    host = HostSeats()
    host.want([grant(7), grant(8, name="next")])
    host.joined("train", 2)
    host.joined("next", 2)
    assert [job for job, *_ in host.want([])] == ["train", "next"]


def test_who_comes_to_a_seat_that_was_given_up_does_not_hold_it() -> None:
    """Nobody cuts it off: it has come as to a job that no controller knows of."""
    host = HostSeats()
    host.want([grant(7)])
    host.joined("train", 2)
    host.want([])
    host.joined("train", 3)
    host.left("train", 2, failure="cut off")
    assert phases(host) == []


def test_a_seat_that_is_wished_again_while_its_processes_end_knows_who_had_left() -> None:
    host = HostSeats()
    wished = replace(grant(7), token_hash=hash_of("token"))
    host.want([wished])
    for rank in (2, 3):
        host.joined("train", rank, "token")
    host.left("train", 3, failure="")
    host.want([])
    host.want([wished])
    assert phases(host) == [(7, "running", "")]


def test_ranks_may_come_before_their_seat() -> None:
    host = HostSeats()
    for rank in (2, 3):
        host.joined("train", rank)
    host.want([grant(7)])
    assert phases(host) == [(7, "running", "")]


def test_a_seat_is_held_until_its_processes_are_gone() -> None:
    host = HostSeats()
    host.want([grant(7)])
    host.joined("train", 2)
    cut_off = host.want([grant(8, name="next", first_rank=0)])
    assert cut_off == [("train", range(2, 4), "its job was ended by the controller")]
    assert [number for number, _, _ in phases(host)] == [7, 8]
    host.left("train", 2, failure="cut off")
    assert phases(host) == [(8, "held", "")]


def test_who_waits_for_a_seat_that_is_given_up_is_known_by_its_token() -> None:
    host = HostSeats()
    wished = replace(grant(7), token_hash=hash_of("token"))
    host.want([wished])
    assert not host.has_given_up("train", 2, "token")
    host.want([])
    assert host.has_given_up("train", 2, "token")
    assert host.has_given_up("train#1/2", 3, "token")
    assert not host.has_given_up("train", 1, "token"), "elsewhere"
    assert not host.has_given_up("train", 2, "another's")
    assert not host.has_given_up("other", 2, "token")
    host.want([])
    assert not host.has_given_up("train", 2, "token"), "it was heard of once"


def test_who_waits_for_a_seat_that_is_wished_under_another_number_has_it() -> None:
    host = HostSeats()
    wished = replace(grant(7), token_hash=hash_of("token"))
    host.want([wished])
    host.want([replace(wished, grant=8)])
    assert not host.has_given_up("train", 2, "token")
    host.want([replace(wished, grant=9, token_hash=hash_of("next"))])
    assert host.has_given_up("train", 2, "token")
    assert not host.has_given_up("train", 2, "next")


def test_who_waits_to_go_on_without_a_lost_rank_has_the_seat_that_is_wished_under_another_number() -> None:
    """Its rank in the job that follows is none of those that the seat names."""
    host = HostSeats()
    wished = replace(grant(7), token_hash=hash_of("token"), elastic=True)
    host.want([wished])
    host.want([replace(wished, grant=8)])
    assert not host.has_given_up("train~1", 0, "token")
    host.want([])
    assert host.has_given_up("train~1", 0, "token")
    assert not host.has_given_up("train~1", 0, "another's")


def test_a_seat_that_is_wished_again_while_its_processes_end_asks_for_its_token() -> None:
    """A controller does so that goes on from a store of before the seat was given up."""
    host = HostSeats()
    wished = replace(grant(7), token_hash=hash_of("token"))
    host.want([wished])
    for rank in (2, 3):
        host.joined("train", rank, "token")
    assert len(host.want([])) == 1
    assert host.want([wished]) == []
    assert host.has_seat("train", 2)
    assert "not what it shows" in host.refusal_of("train", 2, "guessed")
    assert phases(host) == [(7, "running", "")]
    for rank in (2, 3):
        host.left("train", rank, failure="it is cut off")
    assert phases(host) == [(7, "failed", "rank 2: it is cut off")]


def test_a_seat_that_is_wished_again_counts_who_came_meanwhile_with_its_token_and_nobody_else() -> None:
    host = HostSeats()
    wished = replace(grant(7), token_hash=hash_of("token"))
    host.want([wished])
    host.joined("train", 2, "token")
    host.want([])
    host.joined("train", 3, "guessed")
    host.want([wished])
    assert phases(host) == [(7, "held", "")]
    host.want([])
    host.joined("train#1/2", 3, "token")
    host.want([wished])
    assert phases(host) == [(7, "running", "")]


@pytest.mark.parametrize("token", ["other", "token"])
def test_a_number_that_is_of_another_job_now_counts_none_of_the_ranks_of_before(token: str) -> None:
    """The store of the controller was thrown away, and it begins with the first number again."""
    host = HostSeats()
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    for rank in (2, 3):
        host.joined("train", rank, "token")
    host.want([])
    host.want([replace(grant(7, name="next"), token_hash=hash_of(token))])
    assert phases(host) == [(7, "held", "")]
    assert "not what it shows" in host.refusal_of("next", 2, "guessed")


def test_an_empty_seat_is_given_up_at_once() -> None:
    host = HostSeats()
    host.want([grant(7)])
    assert host.want([]) == []
    assert phases(host) == []


def test_a_new_seat_of_the_same_name_counts_its_own_ranks() -> None:
    host = HostSeats()
    host.want([grant(7)])
    host.joined("train", 2)
    host.want([grant(9, first_rank=0, ranks=1)])
    assert phases(host) == [(7, "held", ""), (9, "held", "")]


def test_ranks_that_have_ended_before_their_seat_was_heard_of_have_run() -> None:
    """The controller was killed when it had promised the seat and told nobody: it would be held for ever."""
    host = HostSeats()
    for rank in (2, 3):
        host.joined("train", rank, "token")
    for rank in (2, 3):
        host.left("train", rank, failure="")
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    assert phases(host) == [(7, "ended", "")]
    host.want([])
    host.want([replace(grant(8), token_hash=hash_of("token"))])
    assert phases(host) == [(8, "held", "")]  # once


def test_ranks_that_have_ended_in_a_seat_count_for_no_other_one() -> None:
    host = HostSeats()
    wished = replace(grant(7), token_hash=hash_of("token"))
    host.want([wished])
    for rank in (2, 3):
        host.joined("train", rank, "token")
    for rank in (2, 3):
        host.left("train", rank, failure="")
    host.want([replace(wished, grant=8)])
    assert phases(host) == [(8, "held", "")]


def test_a_rank_may_end_before_its_seat_was_heard_of_beside_another_seat_of_its_job() -> None:
    host = HostSeats()
    first, second = (
        replace(grant(number, first_rank=rank, ranks=1), token_hash=hash_of("token"))
        for number, rank in ((6, 0), (7, 2))
    )
    host.want([first])
    host.joined("train", 2, "token")
    host.left("train", 2, failure="")
    host.want([first, second])
    assert phases(host) == [(6, "held", ""), (7, "ended", "")]


def test_a_rank_that_comes_again_before_its_seat_was_heard_of_has_not_failed() -> None:
    host = HostSeats()
    host.joined("train", 2, "token")
    host.left("train", 2, failure="it is gone")
    for rank in (2, 3):
        host.joined("train", rank, "token")
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    assert phases(host) == [(7, "running", "")]


def test_one_ring_that_failed_before_the_seat_was_heard_of_fails_it() -> None:
    host = HostSeats()
    for job in ("train#0/2", "train#1/2"):
        host.joined(job, 2, "token")
    host.left("train#0/2", 2, failure="it is gone")
    host.left("train#1/2", 2, failure="")
    host.want([replace(grant(7, ranks=1), token_hash=hash_of("token"))])
    assert phases(host) == [(7, "failed", LOST)]


def test_a_rank_that_has_failed_before_its_seat_was_heard_of_has_failed() -> None:
    host = HostSeats()
    for rank in (2, 3):
        host.joined("train", rank, "token")
    host.left("train", 2, failure="it is gone")
    host.left("train", 3, failure="")
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    assert phases(host) == [(7, "failed", "rank 2: it is gone")]


@pytest.mark.parametrize("token", ["", "of another job of that name"])
def test_ranks_that_have_ended_without_its_token_were_none_of_a_seat(token: str) -> None:
    host = HostSeats()
    for rank in (2, 3):
        host.joined("train", rank, token)
        host.left("train", rank, failure="")
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    assert phases(host) == [(7, "held", "")]
    host.want([replace(grant(8), token_hash="")])
    assert phases(host) == [(8, "held", "")]


def test_of_how_many_jobs_ended_ranks_are_remembered_is_bounded() -> None:
    host = HostSeats()
    for number in range(ENDED_MAX + 1):
        host.joined(f"job{number}", 2, "token")
        host.left(f"job{number}", 2, failure="")
    for number, phase in ((0, "held"), (1, "ended")):
        wanted = grant(number + 1, name=f"job{number}", ranks=1)
        host.want([replace(wanted, token_hash=hash_of("token"))])
        assert phases(host) == [(number + 1, phase, "")]


def test_a_rank_that_had_left_before_its_daemon_died_counts_for_the_seat() -> None:
    """The next daemon has heard of the seat when ranks come back, and says of each whether it had left."""
    host = HostSeats()
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    host.joined("train", 2, "token")
    host.left("train", 2, failure="")
    host.joined("train", 3, "token")
    assert phases(host) == [(7, "running", "")]
    host.left("train", 3, failure="")
    assert phases(host) == [(7, "ended", "")]


def test_a_rank_that_had_failed_before_the_seat_was_heard_of_fails_it_with_those_that_go_on() -> None:
    host = HostSeats()
    for rank in (2, 3):
        host.joined("train", rank, "token")
    host.left("train", 2, failure="it is gone")
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    assert phases(host) == [(7, "running", "rank 2: it is gone")]
    host.left("train", 3, failure="")
    assert phases(host) == [(7, "failed", "rank 2: it is gone")]


def test_a_seat_that_is_heard_of_between_two_ranks_that_come_back_counts_both() -> None:
    host = HostSeats()
    host.joined("train", 2, "token")
    host.left("train", 2, failure="it is gone")
    host.want([replace(grant(7), token_hash=hash_of("token"))])
    host.joined("train", 3, "token")
    assert phases(host) == [(7, "running", "rank 2: it is gone")]
    host.left("train", 3, failure="")
    assert phases(host) == [(7, "failed", "rank 2: it is gone")]


# --- elastic jobs


def elastic(number: int, *, first_rank: int = 2, ranks: int = 2) -> GrantRecord:
    made = grant(number, first_rank=first_rank, ranks=ranks)
    return replace(made, elastic=True, token_hash=hash_of("token"))


def running(ranks: int = 2) -> HostSeats:
    """Ranks 2 and further of an elastic job."""
    host = HostSeats()
    host.want([elastic(7, ranks=ranks)])
    for rank in range(2, 2 + ranks):
        host.joined("train", rank, "token")
    assert phases(host) == [(7, "running", "")]
    return host


def goes_on(host: HostSeats, job: str, rank: int, next_job: str, next_rank: int) -> None:
    """As a process does that shrinks: its old connection is open until it has the next."""
    host.follows(job, rank, "token", (next_job, next_rank))
    host.joined(next_job, next_rank, "token")
    host.left(job, rank, failure="process 9 ended without leaving")


def test_who_goes_on_without_a_lost_rank_keeps_its_seat() -> None:
    host = running()
    host.left("train", 2, failure="it is gone")
    assert phases(host) == [(7, "running", LOST)]
    goes_on(host, "train", 3, "train~1", 0)
    assert phases(host) == [(7, "running", LOST)], "its old place is given up, which is no failure"
    host.left("train~1", 0, failure="")
    assert phases(host) == [(7, "ended", LOST)]


def test_it_may_go_on_again_and_again_and_one_that_is_lost_then_is_named() -> None:
    host = running()
    for rank in (2, 3):
        goes_on(host, "train", rank, "train~1", rank - 2)
    goes_on(host, "train~1", 1, "train~2", 0)
    assert phases(host) == [(7, "running", "")]
    host.left("train~1", 0, failure="it is gone")
    assert phases(host) == [(7, "running", "rank 0 of train~1: it is gone")]
    host.left("train~2", 0, failure="as well")
    assert phases(host) == [(7, "failed", "rank 0 of train~1: it is gone")]


RINGS = ("train#0/2", "train#1/2")


@pytest.mark.parametrize("told_after", range(3))
@pytest.mark.parametrize("failures", [("it is gone", ""), ("", "it is gone")])
def test_a_rank_has_left_in_order_only_by_all_its_rings(failures: tuple[str, str], told_after: int) -> None:
    """Whichever ends first, and whenever the seat is heard of."""
    host = HostSeats()
    if told_after == 0:
        host.want([elastic(7)])
    for ring in RINGS:
        host.joined(ring, 2, "token")
    for number, (ring, failure) in enumerate(zip(RINGS, failures, strict=True)):
        if number + 1 == told_after:
            host.want([elastic(7)])
        host.left(ring, 2, failure=failure)
    for ring in RINGS:
        host.joined(ring, 3, "token")
        host.left(ring, 3, failure="as well")
    assert phases(host) == [(7, "failed", LOST)]


def test_a_rank_that_comes_again_may_leave_in_order() -> None:
    host = HostSeats()
    host.want([elastic(7, ranks=1)])
    for failure in ("it is gone", ""):
        for ring in RINGS:
            host.joined(ring, 2, "token")
        for ring in RINGS:
            host.left(ring, 2, failure=failure)
    assert phases(host) == [(7, "ended", LOST)]


def test_who_was_told_where_to_go_on_and_dies_first_is_lost() -> None:
    host = running(1)
    host.follows("train", 2, "token", ("train~1", 0))
    host.left("train", 2, failure="it is gone")
    assert phases(host) == [(7, "failed", LOST)]


def test_a_place_in_a_job_that_did_not_begin_is_no_loss() -> None:
    """The others are asked again by the old connection, which is still there."""
    host = running(1)
    host.follows("train", 2, "token", ("train~1", 0))
    host.joined("train~1", 0, "token")
    host.left("train~1", 0, failure="process 9 ended without leaving")
    assert phases(host) == [(7, "running", "")]
    goes_on(host, "train", 2, "train~2", 0)
    assert phases(host) == [(7, "running", "")]
    host.left("train~2", 0, failure="")
    assert phases(host) == [(7, "ended", "")]


def test_ranks_that_follow_come_back_to_a_daemon_that_was_started_anew() -> None:
    """With fewer than the seat has: all had been there."""
    host = HostSeats()
    host.want([elastic(7)])
    host.joined("train~1", 0, "token")
    assert phases(host) == [(7, "running", "")]
    host.left("train~1", 0, failure="")
    assert phases(host) == [(7, "ended", "")]


@pytest.mark.parametrize(("failure", "found"), [("", "ended"), ("it is gone", "failed")])
def test_what_followed_and_ended_before_its_seat_was_heard_of_is_told(failure: str, found: str) -> None:
    host = HostSeats()
    host.joined("train", 2, "token")
    goes_on(host, "train", 2, "train~1", 0)
    host.left("train~1", 0, failure=failure)
    host.want([elastic(7, ranks=1)])
    reason = f"rank 0 of train~1: {failure}" if failure else ""
    assert phases(host) == [(7, found, reason)]


def test_who_followed_was_here_with_all_others_also_before_its_seat_was_heard_of() -> None:
    """A daemon that was started anew is told of it alone."""
    host = HostSeats()
    host.joined("train~1", 0, "token")
    host.left("train~1", 0, failure="")
    host.want([elastic(7)])
    assert phases(host) == [(7, "ended", "")]


def test_a_rank_that_was_lost_before_is_named_when_the_seat_is_heard_of_with_who_follows() -> None:
    host = HostSeats()
    host.joined("train", 2, "token")
    host.left("train", 2, failure="it is gone")
    host.joined("train~1", 0, "token")
    host.want([elastic(7)])
    assert phases(host) == [(7, "running", LOST)]


def test_a_seat_of_which_one_rank_had_left_in_order_before_it_was_heard_of_has_ended() -> None:
    host = HostSeats()
    for rank in (2, 3):
        host.joined("train", rank, "token")
    host.left("train", 2, failure="it is gone")
    host.left("train", 3, failure="")
    host.want([elastic(7)])
    assert phases(host) == [(7, "ended", LOST)]


def test_a_rank_that_has_left_one_ring_before_its_seat_was_heard_of_has_not_ended() -> None:
    host = HostSeats()
    for job in ("train#0/2", "train#1/2"):
        host.joined(job, 2, "token")
    host.left("train#0/2", 2, failure="")
    host.want([elastic(7, ranks=1)])
    host.left("train#1/2", 2, failure="it is gone")
    assert phases(host) == [(7, "failed", LOST)]


def test_who_follows_is_cut_off_with_the_others() -> None:
    host = running()
    goes_on(host, "train", 3, "train~1", 1)
    why = "its job was ended by the controller"
    assert host.want([]) == [("train", range(2, 4), why), ("train~1", range(1, 2), why)]
    host.left("train", 2, failure="cut off")
    assert [number for number, *_ in phases(host)] == [7]
    host.left("train~1", 1, failure="cut off")
    assert phases(host) == []


def test_who_follows_shows_the_token() -> None:
    host = running(1)
    host.left("train", 2, failure="it is gone")
    host.joined("train~1", 0, "guessed")
    host.joined("train#0/2", 2, "guessed")
    host.joined("trainer~1", 0, "token")
    assert phases(host) == [(7, "failed", LOST)]


def test_of_a_job_that_is_not_elastic_who_follows_has_no_seat() -> None:
    host = HostSeats()
    host.want([replace(elastic(7), elastic=False)])
    for rank in (2, 3):
        host.joined("train", rank, "token")
    for rank in (2, 3):
        goes_on(host, "train", rank, "train~1", rank - 2)
    assert phases(host) == [(7, "failed", "rank 2: process 9 ended without leaving")]
    assert host.want([]) == []


def test_nothing_is_kept_of_who_has_gone() -> None:
    host = running()
    for rank in (2, 3):
        goes_on(host, "train", rank, "train~1", rank - 2)
        host.follows("train~1", rank - 2, "token", ("train~2", rank - 2))
        host.left("train~1", rank - 2, failure="")
    assert host._before == {}
    assert host._present == {}


def test_what_no_switch_of_ours_says_is_not_believed() -> None:
    host = running()
    for further in ("train", "other~1", "train#0/2"):
        host.follows("train", 2, "token", (further, 2))
    assert host._before == {}
    anew = HostSeats()
    anew.follows("train~1", 0, "token", ("train~1", 1))
    assert anew._before == {}
    host.left("train", 2, failure="it is gone")
    assert phases(host) == [(7, "running", LOST)]


def test_a_job_that_had_begun_for_others_counts_when_its_process_gives_up_the_place_before() -> None:
    """It asks who goes on by a connection whose ring had not stood here, and closes the other one."""
    host = running(1)
    host.follows("train", 2, "token", ("train~1", 0))
    host.follows("train~1", 0, "token", ("train~2", 0))
    host.left("train", 2, failure="process 9 ended without leaving")
    assert phases(host) == [(7, "running", "")]
    host.joined("train~2", 0, "token")
    host.left("train~1", 0, failure="process 9 ended without leaving")
    assert phases(host) == [(7, "running", "")]
    host.left("train~2", 0, failure="")
    assert phases(host) == [(7, "ended", "")]
