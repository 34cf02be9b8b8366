"""What an overlay world is and what befalls it: everything that a run depends on, but for recorded fates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from inaproto.core.models.events import ShardSpec
from inaproto.core.models.tree.epochs import Stand
from inaproto.core.models.tree.shape import Shape
from inaproto.core.models.tree.trees import OverlayTree
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.sim.kernel.config import TimedFault, WordsConfig
from inaproto.units import MS, S
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import NodeId

FIRST_SERVER: Final = 1000
"""The node of shard 0's parameter server; hosts have lower numbers."""
Below = tuple[tuple[int, tuple[int, ...]], ...]
"""A tree: each node that has children, with them."""


class FaultKind(StrEnum):
    HOST_CRASH = "host crash"
    """Host ``target`` loses its worker and all it knew; it starts again ``duration_ns`` later."""
    INTERIOR_CRASH = "interior crash"
    """The same, of a host that has children in some tree."""
    SERVER_CRASH = "server crash"
    """The parameter server of shard ``target`` loses all but what is on its disk."""
    PAIR_CRASH = "crash of two"
    """Host ``target`` and its parent in the tree of shard 0, which may be the server, at once."""
    HOST_LOST = "host lost"
    """Host ``target`` never comes back; ``duration_ns`` later its worker is removed by a person."""
    PAUSE = "pause"
    """Host ``target`` stands still, and then goes on as if nothing had been."""
    SERVER_PAUSE = "server pause"
    PARTITION = "partition"
    """Nothing passes between host ``target`` and anybody else."""
    EDGE_CUT = "edge cut"
    """Nothing passes between host ``target`` and its parent in the tree of shard 0."""
    RESET = "connections reset"
    """All connections of host ``target`` break."""
    BURST = "burst"
    """All words have the weather ``weather``."""
    WORKER_CRASH = "worker crash"
    """The worker of host ``target`` loses its process; another takes its place ``duration_ns`` later."""


@dataclass(frozen=True, slots=True)
class OverlayFault(TimedFault):
    kind: FaultKind


@dataclass(frozen=True, slots=True)
class ShardSetup:
    """A shard: its parameter server is node ``FIRST_SERVER`` plus its number."""

    below: Below
    """Its tree, as an ``OverlayTree`` has it: each node that has children, with them."""
    dtype: str = "int64"
    staleness: int = 0
    fraction_bits: int = -1
    """-1: none, no fixed point."""
    ahead_max: int = 8
    begins_trained: bool = False
    """Its first weights are not zeros."""
    others: tuple[Below, ...] = ()
    """Trees that may take the place of ``below``."""


