"""Members become rings: who is in a job, when its ring may start, who is told when it fails.

NetReduce takes its rings as given (section 3.1: "RingID" and "Rank" are simply there); this core is
where they come from. Host daemons announce the ranks that run on them; when all ranks of a job are
there the ring is installed in the accelerator, each rank is told its neighbours, and when all have
connected their queue pairs, all are told to start.

A job goes JOINING -> CONNECTING -> RUNNING and is then forgotten, so its name can be used again.
:data:`HANDLERS` is the whole table of (phase, event).

Where ``recover_ns`` is not 0, a ring that ends by no fault of its ranks does not end its job: it is HALTED
until every rank has said how far it is, and then CONNECTING again, on a path that
:mod:`inaproto.core.job_recovery` chooses. A switch that restarts has forgotten its jobs: their ranks join
anew, with their progress, and go on just so.

Invariants: a ring is in the accelerator exactly while its job is CONNECTING or RUNNING on the path
``switch`` and has two ranks or more (a rank alone has nobody to be summed with); a rank is held by one
process at a time; when a rank is lost after the ring was made, every other member gets ``Failed`` naming it,
once, and the ring is removed; a refusal changes nothing. A host with several ranks of a job gets messages
that concern the whole job (``Start``, ``Halt``, ``JobStatus``, ``Closed``, ``Failed``) once.

Ring keys come in with the events; nothing here is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from inaproto.core.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.recovery import Recovery, decide
from inaproto.core.rendezvous_jobs import Job, Phase, Seat, process_of, ring_spec, view_job
from inaproto.core.rendezvous_rules import (
    refuse_difference,
    refuse_parameters,
    refuse_slots,
    refuse_stranger,
    show_address,
)
from inaproto.core.rendezvous_types import (
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
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    RendezvousView,
    Send,
    SessionEnded,
    SessionId,
    ShuttingDown,
    WelcomeHost,
    Woke,
)
from inaproto.core.tree_control import SWITCH_LOST
from inaproto.errors import (
    Blame,
    FabricLost,
    JobError,
    JoinRefused,
    LocalMisuse,
    RankLost,
    SwitchUnreachable,
    TensorMismatch,
)
from inaproto.units import Instant, S
from inaproto.wire.control_messages import (
    Closed,
    Error,
    Halt,
    JobStatus,
    Member,
    Message,
    Ring,
    Start,
    error_message,
    failed_message,
)

K = TypeVar("K")

HELLO_REFUSED: Final = "hello_refused"
REMEMBERED_MAX: Final = 256
"""Ends of jobs and ranks that hosts may have missed."""
TENSOR_RULES: Final = frozenset({"operations differ", "packet layout"})
"""Rules of the accelerator that mean: ranks called different all-reduces."""


class Rendezvous:
    """Pure core; see the module. ``step`` never raises for anything a host can do."""

    def __init__(self, config: RendezvousConfig) -> None:
        self._config = config
        self._hosts: dict[SessionId, HostArrived] = {}
        self._jobs: dict[str, Job] = {}
        self._rings: dict[int, str] = {}
        self._ring_serial = config.first_ring_id
        self._counters = {"rings_made": 0, "jobs_failed": 0, "jobs_closed": 0, "refused": 0}
        self._counters |= {"recoveries": 0, "fallbacks": 0, "returns": 0}
        self._now = Instant(0)
        self._ended: dict[str, str] = {}
        """Why the last jobs ended, for ranks whose hosts could not hear it."""
        self._gone: dict[tuple[str, int], str] = {}
        """Ranks of jobs that are not known (yet) that are lost, and why."""

    @property
    def deadline(self) -> Instant | None:
        """When a job that goes on has waited long enough, or tries the fast path again.

        How long to wait for a rank that joins is the joining process's decision.
        """
        found = [
            at
            for job in self._jobs.values()
            for at in (job.recovery.deadline, job.recovery.return_at)
            if at is not None
        ]
        return min(found, default=None)

    def step(self, event: RendezvousEvent, now: Instant) -> list[RendezvousAction]:
        self._now = now
        match event:
            case HostArrived():
                return self._host_arrived(event)
            case SessionEnded():
                return self._session_ended(event)
            case ShuttingDown():
                return self._shutting_down(event)
            case RingFault() | RingRefused():
                job = self._jobs.get(self._rings.get(event.ring_id, ""))
                return HANDLERS[job.phase, type(event)](self, job, event) if job else []
            case MemberAsked():
                return self._member_asked(event)
            case (
                MemberReady()
                | MemberLeft()
                | MemberGone()
                | MemberBroken()
                | MemberHalted()
                | OperationStalled()
            ):
                return self._member_event(event)
            case Woke():
                return self._woke()

    def view(self) -> RendezvousView:
        return RendezvousView(
            hosts=tuple(host.hello.host for host in self._hosts.values()),
            jobs=tuple(view_job(job) for job in self._jobs.values()),
            counters=dict(self._counters),
        )

    # --- hosts

    def _host_arrived(self, event: HostArrived) -> list[RendezvousAction]:
        hello = event.hello
        if event.session in self._hosts:
            return [self._blame(event.session, "second hello", f"now as {hello.host!r}")]
        for other in self._hosts.values():
            for what, mine, theirs in (
                ("name", hello.host, other.hello.host),
                ("IP address", hello.ip, other.hello.ip),
                ("MAC address", hello.mac, other.hello.mac),
            ):
                if mine == theirs:
                    self._counters["refused"] += 1
                    text = (
                        f"host {hello.host!r} refused: its {what} {show_address(mine)} is that of host "
                        f"{other.hello.host!r}, which is connected; give each host daemon its own"
                    )
                    return [RefuseHost(event.session, Error(code=HELLO_REFUSED, message=text, of=hello.id))]
        self._hosts[event.session] = event
        actions: list[RendezvousAction] = [
            WelcomeHost(event.session, hello.id),
            Noted(f"host {hello.host} is here ({show_address(hello.ip)}, {show_address(hello.mac)})"),
        ]
        for job in list(self._jobs.values()):
            for seat in job.in_order():
                is_lost = seat.is_away and seat.member.host == hello.host and seat.instance != hello.instance
                if is_lost and self._jobs.get(job.name) is job:
                    actions += self._lose(job, seat, "its host daemon was started anew")
        return actions

    def _session_ended(self, event: SessionEnded) -> list[RendezvousAction]:
        host = self._hosts.pop(event.session, None)
        if host is None:
            return []
        actions: list[RendezvousAction] = [Noted(f"host {host.hello.host} is gone: {event.reason}")]
        for job in list(self._jobs.values()):
            for seat in job.in_order():
                if seat.session != event.session or seat.is_away or self._jobs.get(job.name) is not job:
                    continue
                reason = f"its host daemon is gone: {event.reason}"
                if self._config.recover_ns and job.phase is not Phase.JOINING:
                    actions += self._lose_sight(job, seat, reason)
                else:
                    actions += self._lose(job, seat, reason)
        return actions

    def _shutting_down(self, event: ShuttingDown) -> list[RendezvousAction]:
        actions: list[RendezvousAction] = []
        for job in list(self._jobs.values()):
            error = SwitchUnreachable(f"job {job.name!r} ends, for the switch is ending: {event.reason}")
            actions += self._fail(job, error)
        return actions

    # --- joining

    def _member_asked(self, event: MemberAsked) -> list[RendezvousAction]:
        member = event.message
        host = self._hosts.get(event.session)
        refusal = refuse_stranger(host.hello if host else None, member)
        refusal = refusal or refuse_parameters(self._config, member)
        job = self._jobs.get(member.job)
        if job is not None:
            refusal = refusal or refuse_difference(job.first, member)
        elif len(self._jobs) >= self._config.jobs_max:
            full = f"the switch serves {len(self._jobs)} jobs, its limit (--rings-max); wait for one to end"
            refusal = refusal or full
        if job is None and member.progress is not None and member.boot_id == self._config.boot_id != "":
            refusal = refusal or f"it has ended meanwhile: {self._ended.get(member.job, 'long ago')}"
        if refusal:
            return self._refuse(event.session, member, refusal)
        if job is None:
            return self._take_seat(Job(member.job, member), event)
        return HANDLERS[job.phase, MemberAsked](self, job, event)

    def _refuse(self, session: SessionId, member: Member, reason: str) -> list[RendezvousAction]:
        self._counters["refused"] += 1
        who = f"rank {member.rank} ({member.host}, pid {member.pid})"
        error = JoinRefused(f"{who} cannot join job {member.job!r}: {reason}")
        return [Send(session, error_message(error, of=member.id))]

    def _take_seat(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        member = event.message
        self._jobs[job.name] = job
        seat = job.seats[member.rank] = Seat(event.session, member, left_after=member.left_after)
        seat.instance = self._hosts[event.session].hello.instance
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
        return self._take_seat(job, event)

    def _make_ring(self, job: Job, ring_key: int) -> list[RendezvousAction]:
        seats = job.in_order()
        resumed = Recovery(progress=0, donor=0)
        if job.is_resumed:
            progress = {seat.member.rank: seat.member.progress or 0 for seat in seats}
            decided = decide(progress, job.first.window_messages)
            if not isinstance(decided, Recovery):
                return self._fail(job, FabricLost(f"job {job.name!r} cannot go on: {decided.reason}"))
            resumed = decided
        job.plan = self._config.plan_of(tuple(seat.member.out.ip for seat in seats))
        job.ring_id, self._ring_serial = self._ring_serial, self._ring_serial % 0xFFFF_FFFF + 1
        actions: list[RendezvousAction] = []
        if job.size > 1 and job.recovery.path == "switch":
            try:
                actions.append(InstallRing(ring_spec(job, self._config.epoch, ring_key)))
                job.summed_by_switch = True
            except LocalMisuse as error:  # only hosts that lie about their queue pairs come here
                if job.is_resumed:
                    return self._fail(job, FabricLost(f"job {job.name!r} cannot go on: {error}"))
                del self._jobs[job.name]
                return [act for seat in seats for act in self._refuse(seat.session, seat.member, str(error))]
        job.phase = Phase.CONNECTING
        self._rings[job.ring_id] = job.name
        self._counters["rings_made"] += 1
        peers = tuple(seat.member.host for seat in seats)
        for index, seat in enumerate(seats):
            ring = Ring(
                id=seat.member.id,
                job=job.name,
                ring_id=job.ring_id,
                epoch=self._config.epoch,
                ring_key=ring_key,
                rank=seat.member.rank,
                successor=seats[(index + 1) % job.size].member.into,
                predecessor=seats[index - 1].member.out,
                peers=peers,
                path=job.recovery.path,
                progress=resumed.progress,
                donor=resumed.donor,
                plan=job.plan_text,
            )
            actions.append(Send(seat.session, ring))
        text = f"job {job.name}: ring {job.ring_id} of {job.size} ranks on {', '.join(peers)}"
        if job.is_resumed:
            at = f"from message {resumed.progress}, where rank {resumed.donor} is"
            text += f", by {job.recovery.path}, {at}"
        return [*actions, Noted(text)]

    def _tell_waiting(self, job: Job) -> list[RendezvousAction]:
        """Tell all members for whom the job waits, so that a join that times out can say it."""
        if job.phase is Phase.JOINING:
            waiting = job.missing()
        else:
            waiting = tuple(seat.member.rank for seat in job.in_order() if not seat.ready)
        return self._tell_all(job, JobStatus(job=job.name, waiting_for=waiting))

    def _tell_all(self, job: Job, message: Message, *, without: Seat | None = None) -> list[RendezvousAction]:
        """To every host that has members, once, and that is still there."""
        sessions = job.sessions(without=without)
        return [Send(session, message) for session in sessions if session in self._hosts]

    # --- what members say

    def _member_event(self, event: MemberEvent) -> list[RendezvousAction]:
        said = event.message
        job = self._jobs.get(said.job)
        seat = job.seats.get(said.rank) if job else None
        if job is not None and seat is not None and seat.is_away and isinstance(event, MemberGone):
            host = self._hosts.get(event.session)
            if host is not None and host.hello.host == seat.member.host:
                return self._lose(job, seat, event.message.reason)
        if job is None or seat is None or seat.session != event.session:
            # Sent before this host heard that the job had failed, or that the switch had restarted.
            return self._answer_unknown(event)
        return HANDLERS[job.phase, type(event)](self, job, event)

    def _answer_unknown(self, event: MemberEvent) -> list[RendezvousAction]:
        if isinstance(event, MemberGone) and self._config.recover_ns:
            return self._gone_while_away(event)
        if not isinstance(event, OperationStalled):
            return []
        said = event.message
        text = (
            f"job {said.job!r}: rank {said.rank} of this host is not known to the switch; the job has failed "
            "or the switch was restarted; join again"
        )
        return [Send(event.session, failed_message(said.job, RankLost(text)))]

    def _gone_while_away(self, event: MemberGone) -> list[RendezvousAction]:
        """A rank that its job's other ranks may wait for, after a restart of the switch, does not come."""
        host, told = self._hosts.get(event.session), event.message
        job = self._jobs.get(told.job)
        if host is None or (job is not None and (not job.is_resumed or told.rank in job.seats)):
            return []
        _remember(self._gone, (told.job, told.rank), f"{told.reason} (host {host.hello.host})")
        return [] if job is None else self._miss_the_gone(job)

    def _miss_the_gone(self, job: Job) -> list[RendezvousAction]:
        """Fail a job that gathers if a rank that it waits for is known to be lost."""
        for rank in job.missing():
            reason = self._gone.get((job.name, rank))
            if reason is not None:
                return self._fail(job, RankLost(f"rank {rank} of job {job.name!r} is lost: {reason}"))
        return []

    def _ready(self, job: Job, event: MemberReady) -> list[RendezvousAction]:
        job.seats[event.message.rank].ready = True
        if not all(seat.ready for seat in job.seats.values()):
            return self._tell_waiting(job)
        job.phase = Phase.RUNNING
        job.recovery.started(self._now)
        start = Start(job=job.name, ring_id=job.ring_id)
        how = "" if job.recovery.path == "switch" else f", the hosts sum: {job.recovery.fallback}"
        started = [*self._tell_all(job, start), Noted(f"job {job.name}: started{how}", is_problem=bool(how))]
        if any(seat.left_after is None for seat in job.seats.values()):
            return started
        return [*started, *self._close(job)]  # all had left when the switch restarted

    def _withdraw(self, job: Job, event: MemberLeft | MemberGone) -> list[RendezvousAction]:
        reason = event.message.reason if isinstance(event, MemberGone) else "it left"
        return self._lose(job, job.seats[event.message.rank], reason)

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

    def _close(self, job: Job) -> list[RendezvousAction]:
        self._counters["jobs_closed"] += 1
        _remember(self._ended, job.name, "all its ranks left")
        closed = self._tell_all(job, Closed(job=job.name, ring_id=job.ring_id))
        return [*self._forget(job), *closed, Noted(f"job {job.name}: all ranks left, closed")]

    def _lose(self, job: Job, seat: Seat, reason: str) -> list[RendezvousAction]:
        if job.phase is Phase.JOINING:  # nobody depends on it yet: the seat is free again
            del job.seats[seat.member.rank]
            noted = Noted(f"job {job.name}: {seat} is no longer waiting: {reason}")
            if not job.seats:
                del self._jobs[job.name]
                return [noted]
            return [noted, *self._tell_waiting(job)]
        error = RankLost(f"{seat} of job {job.name!r} is lost: {reason}")
        return self._fail(job, error, without=seat)

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

    def _fault(self, job: Job, event: RingFault) -> list[RendezvousAction]:
        """The accelerator forwards nothing of this ring any more."""
        seat = job.seats.get(event.rank)
        if event.rule == SWITCH_LOST and self._config.recover_ns:
            return self._halt(job, event.evidence)
        where = f"{seat or f'rank {event.rank}'}: {event.evidence}"
        if event.rule in TENSOR_RULES:
            text = (
                f"the ranks of job {job.name!r} called different all-reduces, seen at {where}; every rank "
                "must call the same ones in the same order, with the same shape, dtype and op"
            )
            return self._fail(job, TensorMismatch(text))
        return self._fail(job, FabricLost(f"the switch stopped job {job.name!r}: {event.rule} at {where}"))

    def _no_room(self, job: Job, event: RingRefused) -> list[RendezvousAction]:
        if self._config.recover_ns and job.can_chain:
            job.recovery.refused(event.reason)
            self._counters["fallbacks"] += 1
            return self._halt(job, f"the switch cannot sum for it: {event.reason}")
        text = f"the switch cannot sum for job {job.name!r}: {event.reason}; wait for another job to end"
        if self._config.recover_ns:
            text += f", or number its ranks rack by rank: its hosts cannot sum in the order {job.plan}"
        return self._fail(job, JoinRefused(text))

    def _out_of_order(
        self, job: Job, event: MemberReady | MemberBroken | MemberHalted | OperationStalled
    ) -> list[RendezvousAction]:
        rule = f"{event.message.TYPE} while {job.phase.value}"
        return [self._blame(event.session, rule, f"rank {event.message.rank} of job {job.name}")]

    def _impossible(self, job: Job, event: RingFault | RingRefused) -> list[RendezvousAction]:
        """A job that is joining or halted has no ring, so nothing can be wrong with it."""
        return []

    # --- going on

    def _halt(self, job: Job, reason: str) -> list[RendezvousAction]:
        """The ring ends, the job does not."""
        had_ring = self._rings.pop(job.ring_id, None) is not None
        removed: list[RendezvousAction] = []
        if had_ring and job.size > 1 and job.summed_by_switch:
            removed.append(RemoveRing(job.ring_id))
        job.summed_by_switch = False
        job.phase = Phase.HALTED
        job.recovery.halt(reason, self._now, self._config.recover_ns)
        self._counters["recoveries"] += 1
        for seat in job.in_order():
            seat.ready = seat.halted = False
            seat.stalled = None
        halt = _halt_message(job)
        noted = Noted(f"job {job.name}: halted, to go on by {job.recovery.path}: {reason}", is_problem=True)
        return [*removed, *self._tell_all(job, halt), noted]

    def _lose_sight(self, job: Job, seat: Seat, reason: str) -> list[RendezvousAction]:
        """A rank's host has lost its connection: it may come back."""
        seat.is_away = True
        seat.halted = seat.ready = False
        if job.phase is Phase.HALTED:
            return [Noted(f"job {job.name}: {seat} is away: {reason}")]
        return self._halt(job, f"{seat} is away: {reason}")

    def _broken(self, job: Job, event: MemberBroken) -> list[RendezvousAction]:
        told = event.message
        seat = job.seats[told.rank]
        if told.ring_id != job.ring_id:
            return []
        if not self._config.recover_ns:
            return self._lose(job, seat, told.reason)
        before = job.recovery.path
        job.recovery.broke(f"{seat}: {told.reason}", told.progress)
        if job.recovery.path == "chain" and not job.can_chain:
            text = (
                f"the ring of job {job.name!r} broke again where it broke before; last {seat}: {told.reason}"
            )
            return self._fail(job, FabricLost(f"{text}; its hosts cannot sum in the order {job.plan}"))
        if job.recovery.is_hopeless:
            text = f"job {job.name!r} makes no progress by any path; last {seat}: {told.reason}"
            return self._fail(job, FabricLost(text))
        if job.recovery.path != before:
            self._counters["fallbacks" if before == "switch" else "returns"] += 1
        return self._halt(job, f"{seat}: {told.reason}")

    def _halted(self, job: Job, event: MemberHalted) -> list[RendezvousAction]:
        told = event.message
        seat = job.seats[told.rank]
        if told.ring_id != job.ring_id or seat.is_away:
            return []
        host = self._hosts.get(event.session)
        member = replace(seat.member, out=told.out, into=told.into, progress=told.progress)
        wrong = refuse_stranger(host.hello if host else None, member) or refuse_slots(
            member, slot_bytes=job.slot_bytes
        )
        if wrong:
            return self._fail(job, RankLost(f"{seat} of job {job.name!r} is lost: {wrong}"))
        seat.member = member
        return self._come_forward(job, seat, event.ring_key)

    def _come_back(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        """A host that lost its connection announces its rank anew."""
        member = event.message
        seat = job.seats[member.rank]
        if not seat.is_away:
            return self._refuse_seat(job, event)
        instance = self._hosts[event.session].hello.instance
        if member.progress is None and (member.pid, instance) == (seat.member.pid, seat.instance):
            member = replace(member, progress=0)  # it lost its connection before it heard of the start
        if member.progress is None or member.pid != seat.member.pid:
            lost = RankLost(f"{seat} of job {job.name!r} is lost: a new process came in its place")
            failed = self._fail(job, lost)
            if member.progress is None:
                return [*failed, *self._take_seat(Job(member.job, member), event)]
            return [*failed, *self._refuse(event.session, member, str(lost))]
        seat.session, seat.member, seat.is_away = event.session, member, False
        if member.left_after is not None:
            seat.left_after = member.left_after
        if job.recovery.path != "switch":  # its queue pairs are for the switch: a chain needs larger slots
            return [Send(event.session, _halt_message(job))]
        return self._come_forward(job, seat, event.ring_key)

    def _come_forward(self, job: Job, seat: Seat, ring_key: int) -> list[RendezvousAction]:
        seat.halted = True
        return [] if job.awaited() else self._make_ring(job, ring_key)

    def _woke(self) -> list[RendezvousAction]:
        actions: list[RendezvousAction] = []
        for job in list(self._jobs.values()):
            recovery = job.recovery
            if recovery.deadline is not None and recovery.deadline <= self._now:
                actions += self._waited_in_vain(job)
            elif recovery.return_at is not None and recovery.return_at <= self._now:
                recovery.return_to_switch()
                self._counters["returns"] += 1
                actions += self._halt(job, f"to return to the switch, left for: {recovery.fallback}")
        return actions

    def _waited_in_vain(self, job: Job) -> list[RendezvousAction]:
        seconds = self._config.recover_ns / S
        if job.phase is Phase.JOINING:
            who = "rank " + ", ".join(map(str, job.missing()))
        elif job.phase is Phase.HALTED:
            who = ", ".join(map(str, job.awaited()))
        else:
            who = ", ".join(str(seat) for seat in job.in_order() if not seat.ready)
        why = f"; the ring had ended: {job.recovery.reason}" if job.recovery.reason else ""
        text = f"{who} of job {job.name!r} is lost: it has not come back within {seconds:g} s{why}"
        return self._fail(job, RankLost(text))

    def _stalled_early(self, job: Job, event: OperationStalled) -> list[RendezvousAction]:
        """Of a rank that waits for its next ring; before the first one no rank has an all-reduce."""
        return [] if job.is_resumed else self._out_of_order(job, event)

    def _too_late(self, job: Job, event: MemberEvent) -> list[RendezvousAction]:
        """Said of a ring that has ended."""
        return []

    # --- ends

    def _fail(self, job: Job, error: JobError, *, without: Seat | None = None) -> list[RendezvousAction]:
        self._counters["jobs_failed"] += 1
        _remember(self._ended, job.name, str(error))
        told: list[RendezvousAction] = []
        if job.phase is Phase.JOINING and not isinstance(error, SwitchUnreachable):  # joins are refused
            told += [
                Send(seat.session, error_message(error, of=seat.member.id))
                for seat in job.in_order()
                if seat is not without
            ]
        else:
            failed = failed_message(job.name, error, ring_id=job.ring_id)
            told += self._tell_all(job, failed, without=without)
        return [*self._forget(job), *told, Noted(f"job {job.name}: failed: {error}", is_problem=True)]

    def _forget(self, job: Job) -> list[RendezvousAction]:
        self._jobs.pop(job.name, None)
        had_ring = self._rings.pop(job.ring_id, None) is not None
        if not had_ring or not job.summed_by_switch:
            return []
        for other in self._jobs.values():
            other.recovery.room_made(self._now)
        return [RemoveRing(job.ring_id)]

    def _blame(self, session: SessionId, rule: str, evidence: str) -> Blame:
        host = self._hosts.get(session)
        return Blame(f"host {host.hello.host}" if host else f"session {session}", rule, evidence)


def _remember(known: dict[K, str], key: K, reason: str) -> None:
    """The oldest makes room."""
    known.pop(key, None)
    known[key] = reason
    while len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]


