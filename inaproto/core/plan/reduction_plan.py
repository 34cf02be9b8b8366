"""Reduction plans: the order of every addition of an all-reduce, and where its sums are rounded.

A plan is a nested list of ranks: ``[[0, 1], [2, 3]]`` are two racks under a root. The children of a list are
combined left to right; each list is one *aggregation point*, where float16 and bfloat16 sums are rounded,
once. Lists and what is in them are what an aggregation tree does with its inputs, so trees of accelerators
and schedules of the hosts (``inaproto_controller.simulate.schedules.schedule``) give the same bytes if they
follow the same plan.

Invariants: every rank ``0 .. size - 1`` is in the plan once; no list is empty. A list with one child is
allowed and adds nothing; a plan of one rank gives that rank's bytes back, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.plan.reduce import reduce_into
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op

DEPTH_MAX: Final = 64
"""Lists within lists: more than any network has levels, and what recursion bears."""

PlanList: TypeAlias = "tuple[int | PlanList, ...]"
Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class ReductionPlan:
    """A plan over ranks ``0 .. size - 1``. Raises ``LocalMisuse`` for what is none."""

    children: PlanList

    def __post_init__(self) -> None:
        if _depth(self.children, DEPTH_MAX) > DEPTH_MAX:
            raise LocalMisuse(f"a reduction plan has lists within lists, {DEPTH_MAX} deep at most")
        found = sorted(_ranks(self.children))
        if found != list(range(len(found))):
            raise LocalMisuse(
                f"a reduction plan of {len(found)} ranks has each of 0 to {len(found) - 1} once, not {found}"
            )

    @staticmethod
    def flat(size: int) -> ReductionPlan:
        """One list of all ranks: what one switch does."""
        return ReductionPlan(tuple(range(size)))

    @staticmethod
    def from_lists(lists: object) -> ReductionPlan:
        """The plan of nested lists (or tuples) of integers: what ``to_lists`` gives and JSON carries."""
        if not isinstance(lists, list | tuple):
            raise LocalMisuse(f"a reduction plan is a list of ranks and lists, not {lists!r}")
        return ReductionPlan(_tuples(lists, DEPTH_MAX))

    @staticmethod
    def from_tree(root: TreeSwitch) -> ReductionPlan:
        """What an aggregation tree adds: a list for each switch that aggregates.

        The inputs of a switch that only steers are inputs of the one above it, in its place.
        """
        if not root.aggregates:
            raise LocalMisuse(f"switch {root.name}, the root, must aggregate")
        return ReductionPlan(tuple(_inputs(root)))

    def to_lists(self) -> list[Any]:
        """Nested lists of integers."""
        return _lists(self.children)

    def __str__(self) -> str:
        return str(self.to_lists())

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, in the order of addition."""
        return tuple(_ranks(self.children))

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    @property
    def depth(self) -> int:
        """Aggregation points on the longest way up: 1 for a flat plan."""
        return _depth(self.children, DEPTH_MAX)

    def without(self, rank: int) -> ReductionPlan:
        """The plan of the ring that goes on without ``rank``.

        Ranks above it move down by one, as they do when a ring is made anew; a list that it leaves empty goes
        too.
        """
        if rank not in self.ranks:
            raise LocalMisuse(f"rank {rank} is not in the plan {self}")
        if self.size == 1:
            raise LocalMisuse(f"without rank {rank} nothing is left of the plan {self}")
        return ReductionPlan(_without(self.children, rank))

    def over(self, ranks: Sequence[Sequence[int]]) -> ReductionPlan:
        """The plan of all ranks of a job, where this one is over the hosts of its ring.

        ``ranks[position]`` are those of a host, in the order in which it adds them: a list for each host of
        several (NetReduce section 3.4). Raises ``LocalMisuse`` for other positions than the plan's, and
        unless each of ``0 .. n - 1`` is there once.
        """
        if len(ranks) != self.size:
            raise LocalMisuse(f"a plan of {self.size} hosts was given the ranks of {len(ranks)}")
        return ReductionPlan(_over(self.children, ranks))

    def reduce(
        self, inputs: Sequence[NDArray[np.uint8]] | Mapping[int, NDArray[np.uint8]], dtype: Dtype, op: Op
    ) -> NDArray[np.uint8]:
        """The reduction of ``inputs[rank]``, uint8 arrays of one length: the bytes every path must give.

        A new array. Raises ``LocalMisuse`` for inputs of other ranks than the plan's, or of several lengths.
        """
        given = sorted(inputs) if isinstance(inputs, Mapping) else list(range(len(inputs)))
        if given != list(range(self.size)):
            raise LocalMisuse(f"a plan of {self.size} ranks was given inputs of ranks {given}")
        if len({inputs[rank].shape for rank in self.ranks}) > 1:
            raise LocalMisuse("the inputs of a reduction must be of one length")
        return _reduced(self.children, inputs, dtype, op).copy()


def holder(child: int | PlanList) -> int:
    """The rank at which the sum of a list appears when hosts compute it: its last."""
    while not isinstance(child, int):
        child = child[-1]
    return child


def _tuples(lists: Sequence[object], levels: int) -> PlanList:
    if levels == 0:
        raise LocalMisuse(f"a reduction plan has lists within lists, {DEPTH_MAX} deep at most")
    found: list[int | PlanList] = []
    for child in lists:
        if isinstance(child, list | tuple):
            found.append(_tuples(child, levels - 1))
        elif isinstance(child, int) and not isinstance(child, bool):
            found.append(child)
        else:
            raise LocalMisuse(f"a reduction plan is made of ranks and lists; {child!r} is neither")
    return tuple(found)


def _lists(children: PlanList) -> list[Any]:
    return [child if isinstance(child, int) else _lists(child) for child in children]


def _depth(children: PlanList, levels: int) -> int:
    """How deep, or ``levels + 1`` if it is deeper. Raises ``LocalMisuse`` for an empty list."""
    if not children:
        raise LocalMisuse("a list of a reduction plan is empty")
    if levels == 0:
        return 1
    return 1 + max(0 if isinstance(child, int) else _depth(child, levels - 1) for child in children)


def _ranks(children: PlanList) -> Iterator[int]:
    for child in children:
        if isinstance(child, int):
            yield child
        else:
            yield from _ranks(child)


def _inputs(switch: TreeSwitch) -> Iterator[int | PlanList]:
    for child in switch.children:
        if isinstance(child, int):
            yield child
        elif child.aggregates:
            yield tuple(_inputs(child))
        else:
            yield from _inputs(child)


def _without(children: PlanList, gone: int) -> PlanList:
    found: list[int | PlanList] = []
    for child in children:
        if not isinstance(child, int):
            rest = _without(child, gone)
            if rest:
                found.append(rest)
        elif child < gone:
            found.append(child)
        elif child > gone:
            found.append(child - 1)
    return tuple(found)


def _over(children: PlanList, ranks: Sequence[Sequence[int]]) -> PlanList:
    found: list[int | PlanList] = []
    for child in children:
        if not isinstance(child, int):
            found.append(_over(child, ranks))
        elif len(ranks[child]) == 1:
            found.append(ranks[child][0])
        else:
            found.append(tuple(ranks[child]))
    return tuple(found)


def _reduced(
    child: int | PlanList, inputs: Sequence[Bytes] | Mapping[int, Bytes], dtype: Dtype, op: Op
) -> Bytes:
    if isinstance(child, int):
        return inputs[child]
    operands = [_reduced(part, inputs, dtype, op) for part in child]
    if len(operands) == 1:
        return operands[0]
    out = np.empty_like(operands[0])
    reduce_into(dtype, op, operands, out)
    return out
