"""Wishes for trees of jobs as control messages, in as many as they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inaproto.wire.control import MESSAGE_BYTES_MAX
from inaproto.wire.messages.trees import (
    TreeWished,
    TreeWishes,
)

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


def wish_messages(term: int, revision: int, wishes: Sequence[TreeWished]) -> list[TreeWishes]:
    """All wishes, in as many messages as they need. ``wishes``: trees of at most ``TOLD_SWITCHES_MAX``."""
    parts: list[list[TreeWished]] = [[]]
    room = MESSAGE_BYTES_MAX - HEAD_BYTES
    for wish in wishes:
        nbytes = WISH_BYTES
        if wish.tree is not None:
            nbytes += ABOVE_BYTES * len(wish.tree.above) + NAME_BYTES * len(wish.tree.passing)
        if parts[-1] and nbytes > room:
            parts.append([])
            room = MESSAGE_BYTES_MAX - HEAD_BYTES
        parts[-1].append(wish)
        room -= nbytes
    return [
        TreeWishes(term=term, revision=revision, trees=tuple(one), part=number, parts=len(parts))
        for number, one in enumerate(parts)
    ]
