"""Faults of the rendezvous: who is told what, and when."""

from __future__ import annotations

from typing import Final

from inaproto.core.rendezvous.rendezvous import Rendezvous
from tests.planted.planting import Change, PlantedFault
from tests.planted.shapes import calm

RINGS: Final = "NetReduce 3.1, rings; inaproto.core.rendezvous.rendezvous"

CONTROL_FAULTS: Final = (
    PlantedFault(
        "start_before_all_are_ready",
        RINGS,
        "starts the job when the first rank is ready",
        (
            Change(
                Rendezvous._ready,
                "if not all(seat.ready for seat in job.seats.values()):",
                "if not any(seat.ready for seat in job.seats.values()):",
            ),
        ),
    ),
    PlantedFault(
        "failure_told_to_one",
        RINGS,
        "tells the first host that a rank is lost, not all of them",
        (
            Change(
                Rendezvous._fail,
                "told = self._tell_all(job, failed, without=without)",
                "told = self._tell_all(job, failed, without=without)[:1]",
            ),
        ),
    ),
    PlantedFault(
        "ring_not_removed",
        RINGS,
        "forgets a job and leaves its ring in the accelerator",
        (
            Change(
                Rendezvous._forget,
                "return self._remove_ring(job)",
                "return []",
            ),
        ),
        shape=calm,
    ),
    PlantedFault(
        "lost_host_unnoticed",
        RINGS,
        "takes note that a host is gone, and leaves its ranks in their jobs",
        (
            Change(
                Rendezvous._session_ended,
                "actions += self._lose(job, seats,",
                "actions += () and self._lose(job, seats,",
            ),
        ),
    ),
    PlantedFault(
        "closed_when_first_leaves",
        RINGS,
        "closes the job when one rank has left in good order",
        (
            Change(
                Rendezvous._leave,
                "any(other.left_after is None for other in job.seats.values()):",
                "all(other.left_after is None for other in job.seats.values()):",
            ),
        ),
    ),
)
