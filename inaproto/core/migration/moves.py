"""How the moves of jobs from tree to tree go: phases, and how long each took (MINA, section IV-A).

A move begins when the plan has another tree for a job whose ring stands, or when a slot of its tree is lost;
it ends when the root of the fabric reports the ring as standing on the new tree. What the coordinator of
migration measures is its own part; ours has what the switches take to give up and get the ring as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from inaproto.core.migration.events import JobView, Migration, Phase
from inaproto.wire.messages.trees import TreeState, TreeWished

INSTALLING: Final = "installing"
"""Its slots are there; its switches get the ring."""
STABLE: Final = "stable"
"""The phase in which a move ends."""
JOB_OVER: Final = "job over"
"""Or this one."""
MOVES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Move:
    """Seconds, by the controller's clock; operations as its hosts tell where they are."""

    number: int
    job: str
    old: str
    """Root."""
    new: str
    began: float
    phase: str = ""
    epoch: int = 0
    parked: float | None = None
    """When no host and no switch had the ring any more."""
    acquired: float | None = None
    drain_s: float = 0.0
    """Until no operation was in the switches, and they had given the ring up."""
    release_s: float = 0.0
    """From then until no switch lent a slot of the old tree."""
    barrier_s: float = 0.0
    """From then until all others had released."""
    acquire_s: float = 0.0
    """From then until all switches of the new tree lent theirs."""
    install_s: float = 0.0
    """From then until they had the ring, and its hosts were told."""
    total_s: float = 0.0
    refusals: int = 0
    operation: int | None = None
    """The last that was heard of before the ring was given up."""
    operations: int | None = None
    """Operations by the hosts meanwhile; None: not known (yet)."""
    failed: str = ""

    @property
    def downtime_s(self) -> float:
        """Without a ring through the switches."""
        return self.release_s + self.barrier_s + self.acquire_s + self.install_s


@dataclass(frozen=True, slots=True)
class MovePhase:
    """A move has come to another phase."""

    job: str
    old: str
    """Root."""
    new: str
    phase: str


