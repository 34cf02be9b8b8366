"""How a job ends, and how its ring does while the job goes on.

A job closes when all its ranks have left, and fails when one of them is lost; of an elastic one the others
may go on (:mod:`~inaproto.core.rendezvous.regroupings`). A ring that ends by no fault of its ranks halts its
job.

Invariants: the switches forget a ring with its job, or its halt; everybody concerned is told once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inaproto.core.rendezvous.disputes import CALLS_NS, Dispute
from inaproto.core.rendezvous.events import (
    MemberCalls,
    Noted,
    RendezvousAction,
    Send,
)
from inaproto.core.rendezvous.jobs import Job, Phase, Seat, name_seats
from inaproto.core.rendezvous.regroupings import EndJob, RegroupingAction, Regroupings
from inaproto.core.rendezvous.state import State, remember
from inaproto.core.switch.accelerator import RemoveRing
from inaproto.errors import (
    JobError,
    RankLost,
    SwitchUnreachable,
    TensorMismatch,
)
from inaproto.units import Instant
from inaproto.wire.control_messages import (
    AskCalls,
    Closed,
    error_message,
    failed_message,
)

ALL_LEFT: Final = "all its ranks left"
"""Why a job has ended that has ended well."""


class Endings:
    """Ends jobs and rings of one rendezvous."""

    def __init__(self, state: State, regroupings: Regroupings) -> None:
        self._state = state
        self._regroupings = regroupings

    def regrouped(self, actions: Sequence[RegroupingAction]) -> list[RendezvousAction]:
        """What follows from what survivors agree on: a next job that has not begun may be ended."""
        found: list[RendezvousAction] = []
        for action in actions:
            if isinstance(action, EndJob):
                job = self._state.jobs.get(action.name)
                found += [] if job is None else self.fail(job, action.error, lost=job.in_order())
            else:
                found.append(action)
        return found

    def close(self, job: Job) -> list[RendezvousAction]:
        self._state.counters["jobs_closed"] += 1
        remember(self._state.ended, job.name, ALL_LEFT)
        closed = self._state.tell_all(job, Closed(job=job.name, ring_id=job.ring_id))
        return [*self._forget(job), *closed, Noted(f"job {job.name}: all ranks left, closed")]

    def lose(self, job: Job, seats: Sequence[Seat], reason: str) -> list[RendezvousAction]:
        """One rank, whose host knows of it, or all of a host."""
        who = name_seats(seats)
        if job.phase is Phase.JOINING:  # nobody depends on it yet: the seat is free again
            for seat in seats:
                del job.seats[seat.member.rank]
            noted = Noted(f"job {job.name}: {who} is no longer waiting: {reason}")
            if not job.seats:
                del self._state.jobs[job.name]
                return [noted]
            return [noted, *self._state.tell_waiting(job)]
        error = RankLost(f"{who} of job {job.name!r} is lost: {reason}")
        return self.fail(job, error, without=seats, lost=seats)

    def dispute(self, job: Job, evidence: str) -> list[RendezvousAction]:
        """Its ranks call different all-reduces: it fails as soon as they have said which."""
        if job.dispute is not None:
            return []
        job.dispute = Dispute(evidence, Instant(self._state.now + CALLS_NS))
        return self._state.tell_all(job, AskCalls(job=job.name))

    def called(self, job: Job, event: MemberCalls) -> list[RendezvousAction]:
        """What one of them calls; that of a rank which has left is all done."""
        if job.dispute is None:
            return []
        job.dispute.told[event.message.rank] = event.message
        if any(rank not in job.dispute.told and seat.left_after is None for rank, seat in job.seats.items()):
            return []
        return self.settle(job, job.dispute)

    def settle(self, job: Job, dispute: Dispute) -> list[RendezvousAction]:
        """Fail the job with what is known by now."""
        text = dispute.explain(job.name, lambda ranks: name_seats(job.seats[rank] for rank in ranks))
        return self.fail(job, TensorMismatch(text))

    def woke(self) -> list[RendezvousAction]:
        """Ranks that have not said in time what they call are waited for no more."""
        found: list[RendezvousAction] = []
        for job in list(self._state.jobs.values()):
            if job.dispute is not None and job.dispute.until <= self._state.now:
                found += self.settle(job, job.dispute)
        return found

    def miss_the_gone(self, job: Job) -> list[RendezvousAction]:
        """Fail a job that gathers if a rank that it waits for is known to be lost."""
        for rank in job.missing():
            reason = self._state.gone.get((job.name, rank))
            if reason is not None:
                return self.fail(job, RankLost(f"rank {rank} of job {job.name!r} is lost: {reason}"))
        return []

    def fail(
        self, job: Job, error: JobError, *, without: Sequence[Seat] = (), lost: Sequence[Seat] = ()
    ) -> list[RendezvousAction]:
        """``without``: those whose hosts know; ``lost``: those that are not among the survivors."""
        self._state.counters["jobs_failed"] += 1
        remember(self._state.ended, job.name, str(error))
        told: list[RendezvousAction]
        if job.phase is Phase.JOINING and not isinstance(error, SwitchUnreachable):  # joins are refused
            told = [Send(seat.session, error_message(error, of=seat.member.id)) for seat in job.in_order()]
        else:
            failed = failed_message(job.name, error, ring_id=job.ring_id)
            told = self._state.tell_all(job, failed, without=without)
        noted = Noted(f"job {job.name}: failed: {error}", is_problem=True)
        regrouping = self._regroupings.job_failed(job, error, lost, self._state.now)
        return [*self._forget(job), *told, noted, *self.regrouped(regrouping)]

    def _forget(self, job: Job) -> list[RendezvousAction]:
        del self._state.jobs[job.name]
        self._state.rings.pop(job.ring_id, None)
        if not job.installed:
            return []
        for other in self._state.jobs.values():
            other.room_made(self._state.now)
        return self.remove_ring(job)

    def remove_ring(self, job: Job) -> list[RendezvousAction]:
        """Out of the switches."""
        ring_id, job.installed, job.ina_ring_id = job.installed, 0, 0
        job.tree.ends()
        self._state.rings.pop(ring_id, None)
        return [RemoveRing(ring_id)] if ring_id else []

    def halt(self, job: Job, reason: str) -> list[RendezvousAction]:
        """The ring ends, the job does not."""
        removed = self.remove_ring(job)
        self._state.rings.pop(job.ring_id, None)
        job.phase = Phase.HALTED
        job.recovery.halt(reason, self._state.now, self._state.config.recover_ns)
        self._state.counters["recoveries"] += 1
        for seat in job.in_order():
            seat.ready = seat.halted = False
            seat.stalled = None
        noted = Noted(f"job {job.name}: halted, to go on by {job.recovery.path}: {reason}", is_problem=True)
        return [*removed, *self._state.tell_halt(job), noted]

    def lose_sight(self, job: Job, seats: Sequence[Seat], reason: str) -> list[RendezvousAction]:
        """A host has lost its connection: it may come back, with all its ranks."""
        for seat in seats:
            seat.is_away = True
            seat.halted = seat.ready = False
        why = f"{name_seats(seats)} is away: {reason}"
        if job.phase is Phase.HALTED:
            job.recovery.wait(self._state.now, self._state.config.recover_ns)  # none may have ended yet
            return [Noted(f"job {job.name}: {why}")]
        return self.halt(job, why)

    def disagree(self, job: Job, reason: str) -> list[RendezvousAction]:
        """The next rings take the operation up where it is, all on the base ring."""
        self._state.counters["disagreements"] += 1
        return self.halt(job, reason)
