"""What trees are called in leases of slots: numbers, each of one tree and never of another.

A switch may lend a slot for a tree that nobody remembers here; so a number is not given again, nor by a
controller that is started anew (:mod:`inaproto_controller.tree_store`). A tree that nobody has loses its
number, and gets a new one when it is wanted again: else all that were ever planned would be kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from inaproto.core.fabric_tree import FabricTree


class TreeNumbers:
    def __init__(self, trees: Mapping[int, FabricTree], next_number: int) -> None:
        """``next_number``: above all that were ever given."""
        self._trees = dict(trees)
        self._numbers = {tree: number for number, tree in trees.items()}
        self.next = next_number

    @property
    def trees(self) -> Mapping[int, FabricTree]:
        """By number."""
        return self._trees

    def of(self, tree: FabricTree) -> int:
        """A new one if it has none."""
        number = self._numbers.get(tree)
        if number is None:
            number, self.next = self.next, self.next + 1
            self._numbers[tree], self._trees[number] = number, tree
        return number

    def keep(self, numbers: Collection[int]) -> None:
        """Of trees that somebody has, or may be getting; of others nothing more is heard."""
        for number in [number for number in self._trees if number not in numbers]:
            del self._numbers[self._trees.pop(number)]
