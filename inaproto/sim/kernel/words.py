"""What worlds of words have in common: control and models, whose subject is what nodes say, not frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from inaproto.faults.streams import Draws, Seed
from inaproto.faults.weather import Weather
from inaproto.sim.kernel.fates import DrawnFates, Fate, FateSource, LinkFates, RecordedFates
from inaproto.sim.kernel.moments import FaultsAtMoments
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.kernel.world import DIGEST_BYTES, SimulatedWorld

_SAMPLE_EVENTS: Final = 32
_CLEAR: Final = Weather()


class WordsConfig(Protocol):
    """What a world of words reads of its configuration."""

    @property
    def seed(self) -> str: ...
    @property
    def weather(self) -> Weather: ...
    @property
    def weather_until_ns(self) -> int: ...
    @property
    def heal_ns(self) -> int: ...
    @property
    def events_max(self) -> int: ...


class WordsChecker(Protocol):
    """What a world of words calls on each of its checkers; ``world`` is the world of the checker's kind."""

    def begin(self, world: Any) -> None: ...
    def sample(self) -> None: ...
    def end(self, world: Any) -> None: ...


class WordsRecorder(Protocol):
    """Keeps the log of a run, event by event."""

    def event(self, number: int, at_ns: int, node: str, kind: str, detail: str) -> None: ...
    def sent(self, path: str, what: str, fate: Fate, lost: str) -> None: ...


class NamedMachine(Protocol):
    """A machine, as a note names it."""

    number: int
    name: str


class Way:
    """One direction between two nodes: how long words take, and what the weather does to them."""

    def __init__(self, name: str, seed: Seed, weather: Weather, fates: LinkFates | None) -> None:
        self.name = name
        self.delays = Draws(seed, f"delay/{name}")
        self.fates: FateSource
        if fates is None:
            self.fates = DrawnFates(weather, seed, f"weather/{name}")
        else:
            self.fates = RecordedFates(fates.get(name, {}))


class Cuts:
    """Says which directions between machines are stopped, by how many partitions at once."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[int, int], int] = {}

    def cut(self, directions: Sequence[tuple[int, int]]) -> None:
        for each in directions:
            self._cuts[each] = self._cuts.get(each, 0) + 1

    def join(self, directions: Sequence[tuple[int, int]]) -> None:
        for each in directions:
            self._cuts[each] -= 1

    def between(self, source: int, target: int) -> bool:
        return self._cuts.get((source, target), 0) > 0


class WordsNetwork(Protocol):
    """What carries the words of a world."""

    @property
    def fates(self) -> LinkFates: ...
    def set_weather(self, weather: Weather) -> None: ...


Checker = TypeVar("Checker", bound=WordsChecker)
Network = TypeVar("Network", bound=WordsNetwork)


class WorldOfWords(SimulatedWorld, Generic[Checker, Network]):
    """A run of control or models; subclasses make the nodes and say when it is over."""

    network: Network
    faults: FaultsAtMoments[Any]
    checkers: list[Checker]

    def __init__(self, config: WordsConfig, recorder: WordsRecorder | None) -> None:
        super().__init__()
        self.weather = config.weather
        self._limits = config
        self._recorder = recorder

    # --- for the kinds of worlds

    @abstractmethod
    def _begin(self) -> None:
        """Start the nodes and plan what happens."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether everybody is over, durably, and nothing is held by anybody."""

    @abstractmethod
    def _overdue_rule(self) -> str:
        """Name the rule that is broken by what is not over long after the weather."""

    # --- running

    def _run(self) -> None:
        for checker in self.checkers:
            checker.begin(self)
        self._begin()
        until = self._limits.weather_until_ns + self._limits.heal_ns
        sampled = 0
        while not self.is_settled:
            if self.events >= sampled:
                sampled = self.events + _SAMPLE_EVENTS
                for checker in self.checkers:
                    checker.sample()
            if not self.agenda.run_next():
                raise Violated("no wait without deadline", f"nothing will happen any more; {self.waiting()}")
            if self.agenda.now > until or self.events > self._limits.events_max:
                evidence = f"{self.events} events, long after the weather; {self.waiting()}"
                raise Violated(self._overdue_rule(), evidence)
        for checker in self.checkers:
            checker.end(self)

    # --- what the parts tell

    def set_weather(self, weather: Weather | None) -> None:
        self.weather = weather or _CLEAR
        self.network.set_weather(self.weather)

    def mark(self, name: str) -> None:
        super().mark(name)
        if name in self.faults.moments:
            self.faults.moment(name, self.marks[name])

    def note(self, machine: NamedMachine, kind: str, detail: object) -> None:
        """Take an event at a machine into the digest, and into the log if there is one."""
        self.events += 1
        said = str(detail)
        self._notes += f"{self.agenda.now} {machine.number} {kind} {said}\n".encode()
        if len(self._notes) > DIGEST_BYTES:
            self._hash_notes()
        if self._recorder is not None:
            self._recorder.event(self.events, self.agenda.now, machine.name, kind, said)
