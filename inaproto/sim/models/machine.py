"""A machine of the overlay world: a host, or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.kernel.machine import Machine as KernelMachine

if TYPE_CHECKING:
    from inaproto.sim.models.world import OverlayWorld


class Machine(KernelMachine["OverlayWorld"]):
    """What hosts and servers have in common."""

    def __init__(self, world: OverlayWorld, number: int, name: str) -> None:
        super().__init__(world, number, name, seed=world.config.seed, stream="machine")
