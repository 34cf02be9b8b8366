"""The life of a job while its rings do not end: its ranks join, connect, run and leave.

The members of a ring are hosts, each with all its ranks of the job, whose tensors it sums before it sends
(NetReduce section 3.4, where machines reduce inside first): the ranks of a host share one link, and what
concerns it (``Ready``, and with it ``Halted`` and ``Broken``) is said once for all of them.

What ends a ring, and what becomes of its job then, is in :mod:`inaproto.core.rendezvous.ring_ends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inaproto.core.host.recovery import Recovery, decide
from inaproto.core.rendezvous.endings import Endings
from inaproto.core.rendezvous.events import (
    MemberAsked,
    MemberGone,
    MemberLeft,
    MemberReady,
    Noted,
    OperationStalled,
    RendezvousAction,
    Send,
)
from inaproto.core.rendezvous.job_tree import TreeIs
from inaproto.core.rendezvous.jobs import Job, Phase, RingMember, Seat, is_selective
from inaproto.core.rendezvous.next_ring import cannot_sum, in_overlay, in_psn_order
from inaproto.core.rendezvous.regroupings import Regroupings
from inaproto.core.rendezvous.rules import refuse_beside
from inaproto.core.rendezvous.state import State
from inaproto.core.rendezvous.tree_moves import TreeMoves
from inaproto.errors import (
    FabricLost,
    JoinRefused,
    RankLost,
    TensorMismatch,
)
from inaproto.wire.control_messages import (
    JobStatus,
    Ring,
    Start,
)


class Joining:
    """Ranks come; when all are there their ring is made."""

    def __init__(self, state: State, endings: Endings, trees: TreeMoves) -> None:
        self._state = state
        self._endings = endings
        self._trees = trees

    def take_seat(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        member = event.message
        self._state.jobs[job.name] = job
        seat = job.seats[member.rank] = Seat(event.session, member, left_after=member.left_after)
        job.forget_refusals(member.rank)
        hello = self._state.hosts[event.session].hello
        seat.instance, seat.succeeds, seat.overlays = hello.instance, hello.succeeds, hello.overlays
        seat.switch = hello.switch or self._state.config.root
        if member.progress is not None:
            job.recovery.wait(self._state.now, self._state.config.recover_ns)
        if member.progress is None:
            self._state.gone.pop((job.name, member.rank), None)
        elif failed := self._endings.miss_the_gone(job):
            return failed
        if len(job.seats) < job.size:
            text = f"job {job.name}: {seat} joined, {len(job.seats)} of {job.size} ranks are here"
            return [Noted(text), *self._state.tell_waiting(job)]
        return self.make_ring(job, event.ring_key)

    def admit(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        if event.message.rank in job.seats:
            return self._state.refuse_seat(job, event)
        if job.is_resumed and event.message.progress is None:
            reason = (
                "its ranks are in the middle of it, and gather after a restart; use another name, or wait"
            )
            return self._state.refuse(event.session, event.message, reason)
        if not job.is_resumed and event.message.progress is not None:
            reason = "it has ended meanwhile, and another job of that name is gathering"
            return self._state.refuse(event.session, event.message, reason)
        here = sum(seat.session == event.session for seat in job.seats.values())
        if here >= self._state.config.ranks_per_host_max:
            reason = f"its host already has {here} ranks of this job, the limit; run it on another host"
            return self._state.refuse(event.session, event.message, reason)
        beside = job.at(event.session)
        if beside and (refusal := refuse_beside(beside[0].member, event.message)):
            return self._state.refuse(event.session, event.message, refusal)
        return self.take_seat(job, event)

    def make_ring(self, job: Job, ring_key: int) -> list[RendezvousAction]:
        members = job.members()
        self._trees.plan(job)
        self._weigh(job)
        if not job.paths:
            return self._endings.fail(job, JoinRefused(cannot_sum(job)))
        if job.leave_switches():
            self._state.counters["fallbacks"] += 1
        if job.recovery.path == "chain" and not job.can_chain:  # a host says now that it is at another switch
            job.recovery.path = job.host_path or job.paths[0]
        if job.lacks_slots:
            return self._ask_for_slots(job)
        resumed = Recovery(progress=0, donor=0)
        if job.is_resumed:
            progress = {at: its.member.progress or 0 for at, its in enumerate(members)}
            decided = decide(progress, job.first.window_messages)
            if not isinstance(decided, Recovery):
                reason = f"{members[decided.behind]} {decided.reason}"
                return self._endings.fail(job, FabricLost(f"job {job.name!r} cannot go on: {reason}"))
            resumed = decided
            if not job.recovery.came(resumed.progress, self._state.now, self._state.config.recover_ns):
                return self._endings.fail(job, FabricLost(f"job {job.name!r} {job.recovery.in_vain}"))
        is_in_switch = len(members) > 1 and job.recovery.path == job.recovery.fast
        job.mtu_most = self._state.mtu_most if is_in_switch else 0
        self._next_ring(job)
        job.ina_ring_id = self._state.new_ring_id() if job.is_shared else 0
        actions: list[RendezvousAction] = []
        if is_in_switch:
            actions += self._trees.lay(job, ring_key)
        job.first_ring_id = job.first_ring_id or job.ring_id
        job.phase = Phase.CONNECTING
        self._state.rings[job.ring_id] = job.name
        self._state.counters["rings_made"] += 1
        actions += self._ring_messages(job, members, ring_key, resumed)
        text = f"job {job.name}: ring {job.ring_id} of {job.size} ranks on "
        text += ", ".join(its.place for its in members)
        if job.is_resumed:
            at = f"from message {resumed.progress}, where {members[resumed.donor]} is"
            text += f", by {job.recovery.path}, {at}"
        if job.mtu == job.mtu_most:
            text += f", of MTU {job.mtu}, the largest that the accelerator takes"
        return [*actions, Noted(text)]

    def _weigh(self, job: Job) -> None:
        """Weighs its paths by the links that are configured, or measured, and chooses one by that."""
        config, source = self._state.config, "configured"
        links = config.links
        if links is None:
            links = self._state.links.figures([its.host for its in job.members()], config.switch_rate_bps)
            source = "measured"
        job.weigh(links, config.tensor_bytes, config.in_degree, source=source)
        job.choose()

    def _next_ring(self, job: Job) -> None:
        job.ring_id = self._state.new_ring_id()

    def _ask_for_slots(self, job: Job) -> list[RendezvousAction]:
        """All ranks have joined with links for the switch; its path needs larger slots.

        They are asked for as if a ring had ended. What ``Halted`` answers suffices, or the job fails.
        """
        self._next_ring(job)
        job.phase = Phase.HALTED
        for seat in job.in_order():  # what it has said since the last ring was of links for another path
            seat.halted = False
        return self._state.tell_halt(job)

    def _ring_messages(
        self, job: Job, members: Sequence[RingMember], ring_key: int, resumed: Recovery
    ) -> list[RendezvousAction]:
        """What is sent to each rank in order, with the id of its ``Member``."""
        found: dict[int, RendezvousAction] = {}
        tree = job.overlay if job.is_overlay else None
        selective = is_selective(job)
        for position, its in enumerate(members):
            ring = Ring(
                job=job.name,
                ring_id=job.ring_id,
                epoch=self._state.config.epoch,
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
                mtu=job.mtu_told,
                collective=job.has_collective,
            )
            if job.ina_ring_id:
                ring = replace(
                    ring,
                    ina_ring_id=job.ina_ring_id,
                    ina_successor=members[(position + 1) % len(members)].member.ina_into,
                    ina_predecessor=members[position - 1].member.ina_out,
                )
            if not selective and len(set(job.switches)) > 1:
                ring = in_psn_order(ring)
            if tree is not None:
                ring = in_overlay(ring, tree, members)
            for seat in its.seats:
                found[seat.member.rank] = Send(seat.session, replace(ring, id=seat.member.id))
        return [found[rank] for rank in sorted(found)]


class Running:
    """Ranks connect, run and leave."""

    def __init__(self, state: State, endings: Endings, trees: TreeMoves, regroupings: Regroupings) -> None:
        self._state = state
        self._endings = endings
        self._trees = trees
        self._regroupings = regroupings

    def ready(self, job: Job, event: MemberReady) -> list[RendezvousAction]:
        for seat in job.at(event.session):
            seat.ready = True
        if not all(seat.ready for seat in job.seats.values()):
            return self._state.tell_waiting(job)
        job.phase = Phase.RUNNING
        job.recovery.started(self._state.now)
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
        started = [
            *self._state.tell_all(job, start),
            Noted(f"job {job.name}: started{how}", is_problem=is_problem),
        ]
        if any(seat.left_after is None for seat in job.seats.values()):
            return [*started, *self._trees.follow(job)]
        return [*started, *self._endings.close(job)]  # all had left when the switch restarted

    def withdraw(self, job: Job, event: MemberLeft | MemberGone) -> list[RendezvousAction]:
        seat = job.seats[event.message.rank]
        reason = event.message.reason if isinstance(event, MemberGone) else "it left"
        if seat.left_after is not None and not self._state.config.recover_ns:
            # Whether anybody lacks what its host sent last shows when a rank stalls.
            seat.broke = seat.broke or reason
            return []
        return self._endings.lose(job, [seat], reason)

    def leave_or_withdraw(self, job: Job, event: MemberLeft) -> list[RendezvousAction]:
        """A rank may have all its results while its job joins or connects anew; not before its first ring."""
        is_resumed = job.seats[event.message.rank].member.progress is not None
        return self.leave(job, event) if is_resumed else self.withdraw(job, event)

    def leave(self, job: Job, event: MemberLeft) -> list[RendezvousAction]:
        seat = job.seats[event.message.rank]
        if seat.left_after is not None:
            return [self._state.blame(event.session, "left twice", f"{seat} of job {job.name}")]
        seat.left_after = event.message.operations
        if job.missing() or any(other.left_after is None for other in job.seats.values()):
            return [*self._fail_waiting_for_left(job), Noted(f"job {job.name}: {seat} left")]
        return self._endings.close(job)

    def stalled(self, job: Job, event: OperationStalled) -> list[RendezvousAction]:
        told = event.message
        seat = job.seats[told.rank]
        is_news = seat.stalled is None or seat.stalled.op_index != told.op_index
        seat.stalled = told
        failure = self._fail_waiting_for_left(job)
        if failure:
            return failure
        broke = next((other for other in job.in_order() if other.broke), None)
        if broke is not None:
            return self._endings.lose(job, [broke], broke.broke)
        mismatch = job.mismatch(told.op_index)
        if mismatch:
            status = JobStatus(job=job.name, op_index=told.op_index, waiting_for=(), mismatch=mismatch)
            return [Send(event.session, status), *self._endings.fail(job, TensorMismatch(mismatch))]
        disagreement = job.disagreement(told.op_index)
        if disagreement:
            return self._endings.disagree(job, disagreement)
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
                    return self._endings.fail(job, RankLost(text))
        return []

    def stalled_early(self, job: Job, event: OperationStalled) -> list[RendezvousAction]:
        """Answers a rank that waits for its next ring; before the first one no rank has an all-reduce."""
        return [] if job.is_resumed else self._state.out_of_order(job, event)
