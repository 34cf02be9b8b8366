"""The deterministic overlay world: workers, hosts and servers in virtual time, from one agenda.

A world has two phases. Until ``weather_until_ns`` faults and weather befall it and it must be *safe*: no
checker may object. Then everything heals, and it must be *live*: every worker ends within ``heal_ns``, the
tree is whole again and the logs are empty. Everything depends on the configuration alone, so two runs give
one digest: a hash over every ``(time, node, event)`` in order.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from inaproto.core.models.events import Patience
from inaproto.core.models.messages import NodeId, Word
from inaproto.faults.weather import Weather
from inaproto.sim.frames.world import Violation
from inaproto.sim.kernel.agenda import Agenda
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.models.checkers import all_checkers
from inaproto.sim.models.checking import OverlayChecker
from inaproto.sim.models.config import FIRST_SERVER, OverlayConfig, Reshaping
from inaproto.sim.models.faults import Faults
from inaproto.sim.models.host import Host, NodeSeat
from inaproto.sim.models.ledger import Ledger
from inaproto.sim.models.machine import Machine
from inaproto.sim.models.network import Network, Seat
from inaproto.sim.models.server import Server
from inaproto.sim.models.text import say
from inaproto.sim.models.values import Values

if TYPE_CHECKING:
    from inaproto.sim.campaign.word_log import ControlRecorder

_SAMPLE_EVENTS: Final = 32
_DIGEST_BYTES: Final = 1 << 16
_CLEAR: Final = Weather()


@dataclass(slots=True)
class OverlaySteps:
    """Events handed to each kind of core."""

    node: int = 0
    root: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, item.name) for item in fields(self))


@dataclass(frozen=True, slots=True)
class OverlayResult:
    config: OverlayConfig
    violation: Violation | None
    digest: str
    events: int
    steps: OverlaySteps
    frames: int
    """Words."""
    operations_done: int
    """Pulls that were answered."""
    virtual_ns: int
    marks: Mapping[str, int]
    fates: LinkFates


class OverlayWorld:
    """One run; ``fates`` replays those of a log."""

    def __init__(
        self,
        config: OverlayConfig,
        *,
        fates: LinkFates | None = None,
        checkers: Sequence[OverlayChecker] | None = None,
        recorder: ControlRecorder | None = None,
    ) -> None:
        self.config = config
        self.agenda = Agenda()
        self.steps = OverlaySteps()
        self.events = 0
        self.operations_done = 0
        self.marks: dict[str, int] = {}
        self.weather = config.weather
        self.checkers = list(all_checkers() if checkers is None else checkers)
        self.removed: dict[int, None] = {}
        """Workers whose hosts are lost."""
        self.patience = Patience(
            heartbeat_ns=None if config.heartbeat_ns < 0 else config.heartbeat_ns,
            dead_ns=config.dead_ns,
            return_ns=config.return_ns,
            start_ns=config.start_ns,
        )
        self._recorder = recorder
        self._notes = bytearray()
        self._hash = hashlib.blake2b(digest_size=16)
        self.trees = [config.tree(shard) for shard in range(len(config.shards))]
        self.values = [Values(config, shard) for shard in range(len(config.shards))]
        clocks = [worker.clocks for worker in config.workers]
        self.ledgers = [Ledger(values, clocks) for values in self.values]
        self.network = Network(self, fates)
        self.faults = Faults(self)
        self.servers = [Server(self, shard) for shard in range(len(config.shards))]
        self.hosts = [Host(self, number) for number in config.hosts]
        self._host = {host.number: host for host in self.hosts}

    @property
    def machines(self) -> list[Machine]:
        return [*self.servers, *self.hosts]

    def seat(self, shard: int, node: NodeId) -> Seat:
        """A node of a shard's tree, or its root."""
        if node >= FIRST_SERVER:
            return self.servers[node - FIRST_SERVER]
        return self._host[node].seats[shard]

    # --- running

    def run(self) -> OverlayResult:
        """Run to the end, or to the first violation. Never raises for a fault of the parts."""
        violation = None
        try:
            self._run()
        except Violated as violated:
            where = traceback.extract_tb(violated.__traceback__)[-1]
            checker = where.filename.rpartition("/")[2].removesuffix(".py")
            violation = self._violation(violated.rule, violated.evidence, checker)
        except Exception as error:  # noqa: BLE001  whatever a part raises is what the world is there to find
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{where.name} in {where.filename.rpartition('/')[2]}:{where.lineno}"
            violation = self._violation("no part raises", f"{type(error).__name__}: {error} ({at})", "world")
        self._hash.update(self._notes)
        self._notes.clear()
        return OverlayResult(
            config=self.config,
            violation=violation,
            digest=self._hash.hexdigest(),
            events=self.events,
            steps=self.steps,
            frames=self.network.words,
            operations_done=self.operations_done,
            virtual_ns=self.agenda.now,
            marks=dict(sorted(self.marks.items())),
            fates=self.network.fates,
        )

    def _violation(self, rule: str, evidence: str, checker: str) -> Violation:
        return Violation(rule, evidence, self.events, self.agenda.now, checker)

    def _run(self) -> None:
        for checker in self.checkers:
            checker.begin(self)
        for machine in self.machines:
            machine.start()
        self.faults.begin()
        for one in self.config.reshapings:
            self.agenda.at(one.at_ns, self._reshape, one)
        if any(tree.height() >= 3 for tree in self.trees):
            self.mark("a tree was three levels high")
        if self.config.heartbeat_ns < 0:
            self.mark("a world had no heartbeats")
        until = self.config.weather_until_ns + self.config.heal_ns
        sampled = 0
        while not self._is_settled():
            if self.events >= sampled:
                sampled = self.events + _SAMPLE_EVENTS
                for checker in self.checkers:
                    checker.sample()
            if not self.agenda.run_next():
                raise Violated("no wait without deadline", f"nothing will happen any more; {self.waiting()}")
            if self.agenda.now > until or self.events > self.config.events_max:
                rule = "the tree is whole again" if self._are_over() else "every worker ends"
                raise Violated(rule, f"{self.events} events, long after the weather; {self.waiting()}")
        for checker in self.checkers:
            checker.end(self)

    def _reshape(self, one: Reshaping) -> None:
        self.servers[one.shard].reshape(one.tree)

    def _are_over(self) -> bool:
        return all(
            host.worker_number is None or host.is_lost or (host.worker is not None and host.worker.is_over)
            for host in self.hosts
        ) and all(ledger.is_over() for ledger in self.ledgers)

    def _is_settled(self) -> bool:
        """All workers are over, durably; every node is where it belongs, and keeps nothing."""
        if self.agenda.now < self.config.weather_until_ns or not self._are_over():
            return False
        return all(self._is_well(seat) for host in self.hosts if not host.is_lost for seat in host.seats)

    def _is_well(self, seat: NodeSeat) -> bool:
        if not seat.host.is_up:
            return False
        view = seat.core.view()
        return view.is_attached and view.parent == self._place(seat) and not view.logged and not view.kept

    def _place(self, seat: NodeSeat) -> NodeId:
        """Its next living ancestor, or the root where so many hosts are lost that the tree is torn down."""
        lost = [host.node for host in self.hosts if host.is_lost]
        ancestors = seat.config.stands[self.ledgers[seat.shard].epochs[-1].tree].ancestors
        if len(lost) >= self.config.teardown_failures:
            return ancestors[-1]
        return next(node for node in ancestors if node not in lost)

    def waiting(self) -> str:
        """For people: what is not as it should be at the end."""
        said = []
        for host in self.hosts:
            if host.worker is not None and not host.worker.is_over:
                said.append(str(host.worker))
            said += [
                f"{seat} is {seat.core.view() if host.is_up else 'down'}"
                for seat in host.seats
                if not host.is_lost and not self._is_well(seat)
            ]
        said += [f"{server} is {server.core.view()}" for server in self.servers]
        return "; ".join(said)

    # --- what the parts tell

    def set_weather(self, weather: Weather | None) -> None:
        self.weather = weather or _CLEAR
        self.network.set_weather(self.weather)

    def mark(self, name: str) -> None:
        times = self.marks[name] = self.marks.get(name, 0) + 1
        if name in self.faults.moments:
            self.faults.moment(name, times)

    def say(self, shard: int, what: object) -> str:
        return say(self.values[shard], what)

    def note(self, machine: Machine, kind: str, detail: object) -> None:
        """An event at a machine: into the digest, and the log if there is one."""
        self.events += 1
        said = str(detail)
        self._notes += f"{self.agenda.now} {machine.number} {kind} {said}\n".encode()
        if len(self._notes) > _DIGEST_BYTES:
            self._hash.update(self._notes)
            self._notes.clear()
        if self._recorder is not None:
            self._recorder.event(self.events, self.agenda.now, machine.name, kind, said)

    def said(self, seat: Seat, peer: NodeId, word: Word, fate: Fate, lost: str) -> None:
        """A node tells another, whether or not it will be heard."""
        if self._recorder is not None:
            to = self.seat(seat.shard, peer).machine.name
            name = f"{seat.machine.name}>{to}/{seat.shard}"
            self._recorder.sent(name, f"{type(word).__name__} {self.say(seat.shard, word)}", fate, lost)
