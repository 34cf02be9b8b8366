"""What befalls an overlay world: crashes, pauses, partitions, resets, bursts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from inaproto.sim.kernel.moments import FaultsAtMoments
from inaproto.sim.models.config import FaultKind, OverlayFault
from inaproto.wire.messages.clocks import WorkerId

if TYPE_CHECKING:
    from inaproto.sim.models.host import Host
    from inaproto.sim.models.machine import Machine
    from inaproto.sim.models.world import OverlayWorld


class Faults(FaultsAtMoments[OverlayFault]):
    """Schedules them; those that wait for a moment strike after its mark was set."""

    def __init__(self, world: OverlayWorld) -> None:
        super().__init__(world.agenda, world.config.faults, world.config.weather_until_ns)
        self._world = world

    def _calm_down(self) -> None:
        self._world.note(self._world.servers[0], "heals", "")
        self._world.set_weather(None)

    def _strike(self, fault: OverlayFault, left_ns: int) -> None:
        world = self._world
        duration = min(fault.duration_ns, left_ns)
        host = world.hosts[fault.target % len(world.hosts)]
        server = world.servers[fault.target % len(world.servers)]
        match fault.kind:
            case FaultKind.HOST_CRASH:
                struck = self._crash([host], duration)
            case FaultKind.INTERIOR_CRASH:
                interior = [host for host in world.hosts if any(seat.config.children for seat in host.seats)]
                struck = bool(interior) and self._crash([interior[fault.target % len(interior)]], duration)
            case FaultKind.SERVER_CRASH:
                struck = self._crash([server], duration)
            case FaultKind.PAIR_CRASH:
                struck = self._crash([host, self._parent(host)], duration)
            case FaultKind.HOST_LOST:
                struck = self._lose(host, fault.duration_ns)
            case FaultKind.PAUSE | FaultKind.SERVER_PAUSE:
                machine = host if fault.kind is FaultKind.PAUSE else server
                struck = machine.is_up
                if struck:
                    machine.pause(duration)
            case FaultKind.PARTITION:
                struck = self._cut(host, [one for one in world.machines if one is not host], duration)
            case FaultKind.EDGE_CUT:
                struck = self._cut(host, [self._parent(host)], duration)
            case FaultKind.RESET:
                struck = host.is_up
                world.network.reset(host)
            case FaultKind.WORKER_CRASH:
                struck = host.is_up and host.worker is not None and not host.worker.is_over
                host.after(0, partial(host.abandon, duration))  # of a host that stands still, after that
            case FaultKind.BURST:
                struck = self._burst(fault, duration)
            case _:
                assert_never(fault.kind)
        if struck:
            world.mark(f"fault: {fault.kind}")

    def _parent(self, host: Host) -> Machine:
        parent = self._world.trees[0].parent(host.node)
        assert parent is not None, "hosts are below the server"
        return self._world.seat(0, parent).machine

    def _crash(self, machines: list[Machine], duration: int) -> bool:
        struck = [machine for machine in machines if machine.is_up]
        for machine in struck:
            self._mark_crash(machine)
            machine.crash()
            self._world.agenda.after(duration, partial(self._start, machine))
        return len(struck) == len(machines)

    def _mark_crash(self, machine: Machine) -> None:
        for host in self._world.hosts:
            if host is machine:
                is_leaf = not any(seat.config.children for seat in host.seats)
                self._world.mark("a leaf crashed" if is_leaf else "a node with children crashed")

    def _start(self, machine: Machine, _: Any) -> None:
        if not machine.is_up and not getattr(machine, "is_lost", False):
            machine.start()

    def _lose(self, host: Host, patience: int) -> bool:
        world = self._world
        is_last = sum(not one.is_lost for one in world.hosts) <= 1
        if not host.is_up or is_last or host.worker is None or host.worker.is_over:
            return False
        host.is_lost = True
        worker = host.worker.number
        self._crash([host], 0)
        world.removed[worker] = None

        def remove(_: Any) -> None:
            for server in world.servers:
                server.remove(WorkerId(worker))

        world.agenda.after(patience, remove)
        return True

    def _cut(self, host: Host, others: list[Machine], duration: int) -> bool:
        world = self._world
        directions = [(host.number, other.number) for other in others]
        directions += [(other.number, host.number) for other in others]
        world.note(host, "is cut off", f"from {', '.join(other.name for other in others)}, {duration}")
        world.network.cut(directions)
        world.agenda.after(duration, partial(self._join, host, directions))
        return True

    def _join(self, host: Host, directions: list[tuple[int, int]], _: Any) -> None:
        self._world.note(host, "reachable again", "")
        self._world.network.join(directions)

    def _burst(self, fault: OverlayFault, duration: int) -> bool:
        world = self._world
        world.note(world.servers[0], "burst", duration)
        world.set_weather(fault.weather)
        world.agenda.after(duration, self._calm)
        return True

    def _calm(self, _: Any) -> None:
        if not self.healed:
            self._world.set_weather(self._world.config.weather)
