"""What befalls an overlay world: crashes, pauses, partitions, resets, bursts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from inaproto.sim.kernel.faults import Faults, both_ways
from inaproto.sim.models.config import FaultKind, OverlayFault
from inaproto.wire.messages.clocks import WorkerId

if TYPE_CHECKING:
    from inaproto.sim.models.host import Host
    from inaproto.sim.models.machine import Machine
    from inaproto.sim.models.world import OverlayWorld


class OverlayFaults(Faults[OverlayFault]):
    _world: OverlayWorld

    def _strikes(self, fault: OverlayFault, duration: int) -> bool:
        world = self._world
        host = world.hosts[fault.target % len(world.hosts)]
        server = world.servers[fault.target % len(world.servers)]
        match fault.kind:
            case FaultKind.HOST_CRASH:
                return self._crash_all([host], duration)
            case FaultKind.INTERIOR_CRASH:
                interior = [host for host in world.hosts if any(seat.config.children for seat in host.seats)]
                return bool(interior) and self._crash_all([interior[fault.target % len(interior)]], duration)
            case FaultKind.SERVER_CRASH:
                return self._crash_all([server], duration)
            case FaultKind.PAIR_CRASH:
                return self._crash_all([host, self._parent(host)], duration)
            case FaultKind.HOST_LOST:
                return self._lose(host, fault.duration_ns)
            case FaultKind.PAUSE | FaultKind.SERVER_PAUSE:
                machine = host if fault.kind is FaultKind.PAUSE else server
                if machine.is_up:
                    machine.pause(duration)
                return machine.is_up
            case FaultKind.PARTITION:
                return self._cut_off(host, [one for one in world.machines if one is not host], duration)
            case FaultKind.EDGE_CUT:
                return self._cut_off(host, [self._parent(host)], duration)
            case FaultKind.RESET:
                world.network.reset(host)
                return host.is_up
            case FaultKind.WORKER_CRASH:
                struck = host.is_up and host.worker is not None and not host.worker.is_over
                host.after(0, partial(host.abandon, duration))  # of a host that stands still, after that
                return struck
            case FaultKind.BURST:
                world.note(world.servers[0], "burst", duration)
                return self._burst(fault, duration)
            case _:
                assert_never(fault.kind)

    def _parent(self, host: Host) -> Machine:
        parent = self._world.trees[0].parent(host.node)
        assert parent is not None, "hosts are below the server"
        return self._world.seat(0, parent).machine

    def _crash_all(self, machines: list[Machine], duration: int) -> bool:
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
        self._crash_all([host], 0)
        world.removed[worker] = None

        def remove(_: Any) -> None:
            for server in world.servers:
                server.remove(WorkerId(worker))

        world.agenda.after(patience, remove)
        return True

    def _cut_off(self, host: Host, others: list[Machine], duration: int) -> bool:
        names = ", ".join(other.name for other in others)
        self._world.note(host, "is cut off", f"from {names}, {duration}")
        return self._cut(host, both_ways(host, others), duration)
