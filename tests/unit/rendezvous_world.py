"""A rendezvous whose hosts say what a test says, and what it sends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    MemberCalls,
    MemberGone,
    MemberLeft,
    MemberReady,
    OperationStalled,
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    Send,
    SessionId,
)
from inaproto.core.rendezvous.rendezvous import Rendezvous
from inaproto.core.switch.accelerator import InstallRing, RemoveRing
from inaproto.units import Instant
from inaproto.wire.control_messages import (
    Calls,
    Error,
    Gone,
    Left,
    Member,
    Message,
    OpStarted,
    Ready,
    encode_message,
)
from tests.unit.rendezvous_members import hello, member

T = TypeVar("T", bound=Message)
NOW = Instant(0)
KEY = 0x1234_5678_9ABC_DEF0


class World:
    """A rendezvous with one session per host; session and host have the same number."""

    def __init__(self, hosts: int = 3, config: RendezvousConfig | None = None) -> None:
        self.core = Rendezvous(config or RendezvousConfig())
        self.installed: dict[int, InstallRing] = {}
        for host in range(hosts):
            self.step(HostArrived(SessionId(host), hello(host)))

    def step(self, event: RendezvousEvent) -> list[RendezvousAction]:
        actions = self.core.step(event, NOW)
        for action in actions:
            match action:
                case InstallRing(spec):
                    assert spec.ring_id not in self.installed
                    self.installed[spec.ring_id] = action
                case RemoveRing(ring_id):
                    del self.installed[ring_id]
                case Send(_, message):
                    encode_message(message)  # every order can go on the wire
                case RefuseHost(_, error):
                    encode_message(error)
                case _:
                    pass
        return actions

    def join(self, message: Member, session: int | None = None) -> list[RendezvousAction]:
        at = int(message.host[1:]) if session is None else session
        return self.step(MemberAsked(SessionId(at), message, KEY))

    def connecting(self, size: int = 3) -> list[RendezvousAction]:
        actions: list[RendezvousAction] = []
        for rank in range(size):
            actions = self.join(member(rank, size=size))
        return actions

    def running(self, size: int = 3) -> list[RendezvousAction]:
        self.connecting(size)
        actions: list[RendezvousAction] = []
        for rank in range(size):
            actions = self.step(MemberReady(SessionId(rank), Ready(job="train", rank=rank)))
        return actions

    def leave(self, rank: int, operations: int = 5) -> list[RendezvousAction]:
        return self.step(MemberLeft(SessionId(rank), Left(job="train", rank=rank, operations=operations)))

    def gone(self, rank: int, reason: str = "it was killed") -> list[RendezvousAction]:
        return self.step(MemberGone(SessionId(rank), Gone(job="train", rank=rank, reason=reason)))

    def calls(self, rank: int, first: int, *calls: str) -> list[RendezvousAction]:
        told = Calls(job="train", rank=rank, first=first, calls=calls)
        return self.step(MemberCalls(SessionId(rank), told))

    def stalled(
        self, rank: int, op_index: int, *, signature: int = 9, nbytes: int = 64
    ) -> list[RendezvousAction]:
        told = OpStarted(job="train", rank=rank, op_index=op_index, signature=signature, nbytes=nbytes)
        return self.step(OperationStalled(SessionId(rank), told))


def sent(actions: Sequence[RendezvousAction], kind: type[T]) -> list[tuple[int, T]]:
    return [(a.session, a.message) for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]


def refusal(actions: Sequence[RendezvousAction]) -> str:
    [(_, error)] = sent(actions, Error)
    assert error.code == "join_refused"
    assert not [a for a in actions if isinstance(a, InstallRing | RemoveRing)]
    return error.message
