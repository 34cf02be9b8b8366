"""What a checker of overlay worlds is: it looks at every step of a core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from inaproto.core.models.events import NodeAction, NodeEvent, RootAction, RootEvent

if TYPE_CHECKING:
    from inaproto.sim.models.host import NodeSeat
    from inaproto.sim.models.server import Server
    from inaproto.sim.models.world import OverlayWorld


class OverlayChecker:
    """Hooks, each called right after a step of a core, before its actions are done; raise ``Violated``."""

    name: ClassVar[str] = ""

    def begin(self, world: OverlayWorld) -> None:
        self.world = world

    def stepped(self, seat: NodeSeat, event: NodeEvent, actions: Sequence[NodeAction]) -> None:
        """Step of a host's node."""

    def root_stepped(self, server: Server, event: RootEvent, actions: Sequence[RootAction]) -> None: ...

    def sample(self) -> None:
        """Now and then, between two events."""

    def end(self, world: OverlayWorld) -> None:
        """All workers are over and all is well."""
