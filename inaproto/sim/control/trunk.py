"""The path by the switches: what seats put into a pool, and the sums that come back, in virtual time.

An all-reduce by the switches has its sum when each seat has put its part into the pool of the job's tree,
at each of its switches; that takes ``ina_ns``. What cannot get there is tried again for as long as its
seat waits for the result; a copy of a part may come long after. The pool's epoch is what keeps such a copy
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inaproto.faults.streams import Draws
from inaproto.units import MS, US

if TYPE_CHECKING:
    from inaproto.sim.control.pool import Unit
    from inaproto.sim.control.seat import SimSeat
    from inaproto.sim.control.world import ControlWorld
    from inaproto.wire.messages.slots import Lease

_RETRY_NS: Final = 500 * US
"""At least; where operations take longer than in most worlds, a quarter of one."""
_LATE_MAX_NS: Final = 60 * MS


@dataclass(frozen=True, slots=True)
class Part:
    """What a seat puts into an operation."""

    seat: SimSeat
    lease: Lease
    epoch: int
    operation: int
    is_copy: bool = False


class Trunk:
    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._draws = Draws(world.config.seed, "trunk")
        slowest = max((job.ina_ns for job in world.config.jobs), default=0)
        self._retry_ns = max(_RETRY_NS, slowest // 4)

    def put(self, part: Part) -> None:
        """A seat begins an operation by the switches."""
        world = self._world
        root = world.switches[world.config.trees[part.lease.tree][0]]
        world.agenda.after(world.network.delay_between(part.seat.host, root), self._arrives, part)
        if not world.faults.healed and self._draws.chance(1, 8):
            copy = Part(part.seat, part.lease, part.epoch, part.operation, is_copy=True)
            world.agenda.after(self._draws.magnitude(100 * US, _LATE_MAX_NS), self._arrives, copy)

    def _arrives(self, part: Part) -> None:
        world, seat = self._world, part.seat
        if not part.is_copy and not seat.waits_for_sum(part.operation):
            return
        switches = [world.switches[index] for index in world.config.trees[part.lease.tree]]
        can = all(
            switch.is_up and part.lease in switch.rings and not world.network.is_cut(seat.host, switch)
            for switch in switches
        )
        if not can:
            if not part.is_copy:
                world.agenda.after(self._retry_ns, self._arrives, part)
            return
        units = [
            switch.pools[part.lease.tree].put(
                seat.job.name, seat.host.index, part.epoch, part.operation, seat.job.part(part)
            )
            for switch in switches
        ]
        unit = units[0]
        if unit is None or None in units:
            world.mark("a stale epoch was refused at the switch")
            world.note(seat.host, "is refused as stale", f"{seat.job.name} {part.operation} {part.epoch}")
            if not part.is_copy:
                world.agenda.after(self._retry_ns, self._arrives, part)
            return
        if set(unit.parts) == set(seat.job.config.hosts):
            self._complete(part, unit)

    def _complete(self, part: Part, unit: Unit) -> None:
        world, job = self._world, part.seat.job
        total = sum(unit.parts.values())
        for seat in job.seats.values():
            if seat.waits_for_sum(part.operation) and seat.epoch_now == part.epoch:
                delay = job.config.ina_ns + self._draws.below(job.config.ina_ns // 4 + 1)
                delay *= job.slowness
                world.agenda.after(delay, self._result, (part, seat, total))

    def _result(self, what: tuple[Part, SimSeat, int]) -> None:
        part, seat, total = what
        if not seat.waits_for_sum(part.operation) or seat.epoch_now != part.epoch:
            return
        world = self._world
        root = world.switches[world.config.trees[part.lease.tree][0]]
        pool = root.pools.get(part.lease.tree)
        if pool is None or not any(unit.epoch == part.epoch for unit in pool.units):
            return
        if world.network.is_cut(root, seat.host):
            world.agenda.after(self._retry_ns, self._result, what)
            return
        seat.has_sum(part.operation, total, "ina")
