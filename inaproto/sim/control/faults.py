"""What befalls a control world: crashes, partitions, bursts, clock jumps, as its configuration has them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from inaproto.sim.control.config import ControlFault, FaultKind
from inaproto.sim.control.words import SeatSays, ToSeat
from inaproto.sim.kernel.moments import FaultsAtMoments

if TYPE_CHECKING:
    from inaproto.sim.control.host import ControlHost
    from inaproto.sim.control.node import Node
    from inaproto.sim.control.world import ControlWorld


class Faults(FaultsAtMoments[ControlFault]):
    """Schedules them; those that wait for a moment strike after its mark was set."""

    def __init__(self, world: ControlWorld) -> None:
        super().__init__(world.agenda, world.config.faults, world.config.weather_until_ns)
        self._world = world

    def _calm_down(self) -> None:
        self._world.note(self._world.controller, "heals", "")
        self._world.set_weather(None)

    def _strike(self, fault: ControlFault, left_ns: int) -> None:
        world = self._world
        duration = min(fault.duration_ns, left_ns)
        match fault.kind:
            case FaultKind.CONTROLLER_CRASH:
                struck = self._crash(world.controller, duration)
                for host in world.hosts if struck else ():
                    host.lost_controller()
            case FaultKind.HOST_CRASH:
                struck = self._crash(world.hosts[fault.target % len(world.hosts)], duration)
            case FaultKind.SWITCH_RESTART:
                struck = self._crash(world.switches[fault.target % len(world.switches)], duration)
            case FaultKind.PARTITION | FaultKind.ONE_WAY_PARTITION | FaultKind.PEER_PARTITION:
                struck = self._partition(fault, duration)
            case FaultKind.MUTE_SEATS | FaultKind.DEAF_SEATS:
                struck = self._silence(fault, duration)
            case FaultKind.PROCESS_STOPS:
                struck = self._stop(world.hosts[fault.target % len(world.hosts)], duration)
            case FaultKind.BURST:
                struck = self._burst(fault, duration)
            case FaultKind.CLOCK_JUMP:
                struck = world.controller.is_up
                if struck:
                    world.controller.jump(fault.duration_ns)
            case _:
                assert_never(fault.kind)
        if struck:
            world.mark(f"fault: {fault.kind}")

    def _crash(self, node: Node, duration: int) -> bool:
        if not node.is_up:
            return False
        node.crash()
        self._world.agenda.after(duration, lambda _: node.start())
        return True

    def _partition(self, fault: ControlFault, duration: int) -> bool:
        world = self._world
        others: list[Node] = [*world.hosts, *world.switches]
        controller = world.controller.number
        target = others[fault.target % len(others)]
        if fault.kind is FaultKind.PEER_PARTITION:
            others = [node for node in others if node is not target]
            directions = [(target.number, node.number) for node in others]
            directions += [(node.number, target.number) for node in others]
        else:
            directions = [(target.number, controller)]
            if fault.kind is FaultKind.PARTITION:
                directions.append((controller, target.number))
        world.note(target, str(fault.kind), duration)
        world.network.cut(directions)
        world.agenda.after(duration, partial(self._join, target, directions))
        return True

    def _join(self, target: Node, directions: list[tuple[int, int]], _: Any) -> None:
        self._world.note(target, "reachable again", "")
        self._world.network.join(directions)

    def _silence(self, fault: ControlFault, duration: int) -> bool:
        world = self._world
        host = world.hosts[fault.target % len(world.hosts)]
        what = SeatSays if fault.kind is FaultKind.MUTE_SEATS else ToSeat
        world.note(host, str(fault.kind), duration)
        world.network.silence(host, what)
        world.agenda.after(duration, lambda _: world.network.unsilence(host, what))
        return True

    def _stop(self, host: ControlHost, duration: int) -> bool:
        world = self._world
        if not host.is_up or not host.seats:
            return False
        world.note(host, "is stopped", duration)
        host.stopped_until = max(host.stopped_until, world.agenda.now + duration)
        return True

    def _burst(self, fault: ControlFault, duration: int) -> bool:
        world = self._world
        world.note(world.controller, "burst", duration)
        world.set_weather(fault.weather)
        world.agenda.after(duration, self._calm)
        return True

    def _calm(self, _: Any) -> None:
        if not self.healed:
            self._world.set_weather(self._world.config.weather)
