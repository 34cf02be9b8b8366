"""Faults of a world, each at its time or at a moment: after a mark was set so many times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from inaproto.sim.kernel.agenda import Agenda


class FaultAtMoment(Protocol):
    """When a fault strikes: at ``at_ns``, or that long after ``moment`` was marked ``occurrence`` times."""

    @property
    def at_ns(self) -> int: ...
    @property
    def moment(self) -> str: ...
    @property
    def occurrence(self) -> int: ...


Fault = TypeVar("Fault", bound=FaultAtMoment)


class FaultsAtMoments(ABC, Generic[Fault]):
    """Schedules faults, and the healing that ends them all."""

    def __init__(self, agenda: Agenda, faults: Iterable[Fault], weather_until_ns: int) -> None:
        self._agenda = agenda
        self._faults = tuple(faults)
        self._weather_until_ns = weather_until_ns
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
        if left > 0:
            self._strike(fault, left)

    def _heal(self, _: Any) -> None:
        self.healed = True
        self._calm_down()

    @abstractmethod
    def _strike(self, fault: Fault, left_ns: int) -> None:
        """Let ``fault`` befall the world; it must end within ``left_ns``."""

    @abstractmethod
    def _calm_down(self) -> None:
        """End all weather."""
