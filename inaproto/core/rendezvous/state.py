"""What a rendezvous knows, and how it says it: hosts, jobs, rings, wishes, and messages to who is concerned.

The parts of the machine share one :class:`State`: how jobs end
(:mod:`~inaproto.core.rendezvous.endings`), where their rings through the switches are
(:mod:`~inaproto.core.rendezvous.tree_moves`), and the phases (:mod:`~inaproto.core.rendezvous.life`,
:mod:`~inaproto.core.rendezvous.ring_ends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    MemberBroken,
    MemberEvent,
    MemberHalted,
    MemberReady,
    OperationStalled,
    RendezvousAction,
    RendezvousConfig,
    RingStands,
    Send,
    SessionId,
)
from inaproto.core.rendezvous.jobs import Job, Phase, Seat, process_of
from inaproto.core.rendezvous.link_measures import LinkMeasures
from inaproto.core.rendezvous.next_ring import halt_message
from inaproto.core.switch.accelerator import RingFault, RingRefused
from inaproto.errors import (
    Blame,
    JoinRefused,
)
from inaproto.units import Instant
from inaproto.wire.control_messages import (
    Hello,
    JobStatus,
    Member,
    Message,
    RankRefused,
    error_message,
)
from inaproto.wire.messages.trees import TreeWished

K = TypeVar("K")

REMEMBERED_MAX: Final = 256
"""Ends of jobs and ranks that hosts may have missed."""


class State:
    """All that one rendezvous knows; its parts read and change it."""

    def __init__(self, config: RendezvousConfig) -> None:
        self.config = config
        self.hosts: dict[SessionId, HostArrived] = {}
        self.jobs: dict[str, Job] = {}
        self.rings: dict[int, str] = {}
        """The job that each ring is of."""
        self.counters = {"rings_made": 0, "jobs_failed": 0, "jobs_closed": 0, "refused": 0}
        self.counters |= {"recoveries": 0, "fallbacks": 0, "returns": 0}
        self.counters |= {"disagreements": 0, "trees_parked": 0, "trees_moved": 0, "parkings_given_up": 0}
        self.counters |= {"generations_for_trees": 0}
        self.now = Instant(0)
        self.links = LinkMeasures()
        self.mtu_most = 0
        """The largest MTU that the accelerator takes; 0: any, or it is not known."""
        self.ended: dict[str, str] = {}
        """Why the last jobs ended, for ranks whose hosts could not hear it."""
        self.wishes: dict[str, TreeWished] = {}
        """What is wished for each job, whether it is here or not."""
        self.gone: dict[tuple[str, int], str] = {}
        """Ranks of jobs that are not known (yet) that are lost, and why."""
        self._ring_serial = config.first_ring_id

    def refuse(self, session: SessionId, member: Member, reason: str) -> list[RendezvousAction]:
        self.counters["refused"] += 1
        who = f"rank {member.rank} ({member.host}, pid {member.pid})"
        error = JoinRefused(f"{who} cannot join job {member.job!r}: {reason}")
        host = self.hello(session)
        is_its = host is not None and host.host == member.host  # else it speaks for another
        told = self.tell_refusal(session, member, reason) if is_its else []
        return [Send(session, error_message(error, of=member.id)), *told]

    def tell_refusal(
        self, session: SessionId, refused: Member | RankRefused, reason: str
    ) -> list[RendezvousAction]:
        """Those who wait for that rank hear at once that it was refused; a job does not fail by that: anybody
        could end it so."""
        job, host = self.jobs.get(refused.job), self.hello(session)
        if job is None or host is None or not job.note_refusal(refused.rank, host.host, refused.pid, reason):
            return []
        return self.tell_waiting(job)

    def refuse_seat(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        seat = job.seats[event.message.rank]
        reason = f"the rank is held by {process_of(seat)}; end that process or take another rank"
        if seat.left_after is not None:
            still = ", ".join(str(other) for other in job.in_order() if other.left_after is None)
            reason = f"the job is ending, {still} has yet to leave; try again then"
        return self.refuse(event.session, event.message, reason)

    def new_ring_id(self) -> int:
        ring_id, self._ring_serial = self._ring_serial, self._ring_serial % 0xFFFF_FFFF + 1
        return ring_id

    def tell_waiting(self, job: Job) -> list[RendezvousAction]:
        """Tell all members for whom the job waits, so that a join that times out can say it."""
        if job.phase is Phase.JOINING:
            waiting = job.missing()
        else:
            waiting = tuple(seat.member.rank for seat in job.in_order() if not seat.ready)
        status = JobStatus(job=job.name, waiting_for=waiting, refused=job.refusals)
        return self.tell_all(job, status)

    def tell_all(self, job: Job, message: Message, *, without: Sequence[Seat] = ()) -> list[RendezvousAction]:
        """Sends it to every host that has members, once, and that is still there."""
        sessions = job.sessions(without=without)
        return [Send(session, message) for session in sessions if session in self.hosts]

    def tell_halt(self, job: Job) -> list[RendezvousAction]:
        """Tells every host what it is to make links for."""
        return [
            Send(session, halt_message(job, job.at(session)))
            for session in job.sessions()
            if session in self.hosts
        ]

    def blame(self, session: SessionId, rule: str, evidence: str) -> Blame:
        host = self.hosts.get(session)
        return Blame(f"host {host.hello.host}" if host else f"session {session}", rule, evidence)

    def out_of_order(
        self, job: Job, event: MemberReady | MemberBroken | MemberHalted | OperationStalled
    ) -> list[RendezvousAction]:
        if isinstance(event, MemberBroken | MemberHalted) and event.message.ring_id != job.ring_id:
            return []  # of a ring of the life before: it crossed the job's failure
        rule = f"{event.message.TYPE} while {job.phase.value}"
        return [self.blame(event.session, rule, f"rank {event.message.rank} of job {job.name}")]

    def impossible(self, job: Job, event: RingFault | RingRefused | RingStands) -> list[RendezvousAction]:
        """A job that is joining or halted has no ring, so nothing can be wrong with it."""
        return []

    def too_late(self, job: Job, event: MemberEvent) -> list[RendezvousAction]:
        """Said of a ring that has ended."""
        return []

    def hello(self, session: SessionId) -> Hello | None:
        host = self.hosts.get(session)
        return None if host is None else host.hello


def remember(known: dict[K, str], key: K, reason: str) -> None:
    """The oldest makes room."""
    known.pop(key, None)
    known[key] = reason
    while len(known) > REMEMBERED_MAX:
        del known[next(iter(known))]
