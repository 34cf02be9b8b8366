"""What trees could do at best: most jobs with a tree where each link or switch serves so many jobs, and the
heaviest set of candidates of which no two conflict, both as integer programs solved to proven optima.

A yardstick for builders (MINA, section III-C, formulates the former and solves it by heuristic). Needs SciPy,
whose HiGHS it calls: the extra ``planning``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse, Unsupported
from inaproto_controller.cluster.network import Bools

Resource = TypeVar("Resource", bound=Hashable)
_Row = tuple[tuple[int, ...], int]
"""Candidates, and how many of them may be chosen at most."""

SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class Best:
    """Best answer of an integer program."""

    roots: tuple[int | None, ...]
    """Roots by job; None for one that gets no tree."""
    value: float
    """Jobs with a tree, or the sum of their weights."""
    bound: float
    """No choice has more: equal to ``value`` unless time was up."""


def most_trees(
    needs: Sequence[Sequence[Collection[Resource]]],
    capacities: Mapping[Resource, int] | int,
    *,
    weights: Sequence[float] | None = None,
    seconds_max: float = SECONDS_MAX,
) -> Best:
    """``needs[job][root]``: the resources (links, switches) of that candidate tree, each of which serves at
    most ``capacities`` jobs; ``weights``: of jobs, not negative, 1 for all by default.

    Raises ``Unsupported`` without SciPy, ``LocalMisuse`` for a resource without capacity or where time is up
    before there is any answer.
    """
    owners = [(job, root) for job, candidates in enumerate(needs) for root in range(len(candidates))]
    users: dict[Resource, list[int]] = {}
    for number, (job, root) in enumerate(owners):
        for resource in needs[job][root]:
            users.setdefault(resource, []).append(number)
    rows: dict[_Row, None] = {}
    for resource, numbers in users.items():
        capacity = capacities if isinstance(capacities, int) else capacities.get(resource)
        if capacity is None:
            raise LocalMisuse(f"resource {resource} has no capacity")
        if len({owners[number][0] for number in numbers}) > capacity:
            rows[tuple(dict.fromkeys(numbers)), capacity] = None
    first = 0
    for candidates in needs:
        rows[tuple(range(first, first + len(candidates))), 1] = None
        first += len(candidates)
    gains = np.array([1.0 if weights is None else weights[job] for job, _ in owners])
    chosen, bound = _solve(gains, list(rows), seconds_max)
    roots: list[int | None] = [None] * len(needs)
    for number in chosen:
        job, root = owners[number]
        roots[job] = root
    return Best(tuple(roots), float(gains[chosen].sum()), bound)


def heaviest_set(
    adjacency: Bools, weights: NDArray[np.float64], *, seconds_max: float = SECONDS_MAX
) -> tuple[Bools, float]:
    """(n, n) bool, symmetric; (n,) weights, not negative -> (n,) bool: an independent set with most weight,
    and a bound: equal to its weight unless time was up. Raises as ``most_trees``."""
    chosen = np.zeros(len(adjacency), np.bool_)
    numbers, bound = _solve(weights, [(clique, 1) for clique in _cliques(adjacency)], seconds_max)
    chosen[numbers] = True
    return chosen, bound


def _cliques(adjacency: Bools) -> Iterator[tuple[int, ...]]:
    """Cliques that have every edge: far tighter rows than the edges themselves."""
    open_ = np.triu(adjacency)
    for one, other in np.argwhere(open_).tolist():
        if not open_[one, other]:
            continue
        members, common = [one, other], adjacency[one] & adjacency[other]
        while common.any():
            member = int(common.argmax())
            members.append(member)
            common = common & adjacency[member]
        members.sort()
        open_[np.ix_(members, members)] = False
        yield tuple(members)


def _solve(gains: NDArray[np.float64], rows: Sequence[_Row], seconds_max: float) -> tuple[list[int], float]:
    if not gains.size:
        return [], 0.0
    optimize, sparse = _scipy()
    rows = [row for row in rows if len(row[0]) > row[1]]
    options = {"time_limit": seconds_max, "mip_rel_gap": 0.0}
    limits = []
    if rows:
        columns = np.concatenate([np.array(members) for members, _ in rows])
        numbers = np.repeat(np.arange(len(rows)), [len(members) for members, _ in rows])
        matrix = sparse.csr_matrix((np.ones(columns.size), (numbers, columns)), (len(rows), gains.size))
        limits.append(optimize.LinearConstraint(matrix, ub=np.array([most for _, most in rows], float)))
    found = optimize.milp(
        -gains,
        constraints=limits,
        integrality=np.ones(gains.size),
        bounds=optimize.Bounds(0, 1),
        options=options,
    )
    if found.x is None:
        raise LocalMisuse(f"no answer within {seconds_max} s: {found.message}")
    chosen: list[int] = np.flatnonzero(found.x > 0.5).tolist()
    value = float(gains[chosen].sum())
    return chosen, value if found.status == 0 else max(value, -float(found.mip_dual_bound))


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise Unsupported("exact trees", f"{error}; install inaproto[planning]") from None
    return optimize, sparse