def _halt_message(job: Job) -> Halt:
    recovery = job.recovery
    return Halt(
        job=job.name, ring_id=job.ring_id, path=recovery.path, reason=recovery.reason, plan=job.plan_text
    )


Handler = Callable[..., list[RendezvousAction]]
"""Method of :class:`Rendezvous`, called with the job and the event."""

HANDLERS: Final[Mapping[tuple[Phase, type[MemberAsked | MemberEvent | RingFault | RingRefused]], Handler]] = {
    (Phase.JOINING, MemberAsked): Rendezvous._admit,
    (Phase.JOINING, MemberReady): Rendezvous._out_of_order,
    (Phase.JOINING, MemberLeft): Rendezvous._leave_or_withdraw,
    (Phase.JOINING, MemberGone): Rendezvous._withdraw,
    (Phase.JOINING, MemberBroken): Rendezvous._out_of_order,
    (Phase.JOINING, MemberHalted): Rendezvous._out_of_order,
    (Phase.JOINING, OperationStalled): Rendezvous._stalled_early,
    (Phase.JOINING, RingFault): Rendezvous._impossible,
    (Phase.JOINING, RingRefused): Rendezvous._impossible,
    (Phase.CONNECTING, MemberAsked): Rendezvous._refuse_seat,
    (Phase.CONNECTING, MemberReady): Rendezvous._ready,
    (Phase.CONNECTING, MemberLeft): Rendezvous._leave_or_withdraw,
    (Phase.CONNECTING, MemberGone): Rendezvous._withdraw,
    (Phase.CONNECTING, MemberBroken): Rendezvous._broken,
    (Phase.CONNECTING, MemberHalted): Rendezvous._out_of_order,
    (Phase.CONNECTING, OperationStalled): Rendezvous._stalled_early,
    (Phase.CONNECTING, RingFault): Rendezvous._fault,
    (Phase.CONNECTING, RingRefused): Rendezvous._no_room,
    (Phase.RUNNING, MemberAsked): Rendezvous._refuse_seat,
    (Phase.RUNNING, MemberReady): Rendezvous._out_of_order,
    (Phase.RUNNING, MemberLeft): Rendezvous._leave,
    (Phase.RUNNING, MemberGone): Rendezvous._withdraw,
    (Phase.RUNNING, MemberBroken): Rendezvous._broken,
    (Phase.RUNNING, MemberHalted): Rendezvous._out_of_order,
    (Phase.RUNNING, OperationStalled): Rendezvous._stalled,
    (Phase.RUNNING, RingFault): Rendezvous._fault,
    (Phase.RUNNING, RingRefused): Rendezvous._no_room,
    (Phase.HALTED, MemberAsked): Rendezvous._come_back,
    (Phase.HALTED, MemberReady): Rendezvous._too_late,
    (Phase.HALTED, MemberLeft): Rendezvous._leave,
    (Phase.HALTED, MemberGone): Rendezvous._withdraw,
    (Phase.HALTED, MemberBroken): Rendezvous._too_late,
    (Phase.HALTED, MemberHalted): Rendezvous._halted,
    (Phase.HALTED, OperationStalled): Rendezvous._too_late,
    (Phase.HALTED, RingFault): Rendezvous._impossible,
    (Phase.HALTED, RingRefused): Rendezvous._impossible,
}
