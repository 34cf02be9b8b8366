"""Book-keeping of :mod:`inaproto.core.rendezvous.rendezvous`: jobs, their seats, and the hosts that these are
on.

A ring is one of hosts (NetReduce section 3.4): a *member* of it is a host with its ranks of the job, and its
*position* is its index among them, ordered by the lowest rank of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

from inaproto.core.plan.accumulators import accumulators_on
from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.disputes import Dispute, explain_difference
from inaproto.core.rendezvous.events import JobView, RankView, SessionId
from inaproto.core.rendezvous.job_tree import JobTree
from inaproto.core.rendezvous.path_costs import (
    IN_DEGREE_DEFAULT,
    LinkFigures,
    PathCost,
    Task,
    costs,
    explain,
    is_faster,
    milliseconds,
)
from inaproto.core.rendezvous.recovery import JobRecovery
from inaproto.core.rendezvous.rules import message_bytes_of, refuse_mtu
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.units import Instant
from inaproto.wire.control_messages import Hello, IntoAddress, Member, OpStarted, OutAddress, RingPath
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.messages.switch import PoolSpec

REFUSALS_TOLD_MAX: Final = 8
"""Ranks that were refused, told to those who wait for them: who has no key for a job can make them hear no
more, however often it tries."""
CAUSE_CHARACTERS_MAX: Final = 200
NO_SWITCH: Final = "its hosts are on InfiniBand, whose packets never come to the Ethernet switches that sum"


class Phase(Enum):
    JOINING = "joining"
    CONNECTING = "connecting"
    RUNNING = "running"
    HALTED = "halted"
    """Its ring has ended; its ranks say how far they are, and go on."""


@dataclass(slots=True)
class Seat:
    """A rank and the process that holds it."""

    session: SessionId
    member: Member
    ready: bool = False
    left_after: int | None = None
    """All-reduces that the rank took part in before it left; None while it is in the job."""
    broke: str = ""
    """Why its ring broke after that, with none to follow: others may lack what its host sent last."""
    stalled: OpStarted | None = None
    is_away: bool = False
    """Its host has lost its connection, and may come back."""
    instance: str = ""
    """Instance of its host daemon."""
    succeeds: bool = False
    """The rank may come back through another instance of it."""
    switch: str = ""
    """At which its host is; empty: at the only one."""
    halted: bool = False
    """It has said how far it is since the ring ended: ``member.progress``."""
    overlays: bool = False
    """Its host knows the path ``overlay``."""
    below: tuple[IntoAddress, ...] = ()
    """Links of its host to those from which it gathers on that path."""

    def __str__(self) -> str:
        return f"rank {self.member.rank} ({self.member.host}, pid {self.member.pid})"

    def may_return(self, hello: Hello) -> bool:
        """Through that instance of its host daemon, which is here."""
        return self.instance == hello.instance or (self.succeeds and hello.succeeds)

    def is_of(self, member: Member) -> bool:
        """The process that asks is the one that has it."""
        mine = self.member
        is_same = mine.life == member.life if mine.life else mine.pid == member.pid
        return mine.host == member.host and is_same


@dataclass(frozen=True, slots=True)
class RingMember:
    """A host with its ranks of a job, ascending. What a ring needs to know is the same in all its seats."""

    seats: tuple[Seat, ...]

    @property
    def member(self) -> Member:
        """The ``Member`` of its lowest rank."""
        return self.seats[0].member

    @property
    def host(self) -> str:
        return self.member.host

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(seat.member.rank for seat in self.seats)

    @property
    def place(self) -> str:
        """For notes: a host of one rank by its name alone."""
        return self.host if len(self.seats) == 1 else f"{self.host} {_ranks(self.seats)}"

    def __str__(self) -> str:
        return name_seats(self.seats)


@dataclass(slots=True)
class Job:
    name: str
    first: Member
    """Opened the job; its key, size, parameters and wishes hold for all."""
    phase: Phase = Phase.JOINING
    ring_id: int = 0
    first_ring_id: int = 0
    """First ring of this life of the job; hosts may not have heard of its last ring."""
    seats: dict[int, Seat] = field(default_factory=dict)
    installed: int = 0
    """Id of its ring in the accelerator; 0: none is."""
    ina_ring_id: int = 0
    """Id of the ring beside its present one; 0: there is none."""
    ring_key: int = field(default=0, repr=False)
    """Key of its present rings."""
    tree: JobTree = field(default_factory=JobTree)
    """Tree of the ring beside its present one."""
    recovery: JobRecovery = field(init=False)
    plan: ReductionPlan | None = None
    """Plan of all its rings, over positions; None: all in order."""
    costs: tuple[PathCost, ...] = ()
    """Costs of the paths that it may take, the fastest first; empty: nobody knows."""
    in_degree: int = IN_DEGREE_DEFAULT
    """Bound of its overlay."""
    links: str = ""
    """What its costs are computed from."""
    dispute: Dispute | None = None
    """Its ranks call different all-reduces: it is to fail."""
    mtu_most: int = 0
    """The largest MTU that the accelerator takes of its next ring; 0: any, or it is not asked."""
    refused: dict[tuple[int, str, str], str] = field(default_factory=dict)
    """Words for processes that were refused while it gathers, by rank, host and cause."""

    def __post_init__(self) -> None:
        self.recovery = JobRecovery.on(self.first.path)

    def room_made(self, now: Instant, *, by_switch: bool = False) -> None:
        """In the switches, which may take a ring of it now. ``by_switch``: one came, or a link of it; else a
        ring has left them."""
        self.recovery.room_made(now, by_switch=by_switch)
        self.tree.room_made(now, by_switch=by_switch)

    def note_refusal(self, rank: int, host: str, pid: int, reason: str) -> bool:
        """Whether those who wait are to hear of it: a cause once, whichever process it meets, and few."""
        cause = reason.partition(";")[0][:CAUSE_CHARACTERS_MAX]  # what to do is for the process itself
        known = rank, host, cause
        if self.phase is not Phase.JOINING or known in self.refused or len(self.refused) >= REFUSALS_TOLD_MAX:
            return False
        self.refused[known] = f"rank {rank} ({host}, pid {pid}) was refused: {cause}"
        return True

    def forget_refusals(self, rank: int) -> None:
        """It has come."""
        self.refused = {known: text for known, text in self.refused.items() if known[0] != rank}

    @property
    def refusals(self) -> str:
        """For those who wait while it gathers: who was refused, and why."""
        return "; ".join(self.refused.values()) if self.phase is Phase.JOINING else ""

    @property
    def can_chain(self) -> bool:
        """A chain adds in the order of positions."""
        return self.plan is None or list(self.plan.ranks) == list(range(self.plan.size))

    @property
    def can_overlay(self) -> bool:
        """An overlay adds in any order, among hosts that know it."""
        return all(seat.overlays for seat in self.seats.values())

    @property
    def is_infiniband(self) -> bool:
        """Its hosts are on InfiniBand, all of them: no packet of theirs crosses a switch that sums here."""
        return self.first.into.infiniband is not None

    @property
    def by_hosts(self) -> tuple[RingPath, ...]:
        """Paths on which its hosts may sum themselves, the one that it wants first."""
        asked = self.first.path
        chain: tuple[RingPath, ...] = ("chain",) if self.can_chain else ()
        overlay: tuple[RingPath, ...] = ("overlay",) if self.can_overlay else ()
        match asked:
            case "ring":
                return ("ring",)
            case "overlay":
                return overlay
            case "chain" | "shared":
                return chain
            case "auto":
                inexact: tuple[RingPath, ...] = () if self.first.exact_plan else ("ring",)
                if self.costs:
                    able = (*overlay, *chain, *inexact)
                    return tuple(cost.path for cost in self.costs if cost.path in able)
                if self.is_infiniband:  # no switch is there to go on where one breaks
                    return (*chain, *overlay, *inexact)
                return chain or (*overlay, *inexact)
            case _:
                assert_never(asked)

    @property
    def host_path(self) -> RingPath | None:
        """On which its hosts sum themselves; None: none of which it would take the results."""
        return next(iter(self.by_hosts), None)

    @property
    def paths(self) -> tuple[RingPath, ...]:
        """The paths that it may take, the one that it wants first."""
        by_hosts = self.by_hosts
        if self.is_infiniband:
            return by_hosts
        if self.first.path == "auto":
            return ("switch", *by_hosts)
        return ("shared", *by_hosts) if self.first.path == "shared" and by_hosts else by_hosts

    def weigh(
        self, links: LinkFigures | None, tensor_bytes: int, in_degree: int, *, source: str = "configured"
    ) -> None:
        """Find what the paths that it may take cost, for tensors of that size; ``in_degree``: if nobody
        knows. ``source``: of the figures."""
        size, first = len(self.members()), self.first
        self.costs, self.in_degree, self.links = (), in_degree, ""
        if links is None or size < 2 or first.path == "shared":
            return
        task = Task(tensor_bytes, message_bytes_of(first), first.window_messages)
        may: list[RingPath] = [] if self.is_infiniband else ["switch"]
        may += [] if first.exact_plan else ["ring"]
        may += ["chain"] if self.can_chain else []
        may += ["overlay"] if self.can_overlay else []
        asked = may if first.path == "auto" else self.by_hosts
        self.costs = costs(asked, self.plan or ReductionPlan.flat(size), task, links)
        self.links = f"{source}: {links}"
        self.in_degree = next((cost.in_degree for cost in self.costs if cost.path == "overlay"), in_degree)

    def choose(self) -> None:
        """The hosts, where they are predicted to be faster than the switches, or these again: before a ring
        is made, and not for a job that asked for a path."""
        recovery = self.recovery
        if self.first.path != "auto" or recovery.is_asked:
            return
        switch = next((cost for cost in self.costs if cost.path == recovery.fast), None)
        hosts = next((cost for cost in self.costs if cost.path == self.host_path), None)
        if switch is None or hosts is None:
            return
        if recovery.path == recovery.fast and is_faster(hosts, switch):
            told = f"{milliseconds(hosts.predicted_ns)} against {milliseconds(switch.predicted_ns)}"
            recovery.predicted(
                f"predicted to be faster by {hosts.path} than in the switches: {told}", hosts.path
            )
        elif recovery.is_predicted and is_faster(switch, hosts):
            recovery.predicted_switch()

    def leave_switches(self) -> bool:
        """Whether it was to be summed in the switches, and its hosts sum themselves, as these cannot: before
        a ring is made."""
        recovery, path = self.recovery, self.host_path
        if (
            not self.is_infiniband
            or recovery.path != recovery.fast
            or path is None
            or len(self.members()) < 2
        ):
            return False
        recovery.leaves_for_good(NO_SWITCH, path)
        return True

    @property
    def why_this(self) -> str:
        """What its path costs against others, to be appended to why it is not summed in the switches."""
        return f"; {explain(self.costs, self.recovery.path)}" if self.costs else ""

    @property
    def overlay(self) -> OverlayTree:
        """The overlay of its hosts, where that is the path of the next ring."""
        return OverlayTree(self.plan or ReductionPlan.flat(len(self.members())), self.in_degree)

    @property
    def is_overlay(self) -> bool:
        """Its next ring is a tree of its hosts, or its present one."""
        return self.recovery.path == "overlay" and len(self.members()) > 1

    @property
    def is_shared(self) -> bool:
        """Its next ring is one of two, or its present one was made as that."""
        return self.recovery.path == "shared" and len(self.members()) > 1

    @property
    def has_collective(self) -> bool:
        """All its hosts have the same collective library, which may stand beside its rings."""
        said = {seat.member.collective for seat in self.seats.values()}
        return len(said) == 1 and "" not in said and len(self.members()) > 1

    @property
    def lacks_slots(self) -> bool:
        """Some host has no link that suffices for the next ring."""
        needs, windows = self.slot_bytes, 1 if self.is_overlay else 2
        links = [its.member.into for its in self.members()]
        slots = windows * self.first.window_messages
        if any(link.slots != slots or link.slot_bytes < needs for link in links):
            return True
        if self.is_overlay:
            children = [len(self.overlay.children(position)) for position in range(len(links))]
            return children != [len(its.seats[0].below) for its in self.members()]
        return self.is_shared and any(its.member.ina_into is None for its in self.members())

    @property
    def fallback(self) -> str:
        """Why it is not summed in the switches, and not by its plan where it is not; else empty."""
        recovery = self.recovery
        if recovery.path == "shared" and self.tree.refused:
            return self.tree.refused  # its other ring has all
        if recovery.path != "ring" or recovery.is_asked:
            return recovery.fallback
        return f"{recovery.fallback}; not in the order {self.rank_plan}, which its hosts cannot keep"

    @property
    def mtu(self) -> int:
        """MTU of its next ring: what all its hosts can, and the accelerator, where all can do with less."""
        mtu = min(seat.member.mtu for seat in self.seats.values())
        if self.mtu_most and all(seat.member.mtu_fits for seat in self.seats.values()):
            return min(mtu, self.mtu_most)
        return mtu

    def refuse_mtu(self, member: Member) -> str | None:
        """Why that rank has no MTU in common with those that are here."""
        others = (seat.member for rank, seat in self.seats.items() if rank != member.rank)
        return next(filter(None, (refuse_mtu(other, member) for other in others)), None)

    @property
    def mtu_told(self) -> int:
        """The same as hosts are told; 0: they know, for none can do with another than it has said."""
        return self.mtu if any(seat.member.mtu_fits for seat in self.seats.values()) else 0

    @property
    def slot_bytes(self) -> int:
        """Size of a receive slot on the path of its next ring."""
        message_bytes, path = message_bytes_of(self.first), self.recovery.path
        if path == "switch" or (path == "overlay" and not self.is_overlay):
            return message_bytes
        if path == "overlay":
            return self.overlay.slot_bytes(message_bytes - INA_HEADER_BYTES)
        accumulators = accumulators_on(path, self.plan_text, len(self.members()))
        return accumulators.slot_bytes(message_bytes - INA_HEADER_BYTES)

    @property
    def plan_text(self) -> str:
        """As control messages have it."""
        return "" if self.plan is None or self.recovery.path == "ring" else json.dumps(self.plan.to_lists())

    @property
    def rank_plan(self) -> ReductionPlan:
        """How the ranks of a job whose seats are all taken are added: on each host first, then over hosts."""
        ranks = [member.ranks for member in self.members()]
        return (self.plan or ReductionPlan.flat(len(ranks))).over(ranks)

    @property
    def size(self) -> int:
        return self.first.size

    def in_order(self) -> list[Seat]:
        return [self.seats[rank] for rank in sorted(self.seats)]

    def members(self) -> list[RingMember]:
        """Its members, by position."""
        found: dict[str, list[Seat]] = {}
        for seat in self.in_order():
            found.setdefault(seat.member.host, []).append(seat)
        return [RingMember(tuple(seats)) for seats in found.values()]

    def position_of(self, seat: Seat) -> int:
        """The position of its host."""
        return next(at for at, its in enumerate(self.members()) if its.host == seat.member.host)

    @property
    def switches(self) -> tuple[str, ...]:
        """At which its hosts are, by position."""
        return tuple(its.seats[0].switch for its in self.members())

    def at(self, session: SessionId) -> list[Seat]:
        """Seats that are held through this session, in rank order; not those that are away."""
        return [seat for seat in self.in_order() if seat.session == session and not seat.is_away]

    def missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.size) if rank not in self.seats)

    def sessions(self, *, without: Sequence[Seat] = ()) -> list[SessionId]:
        """Sessions of the ranks that are not away, each once, in rank order."""
        return list(
            dict.fromkeys(
                seat.session for seat in self.in_order() if seat not in without and not seat.is_away
            )
        )

    @property
    def is_resumed(self) -> bool:
        """Whether any of its ranks goes on after a ring that has ended."""
        return any(seat.member.progress is not None for seat in self.seats.values())

    def awaited(self) -> list[Seat]:
        """Seats that have not said how far they are since the ring ended."""
        return [seat for seat in self.in_order() if not seat.halted]

    def stalled_in(self, op_index: int) -> list[tuple[Seat, OpStarted]]:
        """Ranks whose last report is that they are stuck in this operation."""
        return [
            (seat, seat.stalled)
            for seat in self.in_order()
            if seat.stalled is not None and seat.stalled.op_index == op_index
        ]

    def not_in(self, op_index: int) -> tuple[int, ...]:
        """Ranks that have not been heard of in this operation; who reports a later one has sent all of it."""
        return tuple(
            seat.member.rank
            for seat in self.in_order()
            if seat.left_after is None and (seat.stalled is None or seat.stalled.op_index < op_index)
        )

    def disagreement(self, op_index: int) -> str:
        """The paths by which its hosts try to sum this operation, if it is more than one; else empty."""
        for seat, told in self.stalled_in(op_index):
            if told.unlike is not None:
                whose = f"{told.path} by {seat}, and not by host {told.unlike}, as that says"
                return f"all-reduce {op_index} was bound to different paths: {whose}"
        reports = [(seat, told.path) for seat, told in self.stalled_in(op_index) if told.path is not None]
        if len({path for _, path in reports}) < 2:
            return ""
        by_path = {path: [seat for seat, its in reports if its == path] for _, path in reports}
        named = "; ".join(f"{path} by {name_seats(seats)}" for path, seats in by_path.items())
        return f"all-reduce {op_index} was bound to different paths: {named}"

    def mismatch(self, op_index: int) -> str:
        """What differs between the ranks that are stuck in this operation; empty if nothing does."""
        reports = self.stalled_in(op_index)
        if len({(told.signature, told.nbytes) for _, told in reports}) < 2:
            return ""
        found: dict[str, list[Seat]] = {}
        for seat, told in reports:  # hosts of an older release give no words
            call = told.call or f"{told.nbytes} bytes, signature {told.signature:#06x}"
            found.setdefault(call, []).append(seat)
        return explain_difference(
            self.name, op_index, {call: name_seats(seats) for call, seats in found.items()}
        )


def ring_spec(job: Job, epoch: int, key: int, pool: PoolSpec | None) -> RingSpec:
    """The ring in the switches of a job whose seats are all taken, on two hosts or more.

    ``pool``: whose slots it has in its turns, if it stands beside a ring of the hosts.
    """
    members = job.members()
    flows = []
    for position, its in enumerate(members):
        out, _ = _switched_link(job, its.member)
        _, into = _switched_link(job, members[(position + 1) % len(members)].member)
        teller = out.qpn if out.repaired else 0
        flows.append(FlowSpec(position, out.ip, into.ip, into.qpn, out.mac, into.mac, teller))
    first, ring_id = job.first, job.ina_ring_id or job.ring_id
    return RingSpec(
        ring_id,
        epoch,
        key,
        first.window_messages,
        message_bytes_of(first) // job.mtu,
        job.mtu,
        tuple(flows),
        pool=pool if job.ina_ring_id else None,
        job=job.name,
        selective=is_selective(job),
    )


def is_selective(job: Job) -> bool:
    """Whether all hosts of a job keep what comes behind a gap, on their links of the ring in the switches."""
    links = [_switched_link(job, its.member) for its in job.members()]
    return all(out.selective and into.selective for out, into in links)


def _switched_link(job: Job, member: Member) -> tuple[OutAddress, IntoAddress]:
    """The addresses of a host in the ring through the switches: of its second link, where there are two."""
    if not job.ina_ring_id or member.ina_out is None or member.ina_into is None:
        return member.out, member.into
    return member.ina_out, member.ina_into


def view_job(job: Job) -> JobView:
    ranks = tuple(
        RankView(
            seat.member.rank,
            seat.member.host,
            seat.member.pid,
            _state(seat),
            seat.stalled.op_index if seat.stalled else None,
        )
        for seat in job.in_order()
    )
    recovery = job.recovery
    return JobView(
        job.name,
        job.phase.value,
        job.size,
        job.ring_id,
        ranks,
        job.missing(),
        "" if job.missing() else str(job.rank_plan),
        recovery.path,
        job.fallback,
        recovery.recoveries,
        recovery.reason,
        recovery.path != "ring",
        job.ina_ring_id if job.installed else 0,
        explain(job.costs, recovery.path) if job.costs else "",
        job.links,
    )


def _state(seat: Seat) -> str:
    if seat.is_away:
        return "away"
    return "left" if seat.left_after is not None else "ready" if seat.ready else "here"


def name_seats(seats: Iterable[Seat]) -> str:
    """For people: ``rank 1 (h1, pid 7)``; of several ranks on a host, ``host h1 (ranks 1, 2)``."""
    found: dict[str, list[Seat]] = {}
    for seat in seats:
        found.setdefault(seat.member.host, []).append(seat)
    return ", ".join(
        str(of[0]) if len(of) == 1 else f"host {host} {_ranks(of)}" for host, of in found.items()
    )


def _ranks(seats: Iterable[Seat]) -> str:
    return f"(ranks {', '.join(str(seat.member.rank) for seat in seats)})"


def process_of(seat: Seat) -> str:
    return f"process {seat.member.pid} on {seat.member.host}"
