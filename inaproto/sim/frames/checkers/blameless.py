"""NICs of one make never break the rules of RDMA towards each other: no NIC has anybody to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.sim.frames.world import World


class NicsBlameNobody(Checker):
    name = "no NIC blames another"

    def sample(self, world: World) -> None:
        for host in world.hosts:
            if host.is_up and host.nic.statistics()["blames"]:
                raise Violated(self.name, f"{host}: its NIC found a peer breaking the rules of RDMA")

    def end(self, world: World) -> None:
        self.sample(world)
        if world.nic_totals.get("blames", 0):
            raise Violated(self.name, "a NIC that is gone had found a peer breaking the rules of RDMA")
