"""What befalls real clusters: flapping links, slow hosts, half-open connections, racks without power, drift.

None of it is clean: a link that flaps is down for too short a time to be missed and again before it is
well; a slow host answers everything, late; of a half-open connection nobody is told, so only a keep-alive or
a lease finds it; a rack without power takes hosts of several jobs at once, while its switch still lends them
their slots; and clocks that drift are never wrong by much, for a whole day.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from inaproto.faults.streams import Draws
from inaproto.sim.control.config import ControlFault, FaultKind
from inaproto.sim.kernel.faults import Directions, both_ways

if TYPE_CHECKING:
    from inaproto.sim.control.host import ControlHost
    from inaproto.sim.control.world import ControlWorld

CLUSTER_KINDS: Final = frozenset(
    (
        *(FaultKind.FLAPPING_LINK, FaultKind.SLOW_HOST, FaultKind.HALF_OPEN_LINK),
        *(FaultKind.HALF_OPEN_SESSION, FaultKind.RACK_POWER, FaultKind.CLOCK_DRIFT),
    )
)
DRIFTED_NS: Final = 1_000_000_000
"""A clock that drifts is off by so much after the better part of an hour."""


def befall(world: ControlWorld, fault: ControlFault, duration: int) -> bool:
    """Let one of ``CLUSTER_KINDS`` strike for ``duration``; False if there was nothing to hit."""
    host = world.hosts[fault.target % len(world.hosts)]
    match fault.kind:
        case FaultKind.FLAPPING_LINK:
            _Flapping(world, host, fault.amount, world.agenda.now + duration)
        case FaultKind.SLOW_HOST:
            world.note(host, "is slow", f"{fault.amount} times, {duration}")
            host.slow(fault.amount, duration)
        case FaultKind.HALF_OPEN_LINK:
            _half_open_link(world, host, fault, duration)
        case FaultKind.HALF_OPEN_SESSION:
            return _half_open_session(world, host, fault, duration)
        case FaultKind.RACK_POWER:
            return _rack_power(world, fault, duration)
        case FaultKind.CLOCK_DRIFT:
            _drift(world, fault, duration)
        case _:
            raise AssertionError(f"{fault.kind} is no weather of clusters")
    return True


class _Flapping:
    """The link of a host, down and up for about ``period`` each, until its time is over."""

    def __init__(self, world: ControlWorld, host: ControlHost, period: int, until: int) -> None:
        self._world, self._host = world, host
        self._period, self._until = max(2, period), until
        others = [world.controller, *world.switches, *(one for one in world.hosts if one is not host)]
        self._directions = both_ways(host, others)
        self._draws = Draws(world.config.seed, f"flapping/{host.name}/{world.agenda.now}")
        self._times = 0
        self._down(None)

    def _for(self) -> int:
        """Whatever it is to be next, it is so for half the period to twice as long."""
        return self._draws.between(self._period // 2, 2 * self._period)

    def _down(self, _: object) -> None:
        world, host = self._world, self._host
        if world.agenda.now >= self._until:
            return
        self._times += 1
        if self._times > 1:
            world.mark("a link was back, and went again")
        if any(seat.path is not None for seat in host.seats.values()):
            world.mark("a link went down under an operation")
        world.note(host, "link is down", self._times)
        world.network.cut(self._directions)
        world.agenda.at(min(self._until, world.agenda.now + self._for()), self._up)

    def _up(self, _: object) -> None:
        self._world.note(self._host, "link is up", self._times)
        self._world.network.join(self._directions)
        self._world.agenda.after(self._for(), self._down)


def _one_way(fault: ControlFault, both: Directions) -> Directions:
    """Of directions to others and from them: what the target says is lost, or what it is told."""
    half = len(both) // 2
    return both[half:] if fault.amount else both[:half]


def _half_open_link(world: ControlWorld, host: ControlHost, fault: ControlFault, duration: int) -> None:
    others = [*world.switches, *(one for one in world.hosts if one is not host)]
    directions = _one_way(fault, both_ways(host, others))
    if any(seat.path is not None for seat in host.seats.values()):
        world.mark("a link was half open under an operation")
    world.note(host, str(fault.kind), f"{fault.amount} {duration}")
    world.network.cut(directions)
    world.agenda.after(duration, lambda _: world.network.join(directions))


def _half_open_session(world: ControlWorld, host: ControlHost, fault: ControlFault, duration: int) -> bool:
    """Until the host makes it anew; a session that had ended by itself was whole again already."""
    if not host.is_up or host.half_open is not None:
        return False
    host.half_open = directions = _one_way(fault, both_ways(host, [world.controller]))
    world.note(host, str(fault.kind), f"{fault.amount} {duration}")
    world.network.cut(directions)
    world.agenda.after(duration, partial(_is_whole, host, directions))
    return True


def _is_whole(host: ControlHost, directions: Directions, _: object) -> None:
    if host.half_open is directions:
        host.makes_session()


def _rack_power(world: ControlWorld, fault: ControlFault, duration: int) -> bool:
    """Hosts take their time to start, so they are back one after the other."""
    config = world.config
    rack = config.rack_of(fault.target % len(world.hosts))
    hosts = [host for host in world.hosts if config.rack_of(host.index) == rack and host.is_up]
    if not hosts:
        return False
    dark = {host.index for host in hosts}
    for group in world.controller.groups if world.controller.is_ready else ():
        if any(dark.intersection(world.jobs[job].config.hosts) for job in group.held_by()):
            world.mark("a rack lost its power under a turn")
    world.note(hosts[0], str(fault.kind), f"{rack} {duration}")
    draws = Draws(config.seed, f"power/{rack}/{world.agenda.now}")
    for host in hosts:
        host.crash()
        world.agenda.after(duration + draws.below(duration // 8 + 1), partial(_starts, host))
    return True


def _starts(host: ControlHost, _: object) -> None:
    if not host.is_up:
        host.start()


def _drift(world: ControlWorld, fault: ControlFault, duration: int) -> None:
    nodes = [world.controller, *world.hosts, *world.switches]
    node = nodes[fault.target % len(nodes)]
    world.note(node, str(fault.kind), fault.amount)
    node.drift(fault.amount)
    if duration * abs(fault.amount) >= DRIFTED_NS * 1_000_000:
        world.mark("a clock has drifted by a second")
    world.agenda.after(duration, lambda _: node.drift(0))
