"""The waits of an explored core: which are under way, and how one ends.

Clocks stand still, so no wait ends by itself. That one of them ends is a step, any time while it lasts: the
core is woken after what it waits since has become very long ago. So waits end in any order, whatever their
lengths, and there are no times in a state but two, now and long ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from inaproto.core.models.node import ShardNode
from inaproto.core.models.shard import ShardRoot
from inaproto.errors import InvariantBroken
from inaproto.units import Instant

LONG_AGO: Final = Instant(-(1 << 40))

Wait = tuple[str, int]
"""Its kind, and whom it concerns (-1: nobody)."""
PARENT: Final = "its parent is dead"
BACK: Final = "it goes back"
CHILD: Final = "a child is dead"
REDO: Final = "its worker makes updates again"
ENOUGH: Final = "the tree may be built up"
ABSENT: Final = "a worker is gone"


def waits_of(core: ShardNode | ShardRoot) -> tuple[Wait, ...]:
    """Those that are under way; ``InvariantBroken`` if the core has a deadline that is none of them."""
    found = tuple(_of_node(core) if isinstance(core, ShardNode) else _of_root(core))
    if bool(found) != (core.deadline is not None):
        raise InvariantBroken(f"{type(core).__name__} waits until {core.deadline}; known are {found}")
    return found


def _of_node(core: ShardNode) -> Iterator[Wait]:
    link = core._link
    if link._silent_since is not None and link._at < len(link._ancestors) - 1:
        yield PARENT, link.parent
    for peer in link._answers_since:
        yield BACK, peer
    for child in core._sub.children:
        if child.is_awaited and child.silent_since is not None:
            yield CHILD, child.node
    if core._redo_from is not None and not core._may_redo:
        yield REDO, -1


def _of_root(core: ShardRoot) -> Iterator[Wait]:
    for child in core._children:
        if child.is_awaited and child.silent_since is not None:
            yield CHILD, child.node
    failures = core._failures
    if failures._enough_since is not None:
        yield ENOUGH, -1
    if not failures.is_direct:
        for worker, since in failures._absent_since.items():
            if worker in failures._seen and since != LONG_AGO:
                yield ABSENT, worker


def end_wait(core: ShardNode | ShardRoot, wait: Wait) -> None:
    """The core finds it ended when it is woken."""
    kind, whom = wait
    if isinstance(core, ShardNode):
        link = core._link
        if kind == PARENT:
            link._silent_since = LONG_AGO
        elif kind == BACK:
            link._answers_since[whom] = LONG_AGO  # type: ignore[index]
        elif kind == REDO:
            core._redo_from = LONG_AGO
        else:
            core._sub.children._by_node[whom].silent_since = LONG_AGO  # type: ignore[index]
    elif kind == CHILD:
        core._children._by_node[whom].silent_since = LONG_AGO  # type: ignore[index]
    elif kind == ENOUGH:
        core._failures._enough_since = LONG_AGO
    else:
        core._failures._absent_since[whom] = LONG_AGO  # type: ignore[index]
