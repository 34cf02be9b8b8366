"""A node: up or down, with a clock of its own, and timers that die with its incarnation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from inaproto.faults.streams import Draws
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Instant, S

if TYPE_CHECKING:
    from inaproto.sim.control.world import ControlWorld

_SPINS_MAX: Final = 20
"""Wake-ups at one moment after which the deadline is still there."""


class Node:
    """What controller, hosts and switches have in common. A node that starts again is a new incarnation."""

    def __init__(self, world: ControlWorld, number: int, name: str) -> None:
        self.world = world
        self.number = number
        self.name = name
        self.is_up = False
        self.incarnation = 0
        self.clock_ns = 0
        """Its clock less that of the world."""
        self.draws = Draws(world.config.seed, f"node/{name}")

    @property
    def now(self) -> Instant:
        """By its own clock."""
        return Instant(self.world.agenda.now + self.clock_ns)

    def start(self) -> None:
        """Power on, or again after a crash: its clock begins anew."""
        assert not self.is_up
        self.is_up = True
        self.incarnation += 1
        self.clock_ns = self.draws.below(3600 * S)
        self.world.note(self, "starts", self.incarnation)
        self.begin()

    def crash(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self.world.note(self, "crashes", self.incarnation)
        self.lose()

    def after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """Call ``act`` then, if this incarnation still lives."""
        self.world.agenda.after(delay_ns, self._act, (self.incarnation, act))

    def _act(self, what: tuple[int, Callable[[], None]]) -> None:
        incarnation, act = what
        if self.is_up and incarnation == self.incarnation:
            act()

    def send(self, target: Node, message: Any) -> None:
        self.world.network.send(self, target, message)

    # --- for the kinds of nodes

    def begin(self) -> None:
        """It is up."""

    def lose(self) -> None:
        """It is down; what it knew is gone."""

    def received(self, source: Node, message: Any) -> None:
        """A message is here."""


class Timer:
    """Wakes a core at its deadline, by the clock of its node."""

    def __init__(self, node: Node, deadline: Callable[[], Instant | None], wake: Callable[[], None]) -> None:
        self._node = node
        self._deadline = deadline
        self._wake = wake
        self._woken_at = -1
        self._spins = 0
        self._armed: Instant | None = None
        """The earliest wake-up that is on its way."""

    def arm(self) -> None:
        """After each step of the core, and when the clock has jumped."""
        due = self._deadline()
        if due is None or (self._armed is not None and self._armed <= due):
            return
        self._armed = due
        self._node.after(max(0, due - self._node.now), lambda: self._fire(due))

    def rearm(self) -> None:
        """The node's clock has jumped."""
        self._armed = None
        self.arm()

    def _fire(self, armed: Instant) -> None:
        if self._armed != armed:
            return
        self._armed = None
        due = self._deadline()
        if due is not None and due <= self._node.now:
            self._wake()
            self._look_for_spin()
        self.arm()

    def _look_for_spin(self) -> None:
        now, due = self._node.world.agenda.now, self._deadline()
        is_due = due is not None and due <= self._node.now
        self._spins = self._spins + 1 if is_due and now == self._woken_at else int(is_due)
        self._woken_at = now
        if self._spins > _SPINS_MAX:
            raise Violated("no deadline without work", f"{self._node.name}: a timer is due for ever")
