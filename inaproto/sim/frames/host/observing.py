"""What a world notes of what happens to a host in a job, and of what it orders: marks, and whom it blames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.core.host import events
from inaproto.core.host.engines.host_messages import TENSORS_DIFFER
from inaproto.core.host.engines.host_tree import Fold
from inaproto.core.host.engines.hosts import Combine
from inaproto.core.host.engines.two_paths import INA, Bound, Drained, TwoPaths
from inaproto.core.host.operation_queue import Source
from inaproto.core.host.operations import Overdue, RingBroken, Stalled
from inaproto.errors import Blame, TensorMismatch
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.control_messages import JobStatus, Ring, Start
from inaproto.wire.messages.ina import InaStands

if TYPE_CHECKING:
    from inaproto.sim.frames.host.ring import HostRing


def check_ring(ring: HostRing, told: Ring) -> None:
    """The switch tells of a ring. Raises ``Violated`` if that is not of all ranks here."""
    here = told.ranks[told.position]
    if here != tuple(rank.index for rank in ring.ranks) or told.position != ring.position:
        raise Violated("a ring is of all ranks", f"{ring}: its ring is of {told.ranks}")


def note_event(ring: HostRing, event: events.HostEvent, *, was_among_hosts: bool) -> None:
    """It has happened, and the host has looked at it. ``was_among_hosts``: its ring before was."""
    world = ring.host.world
    match event:
        case events.Answered() if was_among_hosts and not ring.sums_itself:
            world.mark("a job returned to the switch")
        case events.Said(Start() | InaStands()):
            world.mover.look()
        case events.Said(JobStatus(mismatch=mismatch)) if mismatch:
            world.mark("a mismatch was explained")
        case events.JoinDenied():
            world.mark("a join was refused")
        case _:
            pass


def note_action(ring: HostRing, action: events.HostAction) -> None:
    """It was ordered, or said. Raises ``Violated`` if it blames somebody who is well."""
    world = ring.host.world
    match action:
        case events.Noted(mark):
            world.mark(mark)
            if mark == "a rank came back from away" and len(ring.ranks) > 1:
                world.mark("a host came back with several ranks")
        case Bound(_, path):
            world.mark(
                f"an all-reduce was bound to the {'ring in the switches' if path == INA else 'base ring'}"
            )
        case Drained():
            world.mark("an all-reduce of the ring in the switches was drained")
        case Stalled():
            world.mark("an all-reduce stalled")
        case Overdue():
            world.mark("an all-reduce was overdue")
        case Blame():
            if not (action.rule == TENSORS_DIFFER and ring.ranks[0].process.may_differ):
                raise Violated("nobody is to blame", f"{ring} blames {action}")
        case RingBroken(code, message):
            if code != TensorMismatch.code:
                raise Violated("nobody is to blame", f"{ring}: ring broken: {code}: {message}")
            world.mark("a chain found that ranks disagree")
        case _:
            pass  # the rank hears of operations that fail in the end; ranks ask when the host is welcome


def note_sum(ring: HostRing, action: Combine | Fold) -> None:
    """A host has added what ranks gave."""
    world, is_sum = ring.host.world, len(ring.ranks) > 1 and action.source is Source.OWN
    if isinstance(action, Fold):
        if len(action.came) > 1:
            world.mark("a host of an overlay gathered from several")
        if is_sum:
            world.mark("an overlay was given the sum of several ranks")
    elif is_sum:
        how = "ring of hosts" if ring.is_rotated else "chain"
        world.mark(f"a {how} was given the sum of several ranks")


def note_halt(ring: HostRing, order: events.KeepResults) -> None:
    """Its ring has ended."""
    world, engine = ring.host.world, ring.engine
    world.mark("a rank was halted")
    if any(kept.ring_id == order.ina_ring_id and kept.serial >= order.since for kept in order.results):
        world.mark("a halted rank kept results of the ring in the switches")
    if isinstance(engine, TwoPaths) and engine.carrier == INA and engine.operations.running:
        world.mark("a rank was halted in an all-reduce on the ring in the switches")
