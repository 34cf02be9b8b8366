"""Sessions of host daemons and switches: what they report, and what they are told to hold.

Both directions tell all of it, level-triggered (:mod:`inaproto.wire.messages.controller`); so there is
nothing to remember of a session but the last report. Invariants: bytes of a stranger end at most their own
connection, with an ``Error`` that says why; an agent has one session; only a leader has any.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple, assert_never

import trio

from inaproto.ca.identity import Identity
from inaproto.core.rendezvous.rules import job_name
from inaproto.daemon.net.accepting import take_each
from inaproto.daemon.net.control_stream import DEAD_S, ControlStream, EndOfChannel
from inaproto.daemon.net.many_streams import ManyStreams
from inaproto.daemon.net.session_rules import (
    MESSAGE_FLOOD,
    Allowance,
    SessionLimits,
    for_people,
    identity_of,
    refusal_of,
)
from inaproto.errors import DecodeError, LocalMisuse
from inaproto.ports import ByteStream, StreamListener
from inaproto.wire.control_messages import Error, Message, Ping, Pong
from inaproto.wire.messages.controller import (
    AgentHello,
    AgentPlacement,
    AgentReport,
    AgentRole,
    AgentWelcome,
    AgentWhere,
    AgentWishes,
    GrantRecord,
    SlotRecord,
)
from inaproto.wire.messages.sharing import FromHost, SharingSeats
from inaproto.wire.messages.slots import SlotAnswer, SlotsChanged
from inaproto.wire.messages.trees import TreeReport
from inaproto_controller.cluster.desired import (
    Change,
    Desired,
    Forget,
    Free,
    Give,
    Grant,
    GrantKind,
    Job,
    Release,
    SetJob,
)
from inaproto_controller.service.observed import Agent, Hold, Observed, Phase, Presence
from inaproto_controller.service.trees.service import TreeService
from inaproto_controller.service.turns.service import SharingService

log = logging.getLogger("inaproto.controller")

HELLO_S: Final = 5.0
TOLD_AT_ONCE: Final = 32
REPORTS_PER_S: Final = 256
REPORTS_IN_LEASE: Final = 4
REFUSED_AGAIN_S: Final = 600.0
"""A refusal that is said again and again is in the log so often."""
REFUSED_MAX: Final = 64
NOT_LEADER: Final = "not_leader"
STARTED_JUST_NOW: Final = "it has just been started"
AGENT_REFUSED: Final = "agent_refused"
BAD_MESSAGE: Final = "bad_message"
SESSION_OVER: Final = "session_over"
LIMITS: Final = SessionLimits(messages_per_s=5000.0)
"""Hosts tell where their jobs are up to 4000 times a second (:mod:`inaproto.daemon.host.turn_seats`)."""
SharingSend = Callable[[str, Message], None]
"""What takes a message to a host."""


class _Flood(Exception):
    """More comes than anybody needs."""


@dataclass(slots=True)
class _Session:
    stream: ControlStream
    name: str
    boot_id: str
    report: AgentReport | None = None
    told: tuple[GrantRecord, ...] | None = None
    """In this session, last."""
    told_revision: int = 0
    has_collective: bool = False


class Agents:
    """``roles``: by name, who may come in. ``sharp``: switches where no agent is, as they sum by SHARP.
    ``changed`` is called when something new was observed."""

    def __init__(
        self,
        roles: Mapping[str, AgentRole],
        *,
        lease_s: float,
        report_s: float,
        sessions_max: int,
        changed: Callable[[], None],
        sharing: Callable[[SharingSend], SharingService] | None = None,
        trees: Callable[[SharingSend, SharingService], TreeService | None] | None = None,
        sharp: Collection[str] = (),
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._roles = roles
        self._sharp = sharp
        self._lease_s = lease_s
        # Agents that say that they are there are to leave time for what is new, however many there are.
        # It is answered, and an agent that hears nothing for DEAD_S dials again.
        at_least_s = min(len(roles) / REPORTS_PER_S, lease_s / REPORTS_IN_LEASE)
        self._report_s = min(max(report_s, at_least_s), DEAD_S / 2)
        self._sessions_max = sessions_max
        self._changed = changed
        self._wall_clock = wall_clock
        self._connections = 0
        self._refused_at: dict[str, float] = {}
        """When a refusal was in the log; that which came last is the last."""
        self._sessions: dict[str, _Session] = {}
        self._heard: dict[str, float] = {}
        self._boots: dict[str, tuple[str, float]] = {}
        """By agent, and since when it is known: another one begins without what it had."""
        self._term = 0
        self.why_no_term = STARTED_JUST_NOW
        """What agents are told where this controller does not lead."""
        self._desired = Desired()
        self._seen: dict[str, Agent] = {}
        self._news: set[str] = set()
        self._untold: dict[str, None] = {}
        """Agents that a commit concerns, and that have not been told since."""
        self._has_untold = trio.Event()
        self._passing: list[tuple[float, str]] = []
        """After which time what was seen of whom may be something else though nothing is heard: a heap."""
        self._led_since = 0.0
        make = sharing or partial(SharingService, lease_s=lease_s)
        self.sharing = make(self._send)
        self.trees = None if trees is None else trees(self._send, self.sharing)

    # -- leading

    def lead(self, term: int, desired: Desired) -> None:
        """Nothing is known of anybody yet."""
        self._term = term
        self._desired = desired
        self._led_since = trio.current_time()
        self._heard.clear()
        self._passing.clear()
        self._untold.clear()
        for name in self._roles:
            self._look_at(name)

    def follow(self, why: str) -> None:
        """This controller leads no more."""
        self._term, self.why_no_term = 0, why
        sessions = list(self._sessions.values())
        self._sessions.clear()  # their tasks end later, and what they have reported is of a term that is over
        for session in sessions:
            session.stream.close("this controller does not lead any more")
            self._look_at(session.name)

    def wish(self, desired: Desired, changes: Iterable[Change]) -> None:
        """This has been committed, by these changes: tell those whom they concern."""
        before, self._desired = self._desired, desired
        self._untold |= _concerned(before, desired, changes)
        if len(self._untold) <= TOLD_AT_ONCE:
            self._tell_some()
        else:
            self._has_untold.set()

    def _tell_some(self) -> None:
        for name in tuple(islice(self._untold, TOLD_AT_ONCE)):
            del self._untold[name]
            session = self._sessions.get(name)
            if session is not None and session.report is not None:
                self._tell_news(session, _wishes(self._desired, name), session.told_revision)

    async def run(self) -> None:
        """While this controller leads, until cancelled: tells a thousand agents one after the other, and in
        between others are heard."""
        while True:
            await self._has_untold.wait()
            while self._untold:
                self._tell_some()
                await trio.lowlevel.checkpoint()
            self._has_untold = trio.Event()

    def _placed(self, name: str) -> Job | None:
        """The job of that name, if it has hosts and is not over."""
        job = self._desired.named(name)
        return job if job is not None and job.state.is_live and job.hosts else None

    def _send(self, agent: str, message: Message) -> None:
        """Lost where there is no session of it, or one that has ended."""
        session = self._sessions.get(agent)
        if session is not None:
            _say(session, message)

    # -- what is observed

    def observed(self) -> Observed:
        now = trio.current_time()
        if not self._seen:  # it has not led yet
            for name in self._roles:
                self._look_at(name)
        while self._passing and self._passing[0][0] < now:
            self._look_at(heappop(self._passing)[1])
        return Observed(dict(self._seen), rings={} if self.trees is None else self.trees.rings)

    def news(self) -> set[str]:
        """Agents of which what is seen has changed since this was asked last."""
        news, self._news = self._news, set()
        return news

    def _look_at(self, name: str) -> None:
        before, seen = self._seen.get(name), self._agent(name, trio.current_time())
        if seen != before:
            self._seen[name] = seen
            self._news.add(name)
        if seen.is_anew:
            heappush(self._passing, (self._boots[name][1] + self._lease_s, name))
        elif seen.presence is Presence.UNKNOWN:
            heappush(self._passing, (self._heard.get(name, self._led_since) + self._lease_s, name))

    def _agent(self, name: str, now: float) -> Agent:
        session = self._sessions.get(name)
        if session is not None and session.report is not None:
            report = session.report
            holds = {one.grant: Hold(Phase(one.phase), for_people(one.reason)) for one in report.holds}
            _, since = self._boots[name]
            is_anew = now - since <= self._lease_s
            return Agent(Presence.UP, report.revision, holds, session.has_collective, is_anew)
        silent = now - self._heard.get(name, self._led_since)
        return Agent(Presence.GONE if silent > self._lease_s else Presence.UNKNOWN)

    # -- sessions

    async def accept_sessions(self, listener: StreamListener) -> None:
        """Serve every connection until ``listener`` is closed."""
        many = ManyStreams()
        async with trio.open_nursery() as reading:
            reading.start_soon(many.run)
            async with trio.open_nursery() as nursery:
                await take_each(
                    listener, lambda one: nursery.start_soon(self._serve, one, many), log, "agent"
                )
            reading.cancel_scope.cancel()

    async def _serve(self, connection: ByteStream, many: ManyStreams) -> None:
        stream = ControlStream(connection)
        identity = identity_of(connection)
        if not identity.is_local:
            stream.limit_input(LIMITS.hello_bytes_max)
        self._connections += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run)
                try:
                    await self._converse(stream, identity, many)
                except (DecodeError, LocalMisuse) as error:
                    _refuse(
                        stream, BAD_MESSAGE, f"not a message of an agent: {error}; the connection is closed"
                    )
                except EndOfChannel:
                    pass
                nursery.cancel_scope.cancel()
        finally:
            self._connections -= 1
            stream.close()

    async def _converse(self, stream: ControlStream, identity: Identity, many: ManyStreams) -> None:
        hello = await self._hello(stream, identity)
        if hello is None:
            return
        stream.limit_input(math.inf)
        session = _Session(stream, hello.agent, hello.boot_id, has_collective=hello.collective)
        self._sessions[hello.agent] = session
        self._heard[hello.agent] = trio.current_time()
        boot, _ = self._boots.get(hello.agent, ("", 0.0))
        if boot != hello.boot_id:
            self._boots[hello.agent] = hello.boot_id, trio.current_time()
        reason = "it said what is no message"
        allowance = Allowance(LIMITS.messages_burst, LIMITS.messages_per_s, trio.current_time())
        self._look_at(hello.agent)

        def heard(message: Message) -> None:
            now = self._heard[hello.agent] = trio.current_time()
            if not identity.is_local and not allowance.take(now):
                raise _Flood
            self._said(session, hello.role, message)

        try:
            stream.send_nowait(self._welcome(hello))
            if hello.role == "host":
                self.sharing.arrived(hello.agent)
            while (left_s := min(self._silent_in(hello.agent), self._seconds_left(identity))) > 0.0:
                with trio.move_on_after(left_s):
                    await stream.receive_each(many, heard)
            reason = f"nothing was heard of it for {self._lease_s:g} s"
            if self._silent_in(hello.agent) > 0.0:
                reason = "its certificate has run out"
            _refuse(stream, SESSION_OVER, f"{reason}; the connection is closed")
        except _Flood:
            reason = "it sends more messages than anybody needs"
            _refuse(stream, MESSAGE_FLOOD, f"{reason}; the connection is closed")
        except EndOfChannel as end:
            reason = end.reason
        finally:
            if self._sessions.get(hello.agent) is session:
                self._departed(session, hello.role)
                log.info("%s %s: %s", hello.role, hello.agent, reason)
                self._changed()

    def _said(self, session: _Session, role: AgentRole, message: Message) -> None:
        """Raises ``DecodeError`` for what such an agent does not say."""
        if isinstance(message, AgentReport):
            self._reported(session, message)
        elif role == "host" and isinstance(message, SharingSeats | FromHost):
            self._shares(session, message)
        elif role == "host" and isinstance(message, AgentWhere):
            self._where(session, message.job)
        elif role == "switch" and isinstance(message, SlotAnswer | SlotsChanged | TreeReport):
            self._lends(session, message)
        elif not isinstance(message, Ping | Pong):
            raise DecodeError("control", f"{message.TYPE!r} is not for a controller")

    def _departed(self, session: _Session, role: AgentRole) -> None:
        del self._sessions[session.name]
        self._look_at(session.name)
        if role == "host":
            self.sharing.departed(session.name)
        elif self.trees is not None:
            self.trees.departed(session.name)

    def _welcome(self, hello: AgentHello) -> AgentWelcome:
        report_ms, trees = round(self._report_s * 1000), self.trees
        if hello.role == "host":
            return AgentWelcome(
                term=self._term, report_ms=report_ms, places=True, gives_places=bool(self._sharp)
            )
        if trees is None:
            return AgentWelcome(term=self._term, report_ms=report_ms)
        slots, reports = trees.slots(hello.agent), trees.hears_trees_of(hello.agent)
        return AgentWelcome(term=self._term, report_ms=report_ms, slots=slots, trees=reports)

    def _silent_in(self, agent: str) -> float:
        """Seconds until it will have said nothing for the lease, if it says nothing."""
        return self._heard.get(agent, self._led_since) + self._lease_s - trio.current_time()

    def _note(self, refusal: str) -> None:
        """Who is refused asks again twice a second, and would fill the log."""
        now, said = trio.current_time(), self._refused_at.pop(refusal, -math.inf)
        is_new = now - said >= REFUSED_AGAIN_S
        log.log(logging.WARNING if is_new else logging.DEBUG, "%s", refusal)
        self._refused_at[refusal] = now if is_new else said
        if len(self._refused_at) > REFUSED_MAX:
            del self._refused_at[next(iter(self._refused_at))]

    def _seconds_left(self, identity: Identity) -> float:
        """Until the certificate of an agent runs out, and its session with it."""
        return math.inf if identity.expires_s is None else identity.expires_s - self._wall_clock()

    async def _hello(self, stream: ControlStream, identity: Identity) -> AgentHello | None:
        with trio.move_on_after(HELLO_S):
            hello = await stream.receive()
            refusal = refusal_of(identity, hello)
            if not refusal and isinstance(hello, AgentHello):
                refusal = self._refusal(hello)
            if self._term == 0:
                _refuse(stream, NOT_LEADER, f"this controller does not lead: {self.why_no_term}")
            elif refusal:
                self._note(refusal)
                _refuse(stream, AGENT_REFUSED, refusal)
            elif not isinstance(hello, AgentHello):
                _refuse(stream, BAD_MESSAGE, f"an agent says hello first, not {hello.TYPE!r}")
            else:
                return hello
        return None

    def _refusal(self, hello: AgentHello) -> str:
        role = self._roles.get(hello.agent)
        if self._connections > self._sessions_max:
            return f"the controller serves {self._sessions_max} connections, its limit"
        if role != hello.role:
            known = "has none of that name" if role is None else f"says that it is a {role}"
            if hello.agent in self._sharp:
                known = "or capacity_model says that it sums by SHARP, where no switch daemon is asked"
            return f"{hello.role} {hello.agent!r}: the cluster file {known}"
        old = self._sessions.get(hello.agent)
        if old is not None and old.boot_id != hello.boot_id and not old.stream.peer_is_gone():
            return f"{hello.role} {hello.agent!r} is connected already; give each a name of its own"
        if old is not None:
            old.stream.close("replaced")
            self._departed(old, hello.role)  # what it had begun to say there is never ended
        return ""

    def _shares(self, session: _Session, message: SharingSeats | FromHost) -> None:
        if self._sessions.get(session.name) is not session:
            return
        if isinstance(message, SharingSeats):
            own = tuple(hold for hold in message.seats if self._may_sit(session.name, hold.job))
            message = replace(message, seats=own)
        self.sharing.heard(session.name, message)

    def _may_sit(self, host: str, job: str) -> bool:
        """Whether the job may have a seat there: one that was submitted only where it is placed
        (docs/protocol.md 15.2)."""
        placed = self._placed(job_name(job).job)
        return placed is None or host in placed.hosts

    def _where(self, session: _Session, job: str) -> None:
        """Tell a host where a job is of which a process has come to it."""
        placed = self._placed(job) if self._sessions.get(session.name) is session else None
        hosts, each = ((), 0) if placed is None else (placed.hosts, placed.spec.ranks_per_host)
        _say(session, AgentPlacement(job=job, hosts=hosts, ranks_per_host=each))

    def _lends(self, session: _Session, message: SlotAnswer | SlotsChanged | TreeReport) -> None:
        if self._sessions.get(session.name) is session and self.trees is not None:
            self.trees.heard(session.name, message)

    def _reported(self, session: _Session, report: AgentReport) -> None:
        if self._sessions.get(session.name) is not session:
            return  # what it said before it was replaced has come too late
        is_news = report != session.report
        if is_news:
            session.report = report
            self._look_at(session.name)
        if not self._tell_news(session, _wishes(self._desired, session.name), report.revision):
            session.stream.send_nowait(Pong())
        if is_news:
            self._changed()

    def _tell_news(self, session: _Session, wishes: _Wishes, known: int) -> bool:
        """``known``: revision up to which the agent has heard all. Whether there was something to tell."""
        if not session.has_collective:  # an older one does not know what a place is
            wishes = wishes._replace(grants=tuple(one for one in wishes.grants if one.kind != "place"))
        is_news = wishes.grants != session.told or known < max(session.told_revision, wishes.since)
        if is_news:
            self._tell(session, wishes.grants)
        return is_news

    def _tell(self, session: _Session, wishes: tuple[GrantRecord, ...]) -> None:
        """Tell a session that may have ended meanwhile: its own task hears of that."""
        if _say(session, AgentWishes(term=self._term, revision=self._desired.revision, grants=wishes)):
            session.told, session.told_revision = wishes, self._desired.revision


def _say(session: _Session, message: Message) -> bool:
    """Whether it is on its way. What no message can carry concerns one agent, not the controller."""
    try:
        session.stream.send_nowait(message)
    except EndOfChannel:
        return False
    except LocalMisuse as error:
        log.error("%s is not told what concerns it: %s", session.name, error)
        return False
    return True


def _refuse(stream: ControlStream, code: str, text: str) -> None:
    try:
        stream.send_nowait(Error(code=code, message=text))
    except EndOfChannel:
        return


class _Wishes(NamedTuple):
    grants: tuple[GrantRecord, ...]
    since: int
    """Revision that the agent is to hear of, though they may be the same: from which on they leave out what
    has been released and is not freed, and in which elastic jobs were seen to run (their seats are judged by
    what is reported after that)."""


def _wishes(desired: Desired, agent: str) -> _Wishes:
    grants = desired.at(agent)
    return _Wishes(
        tuple(_record(desired, grant) for grant in grants if grant.released is None),
        max((_to_be_heard_of(desired, grant) for grant in grants), default=0),
    )


def _to_be_heard_of(desired: Desired, grant: Grant) -> int:
    if grant.released is not None:
        return grant.released
    job = desired.jobs[grant.job]
    return job.begun if grant.kind is GrantKind.SEATS and job.spec.elastic else 0


def _concerned(before: Desired, after: Desired, changes: Iterable[Change]) -> dict[str, None]:
    """Agents that these changes are news for."""
    found: dict[str, None] = {}
    for change in changes:
        match change:
            case SetJob(job):  # its tree is told with each of its grants
                grants = [after.grants[number] for number in after.index.of_job.of(job.number)]
                found |= dict.fromkeys(grant.agent for grant in grants)
            case Give(grant):
                found[grant.agent] = None
            case Release(number) | Free(number):
                known = before.grants.get(number) or after.grants.get(number)
                found |= {} if known is None else {known.agent: None}
            case Forget():
                pass
            case _:
                assert_never(change)
    return found


def _record(desired: Desired, grant: Grant) -> GrantRecord:
    job = desired.jobs[grant.job]
    spec = job.spec
    switches: Sequence[str] = ()
    if job.tree is not None:
        switches = (job.tree.root, *(name for name in job.tree.switches if name != job.tree.root))
    is_seats, is_place = grant.kind is GrantKind.SEATS, grant.kind is GrantKind.PLACE
    return GrantRecord(
        grant=grant.number,
        job=job.number,
        name=spec.name,
        kind="seats" if is_seats else "place" if is_place else "tree",
        slots=tuple(SlotRecord(port=slot.port, number=slot.number) for slot in grant.slots),
        first_rank=job.hosts.index(grant.agent) * spec.ranks_per_host if is_seats else 0,
        ranks=spec.ranks_per_host if is_seats else 0,
        size=spec.hosts * spec.ranks_per_host,
        token_hash="" if is_place else job.token_hash,
        switches=tuple(switches),
        elastic=is_seats and spec.elastic,
    )