@dataclass(frozen=True, slots=True)
class Reshaping:
    """The server of ``shard`` is told to use tree number ``tree``, if it can: ``below`` is number 0."""

    at_ns: int
    shard: int
    tree: int


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Worker ``w`` is number ``w`` of the configuration."""

    host: int
    clocks: int
    """Updates that it makes before it leaves."""
    think_ns: int
    """For an update, at most."""
    pushes: int = 1
    """Pushes of an update."""
    empty_every: int = 0
    """Every so many updates one has no push; 0: none."""
    pull_every: int = 1
    """Clocks between two pulls."""
    extra_staleness: int = 0
    """Staleness that it asks for beyond that of the shard; below 0: less, 0 at least."""
    staleness_spread: int = 0
    """How much more or less each pull asks for, at most."""
    side_pulls: int = 0
    """At most, beside each pull that it waits for: it goes on while they wait."""
    leaves_open: bool = False
    """Its last update has no clock: it leaves with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayConfig(WordsConfig):
    """``weather.drop`` breaks the connection. Late words hold up those behind them; none comes twice."""

    called: ClassVar[str] = "overlay world"

    hosts: tuple[int, ...]
    """All are in the tree of each shard; those without a worker only add and pass on."""
    workers: tuple[WorkerSetup, ...]
    shards: tuple[ShardSetup, ...]
    faults: tuple[OverlayFault, ...] = ()
    reshapings: tuple[Reshaping, ...] = ()
    heartbeat_ns: int = 4 * MS
    """-1: none."""
    dead_ns: int = 12 * MS
    return_ns: int = 12 * MS
    start_ns: int = 12 * MS
    """For which nodes that have not been met yet are not dead."""
    teardown_failures: int = 2
    removal_ns: int = -1
    """-1: no worker is removed but by a person."""
    redial_ns: int = 2 * MS
    silent_ns: int = 60 * MS
    """A connection whose other end has died without a word is noticed after that time at the latest."""
    snapshot_every: int = 8
    """Records after which a server writes a snapshot."""
    weather_until_ns: int = 100 * MS
    heal_ns: int = 4 * S
    events_max: int = 40_000

    def __post_init__(self) -> None:
        WordsConfig.__post_init__(self)
        hosts = sorted(self.hosts)
        if not self.workers or not self.shards or len(set(hosts)) < len(hosts):
            raise ConfigError("overlay world: hosts, each once, workers and shards")
        seats = [worker.host for worker in self.workers]
        if len(set(seats)) < len(seats) or not set(seats) <= set(hosts):
            raise ConfigError("overlay world: each worker has a host, and no two the same")
        if any(min(worker.clocks, worker.pushes, worker.pull_every) < 1 for worker in self.workers):
            raise ConfigError("overlay world: a worker has a clock, a push and a pull at least")
        for number in range(len(self.shards)):
            try:
                trees, _ = self.trees(number), self.spec(number)
            except LocalMisuse as error:
                raise ConfigError(f"overlay world: shard {number}: {error}") from None
            if any(sorted(tree.nodes) != [*hosts, FIRST_SERVER + number] for tree in trees):
                raise ConfigError(
                    f"overlay world: the tree of shard {number} has not all hosts, and no other"
                )
        for one in self.reshapings:
            if one.shard not in range(len(self.shards)) or one.tree not in range(len(self.trees(one.shard))):
                raise ConfigError(f"overlay world: {one}: there is no such shard or tree")

    @property
    def workers_all(self) -> tuple[WorkerId, ...]:
        return tuple(WorkerId(number) for number in range(len(self.workers)))

    @property
    def updates(self) -> int:
        """Updates of all workers."""
        return sum(worker.clocks for worker in self.workers)

    def tree(self, shard: int) -> OverlayTree:
        """At the start."""
        return self.trees(shard)[0]

    def trees(self, shard: int) -> tuple[OverlayTree, ...]:
        setup, root = self.shards[shard], NodeId(FIRST_SERVER + shard)
        return tuple(
            OverlayTree(root, tuple((NodeId(node), tuple(map(NodeId, under))) for node, under in below))
            for below in (setup.below, *setup.others)
        )

    def stands(self, shard: int, node: NodeId) -> tuple[Stand, ...]:
        """Where it is in each of the trees."""
        return tuple(
            Stand(tree.ancestors(node), tree.children(node), self._shape(shard, tree, node))
            for tree in self.trees(shard)
        )

    def _shape(self, shard: int, tree: OverlayTree, node: NodeId) -> Shape | None:
        """The order of additions below a node, where they have one."""
        if self.shards[shard].staleness:
            return None
        worker = {NodeId(setup.host): WorkerId(number) for number, setup in enumerate(self.workers)}
        return Shape.of(node, tree.children, worker.get)

    def spec(self, shard: int) -> ShardSpec:
        """Shard with an element for each update, and some that any addition shows in."""
        setup = self.shards[shard]
        return ShardSpec(
            elements=self.updates + NOISE,
            dtype=setup.dtype,
            staleness=setup.staleness,
            fraction_bits=None if setup.fraction_bits < 0 else setup.fraction_bits,
            ahead_max=setup.ahead_max,
        )


NOISE: Final = 5
"""Elements of arbitrary numbers, in which the order of additions shows too."""
