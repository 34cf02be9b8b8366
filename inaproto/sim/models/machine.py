"""A machine of the overlay world: a host, or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inaproto.sim.kernel.machine import Machine as KernelMachine

if TYPE_CHECKING:
    from inaproto.sim.models.world import OverlayWorld


class Machine(KernelMachine[Any]):
    """What hosts and servers have in common."""

    stream = "machine"
    world: OverlayWorld
