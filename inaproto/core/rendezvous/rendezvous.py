"""Members become rings: who is in a job, when its ring may start, who is told when it fails.

NetReduce takes its rings as given (section 3.1: "RingID" and "Rank" are simply there); this core is
where they come from. Host daemons announce the ranks that run on them; when all ranks of a job are
there the ring is installed in the accelerator, each host is told its neighbours, and when all have
connected their queue pairs, all are told to start. The ring is one of hosts, each of which stands for all
its ranks of the job (section 3.4): a job all of whose ranks are on one host has a ring of one.

A job goes JOINING -> CONNECTING -> RUNNING and is then forgotten, so its name can be used again
(:mod:`inaproto.core.rendezvous.life`). Where ``recover_ns`` is not 0, a ring that ends by no fault of its
ranks does not end its job: it is HALTED, and then CONNECTING again
(:mod:`inaproto.core.rendezvous.ring_ends`). A ring through the switches that stands beside another may move
from tree to tree meanwhile (:mod:`inaproto.core.rendezvous.tree_moves`). A switch that restarts has forgotten
its jobs: their ranks join anew, with their progress, and go on just so. Of an elastic job that has failed
because a rank was lost, the others may go on as another job (:mod:`inaproto.core.rendezvous.regroupings`).

The machine is composed: its phases share a :class:`~inaproto.core.rendezvous.state.State`, and the ways in
which jobs and rings end (:mod:`inaproto.core.rendezvous.endings`). ``handlers`` is the whole table of
(phase, event).

Invariants: a ring is in the accelerator exactly while its job is CONNECTING or RUNNING on the path
``switch`` and has two hosts or more (a host alone has nobody to be summed with); a rank is held by one
process at a time; all ranks of a host have the same link; when a rank is lost after the ring was made, every
other host and every host with other ranks gets ``Failed`` naming it, once, and the ring is removed; a refusal
changes nothing. What concerns the whole job or the whole host (``Start``, ``Halt``, ``JobStatus``,
``Closed``, ``Failed``) is said once to each host; ``Ring`` answers each rank's ``Member``.

Ring keys come in with the events; nothing here is drawn.
"""

from __future__ import annotations

from typing import Final

from inaproto.core.contract import Handlers
from inaproto.core.rendezvous.endings import ALL_LEFT, Endings
from inaproto.core.rendezvous.events import (
    AcceleratorTakes,
    HostArrived,
    LinkMeasured,
    MemberAsked,
    MemberBroken,
    MemberCalls,
    MemberEvent,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberParked,
    MemberReady,
    MemberRefused,
    MemberRegroups,
    Noted,
    OperationStalled,
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    RendezvousView,
    RingStands,
    RoomMade,
    Send,
    SessionEnded,
    SessionId,
    ShuttingDown,
    TreesWished,
    WelcomeHost,
    Woke,
)
from inaproto.core.rendezvous.jobs import Job, Phase, view_job
from inaproto.core.rendezvous.life import Joining, Running
from inaproto.core.rendezvous.link_measures import LinkMeasure, LinkMeasures
from inaproto.core.rendezvous.regroupings import Regroupings
from inaproto.core.rendezvous.ring_ends import Halted, RingEnds
from inaproto.core.rendezvous.rules import (
    address_shared,
    refuse_difference,
    refuse_parameters,
    refuse_stranger,
    show_address,
    show_host,
)
from inaproto.core.rendezvous.state import State
from inaproto.core.rendezvous.tree_moves import TreeMoves
from inaproto.core.switch.accelerator import RingFault, RingRefused
from inaproto.errors import (
    RankLost,
    SwitchUnreachable,
)
from inaproto.units import Instant
from inaproto.wire.control_messages import (
    Closed,
    Error,
    error_message,
    failed_message,
)
from inaproto.wire.messages.trees import TreeState

HELLO_REFUSED: Final = "hello_refused"


