"""Memory is bounded while a world runs, and given back when its jobs have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.core.aggregator import bytes_needed
from inaproto.sim.checkers.checker import Checker, Violated

if TYPE_CHECKING:
    from inaproto.sim.world import World

_WORK_MAX = 4096
_FRAMES_MAX = 16_384


class BoundedMemory(Checker):
    name = "memory bounded"

    def sample(self, world: World) -> None:
        switch = world.switch
        if switch.is_up:
            view = switch.accelerator.view()
            needed = sum(bytes_needed(ring.spec) for ring in switch.accelerator.rings.values())
            if view.memory_bytes != needed or needed > world.switch_memory_bytes_max:
                raise Violated(
                    self.name,
                    f"the accelerator counts {view.memory_bytes} bytes, its rings need {needed}, "
                    f"allowed are {world.switch_memory_bytes_max}",
                )
        for host in world.hosts:
            if not host.is_up:
                continue
            used = host.nic.resources
            expected = 2 * sum(rank.holds_queue_pairs for rank in host.ranks)
            if used["queue_pairs"] != expected:
                raise Violated(
                    self.name, f"{host}: {used['queue_pairs']} queue pairs, its ranks have {expected}"
                )
            if used["work_requests"] > _WORK_MAX or used["output_frames"] > _FRAMES_MAX:
                raise Violated(self.name, f"{host}: its NIC holds {used}")

    def end(self, world: World) -> None:
        for host in world.hosts:
            if host.is_up and any(host.nic.resources.values()):
                raise Violated("nothing is left", f"{host}: its NIC still holds {host.nic.resources}")
        view = world.switch.accelerator.view()
        if view.rings or view.memory_bytes or view.connections:
            raise Violated("nothing is left", f"the accelerator still holds {view}")
        jobs = world.switch.rendezvous.view().jobs
        if jobs:
            raise Violated("nothing is left", f"the rendezvous still knows {jobs}")
