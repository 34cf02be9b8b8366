"""A machine of a simulated world: up, down or standing still, with a clock of its own, and its timers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from inaproto.faults.streams import Draws
from inaproto.sim.kernel.agenda import Agenda
from inaproto.sim.kernel.violated import Violated
from inaproto.units import Instant, S

_SPINS_MAX: Final = 20
"""Wake-ups at one moment after which the deadline is still there."""
_CLOCK_NS: Final = 3600 * S
"""A clock that begins shows less than this."""
MILLION: Final = 1_000_000
"""Parts of which a clock's drift is counted."""


class WorldOfMachines(Protocol):
    """What a machine needs of its world."""

    @property
    def agenda(self) -> Agenda: ...
    @property
    def config(self) -> Any: ...
    def note(self, machine: Any, kind: str, detail: object) -> None: ...


World = TypeVar("World", bound=WorldOfMachines)


class Machine(Generic[World]):
    """What all kinds of machines have in common. One that starts again is a new incarnation."""

    stream: ClassVar[str] = "node"
    """Names the random bits of its clock and of what it draws."""

    def __init__(self, world: World, number: int, name: str) -> None:
        self.world = world
        self.number = number
        self.name = name
        self.is_up = False
        self.incarnation = 0
        self.clock_ns = 0
        """Its clock less that of the world, but for what it has drifted since."""
        self.drift_ppm = 0
        """How many millionths its clock runs fast; below 0: slow."""
        self._drifts_from = 0
        self.draws = Draws(world.config.seed, f"{self.stream}/{name}")
        self._still_until = -1
        self._late: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def now(self) -> Instant:
        """The time by its own clock."""
        now = self.world.agenda.now
        if self.drift_ppm:
            return Instant(now + self.clock_ns + (now - self._drifts_from) * self.drift_ppm // MILLION)
        return Instant(now + self.clock_ns)

    def drift(self, ppm: int) -> None:
        """Let its clock run so many millionths fast from now on; it shows now what it did."""
        self.clock_ns = self.now - self.world.agenda.now
        self.drift_ppm, self._drifts_from = ppm, self.world.agenda.now

    def lasts(self, delay_ns: int) -> int:
        """How long a time by its own clock takes in the world, rounded up."""
        if not self.drift_ppm:
            return delay_ns
        return -(-delay_ns * MILLION // (MILLION + self.drift_ppm))

    def start(self) -> None:
        """Power on, or again after a crash: its clock begins anew."""
        assert not self.is_up
        self.is_up = True
        self.incarnation += 1
        self.clock_ns, self._drifts_from = self.draws.below(_CLOCK_NS), self.world.agenda.now
        self._still_until = -1
        self.world.note(self, "starts", self.incarnation)
        self.begin()

    def crash(self) -> None:
        """Lose power; harmless if it is down."""
        if not self.is_up:
            return
        self.is_up = False
        self._late.clear()
        self.world.note(self, "crashes", self.incarnation)
        self.lose()

    def pause(self, duration_ns: int) -> None:
        """Stand still for ``duration_ns``; what is due meanwhile happens after it, in its order."""
        now = self.world.agenda.now
        self.world.note(self, "stands still", duration_ns)
        self._still_until = max(self._still_until, now + duration_ns)
        self.world.agenda.at(self._still_until, self._go_on)

    def after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """Call ``act`` after ``delay_ns`` by its own clock, if this incarnation still lives."""
        self.world.agenda.after(self.lasts(delay_ns), self._act, (self.incarnation, act))

    def _act(self, what: tuple[int, Callable[[], None]]) -> None:
        incarnation, act = what
        if not self.is_up or incarnation != self.incarnation:
            return
        if self._late or self.world.agenda.now < self._still_until:
            self._late.append(what)
            return
        act()

    def _go_on(self, _: object) -> None:
        if self.world.agenda.now < self._still_until:
            return
        late, self._late = self._late, deque()
        for incarnation, act in late:
            if self.is_up and incarnation == self.incarnation:
                act()

    # --- for the kinds of machines

    def begin(self) -> None:
        """It is up."""

    def lose(self) -> None:
        """It is down; what it knew is gone."""


class Timer:
    """Wakes a core at its deadline, by the clock of its machine."""

    def __init__(
        self,
        machine: Machine[World],
        deadline: Callable[[], Instant | None],
        wake: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._deadline = deadline
        self._wake = wake
        self._woken_at = -1
        self._spins = 0
        self._armed: Instant | None = None
        """The earliest wake-up that is on its way."""

    def arm(self) -> None:
        """Plan the next wake-up: after each step of the core, and when the clock has jumped."""
        due = self._deadline()
        if due is None or (self._armed is not None and self._armed <= due):
            return
        self._armed = due
        self._machine.after(max(0, due - self._machine.now), lambda: self._fire(due))

    def rearm(self) -> None:
        """Plan it anew: the machine's clock has jumped."""
        self._armed = None
        self.arm()

    def _fire(self, armed: Instant) -> None:
        if self._armed != armed:
            return
        self._armed = None
        due = self._deadline()
        if due is not None and due <= self._machine.now:
            self._wake()
            self._look_for_spin()
        self.arm()

    def _look_for_spin(self) -> None:
        now, due = self._machine.world.agenda.now, self._deadline()
        is_due = due is not None and due <= self._machine.now
        self._spins = self._spins + 1 if is_due and now == self._woken_at else int(is_due)
        self._woken_at = now
        if self._spins > _SPINS_MAX:
            raise Violated("no deadline without work", f"{self._machine.name}: a timer is due for ever")
