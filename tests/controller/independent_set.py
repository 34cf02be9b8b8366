"""Independent sets of a conflict graph: many candidate trees of which no two conflict (MINA, section
III-C).

``reducing_peeling`` is the linear-time heuristic that the paper takes; ``largest`` is exact. A graph is a
sequence of neighbour sets, by vertex from 0 on; builders of trees, which have its matrix, call what is below:
``peeling.peel`` and ``branch_and_bound.largest_set``. Equal graphs have equal sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.network import Bools
from inaproto_controller.planning.trees.peeling import peel_lists
from tests.controller.branch_and_bound import largest_set

Graph = Sequence[frozenset[int]]
BRANCHES_MAX: Final = 2_000_000
"""Some half a minute."""


def graph_of(vertices: int, edges: Iterable[tuple[int, int]]) -> Graph:
    """Raises ``LocalMisuse`` for an edge to itself or to no vertex."""
    neighbours: list[set[int]] = [set() for _ in range(vertices)]
    for one, other in edges:
        if one == other or not (0 <= one < vertices and 0 <= other < vertices):
            raise LocalMisuse(f"edge {one}-{other} in a graph of {vertices} vertices")
        neighbours[one].add(other)
        neighbours[other].add(one)
    return [frozenset(of) for of in neighbours]


def reducing_peeling(graph: Graph) -> list[int]:
    """A maximal independent set, ascending; often a largest one."""
    starts = np.cumsum([0, *map(len, graph)], dtype=np.int32)
    targets = np.array([other for neighbours in graph for other in sorted(neighbours)], np.int32)
    found: list[int] = np.flatnonzero(peel_lists(starts, targets)).tolist()
    return found


def largest(graph: Graph, *, branches_max: int = BRANCHES_MAX) -> list[int]:
    """A largest independent set, ascending. Raises ``LocalMisuse`` if it takes more branches than allowed."""
    chosen = largest_set(matrix_of(graph), branches_max)
    if chosen is None:
        raise LocalMisuse(f"the largest independent set takes more than {branches_max} branches")
    found: list[int] = np.flatnonzero(chosen).tolist()
    return found


def matrix_of(graph: Graph) -> Bools:
    """(n, n) bool."""
    matrix = np.zeros((len(graph), len(graph)), np.bool_)
    for vertex, neighbours in enumerate(graph):
        matrix[vertex, list(neighbours)] = True
    return matrix
