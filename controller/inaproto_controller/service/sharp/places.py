"""Who has which places in SHARP, and how long moves took: pure, from what is promised and what is seen.

A move begins with the commit that released the tree and ends when the job is attached at all its hosts by the
next one, wherever that is: a person wished it, or the tree was lost. Nothing of it is stored; a controller
that begins to lead knows of moves that begin from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from inaproto_controller.cluster.desired import Desired, Grant, GrantKind, Job, TreeNames
from inaproto_controller.service.observed import Observed, Phase

MOVES_MAX: Final = 100
"""Moves that are remembered."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Places of a job now."""

    hosts: int
    held: int
    """Hosts that say that they hold one."""
    attached: int
    """Hosts where the job is attached."""
    root: str
    """Of its tree; empty while it has none."""
    wished: str
    """Root that a person wishes; empty: any."""

    @property
    def stands(self) -> bool:
        """Whether the job is attached at all its hosts."""
        return bool(self.root) and self.attached == self.hosts


@dataclass(frozen=True, slots=True)
class PlaceMove:
    """A move that has ended."""

    job: str
    old: str
    """Root."""
    new: str
    release_s: float
    """From the commit that released until no host had its place any more."""
    acquire_s: float
    """From the commit that gave until the job was attached at all its hosts."""
    total_s: float


@dataclass(slots=True)
class _Move:
    old: str
    released_at: float
    freed_at: float | None = None
    given_at: float | None = None


class Places:
    """``sharp``: switches that sum by SHARP."""

    def __init__(self, sharp: Collection[str]) -> None:
        self._sharp = frozenset(sharp)
        self.standings: Mapping[int, Standing] = {}
        """Of live jobs that have places, or a tree or a wish for one, by number."""
        self.moves: deque[PlaceMove] = deque(maxlen=MOVES_MAX)
        """The last ones, in the order of their ends."""
        self._trees: dict[int, TreeNames] = {}
        self._moving: dict[int, _Move] = {}

    def lead(self) -> None:
        """Nothing is known of anybody yet."""
        self.standings = {}
        self._trees.clear()
        self._moving.clear()

    def heed(self, desired: Desired, observed: Observed, now: float) -> list[PlaceMove]:
        """Take in what is promised and seen at ``now``, in seconds. Returns the moves that this ends."""
        grants: dict[int, list[Grant]] = {}
        for grant in desired.grants.values() if self._sharp else ():
            if grant.kind is GrantKind.PLACE:
                grants.setdefault(grant.job, []).append(grant)
        live = {job.number: job for job in desired.live()} if self._sharp else {}
        self._trees = {number: tree for number, tree in self._trees.items() if number in live}
        self._moving = {number: move for number, move in self._moving.items() if number in live}
        standings, ended = {}, []
        for number, job in live.items():
            own, tree = grants.get(number, []), self._tree(job)
            if tree is None and not (own or job.root or number in self._moving):
                continue
            standing = standings[number] = _standing(job, tree, own, observed)
            move = self._follow(job, tree, is_rid=all(one.released is None for one in own), now=now)
            if move is not None and move.given_at is not None and standing.stands:
                ended.append(self._end(job, standing, move, now))
        self.standings = standings
        return ended

    def _tree(self, job: Job) -> TreeNames | None:
        tree = job.tree
        return tree if tree is not None and self._sharp.intersection(tree.switches) else None

    def _follow(self, job: Job, tree: TreeNames | None, *, is_rid: bool, now: float) -> _Move | None:
        """The move of a job that is under way."""
        before = self._trees.get(job.number)
        if before is not None and tree != before:
            began = self._moving.get(job.number)
            self._moving[job.number] = (
                _Move(before.root, now) if began is None else replace(began, freed_at=None, given_at=None)
            )
            del self._trees[job.number]
        move = self._moving.get(job.number)
        if move is not None and is_rid and move.freed_at is None:
            move.freed_at = now
        if tree is not None:
            self._trees[job.number] = tree
            if move is not None and move.given_at is None:
                move.given_at = now
        return move

    def _end(self, job: Job, standing: Standing, move: _Move, now: float) -> PlaceMove:
        del self._moving[job.number]
        freed_at = now if move.freed_at is None else move.freed_at
        given_at = now if move.given_at is None else move.given_at
        times = (round(s, 6) for s in (freed_at - move.released_at, now - given_at, now - move.released_at))
        ended = PlaceMove(job.spec.name, move.old, standing.root, *times)
        self.moves.append(ended)
        return ended

    # -- for people

    def stands_at(self, job: int, root: str) -> bool:
        """Whether a job is attached at all its hosts by a tree of this root."""
        standing = self.standings.get(job)
        return standing is not None and standing.stands and standing.root == root

    def last_move(self, name: str) -> dict[str, Any] | None:
        """The last move of a job that has ended."""
        found = [move for move in self.moves if move.job == name]
        return asdict(found[-1]) if found else None

    def document(self, job: int) -> dict[str, Any] | None:
        """Places of a job; fields may be added."""
        standing = self.standings.get(job)
        return None if standing is None else asdict(standing)

    def status(self, desired: Desired) -> dict[str, Any] | None:
        """For people and their programs; fields may be added. None: no switch sums by SHARP."""
        if not self._sharp:
            return None
        names = {
            number: desired.jobs[number].spec.name for number in self.standings if number in desired.jobs
        }
        return {
            "jobs": {names[number]: asdict(self.standings[number]) for number in sorted(names)},
            "under_way": [names[number] for number in sorted(self._moving) if number in names],
            "moves": [asdict(move) for move in self.moves],
        }


def _standing(job: Job, tree: TreeNames | None, places: list[Grant], observed: Observed) -> Standing:
    holds = [observed.agent(one.agent).holds.get(one.number) for one in places if one.released is None]
    phases = [hold.phase for hold in holds if hold is not None]
    return Standing(
        len(job.hosts),
        len(phases),
        sum(phase is Phase.RUNNING for phase in phases),
        "" if tree is None else tree.root,
        job.root,
    )
