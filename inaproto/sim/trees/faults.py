"""What befalls a world of trees: crashes, restarts, partitions, hosts that go away."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from inaproto.sim.kernel.moments import FaultsAtMoments
from inaproto.sim.trees.config import FaultKind, TreesFault, Want

if TYPE_CHECKING:
    from inaproto.sim.kernel.machine import Machine
    from inaproto.sim.trees.world import TreesWorld


class Faults(FaultsAtMoments[TreesFault]):
    """Schedules them; those that wait for a moment strike after its mark was set."""

    def __init__(self, world: TreesWorld) -> None:
        super().__init__(world.agenda, world.config.faults, world.config.weather_until_ns)
        self._world = world

    def _calm_down(self) -> None:
        self._world.note(self._world.controller, "heals", "")
        self._world.set_weather(None)

    def _strike(self, fault: TreesFault, left_ns: int) -> None:
        world = self._world
        duration = min(fault.duration_ns, left_ns)
        switch = world.switches[fault.target % len(world.switches)]
        match fault.kind:
            case FaultKind.CONTROLLER_CRASH:
                struck = self._crash(world.controller, duration)
            case FaultKind.SWITCH_RESTART:
                struck = self._crash(switch, duration)
            case FaultKind.SWITCH_STANDS_STILL:
                struck = switch.is_up
                switch.pause(duration)
            case FaultKind.PARTITION:
                struck = True
                world.note(switch, "is cut off", duration)
                world.network.cut(switch)
                world.agenda.after(duration, lambda _: world.network.join(switch))
            case FaultKind.RESET:
                struck = switch.session is not None and not switch.session.is_broken
                if struck and switch.session is not None:
                    world.network.break_(switch.session)
            case FaultKind.JOB_AWAY:
                struck = self._send_away(fault, duration)
            case FaultKind.CHANGE_OF_MIND:
                job = fault.target % len(world.config.jobs)
                trees = world.config.jobs[job].trees
                struck = True
                world.want(Want(world.agenda.now, job, trees[fault.target // 4 % len(trees)]))
            case FaultKind.BURST:
                struck = True
                world.set_weather(fault.weather)
                world.agenda.after(duration, self._calm)
            case _:
                assert_never(fault.kind)
        if struck:
            world.mark(f"fault: {fault.kind}")

    def _crash(self, node: Machine[TreesWorld], duration: int) -> bool:
        if not node.is_up:
            return False
        node.crash()
        self._world.agenda.after(duration, lambda _: node.start())
        return True

    def _send_away(self, fault: TreesFault, duration: int) -> bool:
        world = self._world
        name = world.config.jobs[fault.target % len(world.config.jobs)].name
        struck = world.goes_away(name)
        if struck:
            world.note(world.root, "job is away", f"{name} {duration}")
            world.agenda.after(duration, partial(self._back, name))
        return struck

    def _back(self, name: str, _: Any) -> None:
        self._world.is_back(name)

    def _calm(self, _: Any) -> None:
        if not self.healed:
            self._world.set_weather(self._world.config.weather)
