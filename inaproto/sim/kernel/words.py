"""What worlds of words have in common: control, trees and models, whose subject is what nodes say, not
frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from inaproto.faults.weather import Weather
from inaproto.sim.kernel.config import CLEAR, WordsConfig
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.faults import Faults
from inaproto.sim.kernel.hooks import together
from inaproto.sim.kernel.machine import Machine
from inaproto.sim.kernel.network import Ways
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.kernel.world import DIGEST_BYTES, RunResult, SimulatedWorld


class WordsChecker(Protocol):
    """What a world of words calls on each of its checkers; ``world`` is the world of the checker's kind."""

    def begin(self, world: Any) -> None: ...
    def sample(self) -> None: ...
    def end(self, world: Any) -> None: ...


class WordsRecorder(Protocol):
    """Keeps the log of a run, event by event."""

    def event(self, number: int, at_ns: int, node: str, kind: str, detail: str) -> None: ...
    def sent(self, path: str, what: str, fate: Fate, lost: str) -> None: ...


Config = TypeVar("Config", bound=WordsConfig)
Checker = TypeVar("Checker", bound=WordsChecker)
Network = TypeVar("Network", bound=Ways[Any])


class WorldOfWords(SimulatedWorld, Generic[Config, Checker, Network]):
    """A run of control, trees or models; subclasses make the machines and say when it is over."""

    config: Config
    network: Network
    faults: Faults[Any]

    checker_kind: type[Any]
    """Its hooks are those of all checkers."""
    all_checkers: Callable[[], Sequence[Any]]

    def __init__(
        self,
        config: Config,
        *,
        fates: LinkFates | None = None,
        checkers: Sequence[Checker] | None = None,
        recorder: WordsRecorder | None = None,
    ) -> None:
        """``fates`` replays those of a log."""
        super().__init__()
        self.config = config
        self.weather = config.weather
        self.checkers: Sequence[Checker] = type(self).all_checkers() if checkers is None else checkers
        self.hooks: Checker = together(self.checker_kind, self.checkers)
        self._recorder = recorder
        self._make(fates)

    def run(self) -> RunResult[Config]:
        """Run to the end, or to the first violation. Never raises for a fault of the parts."""
        return RunResult(**self._ran())

    # --- for the kinds of worlds

    @abstractmethod
    def _make(self, fates: LinkFates | None) -> None:
        """Make the network and the machines."""

    @property
    @abstractmethod
    def machines(self) -> Sequence[Machine[Any]]:
        """Machines in the order in which they start; the first is told of what befalls all."""

    @abstractmethod
    def _begin(self) -> None:
        """Plan what happens, but for faults; the machines have started."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether everybody is over, durably, and nothing is held by anybody."""

    @abstractmethod
    def _overdue_rule(self) -> str:
        """Name the rule that is broken by what is not over long after the weather."""

    # --- running

    @property
    def fates(self) -> LinkFates:
        return self.network.fates

    def _carried(self) -> int:
        return self.network.words

    def _run(self) -> None:
        self.hooks.begin(self)
        for machine in self.machines:
            machine.start()
        self.faults.begin()
        self._begin()
        until = self.config.weather_until_ns + self.config.heal_ns
        sampled = 0
        while not self.is_settled:
            if self.events >= sampled:
                sampled = self.events + self.config.sample_events
                self.hooks.sample()
            if not self.agenda.run_next():
                raise Violated("no wait without deadline", f"nothing will happen any more; {self.waiting()}")
            if self.agenda.now > until or self.events > self.config.events_max:
                evidence = f"{self.events} events, long after the weather; {self.waiting()}"
                raise Violated(self._overdue_rule(), evidence)
        self.hooks.end(self)

    # --- what the parts tell

    def set_weather(self, weather: Weather | None) -> None:
        self.weather = weather or CLEAR
        self.network.set_weather(self.weather)

    def mark(self, name: str) -> None:
        super().mark(name)
        if name in self.faults.moments:
            self.faults.moment(name, self.marks[name])

    def note(self, machine: Machine[Any], kind: str, detail: object) -> None:
        """Take an event at a machine into the digest, and into the log if there is one."""
        self.events += 1
        said = str(detail)
        self._notes += f"{self.agenda.now} {machine.number} {kind} {said}\n".encode()
        if len(self._notes) > DIGEST_BYTES:
            self._hash_notes()
        if self._recorder is not None:
            self._recorder.event(self.events, self.agenda.now, machine.name, kind, said)

    def sent(self, way: str, what: Any, fate: Fate, lost: str) -> None:
        """A node says it to another, whether or not it will be heard."""
        if self._recorder is not None:
            self._recorder.sent(way, str(what), fate, lost)
