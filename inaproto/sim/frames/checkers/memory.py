"""Memory is bounded while a world runs, and given back when its jobs have ended.

What is in use is measured: the arrays of the accelerator, the queues of the NICs. The bounds come from the
sizes of the jobs: a host has at most 2N messages of a ring in its NIC and 2N + 2 receives (in a tree, N of
both kinds and 2 receives more for each queue pair), and a switch at most 2N payload buffers for a ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.core.switch.aggregator import bytes_needed
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.core.switch.events import RingState
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World


class BoundedMemory(Checker):
    name = "memory bounded"

    def sample(self, world: World) -> None:
        for switch in world.switches:
            if switch.is_up:
                self._switch(switch)
        for host in world.hosts:
            if host.is_up:
                self._host(host)

    def _switch(self, switch: SimSwitch) -> None:
        accelerator = switch.accelerator
        granted = 0
        for ring_id, ring in accelerator.rings.items():
            needed = bytes_needed(ring.spec)
            granted += needed
            used = _measured(ring)
            if used > needed:
                raise Violated(
                    self.name, f"ring {ring_id} has {used} bytes of arrays; it was granted {needed}"
                )
            held = sum(region.payload is not None for region in ring.array.regions)
            spare = len(ring.array.regions[0].pool)
            if held + spare > len(ring.array.regions):
                raise Violated(
                    self.name, f"ring {ring_id}: {held} payload buffers in use and {spare} spare ones"
                )
        allowed = switch.memory_bytes_max * (1 + len(switch.shards))
        if accelerator.view().memory_bytes != granted or granted > allowed:
            raise Violated(
                self.name,
                f"the accelerator of {switch} counts {accelerator.view().memory_bytes} bytes, its rings were "
                f"granted {granted}, allowed are {allowed}",
            )

    def _host(self, host: SimHost) -> None:
        used = host.nic.resources
        rings = [ring for ring in host.rings if ring.holds_queue_pairs]
        # Links that were on a NIC which is gone are not on the new one.
        links = [] if host.has_unseen_nic else [link for ring in rings for link in ring.links]
        needed = sum(len(link.qpns) for link in links) + len(host.flows)
        if used["queue_pairs"] != needed:
            raise Violated(
                self.name, f"{host}: {used['queue_pairs']} queue pairs; its {len(links)} links need {needed}"
            )
        allowed = sum(link.work_requests_max for link in links)
        allowed += sum(flow.work_requests_max for flow in host.flows)
        if used["work_requests"] > allowed and not host.nic.has_completions:
            raise Violated(self.name, f"{host}: {used['work_requests']} work requests, at most {allowed}")
        if used["payloads"] > used["messages"]:
            raise Violated(
                self.name, f"{host}: {used['payloads']} payloads are kept for {used['messages']} messages"
            )
        if used["output_frames"] and not host.nic.is_silent:
            raise Violated(self.name, f"{host}: {used['output_frames']} frames that nobody took from its NIC")

    def end(self, world: World) -> None:
        for host in world.hosts:
            if host.is_up and any(host.nic.resources.values()):
                raise Violated("nothing is left", f"{host}: its NIC still holds {host.nic.resources}")
        for switch in world.switches:
            view = switch.accelerator.view()
            if view.rings or view.memory_bytes or view.connections:
                raise Violated("nothing is left", f"the accelerator of {switch} still holds {view}")
        plane = world.control.core.view()
        jobs = plane.rendezvous.jobs
        if jobs:
            raise Violated("nothing is left", f"the rendezvous still knows {jobs}")
        trees = () if plane.fabric is None else plane.fabric.rings
        if trees:
            raise Violated("nothing is left", f"the tree control still knows {trees}")


def _measured(ring: RingState) -> int:
    """Bytes of the numpy arrays that the ring's regions hold now."""
    arrays = []
    for region in ring.array.regions:
        arrays += [region.seen, region.done, region.header, region.share, region.result, region.result_crc]
        if region.payload is not None:
            arrays.append(region.payload.array)
    return sum(array.nbytes for array in arrays)
