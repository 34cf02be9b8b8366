"""Trees of jobs as control messages, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inaproto.core.rendezvous.events import TreeState, TreeWished
from inaproto.core.rendezvous.fabric_tree import FabricTree
from inaproto.wire.control import MESSAGE_BYTES_MAX
from inaproto.wire.messages.trees import AboveRecord, AssignedTree, TreeRecord, TreeWish, TreeWishes

NAME_BYTES: Final = 128 + 3
"""Encoded, at most, as are those that follow."""
HEAD_BYTES: Final = 256
"""Bytes of a message, without its wishes."""
WISH_BYTES: Final = 2 * NAME_BYTES + 64
"""Bytes of a wish, without the switches of its tree."""
ABOVE_BYTES: Final = 2 * NAME_BYTES + 16
"""Bytes of each of its switches but the root."""
TOLD_SWITCHES_MAX: Final = (MESSAGE_BYTES_MAX - HEAD_BYTES - WISH_BYTES) // (ABOVE_BYTES + NAME_BYTES)
"""Most switches above the leaves of a tree that a message can carry."""

REASON_CHARACTERS: Final = 1024
"""Longest text of why a ring is where it is, for people."""


def wish_record(wish: TreeWished) -> TreeWish:
    tree = wish.tree
    above = () if tree is None else tuple(AboveRecord(switch=one, above=over) for one, over in tree.above)
    return TreeWish(
        job=wish.job,
        epoch=wish.epoch,
        tree=None if tree is None else AssignedTree(root=tree.root, above=above, passing=tree.passing),
        anew=wish.anew,
    )


def wish_messages(term: int, revision: int, wishes: Sequence[TreeWished]) -> list[TreeWishes]:
    """All wishes, in as many messages as they need. ``wishes``: trees of at most ``TOLD_SWITCHES_MAX``."""
    parts: list[list[TreeWish]] = [[]]
    room = MESSAGE_BYTES_MAX - HEAD_BYTES
    for wish in wishes:
        nbytes = WISH_BYTES
        if wish.tree is not None:
            nbytes += ABOVE_BYTES * len(wish.tree.above) + NAME_BYTES * len(wish.tree.passing)
        if parts[-1] and nbytes > room:
            parts.append([])
            room = MESSAGE_BYTES_MAX - HEAD_BYTES
        parts[-1].append(wish_record(wish))
        room -= nbytes
    return [
        TreeWishes(term=term, revision=revision, trees=tuple(one), part=number, parts=len(parts))
        for number, one in enumerate(parts)
    ]


def wish_of(record: TreeWish) -> TreeWished:
    tree = record.tree
    if tree is None:
        return TreeWished(record.job, record.epoch, None, record.anew)
    above = tuple(sorted((one.switch, one.above) for one in tree.above))
    found = FabricTree(tree.root, above, tuple(sorted(set(tree.passing))))
    return TreeWished(record.job, record.epoch, found, record.anew)


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
