"""Independent sets of a conflict graph: many candidate trees of which no two conflict (MINA, section
III-C).

``reducing_peeling`` is the linear-time heuristic that the paper takes ([19], Chang, Li and Zhang, 2017):
vertices of degree 0 and 1 are decided, paths and cycles of degree-2 vertices are shortened, and where
nothing else applies the vertex with most neighbours is left out. ``largest`` is exact, component by
component: branch and bound.

A graph is a sequence of neighbour sets, by vertex from 0 on. Of alike vertices the lowest is taken, or the
highest left out, so that equal graphs have equal sets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

from inaproto.errors import LocalMisuse

Graph = Sequence[frozenset[int]]
BRANCHES_MAX: Final = 2_000_000


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
    return _Peeling(graph).run()


class _Peeling:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._left: list[set[int] | None] = [set(neighbours) for neighbours in graph]
        """Neighbours in what is left of the graph; None for a vertex that is not."""
        self._chosen = [False] * len(graph)
        self._later: list[list[int]] = []
        """Vertices that enter, last first, if none of their neighbours did; along paths."""
        self._small = list(range(len(graph)))
        self._pairs = list(range(len(graph)))
        self._dense = [(-len(neighbours), -vertex) for vertex, neighbours in enumerate(graph)]
        heapq.heapify(self._dense)

    def run(self) -> list[int]:
        while self._take_small() or self._shorten_path() or self._peel():
            pass
        for path in reversed(self._later):
            for vertex in path:
                self._enter_if_free(vertex)
        for vertex in range(len(self._graph)):
            self._enter_if_free(vertex)
        return [vertex for vertex, chosen in enumerate(self._chosen) if chosen]

    def _enter_if_free(self, vertex: int) -> None:
        if not any(self._chosen[other] for other in self._graph[vertex]):
            self._chosen[vertex] = True

    def _delete(self, vertex: int) -> None:
        neighbours = self._left[vertex]
        assert neighbours is not None
        self._left[vertex] = None
        for other in neighbours:
            theirs = self._left[other]
            assert theirs is not None
            theirs.discard(vertex)
            self._changed(other)

    def _changed(self, vertex: int) -> None:
        neighbours = self._left[vertex]
        assert neighbours is not None
        degree = len(neighbours)
        if degree < 2:
            heapq.heappush(self._small, vertex)
        elif degree == 2:
            heapq.heappush(self._pairs, vertex)
        else:
            heapq.heappush(self._dense, (-degree, -vertex))

    def _take_small(self) -> bool:
        while self._small:
            vertex = heapq.heappop(self._small)
            neighbours = self._left[vertex]
            if neighbours is None or len(neighbours) > 1:
                continue
            self._chosen[vertex] = True
            for other in list(neighbours):
                self._delete(other)
            self._left[vertex] = None
            return True
        return False

    def _shorten_path(self) -> bool:
        while self._pairs:
            vertex = heapq.heappop(self._pairs)
            neighbours = self._left[vertex]
            if neighbours is None or len(neighbours) != 2:
                continue
            one, other = sorted(neighbours)
            before, begin = self._follow(vertex, one)
            if begin == vertex:
                self._delete(vertex)  # a cycle
                return True
            after, end = self._follow(vertex, other)
            if self._shorten([*reversed(before), vertex, *after], begin, end):
                return True
        return False

    def _follow(self, vertex: int, towards: int) -> tuple[list[int], int]:
        """Degree-2 vertices from there on, and the first vertex that is none, or ``vertex`` again."""
        path, last, here = [], vertex, towards
        while here != vertex:
            neighbours = self._left[here]
            assert neighbours is not None
            if len(neighbours) != 2:
                break
            path.append(here)
            (following,) = neighbours - {last}
            last, here = here, following
        return path, here

    def _shorten(self, path: list[int], begin: int, end: int) -> bool:
        """``begin`` and ``end``: its neighbours outside, of higher degree. False: there is nothing to do."""
        if begin == end:
            self._delete(begin)
            return True
        is_odd, linked = len(path) % 2 == 1, end in self._neighbours(begin)
        if is_odd and linked:
            self._delete(begin)
            self._delete(end)
            return True
        if len(path) == 1:
            return False
        stays, goes = (path[0], path[1:]) if is_odd else (begin, path)
        self._neighbours(stays).discard(goes[0])
        self._neighbours(end).discard(goes[-1])
        for vertex in goes:
            self._left[vertex] = None
        self._later.append(goes)
        self._neighbours(stays).add(end)
        self._neighbours(end).add(stays)
        for vertex in (stays, end, *sorted(self._neighbours(stays) & self._neighbours(end))):
            self._changed(vertex)
        return True

    def _neighbours(self, vertex: int) -> set[int]:
        """Of one that is left."""
        found = self._left[vertex]
        assert found is not None
        return found

    def _peel(self) -> bool:
        while self._dense:
            degree, vertex = (-found for found in heapq.heappop(self._dense))
            neighbours = self._left[vertex]
            if neighbours is None or len(neighbours) != degree:
                continue
            self._delete(vertex)
            self._later.append([vertex])
            return True
        return False


def largest(graph: Graph, *, branches_max: int = BRANCHES_MAX) -> list[int]:
    """A largest independent set, ascending. Raises ``LocalMisuse`` if it takes more branches than allowed."""
    masks = [sum(1 << other for other in neighbours) for neighbours in graph]
    return _vertices(_Search(masks, branches_max).best((1 << len(masks)) - 1))


def _vertices(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


class _Search:
    """Branch and bound on bit masks; what is left falls into components again as it is cut."""

    def __init__(self, masks: Sequence[int], branches_max: int) -> None:
        self._masks = masks
        self._branches_left = branches_max

    def best(self, left: int, at_least: int = 0) -> int:
        """A largest set within ``left``; any, maybe empty, if none is larger than ``at_least``."""
        chosen = 0
        while True:
            vertex = self._small(left)
            if vertex is None:
                break
            chosen |= 1 << vertex
            left &= ~(self._masks[vertex] | 1 << vertex)
        need = at_least - chosen.bit_count()
        if not left:
            return chosen
        parts = list(_components(self._masks, left))
        if len(parts) > 1:
            return chosen | self._best_of_parts(parts, need)
        if self._cover(left) <= need:
            return chosen
        self._branches_left -= 1
        if self._branches_left < 0:
            raise LocalMisuse("the largest independent set takes more branches than allowed")
        vertex = max(_vertices(left), key=lambda one: (self._masks[one] & left).bit_count())
        bit = 1 << vertex
        with_it = bit | self.best(left & ~(self._masks[vertex] | bit), need - 1)
        without = self.best(left & ~bit, max(need, with_it.bit_count()))
        return chosen | max(with_it, without, key=int.bit_count)

    def _best_of_parts(self, parts: Sequence[int], need: int) -> int:
        """``need``: together more than that, or any."""
        bounds = [self._cover(part) for part in parts]
        hoped, found = sum(bounds), 0
        for part, bound in zip(parts, bounds, strict=True):
            if hoped <= need:
                break
            own = self.best(part, need - (hoped - bound))
            found |= own
            hoped += own.bit_count() - bound
        return found

    def _small(self, left: int) -> int | None:
        """One of degree 0 or 1, or whose neighbours all know each other: some largest set has it."""
        for vertex in _vertices(left):
            neighbours = self._masks[vertex] & left
            degree = neighbours.bit_count()
            if degree <= 1 or (degree <= _CLIQUE_MAX and self._is_clique(neighbours)):
                return vertex
        return None

    def _is_clique(self, members: int) -> bool:
        return all(members & ~(self._masks[vertex] | 1 << vertex) == 0 for vertex in _vertices(members))

    def _cover(self, left: int) -> int:
        """Cliques that cover all: no independent set has more vertices."""
        cliques: list[int] = []
        for vertex in _vertices(left):
            bit, masks = 1 << vertex, self._masks[vertex]
            for number, clique in enumerate(cliques):
                if clique & ~masks == 0:
                    cliques[number] |= bit
                    break
            else:
                cliques.append(bit)
        return len(cliques)


_CLIQUE_MAX: Final = 6


def _components(masks: Sequence[int], left: int) -> Iterable[int]:
    while left:
        component, frontier = 0, left & -left
        while frontier:
            component |= frontier
            reached = 0
            for vertex in _vertices(frontier):
                reached |= masks[vertex]
            frontier = reached & left & ~component
        left &= ~component
        yield component