class Rendezvous:
    """Pure core; see the module. ``step`` never raises for anything a host can do."""

    def __init__(self, config: RendezvousConfig) -> None:
        self._state = State(config)
        self._regroupings = Regroupings(config, self._state.jobs)
        self._endings = Endings(self._state, self._regroupings)
        self._trees = TreeMoves(self._state, self._endings)
        self._joining = Joining(self._state, self._endings, self._trees)
        self._running = Running(self._state, self._endings, self._trees, self._regroupings)
        self._breaks = RingEnds(self._state, self._endings, self._trees)
        self._halted = Halted(self._state, self._endings, self._joining)
        self.handlers = self._table()
        """For what is said of a job, by its phase."""

    def _table(self) -> Handlers[Phase, Job, RendezvousAction]:
        table: Handlers[Phase, Job, RendezvousAction] = Handlers()
        table.on(MemberAsked, self._joining.admit, Phase.JOINING, to=(Phase.CONNECTING, Phase.HALTED, None))
        table.on(MemberReady, self._state.out_of_order, Phase.JOINING, Phase.RUNNING)
        table.on(MemberLeft, self._running.leave_or_withdraw, Phase.JOINING, Phase.CONNECTING, to=(None,))
        table.on(
            MemberGone,
            self._running.withdraw,
            Phase.JOINING,
            Phase.CONNECTING,
            Phase.RUNNING,
            Phase.HALTED,
            to=(None,),
        )
        table.on(MemberBroken, self._state.out_of_order, Phase.JOINING)
        table.on(MemberHalted, self._state.out_of_order, Phase.JOINING, Phase.CONNECTING, Phase.RUNNING)
        table.on(MemberParked, self._state.too_late, Phase.JOINING, Phase.CONNECTING, Phase.HALTED)
        table.on(OperationStalled, self._running.stalled_early, Phase.JOINING, Phase.CONNECTING)
        table.on(MemberCalls, self._endings.called, *Phase, to=(None,))
        table.on(RingFault, self._state.impossible, Phase.JOINING, Phase.HALTED)
        table.on(RingRefused, self._state.impossible, Phase.JOINING, Phase.HALTED)
        table.on(RingStands, self._state.impossible, Phase.JOINING, Phase.CONNECTING, Phase.HALTED)
        table.on(MemberAsked, self._state.refuse_seat, Phase.CONNECTING, Phase.RUNNING)
        table.on(MemberReady, self._running.ready, Phase.CONNECTING, to=(Phase.RUNNING, Phase.HALTED, None))
        table.on(MemberBroken, self._breaks.broken, Phase.CONNECTING, Phase.RUNNING, to=(Phase.HALTED, None))
        table.on(RingFault, self._breaks.fault, Phase.CONNECTING, Phase.RUNNING, to=(Phase.HALTED, None))
        table.on(RingRefused, self._breaks.no_room, Phase.CONNECTING, Phase.RUNNING, to=(Phase.HALTED, None))
        table.on(MemberLeft, self._running.leave, Phase.RUNNING, Phase.HALTED, to=(None,))
        table.on(MemberParked, self._trees.parked, Phase.RUNNING, to=(Phase.HALTED,))
        table.on(OperationStalled, self._running.stalled, Phase.RUNNING, to=(Phase.HALTED, None))
        table.on(RingStands, self._trees.stands, Phase.RUNNING, to=(Phase.HALTED,))
        table.on(
            MemberAsked, self._halted.come_back, Phase.HALTED, to=(Phase.CONNECTING, Phase.JOINING, None)
        )
        table.on(MemberReady, self._state.too_late, Phase.HALTED)
        table.on(MemberBroken, self._state.too_late, Phase.HALTED)
        table.on(MemberHalted, self._halted.halted, Phase.HALTED, to=(Phase.CONNECTING, None))
        table.on(OperationStalled, self._state.too_late, Phase.HALTED)
        return table

    @property
    def deadline(self) -> Instant | None:
        """When a job that goes on has waited long enough, also for its ring to be parked, or tries the fast
        path, or the switches that refused its ring, again.

        How long to wait for a rank that joins is the joining process's decision.
        """
        found = [
            at
            for job in self._state.jobs.values()
            for at in (job.recovery.deadline, job.recovery.return_at)
            if at is not None
        ]
        found += [job.dispute.until for job in self._state.jobs.values() if job.dispute is not None]
        trees = [job.tree for job in self._state.jobs.values()]
        found += [at for tree in trees for at in (tree.park_until, tree.retry_at) if at is not None]
        regrouping = self._regroupings.deadline
        return min(found if regrouping is None else [*found, regrouping], default=None)

    def step(self, event: RendezvousEvent, now: Instant) -> list[RendezvousAction]:
        self._state.now = now
        match event:
            case HostArrived():
                return self._host_arrived(event)
            case SessionEnded():
                return self._session_ended(event)
            case ShuttingDown():
                return self._shutting_down(event)
            case RingFault() | RingRefused() | RingStands():
                name = self._state.rings.get(event.ring_id)
                if name is None:  # the ring has ended meanwhile
                    return []
                job = self._state.jobs[name]
                return self.handlers.step(job.phase, job, event)
            case MemberAsked():
                return self._member_asked(event)
            case (
                MemberReady()
                | MemberLeft()
                | MemberGone()
                | MemberBroken()
                | MemberCalls()
                | MemberHalted()
                | MemberParked()
                | OperationStalled()
            ):
                return self._member_event(event)
            case MemberRefused(session, refused):
                return self._state.tell_refusal(session, refused, refused.reason)
            case MemberRegroups():
                regrouping = self._regroupings.asked(event, self._state.hello(event.session), now)
                return self._endings.regrouped(regrouping)
            case AcceleratorTakes(mtu):
                self._state.mtu_most = mtu
                return []
            case TreesWished():
                return self._trees.trees_wished(event)
            case LinkMeasured(hosts, latency_ns, rate_bps):
                self._state.links.note(LinkMeasure(hosts, latency_ns, rate_bps, now))
                return []
            case RoomMade():
                for job in self._state.jobs.values():
                    job.room_made(now, by_switch=True)
                return []
            case Woke():
                return [
                    *self._endings.regrouped(self._regroupings.woke(now)),
                    *self._endings.woke(),
                    *self._halted.woke(),
                    *self._trees.woke(),
                ]

    def is_in_job(self, session: SessionId, job: str) -> bool:
        found = self._state.jobs.get(job)
        return found is not None and any(seat.session == session for seat in found.seats.values())

    def tree_states(self) -> tuple[TreeState, ...]:
        """Where the trees of all jobs are that may have a ring through the switches beside another."""
        return self._trees.tree_states()

    @property
    def links(self) -> LinkMeasures:
        """As hosts have measured them."""
        return self._state.links

    def view(self) -> RendezvousView:
        return RendezvousView(
            hosts=tuple(host.hello.host for host in self._state.hosts.values()),
            jobs=tuple(view_job(job) for job in self._state.jobs.values()),
            counters=dict(self._state.counters),
            regroupings=self._regroupings.view(),
            trees=self._trees.tree_states(),
        )

    # --- hosts

    def _host_arrived(self, event: HostArrived) -> list[RendezvousAction]:
        hello = event.hello
        if event.session in self._state.hosts:
            return [self._state.blame(event.session, "second hello", f"now as {hello.host!r}")]
        for other in self._state.hosts.values():
            if shared := address_shared(hello, other.hello):
                self._state.counters["refused"] += 1
                what, value = shared
                text = (
                    f"host {hello.host!r} refused: its {what} {show_address(value)} is that of host "
                    f"{other.hello.host!r}, which is connected; give each host daemon its own"
                )
                return [RefuseHost(event.session, Error(code=HELLO_REFUSED, message=text, of=hello.id))]
        self._state.hosts[event.session] = event
        actions: list[RendezvousAction] = [
            WelcomeHost(event.session, hello.id),
            Noted(f"host {hello.host} is here ({show_host(hello)})"),
        ]
        for job in list(self._state.jobs.values()):
            lost = [
                seat
                for seat in job.in_order()
                if seat.is_away and seat.member.host == hello.host and not seat.may_return(hello)
            ]
            if lost:
                actions += self._endings.lose(job, lost, "its host daemon was started anew")
        regrouping = self._regroupings.host_arrived(event, self._state.now)
        return [*actions, *self._endings.regrouped(regrouping)]

    def _session_ended(self, event: SessionEnded) -> list[RendezvousAction]:
        host = self._state.hosts.pop(event.session, None)
        if host is None:
            return []
        actions: list[RendezvousAction] = [Noted(f"host {host.hello.host} is gone: {event.reason}")]
        self._regroupings.session_ended(event.session, self._state.now)
        for job in list(self._state.jobs.values()):
            seats = job.at(event.session)
            if not seats:
                continue
            reason = f"its host daemon is gone: {event.reason}"
            if self._state.config.recover_ns and job.phase is not Phase.JOINING:
                actions += self._endings.lose_sight(job, seats, reason)
            else:
                actions += self._endings.lose(job, seats, reason)
        return actions

    def _shutting_down(self, event: ShuttingDown) -> list[RendezvousAction]:
        actions: list[RendezvousAction] = []
        for job in list(self._state.jobs.values()):
            error = SwitchUnreachable(f"job {job.name!r} ends, for the switch is ending: {event.reason}")
            actions += self._endings.fail(job, error)
        return actions

    # --- ranks

    def _member_asked(self, event: MemberAsked) -> list[RendezvousAction]:
        member = event.message
        host = self._state.hosts.get(event.session)
        refusal = refuse_stranger(host.hello if host else None, member)
        refusal = refusal or refuse_parameters(self._state.config, member)
        jobs = self._state.jobs
        job = jobs.get(member.job)
        if job is not None:
            refusal = refusal or refuse_difference(job.first, member) or job.refuse_mtu(member)
        elif len(jobs) >= self._state.config.jobs_max:
            full = f"the switch serves {len(jobs)} jobs, its limit (--rings-max); wait for one to end"
            refusal = refusal or full
        if job is None and not refusal and (ended := self._regroupings.why_ended(member)):
            return [Send(event.session, error_message(ended, of=member.id))]
        is_its_boot = member.boot_id == self._state.config.boot_id != ""
        if job is None and not refusal and member.progress is not None and is_its_boot:
            return self._ended_meanwhile(event)
        begins = member.progress is None or self._regroupings.has_given(member.job)
        if "~" in member.job and begins and (job is None or job.phase is Phase.JOINING):
            refusal = refusal or self._regroupings.refusal(member)
        if refusal:
            return self._state.refuse(event.session, member, refusal)
        if job is None:
            return self._joining.take_seat(Job(member.job, member), event)
        return self.handlers.step(job.phase, job, event)

    def _ended_meanwhile(self, event: MemberAsked) -> list[RendezvousAction]:
        """It comes back, and its job is no more. Whose ranks had left like all others end well."""
        member = event.message
        why = self._state.ended.get(member.job, "long ago")
        closed = Send(event.session, Closed(job=member.job, ring_id=0))
        refused = self._state.refuse(event.session, member, f"it has ended meanwhile: {why}")
        return [closed, *refused] if why == ALL_LEFT else refused

    def _member_event(self, event: MemberEvent) -> list[RendezvousAction]:
        said = event.message
        if isinstance(event, MemberGone) and event.message.ring_id:
            hello = self._state.hello(event.session)  # not of a rank of the job that has the name now
            return self._endings.regrouped(self._regroupings.gone(event, hello, self._state.now) or [])
        job = self._state.jobs.get(said.job)
        seat = job.seats.get(said.rank) if job else None
        if job is not None and seat is not None and seat.is_away and isinstance(event, MemberGone):
            host = self._state.hosts.get(event.session)
            if host is not None and host.hello.host == seat.member.host:
                return self._endings.lose(job, [seat], event.message.reason)
        if job is None or seat is None or seat.session != event.session:
            # Sent before this host heard that the job had failed, or that the switch had restarted.
            return self._answer_unknown(event)
        return self.handlers.step(job.phase, job, event)

    def _answer_unknown(self, event: MemberEvent) -> list[RendezvousAction]:
        if isinstance(event, MemberGone) and self._state.config.recover_ns:
            regrouping = self._regroupings.gone(event, self._state.hello(event.session), self._state.now)
            if regrouping is None:
                return self._halted.gone_while_away(event)
            return self._endings.regrouped(regrouping)
        if isinstance(event, MemberLeft):
            hello = self._state.hello(event.session)
            return self._endings.regrouped(self._regroupings.left(event, hello, self._state.now))
        if not isinstance(event, OperationStalled):
            return []
        said = event.message
        text = (
            f"job {said.job!r}: rank {said.rank} of this host is not known to the switch; the job has failed "
            "or the switch was restarted; join again"
        )
        return [Send(event.session, failed_message(said.job, RankLost(text)))]
