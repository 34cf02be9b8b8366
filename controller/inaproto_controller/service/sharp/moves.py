"""Who gives his tree up, so that he and others come to the trees that are wished (MINA, section IV-A): pure.

A tree of SHARP is released before another is asked for. So a job gives its own up only if what it wishes is
free then, or becomes free by others that give theirs up at the same time for what they wish: two jobs can
swap, and none goes without for a wish that cannot be fulfilled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inaproto_controller.planning.cluster_planner import Resource


@dataclass(frozen=True, slots=True)
class Wished:
    """What a job has, and what it wishes instead: one slot of each."""

    has: Sequence[Resource]
    wants: Sequence[Resource]


def who_moves(room: Mapping[Resource, int], wished: Mapping[int, Wished]) -> frozenset[int]:
    """Jobs of one move, by number; none, if no wish can be fulfilled now.

    ``room``: free slots. What is found is for the lowest job that can move, with those that must make way for
    it. Of a slot that is one of several the lowest job gives its own; of single ones, as SHARP has them, all
    moves that there are come up by asking again.
    """
    for leader in sorted(wished):
        moving = _with(leader, room, wished)
        if moving:
            return moving
    return frozenset()


def _with(leader: int, room: Mapping[Resource, int], wished: Mapping[int, Wished]) -> frozenset[int]:
    """``leader`` and those who must make way; none, if somebody who does not move is in the way."""
    moving = {leader}
    while True:
        lacking = _lacking(room, [wished[number] for number in sorted(moving)])
        if lacking is None:
            return frozenset(moving)
        others = (number for number in sorted(wished) if number not in moving)
        other = next((number for number in others if lacking in wished[number].has), None)
        if other is None:
            return frozenset()
        moving.add(other)


def _lacking(room: Mapping[Resource, int], moving: Sequence[Wished]) -> Resource | None:
    """The first of which too few slots are there for all that these want, once they have given up theirs."""
    left: dict[Resource, int] = {}
    for one in moving:
        for resource in one.has:
            left[resource] = left.get(resource, room[resource]) + 1
    for one in moving:
        for resource in one.wants:
            left[resource] = left.get(resource, room[resource]) - 1
            if left[resource] < 0:
                return resource
    return None
