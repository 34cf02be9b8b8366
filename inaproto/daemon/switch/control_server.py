"""The switch's control socket: sessions of host daemons and of other switches, and questions for the status.

Invariants: bytes of a stranger end at most the connection they came on, with an ``Error`` that says
why; every session that was announced to the rendezvous is reported ended, once, unless it is the switch
that ends; a session from which nothing is heard for ``DEAD_S`` is ended (hosts and switches ping every 2 s);
what a peer of another machine says is heard if its certificate lets it
(:mod:`inaproto.daemon.net.session_rules`).
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import trio

from inaproto.ca.identity import Identity
from inaproto.core.rendezvous.events import (
    HostArrived,
    HostEvent,
    MemberAsked,
    MemberBroken,
    MemberCalls,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberParked,
    MemberReady,
    MemberRefused,
    MemberRegroups,
    OperationStalled,
    SessionEnded,
    SessionId,
)
from inaproto.core.rendezvous.fabric.events import Installed
from inaproto.core.rendezvous.rules import address_shared
from inaproto.core.rendezvous.tokens import Refusal
from inaproto.core.switch.accelerator import RingFault, RingRefused
from inaproto.daemon.net.accepting import take_each
from inaproto.daemon.net.control_stream import DEAD_S, ControlStream, EndOfChannel
from inaproto.daemon.net.session_rules import (
    CERTIFICATE_EXPIRED,
    HELLO_SLOW,
    MESSAGE_FLOOD,
    NOT_AUTHORISED,
    Allowance,
    Guard,
    for_people,
    identity_of,
    refusal_of,
)
from inaproto.daemon.switch.capture_desk import CaptureClient, CaptureDesk
from inaproto.daemon.switch.ring_orders import said_by
from inaproto.errors import DecodeError, JoinRefused, LocalMisuse
from inaproto.ports import ByteStream, RandomBits, StreamListener
from inaproto.wire.control import OtherRelease, why_not
from inaproto.wire.control_messages import (
    SWITCH_AWAY,
    SWITCH_UNKNOWN,
    Broken,
    Calls,
    Error,
    Gone,
    Halted,
    Hello,
    Left,
    Member,
    Message,
    OpStarted,
    Ping,
    Pong,
    RankRefused,
    Ready,
    Regroup,
    Status,
    StatusReply,
    UnknownMessage,
    encode_message,
    error_message,
)
from inaproto.wire.messages.capture import Capture, CaptureEnd
from inaproto.wire.messages.collective import CollectiveWord
from inaproto.wire.messages.ina import InaParked
from inaproto.wire.messages.probe import LinkProbed, LinkProbeWord
from inaproto.wire.messages.sharing import AskPeer, TellPeerDecision
from inaproto.wire.messages.switch import (
    InstallRefused,
    RingFaulted,
    RingInstalled,
    SwitchHello,
    SwitchOpened,
    TrunkReport,
)

log = logging.getLogger("inaproto.switch")

FLUSH_S = 1.0
REFUSAL_LOG_S = 60.0
"""Who is refused tries again, every second; one reason is logged this often."""
REFUSALS_MAX = 256
ORDERS_MAX = 1 << 14
"""For one switch, not sent yet; one that returns hears of every ring that it may have had."""
BAD_MESSAGE = "bad_message"
UNKNOWN_MESSAGE = "unknown_message"
UNEXPECTED_MESSAGE = "unexpected_message"
TOO_MANY_SESSIONS = "too_many_sessions"
STATUS_TOO_LARGE = "status_too_large"
SWITCH_REFUSED = "switch_refused"


class Desk(Protocol):
    """Who may come in, and where what other switches say goes."""

    def refusal_of(self, hello: Hello) -> Error | None: ...
    def is_in_job(self, session: SessionId, job: str) -> bool: ...
    def probe_said(self, session: SessionId, message: LinkProbeWord | LinkProbed) -> None: ...
    def refusal_of_switch(self, hello: SwitchHello) -> str: ...
    def switch_arrived(self, session: SessionId, hello: SwitchHello) -> None: ...
    def switch_opened(self, switch: str) -> None: ...
    def trunk_said(self, switch: str, above: str, error: str) -> None: ...
    def switch_said(self, switch: str, said: RingFault | RingRefused | Installed) -> None: ...
    def switch_ended(self, switch: str, reason: str) -> None: ...


@dataclass(slots=True)
class _Session:
    stream: ControlStream
    identity: Identity
    allowance: Allowance
    is_known: bool = False
    """It has said hello, or asked what it may ask."""
    hello: Hello | None = None
    ended: bool = False
    switch: str = ""
    """Name of the switch of the fabric whose session it is; empty for others."""
    orders: deque[Message] = field(default_factory=deque)
    """Orders to a switch: they go to its stream as it takes them."""
    has_orders: trio.Event = field(default_factory=trio.Event)
    captures: CaptureClient | None = None
    """While it is served."""


class ControlServer:
    """``handle`` is the control plane's step with its actions performed; ``status`` makes a status report.

    Without ``desk``, which a switch has whose control plane is elsewhere, only the status is to be had.
    """

    def __init__(
        self,
        handle: Callable[[HostEvent], None],
        status: Callable[[], dict[str, Any]],
        *,
        desk: Desk | None,
        sessions_max: int,
        random_bits: RandomBits = secrets.randbits,
        captures: CaptureDesk | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._captures = captures
        self.guard = guard or Guard(wall_s=time.time)
        self._handle = handle
        self._status = status
        self._desk = desk
        self._sessions_max = sessions_max
        self._random_bits = random_bits
        self._sessions: dict[SessionId, _Session] = {}
        self._serial = 0
        self._refusals: dict[str, float] = {}
        """When each was logged."""

    # --- what the rendezvous orders

    def send(self, session_id: SessionId, message: Message) -> None:
        """Sends to a session that may have ended meanwhile: then its own task reports it."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        try:
            session.stream.send_nowait(message)
        except EndOfChannel as end:
            log.info("host %s: %s", _name(session), end.reason)

    def order(self, session_id: SessionId, message: Message) -> None:
        """Sends to a switch, in order; a burst of orders may be more than its stream queues."""
        session = self._sessions.get(session_id)
        if session is None or session.ended:
            return
        if len(session.orders) >= ORDERS_MAX:
            session.stream.close(f"closed: its peer left {len(session.orders)} orders unread")
            return
        session.orders.append(message)
        session.has_orders.set()

    def hello_of(self, session_id: SessionId) -> Hello | None:
        session = self._sessions.get(session_id)
        return session.hello if session is not None else None

    def refuse(self, session_id: SessionId, error: Error) -> None:
        self.send(session_id, error)
        session = self._sessions.get(session_id)
        if session is not None:
            self._log_refusal(error)
            session.stream.close("refused")

    def _log_refusal(self, error: Error) -> None:
        now = trio.current_time()
        is_news = now - self._refusals.get(error.message, -math.inf) >= REFUSAL_LOG_S
        is_problem = is_news and error.code != SWITCH_AWAY
        log.log(logging.WARNING if is_problem else logging.DEBUG, "%s", error.message)
        if is_news:
            self._refusals.pop(error.message, None)
            self._refusals[error.message] = now
            while len(self._refusals) > REFUSALS_MAX:
                del self._refusals[next(iter(self._refusals))]

    def end_hosts(self, switch: str, reason: str) -> None:
        """Ends the sessions of that switch's hosts: they can do nothing until it is back."""
        for session_id, session in list(self._sessions.items()):
            if session.hello is not None and session.hello.switch == switch:
                self._end(session_id, session, reason)
                self.send(session_id, Error(code=SWITCH_AWAY, message=reason))
                session.stream.close(reason)

    async def flush(self) -> None:
        """Give what is queued a bounded time to leave."""
        with trio.move_on_after(FLUSH_S):
            async with trio.open_nursery() as nursery:
                for session in self._sessions.values():
                    nursery.start_soon(_flush, session.stream)

    # --- sessions

    async def accept_sessions(self, listener: StreamListener) -> None:
        """Serve every connection until ``listener`` is closed."""
        async with trio.open_nursery() as nursery:
            await take_each(listener, lambda one: nursery.start_soon(self._serve, one), log, "session")

    async def _serve(self, connection: ByteStream) -> None:
        session_id = SessionId(self._serial)
        self._serial += 1
        session = self._sessions[session_id] = self._session_over(connection)
        reason = ""
        try:
            if len(self._sessions) > self._sessions_max:
                text = f"the switch serves {self._sessions_max} sessions, its limit; end another one first"
                session.stream.send_nowait(Error(code=TOO_MANY_SESSIONS, message=text))
                return
            async with trio.open_nursery() as nursery:
                if self._captures is not None:
                    session.captures = CaptureClient(self._captures, session.stream, nursery)
                nursery.start_soon(session.stream.run)
                nursery.start_soon(_feed, session)
                reason = await self._converse(session_id, session)
                nursery.cancel_scope.cancel()
        except EndOfChannel as end:
            reason = end.reason
        finally:
            session.stream.close(reason or "the switch ended")
            if reason:  # else it is the switch that ends, and nobody shall hear that this host was lost
                self._end(session_id, session, reason)
            del self._sessions[session_id]

    def _session_over(self, connection: ByteStream) -> _Session:
        limits, identity = self.guard.limits, identity_of(connection)
        allowance = Allowance(limits.messages_burst, limits.messages_per_s, trio.current_time())
        session = _Session(ControlStream(connection), identity, allowance, is_known=identity.is_local)
        if not session.is_known:
            session.stream.limit_input(limits.hello_bytes_max)
        return session

    def _end(self, session_id: SessionId, session: _Session, reason: str) -> None:
        if session.hello is not None and not session.ended:
            session.ended = True
            self._handle(SessionEnded(session_id, reason))
        elif session.switch and not session.ended and self._desk is not None:
            session.ended = True
            self._desk.switch_ended(session.switch, reason)

    async def _converse(self, session_id: SessionId, session: _Session) -> str:
        """Until the session ends; returns why it did."""
        hello_until = trio.current_time() + self.guard.limits.hello_s
        while True:
            silent_until = trio.current_time() + DEAD_S
            until = silent_until if session.is_known else hello_until
            expires = trio.current_time() + self.guard.seconds_left(session.identity)
            try:
                with trio.fail_at(min(until, expires)):
                    message = await session.stream.receive()
            except trio.TooSlowError:
                if expires < until:
                    return self._cut(session_id, CERTIFICATE_EXPIRED, "its certificate has run out")
                if not session.is_known:
                    return self._cut(session_id, HELLO_SLOW, "it has not said who it is in time")
                return f"nothing was heard of it for {DEAD_S:g} s"
            except EndOfChannel as end:
                return f"its control connection was {end.reason}"
            except DecodeError as error:
                if isinstance(error, OtherRelease):
                    log.warning("a session is refused: %s", error.reason)
                text = f"{why_not(error, 'not a control message')}; the connection is closed"
                self.send(session_id, Error(code=BAD_MESSAGE, message=text))
                return why_not(error, "it sent what is no message")
            if session.ended:
                return "it has been replaced"  # what it said before has come too late
            if not session.identity.is_local and not session.allowance.take(trio.current_time()):
                return self._cut(session_id, MESSAGE_FLOOD, "it sends more messages than anybody needs")
            self._dispatch(session_id, session, message)

    def _cut(self, session_id: SessionId, code: str, text: str) -> str:
        """Returns ``text``, why the session ends."""
        self.guard.count(code)
        self.send(session_id, Error(code=code, message=f"{text}; the connection is closed"))
        return text

    def _is_refused(self, session_id: SessionId, session: _Session, message: Message) -> bool:
        """Whether the peer may not say that; it is told so, and its session ends."""
        refusal = refusal_of(session.identity, message)
        if refusal:
            self.guard.count(NOT_AUTHORISED)
            self.refuse(session_id, Error(code=NOT_AUTHORISED, message=refusal, of=message.id))
        elif not session.is_known and isinstance(message, Hello | SwitchHello | Status):
            session.is_known = True
            session.stream.limit_input(math.inf)
        return bool(refusal)

    def _dispatch(self, session_id: SessionId, session: _Session, message: Message) -> None:
        if self._is_refused(session_id, session, message):
            return
        match message:
            case Ping():
                self.send(session_id, Pong(id=message.id))
            case Pong():
                pass
            case Status():
                self.send(session_id, self._report(message))
            case Capture() | CaptureEnd() if session.captures is not None:
                session.captures.said(message)
            case UnknownMessage():
                text = f"this switch does not know messages of type {message.type!r}"
                self.send(session_id, Error(code=UNKNOWN_MESSAGE, message=text, of=message.id))
            case Hello() if not session.switch:
                self._host_arrived(session_id, session, message)
            case SwitchHello() if session.hello is None:
                self._switch_arrived(session_id, session, message)
            case _ if session.switch:
                self._switch_said(session_id, session.switch, message)
            case _ if self._desk is not None:
                self._host_said(session_id, message)
            case _:
                self._unexpected(session_id, message)

    def _host_arrived(self, session_id: SessionId, session: _Session, hello: Hello) -> None:
        self._end_replaced(hello)
        if self._desk is None:
            text = (
                f"host {hello.host!r} speaks with a switch that is not the root of its fabric; its dir must "
                "be that of the root, and its switch the name of the one at which it is"
            )
            refusal: Error | None = Error(code=SWITCH_UNKNOWN, message=text, of=hello.id)
        else:
            refusal = self._desk.refusal_of(hello) if session.hello is None else None
        if refusal is not None:
            self.refuse(session_id, refusal)
            return
        arrived = HostArrived(session_id, hello)
        session.hello = session.hello or hello
        self._handle(arrived)

    def _host_said(self, session_id: SessionId, message: Message) -> None:
        match message:
            case Member():
                self._member_asked(session_id, message)
            case Ready():
                self._handle(MemberReady(session_id, message))
            case OpStarted():
                stalled = replace(message, call=for_people(message.call))
                self._handle(OperationStalled(session_id, stalled))
            case Calls():
                calls = tuple(for_people(call) for call in message.calls)
                self._handle(MemberCalls(session_id, replace(message, calls=calls)))
            case Broken():
                self._handle(MemberBroken(session_id, message))
            case Halted():
                self._handle(MemberHalted(session_id, message, self._random_bits(64)))
            case InaParked():
                self._handle(MemberParked(session_id, message))
            case Left():
                self._handle(MemberLeft(session_id, message))
            case Gone():
                self._handle(MemberGone(session_id, message))
            case RankRefused():
                words = replace(message, reason=for_people(message.reason))
                self._handle(MemberRefused(session_id, words))
            case Regroup():
                self._handle(MemberRegroups(session_id, message))
            case AskPeer() | TellPeerDecision():
                self._relay(session_id, message)
            case CollectiveWord():
                self._pass_on(session_id, message)
            case LinkProbeWord() | LinkProbed() if self._desk is not None:
                self._desk.probe_said(session_id, message)
            case _:
                self._unexpected(session_id, message)

    def _relay(self, session_id: SessionId, word: AskPeer | TellPeerDecision) -> None:
        """From a seat of this host to one of another; lost if that is not here, as any of them may be.

        A host without ranks of the job could have others promise never to vote.
        """
        hello, job = self.hello_of(session_id), word.sender.job
        if hello is None or word.sender.host != hello.host or job != word.seat.job:
            self._unexpected(session_id, word)
            return
        if self._desk is None or not self._desk.is_in_job(session_id, job):
            return
        for other_id, other in list(self._sessions.items()):
            if other.hello is not None and other.hello.host == word.seat.host:
                self.send(other_id, word)

    def _pass_on(self, session_id: SessionId, word: CollectiveWord) -> None:
        """From a host with ranks of the job to all others with some."""
        hello, desk = self.hello_of(session_id), self._desk
        if hello is None or word.host != hello.host:
            self._unexpected(session_id, word)
        elif desk is not None and desk.is_in_job(session_id, word.job):
            for other_id in list(self._sessions):
                if other_id != session_id and desk.is_in_job(other_id, word.job):
                    self.send(other_id, word)

    def _member_asked(self, session_id: SessionId, member: Member) -> None:
        key = self.guard.key_of(member)
        if isinstance(key, Refusal):
            text = (
                f"rank {member.rank} ({member.host}) cannot join job {member.job!r}: its token: {key.reason}"
            )
            self._log_refusal(Error(code=key.code, message=text))
            self.send(session_id, error_message(JoinRefused(text), of=member.id))
            reason = f"its token does not admit it ({key.code})"
            refused = RankRefused(job=member.job, rank=member.rank, pid=member.pid, reason=reason)
            self._handle(MemberRefused(session_id, refused))
            return
        self._handle(MemberAsked(session_id, replace(member, key=key), self._random_bits(64)))

    def _unexpected(self, session_id: SessionId, message: Message) -> None:
        text = (
            f"{message.TYPE!r} is not for a switch; this is the switch's control socket, training "
            "processes connect to the socket of their host daemon"
        )
        self.send(session_id, Error(code=UNEXPECTED_MESSAGE, message=text, of=message.id))

    # --- other switches

    def _switch_arrived(self, session_id: SessionId, session: _Session, hello: SwitchHello) -> None:
        for other_id, other in list(self._sessions.items()):
            if other.switch == hello.switch and not other.ended and other.stream.peer_is_gone():
                self._end(other_id, other, "its control connection was closed by its peer")
        refusal = "this switch is not the root of its fabric, with which switches speak"
        if self._desk is not None:
            refusal = self._desk.refusal_of_switch(hello)
        if session.switch:
            refusal = "a second hello"
        if refusal or self._desk is None:
            self.refuse(session_id, Error(code=SWITCH_REFUSED, message=refusal, of=hello.id))
            return
        session.switch = hello.switch
        self._desk.switch_arrived(session_id, hello)

    def _switch_said(self, session_id: SessionId, switch: str, message: Message) -> None:
        desk = self._desk
        if desk is None or self._sessions[session_id].ended:
            return
        match message:
            case SwitchOpened():
                desk.switch_opened(switch)
            case TrunkReport(error=error, above=above):
                desk.trunk_said(switch, above, error)
            case RingInstalled() | InstallRefused() | RingFaulted():
                desk.switch_said(switch, said_by(switch, message))
            case _:
                self._unexpected(session_id, message)

    def _report(self, question: Status) -> Message:
        reply = StatusReply(id=question.id, body=self._status())
        try:
            encode_message(reply)
        except LocalMisuse as error:  # thousands of jobs do not fit in one message
            return Error(code=STATUS_TOO_LARGE, message=str(error), of=question.id)
        return reply

    def _end_replaced(self, hello: Hello) -> None:
        """A restarted host daemon may be heard before the end of its last connection is."""
        for session_id, session in list(self._sessions.items()):
            old = session.hello
            if old is None or session.ended:
                continue
            if address_shared(hello, old) and session.stream.peer_is_gone():
                self._end(session_id, session, "its control connection was closed by its peer")


def _name(session: _Session) -> str:
    return session.hello.host if session.hello else "(unnamed)"


async def _feed(session: _Session) -> None:
    """Give a switch its orders, until cancelled or its stream ends; the task that receives hears of that."""
    with suppress(EndOfChannel):
        while True:
            await session.has_orders.wait()
            session.has_orders = trio.Event()
            while session.orders:
                await session.stream.send(session.orders.popleft())


async def _flush(stream: ControlStream) -> None:
    try:
        await stream.flush()
    except EndOfChannel:
        return
