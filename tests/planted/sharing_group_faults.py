"""Faults of a sharing group at its controller: who has a seat, and whose turn ends (control worlds)."""

from __future__ import annotations

from typing import Any, Final

from inaproto.core.sharing.group import SharingGroup
from inaproto.core.sharing.known_seats import KnownSeats
from tests.planted.planting import Change, PlantedFault
from tests.planted.sharing_word_faults import SHARING


def _fault(name: str, text: str, function: Any, right: str, wrong: str) -> PlantedFault:
    return PlantedFault(name, SHARING, text, (Change(function, right, wrong),))


GROUP_FAULTS: Final = (
    _fault(
        "seats_of_a_lost_host_kept",
        "gives the seats of a host that is not heard of up far too late",
        SharingGroup.step,
        "Instant(now + self._config.lease_ns)",
        "Instant(now + 100 * self._config.lease_ns)",
    ),
    _fault(
        "stands_still_unseen",
        "ends no turn in which nothing goes on",
        SharingGroup._revoke,
        "elif at is not None and self._are_connected(one.undrained):",
        "elif False:",
    ),
    _fault(
        "seat_gone_untold",
        "knows that a seat is gone, and does not tell the coordinator",
        SharingGroup._forget,
        "*self._tell(SeatGone(seat, why), now)",
        "",
    ),
    _fault(
        "seats_of_two_lives",
        "keeps a seat that its host has no more beside the one that took its place",
        SharingGroup._reported,
        'actions += self._forget(seat, "its host has it no more", now, is_lost=False)',
        "pass",
    ),
    _fault(
        "ring_in_part_planned",
        "gives turns to a job of which some seats are not known",
        KnownSeats._count,
        " and len(seats) == hold.hosts",
        "",
    ),
    _fault(
        "planned_before_all_are_heard",
        "plans turns after a restart before all seats that had one are heard of, or lost",
        SharingGroup._settle,
        "not self._seats.are_heard or ",
        "",
    ),
    _fault(
        "held_no_more_untold",
        "never lets a job have turns again that has moved",
        SharingGroup._hold,
        "actions += self._tell(JobReleased(job), now)",
        "pass",
    ),
)
