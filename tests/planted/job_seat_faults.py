"""Faults of the seats of elastic jobs: who counts for one, and when the job is over for its controller."""

from __future__ import annotations

from typing import Final

from inaproto.core.grants import verdict
from inaproto.core.grants.seats import HostSeats, _Seat
from tests.planted.planting import PlantedFault, fault
from tests.planted.shapes import seated

SEAT: Final = "docs/protocol.md 17; inaproto.core.grants.seats"
VERDICT: Final = "docs/protocol.md 17; inaproto.core.grants.verdict"

JOB_SEAT_FAULTS: Final[tuple[PlantedFault, ...]] = (
    fault(
        "who_follows_has_no_seat",
        SEAT,
        "counts no process for a seat that goes on without a lost rank",
        _Seat.has_place_for,
        "self.grant.elastic and",
        "False and",
        shape=seated,
    ),
    fault(
        "old_place_given_up_is_a_loss",
        SEAT,
        "names a process as lost that has closed its old connection, and is in the next job",
        HostSeats._left,
        "if not (seat.grant.elastic and goes_on):",
        "if True:",
        shape=seated,
    ),
    fault(
        "renumbered_seat_is_gone",
        SEAT,
        "turns away who waits to begin when its seat comes under another number",
        HostSeats.has_given_up,
        "not is_given and",
        "",
        test="tests/unit/test_host_seats.py"
        "::test_who_waits_for_a_seat_that_is_wished_under_another_number_has_it",
    ),
    fault(
        "begun_for_others_alone",
        SEAT,
        "counts no process that gives up its place for one in a job that had begun for others alone",
        HostSeats.follows,
        "self.joined(job, rank, key)",
        "pass",
        shape=seated,
        seeds_max=400,
    ),
    fault(
        "seat_of_an_end_has_failed",
        SEAT,
        "says that a seat has failed of which one rank was lost, and the others have ended",
        _Seat.phase,
        "if self.failure and not self.has_ended:",
        "if self.failure:",
        shape=seated,
    ),
    fault(
        "first_seat_ends_an_elastic_job",
        VERDICT,
        "takes an elastic job for over with the first of its seats",
        verdict._of_elastic,
        "if all(fate in over for fate in fates):",
        "if any(fate in over for fate in fates):",
        shape=seated,
    ),
    fault(
        "late_word_taken_for_a_loss",
        VERDICT,
        "takes ranks for lost of which their host had not heard yet that they run",
        verdict.seat_seen,
        "if host.is_anew or not host.has_heard:",
        "if host.is_anew:",
        shape=seated,
        seeds_max=400,
    ),
    fault(
        "silent_host_taken_for_lost",
        VERDICT,
        "takes a host for lost as soon as its session has ended",
        verdict.seat_seen,
        "return SeatSeen(Fate.AWAITED)\n    befell",
        "return SeatSeen(Fate.LOST)\n    befell",
        shape=seated,
        seeds_max=400,
    ),
)
