"""What trees are called in leases of slots: numbers, each of one tree and never of another.

A switch may lend a slot for a tree that nobody remembers here; so a number is not given again, nor by a
controller that is started anew: they are stored with the record of the coordinator. A tree that nobody has
loses its number, and gets a new one when it is wanted again: else all that were ever planned would be kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from inaproto.core.migration.events import MigrationRecord
from inaproto.wire.messages.trees import FabricTree


class StoredTrees(NamedTuple):
    """What has to outlive a controller: the record of the coordinator, and the trees that it names."""

    record: MigrationRecord
    trees: Mapping[int, FabricTree]
    """Those of the record, by number."""
    next_number: int
    """Above all that were ever given."""


NOTHING_STORED: Final = StoredTrees(MigrationRecord(term=0, plan=0, epoch=0), {}, 1)


def numbers_in(record: MigrationRecord) -> list[int]:
    """Numbers of the trees that some job has, or is to have."""
    trees = [tree for one in record.jobs for tree in (one.tree, one.target) if tree is not None]
    return sorted({tree.tree_id for tree in trees})


class TreeNumbers:
    def __init__(self, trees: Mapping[int, FabricTree], next_number: int) -> None:
        """``next_number``: above all that were ever given."""
        self._trees = dict(trees)
        self._numbers = {tree: number for number, tree in trees.items()}
        self.next = next_number

    @property
    def trees(self) -> Mapping[int, FabricTree]:
        """Trees by number."""
        return self._trees

    def of(self, tree: FabricTree) -> int:
        """A new one if it has none."""
        number = self._numbers.get(tree)
        if number is None:
            number, self.next = self.next, self.next + 1
            self._numbers[tree], self._trees[number] = number, tree
        return number

    def stored(self, record: MigrationRecord) -> StoredTrees:
        """The record, with the trees that it names by number."""
        return StoredTrees(record, {number: self._trees[number] for number in numbers_in(record)}, self.next)

    def keep(self, numbers: Collection[int]) -> None:
        """Keep the numbers of trees that somebody has, or may be getting; of others nothing more is heard."""
        for number in [number for number in self._trees if number not in numbers]:
            del self._numbers[self._trees.pop(number)]
