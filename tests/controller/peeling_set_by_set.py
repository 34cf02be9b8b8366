"""Reducing-peeling on sets of neighbours, rule by rule: the judge of the compiled one."""

from __future__ import annotations

import heapq

from tests.controller.independent_set import Graph


class Peeling:
    """Of one graph, once."""

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
