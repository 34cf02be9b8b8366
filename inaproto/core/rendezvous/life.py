"""The life of a job: its ranks join, connect, run and leave, or it fails.

The members of a ring are hosts, each with all its ranks of the job, whose tensors it sums before it sends
(NetReduce section 3.4, where machines reduce inside first): the ranks of a host share one link, and what
concerns it (``Ready``, and with it ``Halted`` and ``Broken``) is said once for all of them.

What becomes of a job whose ring ends is in :mod:`inaproto.core.rendezvous.ring_ends`, the table of phases and
events in :mod:`inaproto.core.rendezvous.rendezvous`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from inaproto.core.host.recovery import Recovery, decide
from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    MemberBroken,
    MemberEvent,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberReady,
    Noted,
    OperationStalled,
    RendezvousAction,
    RendezvousConfig,
    RingStands,
    Send,
    SessionId,
    TreeWished,
)
from inaproto.core.rendezvous.job_tree import TreeIs
from inaproto.core.rendezvous.jobs import Job, Phase, RingMember, Seat, name_seats, process_of
from inaproto.core.rendezvous.link_measures import LinkMeasures
from inaproto.core.rendezvous.next_ring import cannot_sum, halt_message, in_overlay
from inaproto.core.rendezvous.regroupings import Regroupings
from inaproto.core.rendezvous.rules import refuse_beside
from inaproto.core.switch.accelerator import RemoveRing, RingFault, RingRefused
from inaproto.errors import (
    Blame,
    FabricLost,
    JobError,
    JoinRefused,
    RankLost,
    SwitchUnreachable,
    TensorMismatch,
)
from inaproto.units import Instant
from inaproto.wire.control_messages import (
    Closed,
    JobStatus,
    Member,
    Message,
    Ring,
    Start,
    error_message,
    failed_message,
)

K = TypeVar("K")

REMEMBERED_MAX: Final = 256
"""Ends of jobs and ranks that hosts may have missed."""


class JobLife:
    """What :class:`~inaproto.core.rendezvous.rendezvous.Rendezvous` knows, and does while rings do not
    end."""

    def __init__(self, config: RendezvousConfig) -> None:
        self._config = config
        self._hosts: dict[SessionId, HostArrived] = {}
        self._jobs: dict[str, Job] = {}
        self._rings: dict[int, str] = {}
        self._ring_serial = config.first_ring_id
        self._counters = {"rings_made": 0, "jobs_failed": 0, "jobs_closed": 0, "refused": 0}
        self._counters |= {"recoveries": 0, "fallbacks": 0, "returns": 0}
        self._counters |= {"disagreements": 0, "trees_parked": 0, "trees_moved": 0, "parkings_given_up": 0}
        self._counters |= {"generations_for_trees": 0}
        self._now = Instant(0)
        self._links = LinkMeasures()
        self._ended: dict[str, str] = {}
        """Why the last jobs ended, for ranks whose hosts could not hear it."""
        self._wishes: dict[str, TreeWished] = {}
        """What is wished for each job, whether it is here or not."""
        self._gone: dict[tuple[str, int], str] = {}
        """Ranks of jobs that are not known (yet) that are lost, and why."""
        self._regroupings = Regroupings(config, self._jobs.__contains__, self._fail_beginning)

    # --- joining

    def _refuse(self, session: SessionId, member: Member, reason: str) -> list[RendezvousAction]:
        self._counters["refused"] += 1
        who = f"rank {member.rank} ({member.host}, pid {member.pid})"
        error = JoinRefused(f"{who} cannot join job {member.job!r}: {reason}")
        return [Send(session, error_message(error, of=member.id))]

    def _take_seat(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        member = event.message
        self._jobs[job.name] = job
        seat = job.seats[member.rank] = Seat(event.session, member, left_after=member.left_after)
        hello = self._hosts[event.session].hello
        seat.instance, seat.overlays = hello.instance, hello.overlays
        seat.switch = hello.switch or self._config.root
        if member.progress is not None:
            job.recovery.wait(self._now, self._config.recover_ns)
        if member.progress is None:
            self._gone.pop((job.name, member.rank), None)
        elif failed := self._miss_the_gone(job):
            return failed
        if len(job.seats) < job.size:
            text = f"job {job.name}: {seat} joined, {len(job.seats)} of {job.size} ranks are here"
            return [Noted(text), *self._tell_waiting(job)]
        return self._make_ring(job, event.ring_key)

    def _refuse_seat(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        seat = job.seats[event.message.rank]
        reason = f"the rank is held by {process_of(seat)}; end that process or take another rank"
        if seat.left_after is not None:
            still = ", ".join(str(other) for other in job.in_order() if other.left_after is None)
            reason = f"the job is ending, {still} has yet to leave; try again then"
        return self._refuse(event.session, event.message, reason)

    def _admit(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        if event.message.rank in job.seats:
            return self._refuse_seat(job, event)
        if job.is_resumed and event.message.progress is None:
            reason = (
                "its ranks are in the middle of it, and gather after a restart; use another name, or wait"
            )
            return self._refuse(event.session, event.message, reason)
        if not job.is_resumed and event.message.progress is not None:
            reason = "it has ended meanwhile, and another job of that name is gathering"
            return self._refuse(event.session, event.message, reason)
        here = sum(seat.session == event.session for seat in job.seats.values())
        if here >= self._config.ranks_per_host_max:
            reason = f"its host already has {here} ranks of this job, the limit; run it on another host"
            return self._refuse(event.session, event.message, reason)
        beside = job.at(event.session)
        if beside and (refusal := refuse_beside(beside[0].member, event.message)):
            return self._refuse(event.session, event.message, refusal)
        return self._take_seat(job, event)

    def _make_ring(self, job: Job, ring_key: int) -> list[RendezvousAction]:
        members = job.members()
        self._plan(job)
        self._weigh(job)
        if not job.paths:
            return self._fail(job, JoinRefused(cannot_sum(job)))
        if job.lacks_slots:
            return self._ask_for_slots(job)
        resumed = Recovery(progress=0, donor=0)
        if job.is_resumed:
            progress = {at: its.member.progress or 0 for at, its in enumerate(members)}
            decided = decide(progress, job.first.window_messages)
            if not isinstance(decided, Recovery):
                reason = f"{members[decided.behind]} {decided.reason}"
                return self._fail(job, FabricLost(f"job {job.name!r} cannot go on: {reason}"))
            resumed = decided
            if not job.recovery.came(resumed.progress, self._now, self._config.recover_ns):
                return self._fail(job, FabricLost(f"job {job.name!r} {job.recovery.in_vain}"))
        self._next_ring(job)
        job.ina_ring_id = self._new_ring_id() if job.is_shared else 0
        actions: list[RendezvousAction] = []
        if len(members) > 1 and job.recovery.path == job.recovery.fast:
            actions += self._lay(job, ring_key)
        job.first_ring_id = job.first_ring_id or job.ring_id
        job.phase = Phase.CONNECTING
        self._rings[job.ring_id] = job.name
        self._counters["rings_made"] += 1
        actions += self._ring_messages(job, members, ring_key, resumed)
        text = f"job {job.name}: ring {job.ring_id} of {job.size} ranks on "
        text += ", ".join(its.place for its in members)
        if job.is_resumed:
            at = f"from message {resumed.progress}, where {members[resumed.donor]} is"
            text += f", by {job.recovery.path}, {at}"
        return [*actions, Noted(text)]

    def _weigh(self, job: Job) -> None:
        """Weighs its paths by the links that are configured, or measured, and chooses one by that."""
        config, source = self._config, "configured"
        links = config.links
        if links is None:
            links = self._links.figures([its.host for its in job.members()], config.switch_rate_bps)
            source = "measured"
        job.weigh(links, config.tensor_bytes, config.in_degree, source=source)
        job.choose()

    def _plan(self, job: Job) -> None:
        """In which order its next rings add."""
        raise NotImplementedError

    def _lay(self, job: Job, ring_key: int) -> list[RendezvousAction]:
        """Its ring through the switches, where one is to be."""
        raise NotImplementedError

    def _follow(self, job: Job) -> list[RendezvousAction]:
        """Where its ring through the switches is to be now."""
        raise NotImplementedError

    def _next_ring(self, job: Job) -> None:
        job.ring_id = self._new_ring_id()

    def _new_ring_id(self) -> int:
        ring_id, self._ring_serial = self._ring_serial, self._ring_serial % 0xFFFF_FFFF + 1
        return ring_id

    def _ask_for_slots(self, job: Job) -> list[RendezvousAction]:
        """All ranks have joined with links for the switch; its path needs larger slots.

        They are asked for as if a ring had ended. What ``Halted`` answers suffices, or the job fails.
        """
        self._next_ring(job)
        job.phase = Phase.HALTED
        return self._tell_halt(job)

    def _ring_messages(
        self, job: Job, members: Sequence[RingMember], ring_key: int, resumed: Recovery
    ) -> list[RendezvousAction]:
        """What is sent to each rank in order, with the id of its ``Member``."""
        found: dict[int, RendezvousAction] = {}
        tree = job.overlay if job.is_overlay else None
        for position, its in enumerate(members):
            ring = Ring(
                job=job.name,
                ring_id=job.ring_id,
                epoch=self._config.epoch,
                ring_key=ring_key,
                position=position,
                successor=members[(position + 1) % len(members)].member.into,
                predecessor=members[position - 1].member.out,
                peers=tuple(member.host for member in members),
                ranks=tuple(member.ranks for member in members),
                path=job.recovery.path if len(members) > 1 else "switch",
                progress=resumed.progress,
                donor=resumed.donor,
                plan=job.plan_text,
            )
            if job.ina_ring_id:
                ring = replace(
                    ring,
                    ina_ring_id=job.ina_ring_id,
                    ina_successor=members[(position + 1) % len(members)].member.ina_into,
                    ina_predecessor=members[position - 1].member.ina_out,
                )
            if tree is not None:
                ring = in_overlay(ring, tree, members)
            for seat in its.seats:
                found[seat.member.rank] = Send(seat.session, replace(ring, id=seat.member.id))
        return [found[rank] for rank in sorted(found)]

    # --- what members say

    def _ready(self, job: Job, event: MemberReady) -> list[RendezvousAction]:
        for seat in job.at(event.session):
            seat.ready = True
        if not all(seat.ready for seat in job.seats.values()):
            return self._tell_waiting(job)
        job.phase = Phase.RUNNING
        job.recovery.started(self._now)
        self._regroupings.started(job.name)
        start = Start(job=job.name, ring_id=job.ring_id, ina_ring_id=job.ina_ring_id)
        job.tree.tells_start = job.tree.state is TreeIs.INSTALLING
        if job.tree.state is TreeIs.PARKED:
            start = replace(start, ina_parked=True)
        elif job.ina_ring_id and job.tree.pool is not None:
            start = replace(start, ina_pool=job.tree.pool.name, ina_epoch=job.tree.epoch)
        recovery = job.recovery
        how = "" if recovery.path == recovery.fast else f", the hosts sum: {job.fallback}{job.why_this}"
        is_problem = recovery.path != recovery.fast and not (recovery.is_asked or recovery.is_predicted)
        started = [*self._tell_all(job, start), Noted(f"job {job.name}: started{how}", is_problem=is_problem)]
        if any(seat.left_after is None for seat in job.seats.values()):
            return [*started, *self._follow(job)]
        return [*started, *self._close(job)]  # all had left when the switch restarted

    def _withdraw(self, job: Job, event: MemberLeft | MemberGone) -> list[RendezvousAction]:
        reason = event.message.reason if isinstance(event, MemberGone) else "it left"
        return self._lose(job, [job.seats[event.message.rank]], reason)

    def _leave_or_withdraw(self, job: Job, event: MemberLeft) -> list[RendezvousAction]:
        """A rank may have all its results while its job joins or connects anew; not before its first ring."""
        is_resumed = job.seats[event.message.rank].member.progress is not None
        return self._leave(job, event) if is_resumed else self._withdraw(job, event)

    def _leave(self, job: Job, event: MemberLeft) -> list[RendezvousAction]:
        seat = job.seats[event.message.rank]
        if seat.left_after is not None:
            return [self._blame(event.session, "left twice", f"{seat} of job {job.name}")]
        seat.left_after = event.message.operations
        if job.missing() or any(other.left_after is None for other in job.seats.values()):
            return [*self._fail_waiting_for_left(job), Noted(f"job {job.name}: {seat} left")]
        return self._close(job)

    def _stalled(self, job: Job, event: OperationStalled) -> list[RendezvousAction]:
        told = event.message
        seat = job.seats[told.rank]
        is_news = seat.stalled is None or seat.stalled.op_index != told.op_index
        seat.stalled = told
        failure = self._fail_waiting_for_left(job)
        if failure:
            return failure
        mismatch = job.mismatch(told.op_index)
        if mismatch:
            status = JobStatus(job=job.name, op_index=told.op_index, waiting_for=(), mismatch=mismatch)
            return [Send(event.session, status), *self._fail(job, TensorMismatch(mismatch))]
        disagreement = job.disagreement(told.op_index)
        if disagreement:
            return self._disagree(job, disagreement)
        waiting = job.not_in(told.op_index)
        sessions = [event.session]
        if is_news:  # those who wait for this rank hear that it has come
            sessions += [other.session for other, _ in job.stalled_in(told.op_index)]
        status = JobStatus(job=job.name, op_index=told.op_index, waiting_for=waiting)
        return [Send(session, status) for session in dict.fromkeys(sessions)]

    def _fail_waiting_for_left(self, job: Job) -> list[RendezvousAction]:
        """Fail the job when a rank waits in an operation that a rank which left never called."""
        for waiter in job.in_order():
            for left in job.in_order():
                if waiter.stalled is None or left.left_after is None:
                    continue
                if waiter.stalled.op_index >= left.left_after:
                    text = (
                        f"{left} left job {job.name!r} after {left.left_after} all-reduces, "
                        f"and {waiter} waits in all-reduce {waiter.stalled.op_index} (counted from 0)"
                    )
                    return self._fail(job, RankLost(text))
        return []

    def _stalled_early(self, job: Job, event: OperationStalled) -> list[RendezvousAction]:
        """Answers a rank that waits for its next ring; before the first one no rank has an all-reduce."""
        return [] if job.is_resumed else self._out_of_order(job, event)

    def _out_of_order(
        self, job: Job, event: MemberReady | MemberBroken | MemberHalted | OperationStalled
    ) -> list[RendezvousAction]:
        if isinstance(event, MemberBroken | MemberHalted) and event.message.ring_id != job.ring_id:
            return []  # of a ring of the life before: it crossed the job's failure
        rule = f"{event.message.TYPE} while {job.phase.value}"
        return [self._blame(event.session, rule, f"rank {event.message.rank} of job {job.name}")]

    def _impossible(self, job: Job, event: RingFault | RingRefused | RingStands) -> list[RendezvousAction]:
        """A job that is joining or halted has no ring, so nothing can be wrong with it."""
        return []

    def _too_late(self, job: Job, event: MemberEvent) -> list[RendezvousAction]:
        """Said of a ring that has ended."""
        return []

    def _disagree(self, job: Job, reason: str) -> list[RendezvousAction]:
        """Its hosts have bound an operation to different paths: none of them can end it."""
        raise NotImplementedError

    # --- ends

    def _close(self, job: Job) -> list[RendezvousAction]:
        self._counters["jobs_closed"] += 1
        remember(self._ended, job.name, "all its ranks left")
        closed = self._tell_all(job, Closed(job=job.name, ring_id=job.ring_id))
        return [*self._forget(job), *closed, Noted(f"job {job.name}: all ranks left, closed")]

    def _lose(self, job: Job, seats: Sequence[Seat], reason: str) -> list[RendezvousAction]:
        """One rank, whose host knows of it, or all of a host."""
        who = name_seats(seats)
        if job.phase is Phase.JOINING:  # nobody depends on it yet: the seat is free again
            for seat in seats:
                del job.seats[seat.member.rank]
            noted = Noted(f"job {job.name}: {who} is no longer waiting: {reason}")
            if not job.seats:
                del self._jobs[job.name]
                return [noted]
            return [noted, *self._tell_waiting(job)]
        error = RankLost(f"{who} of job {job.name!r} is lost: {reason}")
        return self._fail(job, error, without=seats, lost=seats)

    def _miss_the_gone(self, job: Job) -> list[RendezvousAction]:
        """Fail a job that gathers if a rank that it waits for is known to be lost."""
        for rank in job.missing():
            reason = self._gone.get((job.name, rank))
            if reason is not None:
                return self._fail(job, RankLost(f"rank {rank} of job {job.name!r} is lost: {reason}"))
        return []

    def _fail(
        self, job: Job, error: JobError, *, without: Sequence[Seat] = (), lost: Sequence[Seat] = ()
    ) -> list[RendezvousAction]:
        """``without``: those whose hosts know; ``lost``: those that are not among the survivors."""
        self._counters["jobs_failed"] += 1
        remember(self._ended, job.name, str(error))
        told: list[RendezvousAction]
        if job.phase is Phase.JOINING and not isinstance(error, SwitchUnreachable):  # joins are refused
            told = [Send(seat.session, error_message(error, of=seat.member.id)) for seat in job.in_order()]
        else:
            failed = failed_message(job.name, error, ring_id=job.ring_id)
            told = self._tell_all(job, failed, without=without)
        noted = Noted(f"job {job.name}: failed: {error}", is_problem=True)
        return [*self._forget(job), *told, noted, *self._regroupings.job_failed(job, error, lost, self._now)]

    def _fail_beginning(self, name: str, error: RankLost) -> list[RendezvousAction]:
        """A job that has not started; none of its ranks is a survivor of it."""
        job = self._jobs.get(name)
        return [] if job is None else self._fail(job, error, lost=job.in_order())

    def _forget(self, job: Job) -> list[RendezvousAction]:
        del self._jobs[job.name]
        self._rings.pop(job.ring_id, None)
        if not job.installed:
            return []
        for other in self._jobs.values():
            other.room_made(self._now)
        return self._remove_ring(job)

    def _remove_ring(self, job: Job) -> list[RendezvousAction]:
        """Out of the switches."""
        ring_id, job.installed, job.ina_ring_id = job.installed, 0, 0
        job.tree.ends()
        self._rings.pop(ring_id, None)
        return [RemoveRing(ring_id)] if ring_id else []

    # --- who is told

    def _tell_waiting(self, job: Job) -> list[RendezvousAction]:
        """Tell all members for whom the job waits, so that a join that times out can say it."""
        if job.phase is Phase.JOINING:
            waiting = job.missing()
        else:
            waiting = tuple(seat.member.rank for seat in job.in_order() if not seat.ready)
        return self._tell_all(job, JobStatus(job=job.name, waiting_for=waiting))

    def _tell_all(
        self, job: Job, message: Message, *, without: Sequence[Seat] = ()
    ) -> list[RendezvousAction]:
        """Sends it to every host that has members, once, and that is still there."""
        sessions = job.sessions(without=without)
        return [Send(session, message) for session in sessions if session in self._hosts]

    def _tell_halt(self, job: Job) -> list[RendezvousAction]:
        """Tells every host what it is to make links for."""
        return [
            Send(session, halt_message(job, job.at(session)))
            for session in job.sessions()
            if session in self._hosts
        ]

    def _blame(self, session: SessionId, rule: str, evidence: str) -> Blame:
        host = self._hosts.get(session)
        return Blame(f"host {host.hello.host}" if host else f"session {session}", rule, evidence)


def remember(known: dict[K, str], key: K, reason: str) -> None:
    """The oldest makes room."""
    known.pop(key, None)
    known[key] = reason
    while len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]
