"""What planners that change a tree step by step ask of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from inaproto_controller.planning.paring.model import Node


def is_below(parents: Mapping[Node, Node], node: Node, above: Node) -> bool:
    """What ``node`` sends comes to ``above``; or it is the same."""
    while node != above and node in parents:
        node = parents[node]
    return node == above


def without_idle_switches(hosts: int, parents: Mapping[Node, Node]) -> dict[Node, Node]:
    """Without switches that have nothing to add: whoever sends to one sends to its parent.

    ``hosts``: nodes from there on are switches. No way becomes longer.
    """
    found = dict(parents)
    while True:
        inputs = Counter(found.values())
        idle = {node: found[node] for node in found if node >= hosts and inputs[node] < 2}
        if not idle:
            return found
        for node in idle:
            del found[node]
        for node, parent in found.items():
            while parent in idle:
                parent = idle[parent]
            found[node] = parent
