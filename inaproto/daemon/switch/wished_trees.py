"""Trees that a controller wishes for jobs, at the root of a fabric: the driver of what takes them there.

:class:`inaproto.core.migration.taken_wishes.TakenWishes` has the rules; the rendezvous does what is wished.
Here are the messages: what is reported of many jobs goes in several pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, assert_never

from inaproto.core.migration.taken_wishes import (
    Connected,
    Disconnected,
    Follow,
    Report,
    StatesAre,
    TakenWishes,
    WishesCame,
    WishEvent,
)
from inaproto.daemon.switch.tree_records import REASON_CHARACTERS
from inaproto.units import Instant
from inaproto.wire.control import MESSAGE_BYTES_MAX
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentWelcome
from inaproto.wire.messages.trees import TREES_MAX, TreeReport, TreeState, TreeWished, TreeWishes

PAGE_BYTES: Final = MESSAGE_BYTES_MAX // 2
FIELD_BYTES: Final = 8
"""More than the length and the kind of a text take."""
RECORD_BYTES: Final = 128
"""More than the names of the fields of a record, and its numbers, take."""


class WishedTrees:
    """:class:`inaproto.daemon.net.controller_link.AgentSide`. ``wish`` takes all; ``states`` says what
    is."""

    hears: Final = TreeWishes

    def __init__(
        self, wish: Callable[[tuple[TreeWished, ...]], None], states: Callable[[], Sequence[TreeState]]
    ) -> None:
        self._wish, self._states = wish, states
        self._send: Callable[[Message], None] | None = None
        self._core = TakenWishes()

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        if welcome.trees:
            self._send = send
            self._step(Connected())
            self.changed()

    def disconnected(self) -> None:
        self._send = None
        self._step(Disconnected())

    def heard(self, message: TreeWishes) -> None:
        self._step(WishesCame(message.term, message.revision, message.trees, message.part, message.parts))

    def changed(self) -> None:
        """Where jobs are may have changed."""
        if self._send is not None:
            self._step(StatesAre(tuple(self._states())))

    def _step(self, event: WishEvent) -> None:
        for action in self._core.step(event, Instant(0)):
            match action:
                case Follow(wishes):
                    self._wish(wishes)
                    self.changed()
                case Report(term, revision, states):
                    self._report(term, revision, states)
                case _:
                    assert_never(action)

    def _report(self, term: int, revision: int, states: Sequence[TreeState]) -> None:
        if self._send is None:
            return
        *first, last = _pages([replace(one, reason=one.reason[:REASON_CHARACTERS]) for one in states])
        for page in first:
            self._send(TreeReport(term=term, revision=revision, trees=page, more=True))
        self._send(TreeReport(term=term, revision=revision, trees=last))

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        view = self._core.view()
        return {
            "term": view.term,
            "revision": view.revision,
            "wishes": [
                {"job": one.job, "epoch": one.epoch, "root": None if one.tree is None else one.tree.root}
                for one in view.wishes
            ],
        }


def _pages(records: Sequence[TreeState]) -> list[tuple[TreeState, ...]]:
    """Each fits in a message; one at least."""
    pages: list[list[TreeState]] = [[]]
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
