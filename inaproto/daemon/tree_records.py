"""Trees of jobs as control messages, and back."""

from __future__ import annotations

from typing import Final

from inaproto.core.fabric_tree import FabricTree
from inaproto.core.rendezvous_types import TreeState, TreeWished
from inaproto.wire.tree_messages import AboveRecord, AssignedTree, TreeRecord, TreeWish

REASON_CHARACTERS: Final = 1024
"""Of why a ring is where it is, for people."""


def wish_record(wish: TreeWished) -> TreeWish:
    tree = wish.tree
    above = () if tree is None else tuple(AboveRecord(switch=one, above=over) for one, over in tree.above)
    return TreeWish(
        job=wish.job,
        epoch=wish.epoch,
        tree=None if tree is None else AssignedTree(root=tree.root, above=above),
    )


def wish_of(record: TreeWish) -> TreeWished:
    tree = record.tree
    if tree is None:
        return TreeWished(record.job, record.epoch, None)
    above = tuple(sorted((one.switch, one.above) for one in tree.above))
    return TreeWished(record.job, record.epoch, FabricTree(tree.root, above))


def state_record(state: TreeState) -> TreeRecord:
    return TreeRecord(
        job=state.job,
        hosts=state.hosts,
        epoch=state.epoch,
        phase=state.phase,
        pool=state.pool,
        reason=state.reason[:REASON_CHARACTERS],
    )


def state_of(record: TreeRecord) -> TreeState:
    return TreeState(record.job, record.hosts, record.epoch, record.phase, record.pool, record.reason)
