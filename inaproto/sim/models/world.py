"""The deterministic overlay world: workers, hosts and servers in virtual time, from one agenda.

A world has two phases. Until ``weather_until_ns`` faults and weather befall it and it must be *safe*: no
checker may object. Then everything heals, and it must be *live*: every worker ends within ``heal_ns``, the
tree is whole again and the logs are empty. Everything depends on the configuration alone, so two runs give
one digest: a hash over every ``(time, node, event)`` in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from inaproto.core.models.events import Patience
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.words import WorldOfWords
from inaproto.sim.kernel.world import StepCounts
from inaproto.sim.models.checkers import all_checkers
from inaproto.sim.models.checking import OverlayChecker
from inaproto.sim.models.config import FIRST_SERVER, OverlayConfig, Reshaping
from inaproto.sim.models.faults import OverlayFaults
from inaproto.sim.models.host import Host, NodeSeat
from inaproto.sim.models.ledger import Ledger
from inaproto.sim.models.machine import Machine
from inaproto.sim.models.network import Network, Seat
from inaproto.sim.models.server import Server
from inaproto.sim.models.text import say
from inaproto.sim.models.values import Values
from inaproto.wire.messages.models import NodeId, Word


@dataclass(slots=True)
class OverlaySteps(StepCounts):
    """Events handed to each kind of core."""

    node: int = 0
    root: int = 0


class OverlayWorld(WorldOfWords[OverlayConfig, OverlayChecker, Network]):
    """One run."""

    steps: OverlaySteps

    checker_kind = OverlayChecker
    all_checkers = staticmethod(all_checkers)

    def _make(self, fates: LinkFates | None) -> None:
        config = self.config
        self.steps = OverlaySteps()
        self.removed: dict[int, None] = {}
        """Workers whose hosts are lost."""
        self.patience = Patience(
            heartbeat_ns=None if config.heartbeat_ns < 0 else config.heartbeat_ns,
            dead_ns=config.dead_ns,
            return_ns=config.return_ns,
            start_ns=config.start_ns,
        )
        self.trees = [config.tree(shard) for shard in range(len(config.shards))]
        self.values = [Values(config, shard) for shard in range(len(config.shards))]
        clocks = [worker.clocks for worker in config.workers]
        self.ledgers = [Ledger(values, clocks) for values in self.values]
        self.network = Network(self, fates)
        self.faults = OverlayFaults(self)
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

    def _begin(self) -> None:
        for one in self.config.reshapings:
            self.agenda.at(one.at_ns, self._reshape, one)
        if any(tree.height() >= 3 for tree in self.trees):
            self.mark("a tree was three levels high")
        if self.config.heartbeat_ns < 0:
            self.mark("a world had no heartbeats")

    def _reshape(self, one: Reshaping) -> None:
        self.servers[one.shard].reshape(one.tree)

    def _are_over(self) -> bool:
        return all(
            host.worker_number is None or host.is_lost or (host.worker is not None and host.worker.is_over)
            for host in self.hosts
        ) and all(ledger.is_over() for ledger in self.ledgers)

    def _overdue_rule(self) -> str:
        return "the tree is whole again" if self._are_over() else "every worker ends"

    @property
    def is_settled(self) -> bool:
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

    def say(self, shard: int, what: object) -> str:
        return say(self.values[shard], what)

    def said(self, seat: Seat, peer: NodeId, word: Word, fate: Fate, lost: str) -> None:
        """A node tells another, whether or not it will be heard."""
        if self._recorder is not None:
            to = self.seat(seat.shard, peer).machine.name
            what = f"{type(word).__name__} {self.say(seat.shard, word)}"
            self.sent(f"{seat.machine.name}>{to}/{seat.shard}", what, fate, lost)
