"""A job whose ring through the switches is moved by a test: who agrees, who wishes, and what is seen of it.

Daemons are real, in this Trio program; who gives turns, and who wishes, is the test: operations go by the
ring through the switches but for those around each move, as hosts agree on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from inaproto.core.host.engines.two_paths import TwoPaths
from inaproto.core.host.operations import BASE, INA, BoundPath
from inaproto.daemon.host.daemon import HostDaemon
from inaproto.daemon.host.turns import Turns, TurnsOf
from inaproto.daemon.switch.control_plane import ControlPlane
from inaproto.units import OpIndex
from inaproto.wire.messages.trees import FabricTree, TreeState, TreeWished
from tests.daemon.test_two_paths import Planned, ring_of

NEVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Daemons:
    hosts: Callable[[], list[HostDaemon]]
    plane: Callable[[], ControlPlane]


class Agreed:
    """What all hosts have agreed on: all goes by the switches but what lies between two turns."""

    def __init__(self) -> None:
        self.between: list[tuple[int, int]] = []
        """The operation that ends a turn, and the one that begins the next."""
        self.turns: dict[int, list[Parking]] = {}

    @property
    def until(self) -> int:
        return self.between[-1][0] if self.between else NEVER

    def path(self, op_index: int) -> BoundPath:
        return BASE if any(until <= op_index < first for until, first in self.between) else INA

    def ends(self, daemons: Daemons) -> None:
        """The turn, with the operation that the host which is ahead binds next."""
        self.between.append((max(self._binds_next(daemons)), NEVER))
        for turns in self.turns.values():
            turns[-1].look()

    def begins(self, daemons: Daemons) -> None:
        self.between[-1] = (self.until, max(self._binds_next(daemons)))

    @staticmethod
    def _binds_next(daemons: Daemons) -> list[int]:
        found = [ring_of(host).core.engine for host in daemons.hosts()]
        return [engine.binds_next for engine in found if isinstance(engine, TwoPaths)]

    def __call__(self, host: int) -> TurnsOf:
        def of(job: str) -> Turns:
            self.turns.setdefault(host, []).append(Parking(self))
            return self.turns[host][-1]

        return of


class Parking(Planned):
    """Of one host."""

    def __init__(self, agreed: Agreed) -> None:
        super().__init__(agreed.path)
        self.agreed = agreed
        self.pools: list[tuple[str, int]] = []
        self.stood = trio.Event()
        self._next = 0
        self._on_its_way: set[int] = set()
        self._parked: Callable[[], object] | None = None

    def begin(
        self,
        *,
        ring_id: int,
        hosts: int,
        next_operation: OpIndex,
        changed: Callable[[], object],
        pool: str = "",
        stand: int = 0,
        differs: Callable[[OpIndex, str], object] = lambda op_index, host: None,
    ) -> None:
        self.pools.append((pool, stand))
        self.stood.set()
        self._next = next_operation
        self._on_its_way.clear()

    def park(self, parked: Callable[[], object]) -> None:
        self._parked = parked
        self.look()

    def look(self) -> None:
        parked = self._parked
        if parked is not None and self._next >= self.agreed.until and not self._on_its_way:
            self._parked, self.stood = None, trio.Event()
            parked()

    def bound(self, op_index: OpIndex, path: BoundPath) -> None:
        self._next = op_index + 1
        if path == INA:
            self._on_its_way.add(op_index)
        self.look()

    def drained(self, op_index: OpIndex) -> None:
        super().drained(op_index)
        self._on_its_way.discard(op_index)
        self.look()

    def ring_ended(self) -> None:
        super().ring_ended()
        self._parked, self.stood = None, trio.Event()
        self._on_its_way.clear()


class Mover:
    """Wishes, and waits until they are followed; raises if anything is refused."""

    def __init__(self, daemons: Daemons, agreed: Agreed) -> None:
        self.daemons, self.agreed = daemons, agreed
        self.epoch = 0
        self.phases: list[str] = []

    def state(self) -> TreeState:
        [state] = self.daemons.plane().tree_states()
        return state

    async def until(self, phase: str) -> TreeState:
        changed = trio.Event()

        def look() -> None:
            state = self.state()
            self.phases.append(state.phase)
            if (state.phase, state.epoch) == (phase, self.epoch):
                changed.set()

        plane = self.daemons.plane()
        plane.trees_changed = look
        look()
        await changed.wait()
        plane.trees_changed = lambda: None
        return self.state()

    def wish(self, tree: FabricTree | None, job: str) -> None:
        self.epoch += 1
        self.daemons.plane().wish_trees((TreeWished(job, self.epoch, tree),))

    async def park(self, job: str) -> None:
        self.agreed.ends(self.daemons)
        self.wish(None, job)
        await self.until("parked")

    async def move(self, tree: FabricTree, job: str) -> None:
        await self.park(job)
        self.wish(tree, job)
        await self.stands()

    async def stands(self) -> None:
        """And every host has heard of it: a turn begins."""
        await self.until("standing")
        for turns in self.agreed.turns.values():
            await turns[-1].stood.wait()
        self.agreed.begins(self.daemons)


def engine_of(host: HostDaemon) -> TwoPaths:
    engine = ring_of(host).core.engine
    assert isinstance(engine, TwoPaths)
    return engine


def generations(daemons: Daemons) -> set[tuple[object, int]]:
    """Ring of each host, and how many it had before."""
    found = [ring_of(host).status() for host in daemons.hosts()]
    return {(ring["ring_id"], ring["recoveries"]) for ring in found}
