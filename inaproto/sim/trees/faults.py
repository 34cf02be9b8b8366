"""What befalls a world of trees: crashes, restarts, partitions, hosts that go away."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from inaproto.sim.kernel.faults import Faults
from inaproto.sim.trees.config import FaultKind, TreesFault, Want

if TYPE_CHECKING:
    from inaproto.sim.trees.world import TreesWorld


class TreesFaults(Faults[TreesFault]):
    _world: TreesWorld

    def _strikes(self, fault: TreesFault, duration: int) -> bool:
        world = self._world
        switch = world.switches[fault.target % len(world.switches)]
        job = fault.target % len(world.config.jobs)
        match fault.kind:
            case FaultKind.CONTROLLER_CRASH:
                return self._crash(world.controller, duration)
            case FaultKind.SWITCH_RESTART:
                return self._crash(switch, duration)
            case FaultKind.SWITCH_STANDS_STILL:
                switch.pause(duration)
                return switch.is_up
            case FaultKind.PARTITION:
                world.note(switch, "is cut off", duration)
                world.network.cut(switch)
                world.agenda.after(duration, lambda _: world.network.join(switch))
            case FaultKind.RESET:
                if switch.session is None or switch.session.is_broken:
                    return False
                world.network.break_(switch.session)
            case FaultKind.JOB_AWAY:
                name = world.config.jobs[job].name
                if not world.goes_away(name):
                    return False
                world.note(world.root, "job is away", f"{name} {duration}")
                world.agenda.after(duration, lambda _: world.is_back(name))
            case FaultKind.CHANGE_OF_MIND:
                trees = world.config.jobs[job].trees
                world.want(Want(world.agenda.now, job, trees[fault.target // 4 % len(trees)]))
            case FaultKind.BURST:
                return self._burst(fault, duration)
            case _:
                assert_never(fault.kind)
        return True
