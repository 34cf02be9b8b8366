"""A node of the control world: a machine that sends and receives messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inaproto.sim.kernel.machine import Machine

if TYPE_CHECKING:
    from inaproto.sim.control.world import ControlWorld


class Node(Machine[Any]):
    """What controller, hosts and switches have in common."""

    world: ControlWorld

    def send(self, target: Node, message: Any) -> None:
        self.world.network.send(self, target, message)

    def received(self, source: Node, message: Any) -> None:
        """A message is here."""
