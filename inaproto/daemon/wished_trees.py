"""Trees that a controller wishes for jobs, at the root of a fabric: taken here, and what became of them told.

Both ways all of it is told, always (:mod:`inaproto.wire.tree_messages`); the rendezvous does what is wished.
While no controller is there, what was wished last goes on to be so.

Invariants: wishes older than those taken, by term or revision, change nothing; nor does a part of some before
all parts of its revision are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from inaproto.core.rendezvous_types import TreeState, TreeWished
from inaproto.daemon.tree_records import state_record, wish_of
from inaproto.wire.control import MESSAGE_BYTES_MAX
from inaproto.wire.control_messages import Message
from inaproto.wire.controller_messages import AgentWelcome
from inaproto.wire.tree_messages import TREES_MAX, TreeRecord, TreeReport, TreeWishes

PAGE_BYTES: Final = MESSAGE_BYTES_MAX // 2
FIELD_BYTES: Final = 8
"""More than the length and the kind of a text take."""
RECORD_BYTES: Final = 128
"""More than the names of the fields of a record, and its numbers, take."""


class WishedTrees:
    """:class:`inaproto.daemon.controller_link.SwitchSide`. ``wish`` takes all; ``states`` says what is."""

    hears: Final = TreeWishes

    def __init__(
        self, wish: Callable[[tuple[TreeWished, ...]], None], states: Callable[[], Sequence[TreeState]]
    ) -> None:
        self._wish, self._states = wish, states
        self._send: Callable[[Message], None] | None = None
        self._taken = (0, 0)
        """Term and revision."""
        self._coming = (0, 0)
        self._parts: dict[int, TreeWishes] = {}
        """Of those, by number."""
        self._wishes: tuple[TreeWished, ...] = ()
        self._told: tuple[int, int, tuple[TreeRecord, ...]] | None = None
        """In this session, last: with the term and the revision."""

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        if welcome.trees:
            self._send, self._told = send, None
            self.changed()

    def disconnected(self) -> None:
        self._send = None

    def heard(self, message: TreeWishes) -> None:
        version = message.term, message.revision
        if version < max(self._taken, self._coming) or message.part >= message.parts:
            return
        if version != self._coming:
            self._coming, self._parts = version, {}
        self._parts[message.part] = message
        if any(number not in self._parts for number in range(message.parts)):
            return
        self._taken = version
        parts = [self._parts[number] for number in range(message.parts)]
        self._parts = {}
        self._wishes = tuple(wish_of(wish) for part in parts for wish in part.trees)
        self._wish(self._wishes)
        self.changed()

    def changed(self) -> None:
        """Where jobs are may have changed."""
        if self._send is None:
            return
        term, revision = self._taken
        records = tuple(map(state_record, self._states()))
        if (term, revision, records) == self._told:
            return
        self._told = term, revision, records
        *first, last = _pages(records)
        for page in first:
            self._send(TreeReport(term=term, revision=revision, trees=page, more=True))
        self._send(TreeReport(term=term, revision=revision, trees=last))

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        term, revision = self._taken
        return {
            "term": term,
            "revision": revision,
            "wishes": [
                {"job": one.job, "epoch": one.epoch, "root": None if one.tree is None else one.tree.root}
                for one in self._wishes
            ],
        }


def _pages(records: Sequence[TreeRecord]) -> list[tuple[TreeRecord, ...]]:
    """Each fits in a message; one at least."""
    pages: list[list[TreeRecord]] = [[]]
    left = PAGE_BYTES
    for record in records:
        texts = (record.job, record.pool, record.reason, *record.hosts)
        nbytes = RECORD_BYTES + sum(FIELD_BYTES + len(text.encode()) for text in texts)
        if pages[-1] and (nbytes > left or len(pages[-1]) >= TREES_MAX):
            pages.append([])
            left = PAGE_BYTES
        pages[-1].append(record)
        left -= nbytes
    return [tuple(page) for page in pages]