class Moves:
    """The moves under way, and the last that ended."""

    def __init__(self) -> None:
        self._roots: dict[str, str] = {}
        """Roots of jobs whose rings stand, or stood last."""
        self._under_way: dict[str, Move] = {}
        self._done: deque[Move] = deque(maxlen=MOVES_MAX)
        self._counted: dict[int, None] = {}
        """Numbers of moves whose operations are not known yet."""
        self._next = 1
        self._last_operation: dict[str, int] = {}
        self._said: list[MovePhase] = []
        """What this look has found."""

    def look(
        self,
        jobs: Iterable[JobView],
        states: Mapping[str, TreeState],
        wishes: Mapping[str, TreeWished],
        targets: Mapping[str, str],
        migrations: Iterable[Migration],
        places: Mapping[str, int],
        now: float,
    ) -> list[MovePhase]:
        """Look at everything anew: what came in between is late, and not missed.

        ``targets``: roots, by job; ``places``: the operation at which a job is, where that is known; ``now``:
        seconds.
        """
        self._said = []
        measured = {one.epoch: one for one in migrations}
        views = {one.job: one for one in jobs}
        for name, state in states.items():
            if name in places:
                self._last_operation[name] = places[name]
            self._see(name, state, views.get(name), wishes.get(name), targets.get(name, ""), now, measured)
        known = states.keys() | views.keys()
        for name in sorted((self._roots.keys() | self._last_operation.keys()) - known):
            self._over(name)
        self._count(places)
        return self._said

    def root_of(self, job: str) -> str:
        return self._roots.get(job, "")

    def _see(
        self,
        name: str,
        state: TreeState,
        view: JobView | None,
        wish: TreeWished | None,
        target: str,
        now: float,
        measured: Mapping[int, Migration],
    ) -> None:
        move = self._under_way.get(name)
        tree = None if wish is None else wish.tree
        stands = state.phase == "standing" and (
            wish is None or (tree is not None and state.epoch == wish.epoch)
        )
        if move is None and name in self._roots and target:
            leaves = view is not None and view.phase not in (Phase.STABLE, Phase.ADOPTING)
            elsewhere = target != self._roots[name]
            if elsewhere or (leaves and view is not None and view.phase is Phase.DRAINING):
                move = Move(self._next, name, self._roots[name], target, now)
                self._next += 1
        if move is not None:
            move = self._go_on(move, state, view, wish, target, now)
            if stands and tree is not None and tree.root == move.new and wish is not None:
                self._finish(replace(move, epoch=wish.epoch), measured.get(wish.epoch), now)
            else:
                self._under_way[name] = move
        if stands and tree is not None:
            self._roots[name] = tree.root

    def has_ended_at(self, job: str, root: str) -> bool:
        """Its ring was there when all was looked at last, and no move of it is under way."""
        return self._roots.get(job) == root and job not in self._under_way

    def stands(self, job: str, root: str) -> None:
        """Where nobody has wished it to be anywhere, its ring stands here."""
        self._roots.setdefault(job, root)

    def _go_on(
        self,
        move: Move,
        state: TreeState,
        view: JobView | None,
        wish: TreeWished | None,
        target: str,
        now: float,
    ) -> Move:
        phase = move.phase
        if wish is not None and wish.tree is not None and wish.tree.root == target:
            phase = INSTALLING
            if move.acquired is None:
                move = replace(move, acquired=now)
        elif view is not None and view.phase not in (Phase.STABLE, Phase.ADOPTING):
            phase = view.phase.value
        elif not phase:
            phase = Phase.DRAINING.value
        if target and target != move.new:
            move = replace(move, new=target, acquired=None)
        if move.parked is None and state.phase in ("parked", "moving"):
            move = replace(move, parked=now, operation=self._last_operation.get(move.job))
        move = replace(move, failed=state.reason if state.phase == "refused" else "")
        if phase != move.phase:
            self._said.append(MovePhase(move.job, move.old, move.new, phase))
        return replace(move, phase=phase)

    def _finish(self, move: Move, measured: Migration | None, now: float) -> None:
        parked = move.began if move.parked is None else move.parked
        acquired = now if move.acquired is None else move.acquired
        move = replace(move, phase=STABLE, drain_s=parked - move.began, total_s=now - move.began)
        if measured is not None:
            s = 1e-9
            barrier, acquire = measured.barrier_ns * s, measured.acquire_ns * s
            move = replace(
                move,
                barrier_s=barrier,
                acquire_s=acquire,
                release_s=max(0.0, acquired - parked - barrier - acquire),
                refusals=measured.refusals,
            )
        move = replace(move, install_s=now - max(acquired, parked))
        self._under_way.pop(move.job, None)
        self._said.append(MovePhase(move.job, move.old, move.new, STABLE))
        if len(self._done) == MOVES_MAX:
            self._counted.pop(self._done[0].number, None)
        self._done.append(move)
        if move.operation is not None:
            self._counted[move.number] = None

    def _count(self, places: Mapping[str, int]) -> None:
        """A seat that has just opened says where its job is."""
        for place, move in enumerate(self._done):
            if move.number in self._counted and (at := places.get(move.job)) is not None:
                assert move.operation is not None, "else it is not counted"
                self._done[place] = replace(move, operations=max(0, at - move.operation))
                del self._counted[move.number]

    def _over(self, name: str) -> None:
        self._roots.pop(name, None)
        self._last_operation.pop(name, None)
        for done in self._done:
            if done.job == name:
                self._counted.pop(done.number, None)
        move = self._under_way.pop(name, None)
        if move is not None:
            self._said.append(MovePhase(name, move.old, move.new, JOB_OVER))

    @property
    def under_way(self) -> tuple[Move, ...]:
        return tuple(self._under_way.values())

    @property
    def done(self) -> tuple[Move, ...]:
        """The last ones, oldest first."""
        return tuple(self._done)

    def last(self, job: str) -> Move | None:
        """The last move of a job that has ended."""
        return next((move for move in reversed(self._done) if move.job == job), None)
