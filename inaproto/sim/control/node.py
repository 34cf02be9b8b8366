"""A node of the control world: a machine that sends and receives messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inaproto.sim.kernel.machine import Machine

if TYPE_CHECKING:
    from inaproto.sim.control.world import ControlWorld


class Node(Machine["ControlWorld"]):
    """What controller, hosts and switches have in common."""

    def __init__(self, world: ControlWorld, number: int, name: str) -> None:
        super().__init__(world, number, name, seed=world.config.seed, stream="node")

    def send(self, target: Node, message: Any) -> None:
        self.world.network.send(self, target, message)

    def received(self, source: Node, message: Any) -> None:
        """A message is here."""
