"""What a checker of control worlds hears; the checkers are in
:mod:`inaproto.sim.control.checkers.checkers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from inaproto.core.sharing.events import Path
from inaproto.wire.messages.sharing import Seat, Version
from inaproto.wire.messages.slots import Lease

if TYPE_CHECKING:
    from inaproto.core.sharing.group import Plan
    from inaproto.sim.control.group import Group
    from inaproto.sim.control.seat import SimSeat
    from inaproto.sim.control.switch import ControlSwitch
    from inaproto.sim.control.world import ControlWorld


class ControlChecker:
    """Hooks; raise :class:`Violated` from any of them."""

    name: ClassVar[str] = ""

    def begin(self, world: ControlWorld) -> None:
        """Before anything happens."""
        self.world = world

    def began(self, seat: SimSeat, index: int, path: Path, epoch: int | None, lease: Lease | None) -> None:
        """A seat has begun an operation."""

    def rescued(self, seat: SimSeat, index: int) -> None:
        """It waited for the switches, and takes the chain."""

    def ended(self, seat: SimSeat, index: int, total: int) -> None:
        """It has the sum."""

    def drained(self, seat: SimSeat, index: int) -> None:
        """An operation that it began by the switches has drained."""

    def seat_gone(self, seat: SimSeat) -> None:
        """Its host has dropped it, or has crashed."""

    def said(self, message: Any) -> None:
        """A node has said it to another, whether or not it will be heard."""

    def heard(self, message: Any) -> None:
        """It has come, and is about to be taken in."""

    def participant_stepped(self, seat: SimSeat) -> None: ...

    def slot_taken(self, switch: ControlSwitch, lease: Lease) -> None: ...

    def slot_freed(self, switch: ControlSwitch, lease: Lease, *, has_run_out: bool) -> None: ...

    def tree_stands(self, lease: Lease) -> None:
        """The controller says that all switches of a tree lend it their slots."""

    def ring_removed(self, switch: ControlSwitch, lease: Lease) -> None:
        """A switch takes nothing more of it, for a reason or because it has restarted."""

    def given_up(self, seat: Seat, epoch: int, version: Version) -> None:
        """A coordinator does not wait for what it owes of turns, or rounds, up to that epoch and version."""

    def planned(self, group: Group, plan: Plan) -> None:
        """A group asks whose turn is to be next."""

    def sample(self) -> None:
        """Now and then, between two events."""

    def end(self, world: ControlWorld) -> None:
        """All jobs are over and all slots free."""
