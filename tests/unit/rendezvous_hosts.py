"""A rendezvous and hosts with several ranks each, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.events import (
    HostArrived,
    JobView,
    MemberAsked,
    MemberBroken,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberReady,
    OperationStalled,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    Send,
    SessionEnded,
    SessionId,
    WantRing,
    Woke,
)
from inaproto.core.rendezvous.jobs import Phase
from inaproto.core.rendezvous.rendezvous import Rendezvous
from inaproto.core.switch.accelerator import InstallRing, RemoveRing
from inaproto.units import Instant, S
from inaproto.wire.control_messages import (
    Broken,
    Error,
    Failed,
    Gone,
    Halted,
    IntoAddress,
    Left,
    Member,
    Message,
    OpStarted,
    Ready,
    encode_message,
)
from inaproto.wire.messages.trees import FabricTree
from tests.unit.rendezvous_fabrics import fabric_adding
from tests.unit.rendezvous_members import hello, member, on_infiniband

T = TypeVar("T", bound=Message)
PAIRS: Mapping[int, tuple[int, ...]] = {0: (0, 1), 1: (2, 3)}
APART: Mapping[int, tuple[int, ...]] = {0: (1, 3), 1: (0, 2, 5), 2: (4,)}
"""Host 1 has the lowest rank, so it is the first of the ring."""
LARGE = 1 << 22


def phases(core: Rendezvous) -> dict[str, str]:
    return {job.name: job.phase for job in core.view().jobs}


def check_phases(core: Rendezvous, event: RendezvousEvent, before: Mapping[str, str]) -> None:
    """An event that is about one job leads where the table of handlers says."""
    said = getattr(event, "message", None)
    name = getattr(said, "job", "")
    was, now = before.get(name, ""), phases(core).get(name)
    if was and was != now and (Phase(was), type(event)) in set(core.handlers):
        declared = core.handlers.leads_to(Phase(was), type(event))
        assert (None if now is None else Phase(now)) in declared, (was, type(event), now)


class World:
    """Hosts with their ranks; host h's session is ``10 * boots + h``."""

    def __init__(
        self,
        ranks: Mapping[int, tuple[int, ...]] = PAIRS,
        *,
        old: Sequence[int] = (),
        overlays: Sequence[int] = (),
        plan: ReductionPlan | None = None,
        at: Sequence[str] = (),
        infiniband: Sequence[int] = (),
        **config: Any,
    ) -> None:
        """``old``: hosts of a release that knows of no parking; ``overlays``: those that know that path.

        ``plan``: what the fabric adds, by positions; ``at``: at which switch of it each host is;
        ``infiniband``: hosts that are there.
        """
        if plan is not None:
            config["switches"], seats = fabric_adding(plan)
            by_position = sorted(ranks, key=lambda host: min(ranks[host]))
            at = [seats[by_position.index(host)] for host in range(len(ranks))]
        self.core = Rendezvous(RendezvousConfig(**{"recover_ns": 5 * S} | config))
        self.ranks = ranks
        self.host_of = {rank: host for host, its in ranks.items() for rank in its}
        self.size = len(self.host_of)
        self.now = 0
        self.installed: dict[int, InstallRing] = {}
        self.trees: dict[int, FabricTree] = {}
        """Of rings that are on one of their own."""
        self.infiniband = infiniband
        self.session = {host: SessionId(host) for host in ranks}
        for host in ranks:
            switch = at[host] if at else ""
            said = replace(hello(host), parks=host not in old, overlays=host in overlays, switch=switch)
            self.step(HostArrived(self.session[host], self._at_its_network(said, host)))

    def _at_its_network(self, told: Any, host: int) -> Any:
        return on_infiniband(told, host) if host in self.infiniband else told

    def step(self, event: RendezvousEvent) -> list[RendezvousAction]:
        before = phases(self.core)
        actions = self.core.step(event, Instant(self.now))
        check_phases(self.core, event, before)
        for action in actions:
            match action:
                case InstallRing(spec):
                    self.installed[spec.ring_id] = action
                case WantRing(spec, tree):
                    self.installed[spec.ring_id] = InstallRing(spec)
                    self.trees[spec.ring_id] = tree
                case RemoveRing(ring_id):
                    del self.installed[ring_id]
                    self.trees.pop(ring_id, None)
                case Send(_, message):
                    encode_message(message)
                case _:
                    pass
        return actions

    @property
    def jobs(self) -> tuple[JobView, ...]:
        return self.core.view().jobs

    @property
    def job(self) -> JobView:
        [view] = self.jobs
        return view

    def at(self, rank: int) -> SessionId:
        return self.session[self.host_of[rank]]

    def member(self, rank: int, **changes: Any) -> Member:
        host = self.host_of[rank]
        told = replace(member(rank, host=host, size=self.size), **changes)
        of_its_network: Member = self._at_its_network(told, host)
        return of_its_network

    def asks(self, rank: int, **changes: Any) -> list[RendezvousAction]:
        return self.step(MemberAsked(self.at(rank), self.member(rank, **changes), 7))

    def connecting(self) -> list[RendezvousAction]:
        actions: list[RendezvousAction] = []
        for rank in range(self.size):
            actions = self.asks(rank)
        return actions

    def ready(self, *hosts: int) -> list[RendezvousAction]:
        """Once for each host, in the name of its last rank."""
        actions: list[RendezvousAction] = []
        for host in hosts or self.ranks:
            told = Ready(job="train", rank=self.ranks[host][-1])
            actions = self.step(MemberReady(self.session[host], told))
        return actions

    def running(self) -> World:
        self.connecting()
        self.ready()
        assert self.job.phase == "running"
        return self

    def broken(self, rank: int, progress: int = 0) -> list[RendezvousAction]:
        told = Broken(
            job="train",
            rank=rank,
            ring_id=self.job.ring_id,
            progress=progress,
            reason="its queue pair failed",
        )
        return self.step(MemberBroken(self.at(rank), told))

    def halted(
        self, host: int, progress: int, *, below: tuple[IntoAddress, ...] = (), **changes: Any
    ) -> list[RendezvousAction]:
        """Once for the host, in the name of its first rank."""
        link = member(0, host=host)
        told = Halted(
            job="train",
            rank=self.ranks[host][0],
            ring_id=self.job.ring_id,
            progress=progress,
            out=replace(link.out, qpn=500 + host),
            into=replace(link.into, qpn=600 + host, slot_bytes=LARGE, **changes),
            below=below,
        )
        return self.step(MemberHalted(self.session[host], self._at_its_network(told, host), 8))

    def goes_away(self, host: int) -> list[RendezvousAction]:
        actions = self.step(SessionEnded(self.session[host], "its cable was pulled"))
        self.session[host] = SessionId(self.session[host] + 10)
        return actions

    def arrives(self, host: int, **changes: Any) -> list[RendezvousAction]:
        return self.step(HostArrived(self.session[host], replace(hello(host), **changes)))

    def gone(self, rank: int) -> list[RendezvousAction]:
        return self.step(MemberGone(self.at(rank), Gone(job="train", rank=rank, reason="it was killed")))

    def leaves(self, rank: int) -> list[RendezvousAction]:
        return self.step(MemberLeft(self.at(rank), Left(job="train", rank=rank, operations=5)))

    def stalled(self, rank: int, op_index: int = 3) -> list[RendezvousAction]:
        told = OpStarted(job="train", rank=rank, op_index=op_index, signature=9, nbytes=64)
        return self.step(OperationStalled(self.at(rank), told))

    def woke_at(self, now: int) -> list[RendezvousAction]:
        self.now = now
        return self.step(Woke())


def sent(actions: Sequence[RendezvousAction], kind: type[T]) -> list[tuple[int, T]]:
    return [(a.session, a.message) for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]


def failure(actions: Sequence[RendezvousAction]) -> str:
    [words] = {f"{message.code}: {message.message}" for _, message in sent(actions, Failed)}
    return words


def refusal(actions: Sequence[RendezvousAction], session: int) -> str:
    """What ``session`` hears of why its rank cannot join."""
    [(at, error)] = sent(actions, Error)
    assert (at, error.code) == (session, "join_refused")
    return error.message.partition(": ")[2]
