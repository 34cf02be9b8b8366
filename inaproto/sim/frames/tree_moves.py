"""Rings through the switches that move under their jobs, as a controller wishes (MINA section IV-A).

At the times that a world's configuration names, a job's turn ends: all hosts agree on the all-reduce from
which on none goes by the switches. Its ring is wished away, then elsewhere, or elsewhere at once; when it
stands and all hosts have heard of it they agree on where the next turn begins. What hosts agree on is one
thing here for all of them (how real ones agree: :mod:`inaproto.core.sharing.coordinator`). Wishes are said
again to a control plane that has restarted; one that it refuses stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inaproto.core.host.engines.two_paths import TwoPaths
from inaproto.core.rendezvous.events import TreesWished
from inaproto.sim.frames.draw.swarm import JobConfig, TreeMove
from inaproto.wire.messages.trees import FabricTree, TreeState, TreeWished

if TYPE_CHECKING:
    from inaproto.sim.frames.host.ring import HostRing
    from inaproto.sim.frames.world import World

_NEVER: Final = 1 << 62


@dataclass(slots=True)
class _Between:
    """Between two turns, in these lives: all-reduces ``until`` to before ``first`` go by the base ring."""

    life: int
    until: int
    next_life: int = 0
    first: int = _NEVER

    def covers(self, life: int, op_index: int) -> bool:
        begun = op_index >= self.until if life == self.life else life == self.next_life or not self.is_over
        ended = life == self.next_life and op_index >= self.first
        return begun and not ended

    @property
    def is_over(self) -> bool:
        return self.first != _NEVER


class TreeMover:
    """Moves trees of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._wishes: dict[str, TreeWished] = {}
        self._epoch = 0
        self._targets: dict[str, FabricTree] = {}
        """Trees to come of jobs whose ring is to be parked first."""
        self._between: dict[str, list[_Between]] = {}
        self._refused: set[int] = set()
        """Epochs of wishes."""
        self._is_looking = False

    def begin(self) -> None:
        for move in self._world.config.moves:
            self._world.agenda.at(move.at_ns, self._move, move)

    # --- what hosts agree on

    def is_between_turns(self, job: str, life: int, op_index: int) -> bool:
        return any(gap.covers(life, op_index) for gap in self._between.get(job, ()))

    def may_park(self, ring: HostRing) -> bool:
        """It binds nothing to the ring through the switches any more, and nothing of it is on its way."""
        engine = ring.engine
        if not isinstance(engine, TwoPaths) or not engine.is_ina_idle:
            return False
        return self.is_between_turns(ring.job.name, ring.life, engine.binds_next)

    def _end_turn(self, job: JobConfig) -> None:
        gaps = self._between.setdefault(job.name, [])
        if not gaps or gaps[-1].is_over:
            life, at = self._foremost(job)
            gaps.append(_Between(life, at))

    def _foremost(self, job: JobConfig) -> tuple[int, int]:
        """Its life, 0 where its hosts differ; and the all-reduce that is bound next at the one ahead."""
        rings = [ring for ring in self._rings(job) if ring.engine is not None]
        lives = {ring.life for ring in rings}
        if len(lives) != 1:
            return 0, 0
        return lives.pop(), max(ring.engine.operations.started for ring in rings if ring.engine is not None)

    def _rings(self, job: JobConfig) -> list[HostRing]:
        return [ring for host in self._world.hosts for ring in host.rings if ring.job is job]

    # --- wishes

    def _move(self, move: TreeMove) -> None:
        world, job = self._world, self._world.config.jobs[move.job]
        self._end_turn(job)
        tree = self.tree_to(move.root)
        if move.at_once:
            self._targets.pop(job.name, None)
            self._wish(job.name, tree)
        else:
            self._targets[job.name] = tree
            self._wish(job.name, None)
        for ring in self._rings(job):
            ring.park_if_idle()
        world.mark("a ring was to move")

    def tree_to(self, root: int) -> FabricTree:
        """The tree of a further root, or, for -1, the fabric's own."""
        topology = self._world.config.topology
        if topology is None:
            return FabricTree(f"root{root}")
        if root >= 0:
            return topology.further_tree(root)
        names = [switch.name for switch in topology.switches]
        above = ((switch.name, names[switch.above]) for switch in topology.switches if switch.above >= 0)
        return FabricTree(names[0], tuple(sorted(above)))

    def _wish(self, job: str, tree: FabricTree | None) -> None:
        self._epoch += 1
        self._wishes[job] = TreeWished(job, self._epoch, tree)
        if self._world.switch.is_up:
            self._world.control.handle(TreesWished(self.wishes))

    @property
    def wishes(self) -> tuple[TreeWished, ...]:
        return tuple(self._wishes.values())

    # --- what becomes of them

    def look(self) -> None:
        """Something may have changed at the control plane, or at a host."""
        if self._is_looking or not self._wishes or not self._world.switch.is_up:
            return
        self._is_looking = True
        for state in self._world.control.core.tree_states():
            wish = self._wishes.get(state.job)
            if wish is not None and state.epoch == wish.epoch:
                self._followed(state)
        self._is_looking = False

    def _followed(self, state: TreeState) -> None:
        world = self._world
        [job] = [job for job in world.config.jobs if job.name == state.job]
        if state.phase == "parked" and job.name in self._targets:
            world.mark("a ring was parked under its job")
            self._wish(job.name, self._targets.pop(job.name))
        elif state.phase == "refused" and state.epoch not in self._refused:
            self._refused.add(state.epoch)
            world.mark("a ring could not move where it was wished")
        elif state.phase == "standing" and not self._between[job.name][-1].is_over:
            rings = self._rings(job)
            if all(isinstance(ring.engine, TwoPaths) and not ring.engine.is_parked for ring in rings):
                gap = self._between[job.name][-1]
                gap.next_life, gap.first = self._foremost(job)
                if gap.life == gap.next_life != 0:
                    world.mark("a ring moved under traffic")

    def is_parked(self, job: str) -> bool:
        """As the control plane has it: no switch has the ring."""
        if not self._wishes or not self._world.switch.is_up:
            return False
        states = self._world.control.core.tree_states()
        return any(state.job == job and state.phase == "parked" for state in states)
