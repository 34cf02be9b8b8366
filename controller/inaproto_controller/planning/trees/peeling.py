"""Independent sets by reducing-peeling: many candidate trees of which no two conflict (MINA, section III-C).

The linear-time heuristic that the paper takes ([19], Chang, Li and Zhang, 2017): vertices of degree 0 and 1
are decided, paths and cycles of degree-2 vertices are shortened, and where nothing else applies the vertex
with most neighbours is left out. Components do not touch each other, so each has the set that it would have
alone. Of alike vertices the lowest is taken, or the highest left out, so that equal graphs have equal sets.

Neighbours are lists one after the other; a list never grows: what rule 2 links anew stands where the
neighbour stood that it takes away. Vertices that are gone stay in the lists and are passed over.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.network import Bools, Ints

Int32s = NDArray[np.int32]


@jit
def peel(adjacency: Bools) -> Bools:
    """(n, n) bool, symmetric, diagonal False -> (n,) bool: a maximal independent set, often a largest one."""
    count = adjacency.shape[0]
    starts = np.zeros(count + 1, np.int32)
    for vertex in range(count):
        degree = 0
        for other in range(count):
            degree += adjacency[vertex, other]
        starts[vertex + 1] = starts[vertex] + degree
    targets = np.empty(starts[count], np.int32)
    place = 0
    for vertex in range(count):
        for other in range(count):
            if adjacency[vertex, other]:
                targets[place] = other
                place += 1
    return peel_lists(starts, targets)


@jit
def peel_lists(starts: Int32s, targets: Int32s) -> Bools:
    """The same of lists: neighbours of v are ``targets[starts[v]:starts[v + 1]]``, ascending."""
    count = starts.size - 1
    lists = targets.copy()
    degrees = np.empty(count, np.int32)
    for vertex in range(count):
        degrees[vertex] = starts[vertex + 1] - starts[vertex]
    gone = np.zeros(count, np.bool_)
    chosen = np.zeros(count, np.bool_)
    pending = degrees == 2  # may begin a path that can be shortened
    # Both rules take the lowest vertex first: nothing below these applies.
    lowest = np.zeros(2, np.int64)
    walked = np.empty(count, np.int32)
    later = np.empty(count, np.int32)  # vertices that enter if none of their neighbours did, path by path
    ends = np.empty(count + 1, np.int32)
    paths = 0
    ends[0] = 0
    while True:
        vertex = _lowest_small(gone, degrees, lowest)
        if vertex >= 0:
            chosen[vertex] = True
            for place in range(starts[vertex], starts[vertex + 1]):
                if not gone[lists[place]]:
                    _delete(lists[place], starts, lists, gone, degrees, pending, lowest)
            gone[vertex] = True
            continue
        vertex = _lowest_pending(gone, degrees, pending, lowest)
        if vertex >= 0:
            filled = _shorten(
                vertex, starts, lists, gone, degrees, pending, lowest, walked, later, ends[paths]
            )
            if filled > ends[paths]:
                paths += 1
                ends[paths] = filled
            continue
        vertex = _densest(gone, degrees)
        if vertex < 0:
            break
        _delete(vertex, starts, lists, gone, degrees, pending, lowest)
        later[ends[paths]] = vertex
        ends[paths + 1] = ends[paths] + 1
        paths += 1
    for path in range(paths - 1, -1, -1):
        for place in range(ends[path], ends[path + 1]):
            _enter_if_free(later[place], starts, targets, chosen)
    for vertex in range(count):
        _enter_if_free(vertex, starts, targets, chosen)
    return chosen


@jit
def _enter_if_free(vertex: int, starts: Int32s, targets: Int32s, chosen: Bools) -> None:
    for place in range(starts[vertex], starts[vertex + 1]):
        if chosen[targets[place]]:
            return
    chosen[vertex] = True


@jit
def _delete(
    vertex: int, starts: Int32s, lists: Int32s, gone: Bools, degrees: Int32s, pending: Bools, lowest: Ints
) -> None:
    gone[vertex] = True
    for place in range(starts[vertex], starts[vertex + 1]):
        other = lists[place]
        if not gone[other]:
            degrees[other] -= 1
            _changed(other, degrees, pending, lowest)


@jit
def _changed(vertex: int, degrees: Int32s, pending: Bools, lowest: Ints) -> None:
    if degrees[vertex] < 2:
        lowest[0] = min(lowest[0], vertex)
    elif degrees[vertex] == 2:
        pending[vertex] = True
        lowest[1] = min(lowest[1], vertex)


@jit
def _lowest_small(gone: Bools, degrees: Int32s, lowest: Ints) -> int:
    """Lowest vertex of degree 0 or 1; -1 if there is none."""
    for vertex in range(lowest[0], gone.size):
        if not gone[vertex] and degrees[vertex] < 2:
            lowest[0] = vertex
            return vertex
    lowest[0] = gone.size
    return -1


@jit
def _lowest_pending(gone: Bools, degrees: Int32s, pending: Bools, lowest: Ints) -> int:
    """Lowest vertex of degree 2 that was not looked at since something changed; -1 if there is none."""
    for vertex in range(lowest[1], gone.size):
        if pending[vertex]:
            pending[vertex] = False
            if not gone[vertex] and degrees[vertex] == 2:
                lowest[1] = vertex
                return vertex
    lowest[1] = gone.size
    return -1


@jit
def _densest(gone: Bools, degrees: Int32s) -> int:
    """-1 if nothing is left."""
    found = -1
    for vertex in range(gone.size):
        if not gone[vertex] and (found < 0 or degrees[vertex] >= degrees[found]):
            found = vertex
    return found


@jit
def _neighbour(vertex: int, not_this: int, starts: Int32s, lists: Int32s, gone: Bools) -> int:
    """The lowest one that is left, but for that; the only one on a path."""
    found = -1
    for place in range(starts[vertex], starts[vertex + 1]):
        other = lists[place]
        if not gone[other] and other != not_this and (found < 0 or other < found):
            found = other
    return found


@jit
def _walk(
    vertex: int, towards: int, starts: Int32s, lists: Int32s, gone: Bools, degrees: Int32s, path: Int32s
) -> tuple[int, int]:
    """Degree-2 vertices from there on into ``path``: how many, and the first vertex that is none, or
    ``vertex`` again."""
    length, last, here = 0, vertex, towards
    while here != vertex and degrees[here] == 2:
        path[length] = here
        length += 1
        last, here = here, _neighbour(here, last, starts, lists, gone)
    return length, here


@jit
def _is_linked(vertex: int, other: int, starts: Int32s, lists: Int32s) -> bool:
    """``other`` is left."""
    for place in range(starts[vertex], starts[vertex + 1]):  # noqa: SIM110 - Numba knows no any()
        if lists[place] == other:
            return True
    return False


@jit
def _replace(vertex: int, neighbour: int, by: int, starts: Int32s, lists: Int32s) -> None:
    for place in range(starts[vertex], starts[vertex + 1]):
        if lists[place] == neighbour:
            lists[place] = by


@jit
def _shorten(
    vertex: int,
    starts: Int32s,
    lists: Int32s,
    gone: Bools,
    degrees: Int32s,
    pending: Bools,
    lowest: Ints,
    walked: Int32s,
    later: Int32s,
    filled: int,
) -> int:
    """Rule 2 for the path or cycle of this vertex. ``later`` is filled up to ``filled``; returns up to where
    it is then: by what was taken out of the path, if anything was."""
    one = _neighbour(vertex, vertex, starts, lists, gone)
    other = _neighbour(vertex, one, starts, lists, gone)
    before, begin = _walk(vertex, one, starts, lists, gone, degrees, walked)
    if begin == vertex:
        _delete(vertex, starts, lists, gone, degrees, pending, lowest)
        return filled
    path = later[filled:]
    for place in range(before):
        path[place] = walked[before - 1 - place]
    path[before] = vertex
    after, end = _walk(vertex, other, starts, lists, gone, degrees, path[before + 1 :])
    length = before + 1 + after
    is_odd, linked = length % 2 == 1, _is_linked(begin, end, starts, lists)
    if begin == end or (is_odd and linked):
        _delete(begin, starts, lists, gone, degrees, pending, lowest)
        if begin != end:
            _delete(end, starts, lists, gone, degrees, pending, lowest)
        return filled
    if length == 1:
        return filled
    stays = begin
    if is_odd:
        stays = path[0]
        length -= 1
        for place in range(length):
            path[place] = path[place + 1]
    for place in range(length):
        gone[path[place]] = True
    if linked and not is_odd:
        degrees[stays] -= 1
        degrees[end] -= 1
    else:
        _replace(stays, path[0], end, starts, lists)
        _replace(end, path[length - 1], stays, starts, lists)
    _changed(stays, degrees, pending, lowest)
    _changed(end, degrees, pending, lowest)
    # What both know is a path of one vertex whose ends are linked now.
    for place in range(starts[stays], starts[stays + 1]):
        common = lists[place]
        if not gone[common] and degrees[common] == 2 and _is_linked(common, end, starts, lists):
            _changed(common, degrees, pending, lowest)
    return filled + length
