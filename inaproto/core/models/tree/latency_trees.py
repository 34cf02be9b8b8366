"""Trees from measured latency: the farthest node has a short way to the root, and no node has many children.

To find the best tree of bounded in-degree is NP-hard (Y. Shi and J. Turner, "Routing in overlay multicast
networks", 2002), so this is their greedy method, then exchanges while these help (of five nodes in a plane
within 3 % of the best in the mean):

1. The node that has the shortest way to the root by any parent that has room is attached there, again and
   again.
2. Of the node that is farthest from the root, and of those on its way, each is tried in every other place
   that has room, and in the place of every node that is not on its way. The first exchange that makes the
   tree better is made. Better: the longest way is shorter, or as long and all ways together are shorter.

Both are deterministic: equal ways go to the lower node, exchanges are tried in the order of the nodes. The
second step ends because every exchange makes the tree better, and there are finitely many trees; it also ends
after ``exchanges_max``. MLNet names measured latency only as a wish (its section 6).

Round trips are integers (ns), so that no rounding decides between two trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from inaproto.core.models.tree.trees import OverlayTree
from inaproto.errors import Infeasible, LocalMisuse
from inaproto.wire.messages.models import NodeId

UNKNOWN: Final = -1
"""A round trip that was not measured: such an edge is never used."""
EXCHANGES_MAX: Final = 1_000
_ROOT: Final = 0


def latency_tree(
    nodes: Sequence[NodeId],
    round_trips_ns: Sequence[Sequence[int]],
    *,
    in_degree_max: int,
    exchanges_max: int = EXCHANGES_MAX,
) -> OverlayTree | Infeasible:
    """A tree whose root is ``nodes[0]``.

    ``round_trips_ns[a][b]``: between ``nodes[a]`` and ``nodes[b]``, the same in both directions; ``UNKNOWN``
    where there is none. ``Infeasible`` names a node that cannot be attached. Children are in the order of
    their numbers in ``nodes``.
    """
    matrix = _checked(nodes, round_trips_ns, in_degree_max)
    parents: list[int] = [_ROOT] * len(nodes)
    lost = _attach(matrix, parents, in_degree_max)
    if lost is not None:
        return Infeasible("no tree reaches a node", {"node": nodes[lost], "in_degree_max": in_degree_max})
    for _ in range(exchanges_max):
        if not _improve(_Draft(matrix, parents, in_degree_max)):
            break
    children: dict[NodeId, list[NodeId]] = {}
    for node, parent in enumerate(parents):
        if node != _ROOT:
            children.setdefault(nodes[parent], []).append(nodes[node])
    return OverlayTree.of(nodes[_ROOT], children)


def _checked(
    nodes: Sequence[NodeId], round_trips_ns: Sequence[Sequence[int]], in_degree_max: int
) -> list[list[int]]:
    size = len(nodes)
    if not size or len(set(nodes)) < size or in_degree_max < 1:
        raise LocalMisuse("a tree has nodes, each of them once, and an in-degree of 1 or more")
    matrix = [list(row) for row in round_trips_ns]
    if [len(row) for row in matrix] != [size] * size:
        raise LocalMisuse(f"round trips between {size} nodes are {size} rows of {size}")
    for a in range(size):
        for b in range(size):
            if matrix[a][b] != matrix[b][a] or matrix[a][b] < UNKNOWN:
                raise LocalMisuse(f"the round trip between {nodes[a]} and {nodes[b]} is not one number")
    return matrix


def _attach(matrix: list[list[int]], parents: list[int], room: int) -> int | None:
    """Step 1. Which node cannot be attached; None: all are."""
    size = len(matrix)
    ways: dict[int, int] = {_ROOT: 0}
    left = [room] * size
    while len(ways) < size:
        best = min(
            (
                (ways[parent] + matrix[parent][node], node, parent)
                for node in range(size)
                if node not in ways
                for parent in ways
                if left[parent] and matrix[parent][node] != UNKNOWN
            ),
            default=None,
        )
        if best is None:
            return next(node for node in range(size) if node not in ways)
        ways[best[1]], parents[best[1]] = best[0], best[2]
        left[best[2]] -= 1
    return None


@dataclass(frozen=True, slots=True)
class _Draft:
    matrix: list[list[int]]
    parents: list[int]
    room: int

    def way(self, node: int) -> list[int]:
        """The node and those above it, without the root."""
        found = []
        while node != _ROOT:
            found.append(node)
            node = self.parents[node]
        return found

    def cost(self) -> tuple[int, int] | None:
        """(longest way, all ways); None: it is no tree, or an edge was not measured."""
        lengths = []
        for node in range(1, len(self.parents)):
            seen, length, at = 0, 0, node
            while at != _ROOT:
                edge = self.matrix[at][self.parents[at]]
                if edge == UNKNOWN or seen > len(self.parents):
                    return None
                length, at, seen = length + edge, self.parents[at], seen + 1
            lengths.append(length)
        return max(lengths, default=0), sum(lengths)

    def farthest(self) -> int:
        lengths = [
            sum(self.matrix[at][self.parents[at]] for at in self.way(node))
            for node in range(len(self.parents))
        ]
        return lengths.index(max(lengths))


def _improve(draft: _Draft) -> bool:
    """One exchange of step 2; False: none makes the tree better."""
    before = draft.cost()
    assert before is not None
    for changes in _exchanges(draft):
        old = [(node, draft.parents[node]) for node, _ in changes]
        for node, parent in changes:
            draft.parents[node] = parent
        after = draft.cost()
        if after is not None and after < before:
            return True
        for node, parent in old:
            draft.parents[node] = parent
    return False


def _exchanges(draft: _Draft) -> Iterator[list[tuple[int, int]]]:
    """Lists of (node, its new parent)."""
    parents, size = list(draft.parents), len(draft.parents)
    degrees = [parents[1:].count(node) for node in range(size)]
    for node in draft.way(draft.farthest()):
        for parent in range(size):
            if parent not in (node, parents[node]) and degrees[parent] < draft.room:
                yield [(node, parent)]
        for other in range(1, size):
            if other != node and parents[other] != parents[node]:
                yield [(node, parents[other]), (other, parents[node])]  # with all below them
                yield _swapped(parents, node, other)


def _swapped(parents: list[int], node: int, other: int) -> list[tuple[int, int]]:
    """The two change places: each gets the other's parent and children."""
    places = {node: other, other: node}
    found = []
    for child in range(1, len(parents)):
        above = parents[places.get(child, child)]
        found.append((child, places.get(above, above)))
    return found
