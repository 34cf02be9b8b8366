"""Elastic jobs that have lost a rank, at the rendezvous: their survivors find each other again.

The agreement itself is :mod:`inaproto.core.rendezvous.regrouping`. Here are the jobs that it is about, the
hosts that speak for the survivors, and the name of the job that they join next by ordinary joins: ``train~1``
after ``train``, ``train~2`` after ``train~1``. No other process can join, or take such a name: it is given to
the survivors, each with its rank, for ``recover_ns`` from the decision on. If one of them is lost before that
job has started, it fails, and the others agree again, on another name.

Invariants: ``regroupings_max`` at most are kept, each for twice ``recover_ns`` at most unless another rank is
lost or the next job is about to start; no name is given while a job or other survivors have it; a host speaks
for its own ranks only. All is forgotten with the switch, and whoever asks then is told.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberGone,
    MemberLeft,
    MemberRegroups,
    Noted,
    RegroupingView,
    RendezvousAction,
    RendezvousConfig,
    Send,
    SessionId,
)
from inaproto.core.rendezvous.jobs import Job, Seat
from inaproto.core.rendezvous.regrouping import (
    Answer,
    Came,
    Decline,
    Lost,
    Phase,
    Regrouping,
    TimePassed,
    Unseen,
)
from inaproto.core.rendezvous.regrouping import RegroupingEvent as AgreementEvent
from inaproto.core.rendezvous.rules import split_generation
from inaproto.errors import JobError, JoinRefused, RankLost
from inaproto.units import Instant
from inaproto.wire.control_messages import Gone, Hello, Left, Member, Regroup, Regrouped, error_message

_RING_IDS = 1 << 32


@dataclass(slots=True)
class _Ended:
    """A job that has ended, while its survivors regroup."""

    name: str
    key: str
    rings: tuple[int, int]
    """Its first and its last."""
    error: JobError
    seats: Mapping[int, Seat]
    """Seats of its survivors, by rank."""
    agreement: Regrouping
    next_name: str = ""
    has_begun: bool = False
    """The next job has started: what becomes of it is its own affair."""
    void: dict[str, RankLost] = field(default_factory=dict)
    """Names that were given, and why these jobs did not begin."""
    asked: dict[int, tuple[SessionId, int]] = field(default_factory=dict)
    """How each rank that has come was heard: through which session, and the id of its request."""

    def had(self, ring_id: int) -> bool:
        first, last = self.rings
        return (ring_id - first) % _RING_IDS <= (last - first) % _RING_IDS


@dataclass(frozen=True, slots=True)
class EndJob:
    """The next job, which has not begun, is to fail: another of its ranks is lost."""

    name: str
    error: RankLost


RegroupingAction = RendezvousAction | EndJob


class Regroupings:
    """All regroupings of one rendezvous; ``jobs``: those there are, whose names are taken."""

    def __init__(self, config: RendezvousConfig, jobs: Mapping[str, Job]) -> None:
        self._config = config
        self._jobs = jobs
        self._kept: list[_Ended] = []

    @property
    def deadline(self) -> Instant | None:
        waiting = (ended for ended in self._kept if not self._is_beginning(ended))
        found = [at for ended in waiting if (at := ended.agreement.deadline) is not None]
        return min(found, default=None)

    def _is_beginning(self, ended: _Ended) -> bool:
        """All have joined the next job. It starts, or fails and they agree again, however late."""
        job = self._jobs.get(ended.next_name)
        return job is not None and bool(job.ring_id) and not ended.has_begun

    def view(self) -> tuple[RegroupingView, ...]:
        return tuple(
            RegroupingView(
                ended.name,
                ended.next_name,
                ended.agreement.phase.value,
                tuple(ended.asked),
                ended.agreement.awaited,
            )
            for ended in self._kept
        )

    def job_failed(
        self, job: Job, error: JobError, lost: Iterable[Seat], now: Instant
    ) -> list[RegroupingAction]:
        """From now on its survivors may regroup, if it is elastic and a rank was lost."""
        if not (job.first.elastic and job.ring_id and isinstance(error, RankLost)):
            return []
        for ended in self._kept:
            if ended.next_name == job.name and not ended.has_begun:
                return self._next_failed(ended, error, lost, now)
        out = {seat.member.rank for seat in lost}
        seats = {
            seat.member.rank: seat
            for seat in job.in_order()
            if seat.left_after is None and seat.member.rank not in out
        }
        agreement = Regrouping(seats, now=now, wait_ns=self._config.recover_ns)
        if agreement.phase is Phase.OVER:
            return []
        if len(self._kept) >= self._config.regroupings_max:
            text = f"job {job.name}: its ranks cannot go on, {len(self._kept)} jobs regroup already"
            return [Noted(text, is_problem=True)]
        rings = job.first_ring_id, job.ring_id
        self._kept.append(_Ended(job.name, job.first.key, rings, error, seats, agreement))
        ranks = ", ".join(map(str, seats))
        return [Noted(f"job {job.name}: waits for what of ranks {ranks} goes on without those that are lost")]

    def _next_failed(
        self, ended: _Ended, error: RankLost, lost: Iterable[Seat], now: Instant
    ) -> list[RegroupingAction]:
        """The next job lost a rank before it started: the survivors of the one before agree again."""
        outcome = ended.agreement.outcome
        old = () if outcome is None else outcome.ranks
        gone = [Lost(old[seat.member.rank], str(error)) for seat in lost]
        return [action for event in gone for action in self._step(ended, event, now)]

    # --- what hosts say

    def asked(self, event: MemberRegroups, hello: Hello | None, now: Instant) -> list[RegroupingAction]:
        """``hello`` is that of the host which asks."""
        said = event.message
        ended = self._find(said, None if hello is None else hello.host, said.ring_id or None)
        if ended is None or (ended.has_begun and said.rank not in ended.agreement.lost):
            return [_refusal(event.session, said.id, said.job, said.rank, _UNKNOWN)]
        ended.asked[said.rank] = event.session, said.id
        return self._step(ended, Came(said.rank, said.operations_done), now)

    def gone(self, event: MemberGone, hello: Hello | None, now: Instant) -> list[RegroupingAction] | None:
        """None: it is about none of the survivors here."""
        said = event.message
        ended = self._find(said, None if hello is None else hello.host, said.ring_id or None)
        if ended is None:
            return None
        if ended.has_begun:
            return []
        ended.asked.pop(said.rank, None)
        return self._step(ended, Lost(said.rank, said.reason), now)

    def left(self, event: MemberLeft, hello: Hello | None, now: Instant) -> list[RegroupingAction]:
        """A rank had all its results, and said so before it heard that its job has failed."""
        said = event.message
        ended = self._find(said, None if hello is None else hello.host, None)
        if ended is None or ended.has_begun:
            return []
        return self._step(ended, Lost(said.rank, "it left"), now)

    def started(self, name: str) -> None:
        """The survivors may have their next job."""
        for ended in self._kept:
            ended.has_begun = ended.has_begun or ended.next_name == name

    def why_ended(self, member: Member) -> JobError | None:
        """For a rank that could not hear that its job has failed, or that its next one is not to be."""
        for other in self._kept:
            if member.job in other.void:
                return other.void[member.job]
        ended = None if member.progress is None else self._find(member, member.host, None)
        return None if ended is None else ended.error

    def _find(
        self, of: Regroup | Gone | Left | Member, host: str | None, ring_id: int | None
    ) -> _Ended | None:
        """The last job that had this survivor, on this host, and that ring."""
        for ended in reversed(self._kept):
            seat = ended.seats.get(of.rank)
            is_there = seat is not None and (ended.name, seat.member.host) == (of.job, host)
            if is_there and (ring_id is None or ended.had(ring_id)):
                return ended
        return None

    def session_ended(self, session: SessionId, now: Instant) -> None:
        """Its host may come back, and ask again."""
        for ended in self._kept:
            for rank in [rank for rank, (through, _) in ended.asked.items() if through == session]:
                del ended.asked[rank]
                ended.agreement.step(Unseen(rank), now)

    def host_arrived(self, event: HostArrived, now: Instant) -> list[RegroupingAction]:
        """If it was started anew it has none of the processes that it had."""
        hello = event.hello
        actions: list[RegroupingAction] = []
        for ended in list(self._kept):
            if ended.has_begun:  # the next job loses those ranks by itself, and its others may regroup
                continue
            for rank, seat in ended.seats.items():
                if seat.member.host == hello.host and seat.instance != hello.instance:
                    actions += self._step(ended, Lost(rank, "its host daemon was started anew"), now)
        return actions

    def woke(self, now: Instant) -> list[RegroupingAction]:
        waiting = [ended for ended in self._kept if not self._is_beginning(ended)]
        return [action for ended in waiting for action in self._step(ended, TimePassed(), now)]

    # --- the next job

    def has_given(self, name: str) -> bool:
        """Whether it is for survivors alone, whose job has not begun."""
        return any(ended.next_name == name and not ended.has_begun for ended in self._kept)

    def refusal(self, member: Member) -> str | None:
        """Why a process cannot join a job with the name of a later generation."""
        ended = next((one for one in self._kept if one.next_name == member.job), None)
        outcome = None if ended is None else ended.agreement.outcome
        if ended is None or outcome is None:
            return (
                "names with '~' are those of jobs that went on without a lost rank (shrink), and no ranks "
                "are about to join this one: they came too late, or the switch was restarted"
            )
        if not hmac.compare_digest(member.key.encode(), ended.key.encode()):
            return "wrong key; give the key of the job that it goes on with"
        seat = None
        if member.size == len(outcome.ranks):
            seat = ended.seats[outcome.ranks[member.rank]]
        if seat is None or (seat.member.host, seat.member.pid) != (member.host, member.pid):
            return f"that place in it is not given to process {member.pid} on {member.host}"
        return None

    # --- the agreement

    def _step(self, ended: _Ended, event: AgreementEvent, now: Instant) -> list[RegroupingAction]:
        was = ended.agreement.phase
        told = ended.agreement.step(event, now)
        actions = [] if ended.agreement.phase is was else self._changed(ended, event)
        for action in told:
            session, request = ended.asked[action.rank]
            match action:
                case Answer(_, outcome):
                    answer = Regrouped(
                        id=request, job=ended.next_name, ranks=outcome.ranks, agreed=outcome.agreed
                    )
                    actions.append(Send(session, answer))
                case Decline(rank, reason):
                    actions.append(_refusal(session, request, ended.name, rank, reason))
        return actions

    def _changed(self, ended: _Ended, event: AgreementEvent) -> list[RegroupingAction]:
        actions: list[RegroupingAction] = []
        outcome = ended.agreement.outcome
        if ended.next_name and outcome is None and isinstance(event, Lost):
            text = f"rank {event.rank} of job {ended.name!r} is lost as well: {event.reason}"
            error = ended.void[ended.next_name] = RankLost(f"job {ended.next_name!r} does not begin: {text}")
            failing, ended.next_name = ended.next_name, ""
            ended.asked.clear()
            actions = [EndJob(failing, error)]
        if ended.agreement.phase is Phase.GATHERING:
            return actions
        if ended.agreement.phase is Phase.OVER:
            self._kept.remove(ended)
            if ended.has_begun:
                return actions
            late = f"the time to join {ended.next_name} is over" if ended.next_name else "no rank goes on"
            return [*actions, Noted(f"job {ended.name}: {late}", is_problem=True)]
        if outcome is not None:
            ended.next_name = self._next_name(ended)
            ranks = ", ".join(map(str, outcome.ranks))
            text = f"job {ended.name}: ranks {ranks} go on as job {ended.next_name}; all have the results of "
            actions.append(Noted(f"{text}{outcome.agreed} all-reduces"))
        return actions

    def _next_name(self, of: _Ended) -> str:
        root, generation = split_generation(of.name)
        given = {ended.next_name for ended in self._kept} | of.void.keys()
        while True:
            generation += 1
            found = f"{root}~{generation}"
            if found not in given and found not in self._jobs:
                return found


_UNKNOWN = (
    "the switch knows of no survivors of it among which this rank is: the job is not elastic, has not lost a "
    "rank, this rank asked too late, or the switch was restarted; start the job anew"
)


def _refusal(session: SessionId, request: int, job: str, rank: int, reason: str) -> Send:
    error = JoinRefused(f"rank {rank} of job {job!r} cannot go on with the others: {reason}")
    return Send(session, error_message(error, of=request))
