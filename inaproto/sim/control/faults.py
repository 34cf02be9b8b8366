"""What befalls a control world: crashes, partitions, bursts, clock jumps, as its configuration has them.

What only real clusters know is in :mod:`inaproto.sim.control.cluster_faults`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.control.cluster_faults import CLUSTER_KINDS, befall
from inaproto.sim.control.config import ControlFault, FaultKind
from inaproto.sim.control.words import SeatSays, ToSeat
from inaproto.sim.kernel.faults import Faults, both_ways

if TYPE_CHECKING:
    from inaproto.sim.control.world import ControlWorld


class ControlFaults(Faults[ControlFault]):
    _world: ControlWorld

    def _strikes(self, fault: ControlFault, duration: int) -> bool:
        has_struck = self._befalls(fault, duration)
        if has_struck:
            self._world.stops.befell(fault, duration)
        return has_struck

    def _befalls(self, fault: ControlFault, duration: int) -> bool:
        if fault.kind in CLUSTER_KINDS:
            return befall(self._world, fault, duration)
        world, controller = self._world, self._world.controller
        host = world.hosts[fault.target % len(world.hosts)]
        match fault.kind:
            case FaultKind.CONTROLLER_CRASH:
                if not self._crash(controller, duration):
                    return False
                for one in world.hosts:
                    one.lost_controller()
            case FaultKind.HOST_CRASH:
                return self._crash(host, duration)
            case FaultKind.SWITCH_RESTART:
                return self._crash(world.switches[fault.target % len(world.switches)], duration)
            case FaultKind.PARTITION | FaultKind.ONE_WAY_PARTITION | FaultKind.PEER_PARTITION:
                return self._partition(fault, duration)
            case FaultKind.MUTE_SEATS | FaultKind.DEAF_SEATS:
                what = SeatSays if fault.kind is FaultKind.MUTE_SEATS else ToSeat
                world.note(host, str(fault.kind), duration)
                world.network.silence(host, what)
                world.agenda.after(duration, lambda _: world.network.unsilence(host, what))
            case FaultKind.PROCESS_STOPS:
                if not host.is_up or not host.seats:
                    return False
                world.note(host, "is stopped", duration)
                host.stopped_until = max(host.stopped_until, world.agenda.now + duration)
            case FaultKind.BURST:
                world.note(controller, "burst", duration)
                return self._burst(fault, duration)
            case FaultKind.CLOCK_JUMP:
                if not controller.is_up:
                    return False
                controller.jump(fault.duration_ns)
            case _:
                raise AssertionError(f"no fault {fault.kind}")
        return True

    def _partition(self, fault: ControlFault, duration: int) -> bool:
        world = self._world
        others = [*world.hosts, *world.switches]
        target = others[fault.target % len(others)]
        if fault.kind is FaultKind.PEER_PARTITION:
            directions = both_ways(target, [node for node in others if node is not target])
        else:
            directions = both_ways(target, [world.controller])
            if fault.kind is FaultKind.ONE_WAY_PARTITION:
                del directions[1:]
        world.note(target, str(fault.kind), duration)
        return self._cut(target, directions, duration)
