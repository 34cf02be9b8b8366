"""Rings that end while their job goes on: halted, broken, away and back (docs/protocol.md 13).

A ring that ends by no fault of its ranks does not end its job: it is HALTED until every host of it has said
how far it is, and then CONNECTING again, on a path that :mod:`inaproto.core.rendezvous.recovery` chooses. All
of it is per host: the ranks of a host are in the ring, go away and come back together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from inaproto.core.rendezvous.endings import Endings
from inaproto.core.rendezvous.events import (
    MemberAsked,
    MemberBroken,
    MemberGone,
    MemberHalted,
    Noted,
    RendezvousAction,
    Send,
)
from inaproto.core.rendezvous.fabric.control import SWITCH_LOST, TRUNK_LOST
from inaproto.core.rendezvous.jobs import Job, Phase, Seat, name_seats
from inaproto.core.rendezvous.life import Joining
from inaproto.core.rendezvous.next_ring import halt_message
from inaproto.core.rendezvous.recovery import ASKED
from inaproto.core.rendezvous.rules import (
    refuse_beside,
    refuse_ina_link,
    refuse_overlay,
    refuse_slots,
    refuse_stranger,
)
from inaproto.core.rendezvous.state import State, remember
from inaproto.core.rendezvous.tree_moves import TreeMoves
from inaproto.core.switch.accelerator import RingFault, RingRefused
from inaproto.core.switch.events import TURN_LOST
from inaproto.errors import FabricLost, JoinRefused, RankLost
from inaproto.units import S

TENSOR_RULES: Final = frozenset({"operations differ", "packet layout"})
"""Rules of the accelerator that mean: ranks called different all-reduces."""


class RingEnds:
    """What ends a ring: its switches, or the links of its hosts."""

    def __init__(self, state: State, endings: Endings, trees: TreeMoves) -> None:
        self._state = state
        self._endings = endings
        self._trees = trees

    def fault(self, job: Job, event: RingFault) -> list[RendezvousAction]:
        """The accelerator forwards nothing of this ring any more."""
        if self._trees.is_on_its_way(job, event.ring_id):
            return self._trees.stay_parked(
                job, event.evidence, until_room=event.rule in (SWITCH_LOST, TRUNK_LOST), until_switch=False
            )
        if event.rule == SWITCH_LOST and self._state.config.recover_ns:
            return self._endings.halt(job, event.evidence)
        if event.rule == TURN_LOST and self._state.config.recover_ns and job.host_path is not None:
            job.recovery.refused(f"its turn was lost: {event.evidence}", job.host_path)
            self._state.counters["fallbacks"] += 1
            return self._endings.halt(job, f"its turn was lost: {event.evidence}")
        members = job.members()
        who = members[event.rank] if event.rank < len(members) else f"position {event.rank}"
        where = f"{who}: {event.evidence}"
        path = job.host_path
        if event.ring_id == job.ina_ring_id and path is not None and event.rule not in TENSOR_RULES:
            reason = f"the switch stopped its ring there: {event.rule} at {where}"
            job.recovery.refused(reason, path)
            self._state.counters["fallbacks"] += 1
            return self._endings.halt(job, reason)
        if event.rule in TENSOR_RULES:
            return self._endings.dispute(job, where)
        return self._endings.fail(
            job, FabricLost(f"the switch stopped job {job.name!r}: {event.rule} at {where}")
        )

    def no_room(self, job: Job, event: RingRefused) -> list[RendezvousAction]:
        path = job.host_path
        if self._trees.is_on_its_way(job, event.ring_id):
            return self._trees.stay_parked(
                job, event.reason, until_room=event.until_room, until_switch=event.until_switch
            )
        if self._state.config.recover_ns and path is not None:
            job.recovery.refused(
                event.reason, path, until_room=event.until_room, until_switch=event.until_switch
            )
            self._state.counters["fallbacks"] += 1
            if event.ring_id == job.ina_ring_id and job.phase is Phase.CONNECTING:
                noted = f"job {job.name}: begins without a ring in the switches: {event.reason}"
                return [*self._endings.remove_ring(job), Noted(noted, is_problem=True)]
            return self._endings.halt(job, f"the switch cannot sum for it: {event.reason}")
        text = f"the switch cannot sum for job {job.name!r}: {event.reason}; wait for another job to end"
        if self._state.config.recover_ns:
            text += f", or number its ranks rack by rank: {_cannot_follow(job)}"
        return self._endings.fail(job, JoinRefused(text))

    def broken(self, job: Job, event: MemberBroken) -> list[RendezvousAction]:
        told = event.message
        if told.ring_id != job.ring_id:
            return []
        who = name_seats(job.at(event.session))
        if told.differs:
            return self._endings.dispute(job, f"{who}: {told.reason}")
        if not self._state.config.recover_ns:  # its host waits for an answer, too
            lost = RankLost(f"{who} of job {job.name!r} is lost: {told.reason}")
            return self._endings.fail(job, lost, lost=job.at(event.session))
        before = job.recovery.path
        if not job.recovery.broke(f"{who}: {told.reason}", told.progress, job.paths):
            return self._endings.fail(job, FabricLost(_hopeless(job, f"{who}: {told.reason}")))
        if job.recovery.path != before:
            self._state.counters["fallbacks" if before == "switch" else "returns"] += 1
        return self._endings.halt(job, f"{who}: {told.reason}")


class Halted:
    """A job whose ring has ended goes on when its hosts have said how far they are."""

    def __init__(self, state: State, endings: Endings, joining: Joining) -> None:
        self._state = state
        self._endings = endings
        self._joining = joining

    def woke(self) -> list[RendezvousAction]:
        """Who has been waited for in vain, and whose rings return to the switches."""
        actions: list[RendezvousAction] = []
        for job in list(self._state.jobs.values()):
            recovery = job.recovery
            if recovery.deadline is not None and recovery.deadline <= self._state.now:
                actions += self._waited_in_vain(job)
            elif recovery.return_at is not None and recovery.return_at <= self._state.now:
                recovery.return_to_switch()
                self._state.counters["returns"] += 1
                actions += self._endings.halt(job, f"to return to the switch, left for: {recovery.fallback}")
        return actions

    def halted(self, job: Job, event: MemberHalted) -> list[RendezvousAction]:
        told = event.message
        seats = job.at(event.session)
        if told.ring_id != job.ring_id or not seats:
            return []
        host = self._state.hosts.get(event.session)
        for seat in seats:
            seat.below = told.below
            seat.member = replace(
                seat.member,
                out=told.out,
                into=told.into,
                progress=told.progress,
                ina_out=told.ina_out,
                ina_into=told.ina_into,
            )
        member = seats[0].member
        hello = host.hello if host else None
        wrong = refuse_stranger(hello, member)
        if job.is_overlay:
            children = len(job.overlay.children(job.position_of(seats[0])))
            wrong = wrong or refuse_overlay(
                hello, member, told.below, children=children, slot_bytes=job.slot_bytes
            )
        else:
            wrong = wrong or refuse_slots(member, slot_bytes=job.slot_bytes)
        wrong = wrong or (refuse_ina_link(member) if job.is_shared else None)
        if wrong:
            error = RankLost(f"{name_seats(seats)} of job {job.name!r} is lost: {wrong}")
            return self._endings.fail(job, error, lost=seats)
        return self._come_forward(job, seats, event.ring_key)

    def come_back(self, job: Job, event: MemberAsked) -> list[RendezvousAction]:
        """A host that lost its connection announces its ranks anew, one by one."""
        member = event.message
        seat = job.seats[member.rank]
        if not seat.is_away:
            return self._state.refuse_seat(job, event)
        hello = self._state.hosts[event.session].hello
        is_same = seat.is_of(member)
        if member.progress is None and is_same and (member.life or hello.instance == seat.instance):
            member = replace(member, progress=0)  # it lost its connection before it heard of the start
        if member.progress is None or not is_same:
            return self._replaced(job, seat, event)
        beside = job.at(event.session)
        if beside and (refusal := refuse_beside(beside[0].member, member)):
            return self._state.refuse(event.session, member, refusal)
        seat.session, seat.member, seat.is_away, seat.below = event.session, member, False, ()
        seat.instance, seat.succeeds = hello.instance, hello.succeeds
        seat.overlays, seat.switch = hello.overlays, hello.switch or self._state.config.root
        if member.left_after is not None:
            seat.left_after = member.left_after
        if any(other.is_away and other.member.host == member.host for other in job.in_order()):
            return []
        if job.recovery.path != "switch":  # its queue pairs are for the switch: a chain needs larger slots
            return [Send(event.session, halt_message(job, [seat]))]
        return self._come_forward(job, job.at(event.session), event.ring_key)

    def _replaced(self, job: Job, seat: Seat, event: MemberAsked) -> list[RendezvousAction]:
        """Another process comes where one was away."""
        member = event.message
        lost = RankLost(f"{seat} of job {job.name!r} is lost: a new process came in its place")
        failed = self._endings.fail(job, lost, lost=[seat])
        if member.progress is None:
            return [*failed, *self._joining.take_seat(Job(member.job, member), event)]
        return [*failed, *self._state.refuse(event.session, member, str(lost))]

    def _come_forward(self, job: Job, seats: Sequence[Seat], ring_key: int) -> list[RendezvousAction]:
        for seat in seats:
            seat.halted = True
        return [] if job.awaited() else self._joining.make_ring(job, ring_key)

    def _waited_in_vain(self, job: Job) -> list[RendezvousAction]:
        seconds = self._state.config.recover_ns / S
        lost = [seat for seat in job.in_order() if not seat.ready]
        if job.phase is Phase.HALTED:
            lost = job.awaited()
        who = name_seats(lost)
        if job.phase is Phase.JOINING:
            who = "rank " + ", ".join(map(str, job.missing()))
        why = f"; the ring had ended: {job.recovery.reason}" if job.recovery.reason else ""
        text = f"{who} of job {job.name!r} is lost: it has not come back within {seconds:g} s{why}"
        return self._endings.fail(job, RankLost(text), lost=lost)

    def gone_while_away(self, event: MemberGone) -> list[RendezvousAction]:
        """A rank that its job's other ranks may wait for, after a restart of the switch, does not come."""
        host, told = self._state.hosts.get(event.session), event.message
        job = self._state.jobs.get(told.job)
        if host is None or (job is not None and (not job.is_resumed or told.rank in job.seats)):
            return []
        remember(self._state.gone, (told.job, told.rank), f"{told.reason} (host {host.hello.host})")
        return [] if job is None else self._endings.miss_the_gone(job)


def _hopeless(job: Job, last: str) -> str:
    """Every path that it may take broke; ``last`` who and why."""
    if len(job.paths) > 1:
        return f"job {job.name!r} makes no progress by any path; last {last}"
    text = f"the ring of job {job.name!r} broke again where it broke before; last {last}"
    if job.recovery.fallback == ASKED:
        return f"{text}; it asked for the path {job.recovery.path} alone: connect with path='auto' for others"
    return f"{text}; {_cannot_follow(job)}"


def _cannot_follow(job: Job) -> str:
    return f"its hosts cannot sum in the order {job.rank_plan}, but with exact_plan=False in another"
