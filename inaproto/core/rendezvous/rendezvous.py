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
:data:`HANDLERS` is the whole table of (phase, event).

Invariants: a ring is in the accelerator exactly while its job is CONNECTING or RUNNING on the path
``switch`` and has two hosts or more (a host alone has nobody to be summed with); a rank is held by one
process at a time; all ranks of a host have the same link; when a rank is lost after the ring was made, every
other host and every host with other ranks gets ``Failed`` naming it, once, and the ring is removed; a refusal
changes nothing. What concerns the whole job or the whole host (``Start``, ``Halt``, ``JobStatus``,
``Closed``, ``Failed``) is said once to each host; ``Ring`` answers each rank's ``Member``.

Ring keys come in with the events; nothing here is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from inaproto.core.rendezvous.events import (
    HostArrived,
    LinkMeasured,
    MemberAsked,
    MemberBroken,
    MemberEvent,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberParked,
    MemberReady,
    MemberRegroups,
    Noted,
    OperationStalled,
    RefuseHost,
    RendezvousAction,
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
from inaproto.core.rendezvous.link_measures import LinkMeasure, LinkMeasures
from inaproto.core.rendezvous.rules import refuse_difference, refuse_parameters, refuse_stranger, show_address
from inaproto.core.rendezvous.tree_moves import TreeMoves
from inaproto.core.switch.accelerator import RingFault, RingRefused
from inaproto.errors import (
    RankLost,
    SwitchUnreachable,
)
from inaproto.units import Instant
from inaproto.wire.control_messages import (
    Error,
    Hello,
    error_message,
    failed_message,
)

HELLO_REFUSED: Final = "hello_refused"


class Rendezvous(TreeMoves):
    """Pure core; see the module. ``step`` never raises for anything a host can do."""

    @property
    def deadline(self) -> Instant | None:
        """When a job that goes on has waited long enough, also for its ring to be parked, or tries the fast
        path, or the switches that refused its ring, again.

        How long to wait for a rank that joins is the joining process's decision.
        """
        found = [
            at
            for job in self._jobs.values()
            for at in (job.recovery.deadline, job.recovery.return_at)
            if at is not None
        ]
        trees = [job.tree for job in self._jobs.values()]
        found += [at for tree in trees for at in (tree.park_until, tree.retry_at) if at is not None]
        regrouping = self._regroupings.deadline
        return min(found if regrouping is None else [*found, regrouping], default=None)

    def step(self, event: RendezvousEvent, now: Instant) -> list[RendezvousAction]:
        self._now = now
        match event:
            case HostArrived():
                return self._host_arrived(event)
            case SessionEnded():
                return self._session_ended(event)
            case ShuttingDown():
                return self._shutting_down(event)
            case RingFault() | RingRefused() | RingStands():
                name = self._rings.get(event.ring_id)
                if name is None:  # the ring has ended meanwhile
                    return []
                job = self._jobs[name]
                return HANDLERS[job.phase, type(event)](self, job, event)
            case MemberAsked():
                return self._member_asked(event)
            case (
                MemberReady()
                | MemberLeft()
                | MemberGone()
                | MemberBroken()
                | MemberHalted()
                | MemberParked()
                | OperationStalled()
            ):
                return self._member_event(event)
            case MemberRegroups():
                return self._regroupings.asked(event, self._hello(event.session), now)
            case TreesWished():
                return self._trees_wished(event)
            case LinkMeasured(hosts, latency_ns, rate_bps):
                self._links.note(LinkMeasure(hosts, latency_ns, rate_bps, now))
                return []
            case RoomMade():
                for job in self._jobs.values():
                    job.room_made(now)
                return []
            case Woke():
                return self._woke()

    def is_in_job(self, session: SessionId, job: str) -> bool:
        found = self._jobs.get(job)
        return found is not None and any(seat.session == session for seat in found.seats.values())

    @property
    def links(self) -> LinkMeasures:
        """As hosts have measured them."""
        return self._links

    def view(self) -> RendezvousView:
        return RendezvousView(
            hosts=tuple(host.hello.host for host in self._hosts.values()),
            jobs=tuple(view_job(job) for job in self._jobs.values()),
            counters=dict(self._counters),
            regroupings=self._regroupings.view(),
            trees=self.tree_states(),
        )

    def _hello(self, session: SessionId) -> Hello | None:
        host = self._hosts.get(session)
        return None if host is None else host.hello

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
            lost = [
                seat
                for seat in job.in_order()
                if seat.is_away and seat.member.host == hello.host and seat.instance != hello.instance
            ]
            if lost:
                actions += self._lose(job, lost, "its host daemon was started anew")
        return [*actions, *self._regroupings.host_arrived(event, self._now)]

    def _session_ended(self, event: SessionEnded) -> list[RendezvousAction]:
        host = self._hosts.pop(event.session, None)
        if host is None:
            return []
        actions: list[RendezvousAction] = [Noted(f"host {host.hello.host} is gone: {event.reason}")]
        self._regroupings.session_ended(event.session, self._now)
        for job in list(self._jobs.values()):
            seats = job.at(event.session)
            if not seats:
                continue
            reason = f"its host daemon is gone: {event.reason}"
            if self._config.recover_ns and job.phase is not Phase.JOINING:
                actions += self._lose_sight(job, seats, reason)
            else:
                actions += self._lose(job, seats, reason)
        return actions

    def _shutting_down(self, event: ShuttingDown) -> list[RendezvousAction]:
        actions: list[RendezvousAction] = []
        for job in list(self._jobs.values()):
            error = SwitchUnreachable(f"job {job.name!r} ends, for the switch is ending: {event.reason}")
            actions += self._fail(job, error)
        return actions

    # --- ranks

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
        if job is None and not refusal and (ended := self._regroupings.why_ended(member)):
            return [Send(event.session, error_message(ended, of=member.id))]
        if job is None and member.progress is not None and member.boot_id == self._config.boot_id != "":
            refusal = refusal or f"it has ended meanwhile: {self._ended.get(member.job, 'long ago')}"
        if "~" in member.job and member.progress is None and (job is None or job.phase is Phase.JOINING):
            refusal = refusal or self._regroupings.refusal(member)
        if refusal:
            return self._refuse(event.session, member, refusal)
        if job is None:
            return self._take_seat(Job(member.job, member), event)
        return HANDLERS[job.phase, MemberAsked](self, job, event)

    def _member_event(self, event: MemberEvent) -> list[RendezvousAction]:
        said = event.message
        if isinstance(event, MemberGone) and event.message.ring_id:
            hello = self._hello(event.session)  # not of a rank of the job that has the name now
            return self._regroupings.gone(event, hello, self._now) or []
        job = self._jobs.get(said.job)
        seat = job.seats.get(said.rank) if job else None
        if job is not None and seat is not None and seat.is_away and isinstance(event, MemberGone):
            host = self._hosts.get(event.session)
            if host is not None and host.hello.host == seat.member.host:
                return self._lose(job, [seat], event.message.reason)
        if job is None or seat is None or seat.session != event.session:
            # Sent before this host heard that the job had failed, or that the switch had restarted.
            return self._answer_unknown(event)
        return HANDLERS[job.phase, type(event)](self, job, event)

    def _answer_unknown(self, event: MemberEvent) -> list[RendezvousAction]:
        if isinstance(event, MemberGone) and self._config.recover_ns:
            regrouping = self._regroupings.gone(event, self._hello(event.session), self._now)
            return self._gone_while_away(event) if regrouping is None else regrouping
        if isinstance(event, MemberLeft):
            return self._regroupings.left(event, self._hello(event.session), self._now)
        if not isinstance(event, OperationStalled):
            return []
        said = event.message
        text = (
            f"job {said.job!r}: rank {said.rank} of this host is not known to the switch; the job has failed "
            "or the switch was restarted; join again"
        )
        return [Send(event.session, failed_message(said.job, RankLost(text)))]


Handler = Callable[..., list[RendezvousAction]]
"""Method of :class:`Rendezvous`, called with the job and the event."""

JobEvent = MemberAsked | MemberEvent | RingFault | RingRefused | RingStands
HANDLERS: Final[Mapping[tuple[Phase, type[JobEvent]], Handler]] = {
    (Phase.JOINING, MemberAsked): Rendezvous._admit,
    (Phase.JOINING, MemberReady): Rendezvous._out_of_order,
    (Phase.JOINING, MemberLeft): Rendezvous._leave_or_withdraw,
    (Phase.JOINING, MemberGone): Rendezvous._withdraw,
    (Phase.JOINING, MemberBroken): Rendezvous._out_of_order,
    (Phase.JOINING, MemberHalted): Rendezvous._out_of_order,
    (Phase.JOINING, MemberParked): Rendezvous._too_late,
    (Phase.JOINING, OperationStalled): Rendezvous._stalled_early,
    (Phase.JOINING, RingFault): Rendezvous._impossible,
    (Phase.JOINING, RingRefused): Rendezvous._impossible,
    (Phase.JOINING, RingStands): Rendezvous._impossible,
    (Phase.CONNECTING, MemberAsked): Rendezvous._refuse_seat,
    (Phase.CONNECTING, MemberReady): Rendezvous._ready,
    (Phase.CONNECTING, MemberLeft): Rendezvous._leave_or_withdraw,
    (Phase.CONNECTING, MemberGone): Rendezvous._withdraw,
    (Phase.CONNECTING, MemberBroken): Rendezvous._broken,
    (Phase.CONNECTING, MemberHalted): Rendezvous._out_of_order,
    (Phase.CONNECTING, MemberParked): Rendezvous._too_late,
    (Phase.CONNECTING, OperationStalled): Rendezvous._stalled_early,
    (Phase.CONNECTING, RingFault): Rendezvous._fault,
    (Phase.CONNECTING, RingRefused): Rendezvous._no_room,
    (Phase.CONNECTING, RingStands): Rendezvous._impossible,
    (Phase.RUNNING, MemberAsked): Rendezvous._refuse_seat,
    (Phase.RUNNING, MemberReady): Rendezvous._out_of_order,
    (Phase.RUNNING, MemberLeft): Rendezvous._leave,
    (Phase.RUNNING, MemberGone): Rendezvous._withdraw,
    (Phase.RUNNING, MemberBroken): Rendezvous._broken,
    (Phase.RUNNING, MemberHalted): Rendezvous._out_of_order,
    (Phase.RUNNING, MemberParked): Rendezvous._parked,
    (Phase.RUNNING, OperationStalled): Rendezvous._stalled,
    (Phase.RUNNING, RingFault): Rendezvous._fault,
    (Phase.RUNNING, RingRefused): Rendezvous._no_room,
    (Phase.RUNNING, RingStands): Rendezvous._stands,
    (Phase.HALTED, MemberAsked): Rendezvous._come_back,
    (Phase.HALTED, MemberReady): Rendezvous._too_late,
    (Phase.HALTED, MemberLeft): Rendezvous._leave,
    (Phase.HALTED, MemberGone): Rendezvous._withdraw,
    (Phase.HALTED, MemberBroken): Rendezvous._too_late,
    (Phase.HALTED, MemberHalted): Rendezvous._halted,
    (Phase.HALTED, MemberParked): Rendezvous._too_late,
    (Phase.HALTED, OperationStalled): Rendezvous._too_late,
    (Phase.HALTED, RingFault): Rendezvous._impossible,
    (Phase.HALTED, RingRefused): Rendezvous._impossible,
    (Phase.HALTED, RingStands): Rendezvous._impossible,
}
