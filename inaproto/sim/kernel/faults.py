"""Faults of a world of words, each at its time or at a moment: after a mark was set so many times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from inaproto.sim.kernel.config import TimedFault
from inaproto.sim.kernel.machine import Machine

Fault = TypeVar("Fault", bound=TimedFault)
Directions = list[tuple[int, int]]


class Faults(ABC, Generic[Fault]):
    """Schedules faults, and the healing that ends them all; those of a moment strike after its mark."""

    _world: Any
    """World of the subclass's kind."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._agenda = world.agenda
        self._faults: tuple[Fault, ...] = world.config.faults
        self._weather_until_ns: int = world.config.weather_until_ns
        self._waiting: dict[tuple[str, int], list[Fault]] = {}
        self.moments = frozenset(fault.moment for fault in self._faults)
        """Marks that are waited for."""
        self.healed = False

    def begin(self) -> None:
        """Plan all of them."""
        for fault in self._faults:
            if fault.moment:
                self._waiting.setdefault((fault.moment, fault.occurrence), []).append(fault)
            else:
                self._agenda.at(fault.at_ns, self._strike_within, fault)
        self._agenda.at(self._weather_until_ns, self._heal)

    def moment(self, mark: str, occurrence: int) -> None:
        """Let strike what waited for this mark; it was set for the ``occurrence``-th time."""
        for fault in self._waiting.pop((mark, occurrence), ()):
            self._agenda.after(fault.at_ns, self._strike_within, fault)

    def _strike_within(self, fault: Fault) -> None:
        left = self._weather_until_ns - self._agenda.now
        if left > 0 and self._strikes(fault, min(fault.duration_ns, left)):
            self._world.mark(f"fault: {fault.kind}")

    def _heal(self, _: Any) -> None:
        self.healed = True
        self._world.note(self._world.machines[0], "heals", "")
        self._world.set_weather(None)

    @abstractmethod
    def _strikes(self, fault: Fault, duration: int) -> bool:
        """Let ``fault`` befall the world for ``duration``; False if there was nothing to hit."""

    # --- what several worlds have

    def _crash(self, machine: Machine[Any], duration: int) -> bool:
        if not machine.is_up:
            return False
        machine.crash()
        self._agenda.after(duration, lambda _: machine.start())
        return True

    def _cut(self, target: Machine[Any], directions: Directions, duration: int) -> bool:
        self._world.network.cut(directions)
        self._agenda.after(duration, partial(self._join, target, directions))
        return True

    def _join(self, target: Machine[Any], directions: Directions, _: Any) -> None:
        self._world.note(target, "reachable again", "")
        self._world.network.join(directions)

    def _burst(self, fault: Fault, duration: int) -> bool:
        self._world.set_weather(fault.weather)
        self._agenda.after(duration, self._calm)
        return True

    def _calm(self, _: Any) -> None:
        if not self.healed:
            self._world.set_weather(self._world.config.weather)


def both_ways(machine: Machine[Any], others: Sequence[Machine[Any]]) -> Directions:
    """All directions between a machine and others."""
    there = [(machine.number, other.number) for other in others]
    return there + [(other.number, machine.number) for other in others]
