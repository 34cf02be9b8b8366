"""Trees that a controller wishes for jobs, at the root of a fabric: taken here, and what became of them told.

Both ways all of it is told, always (:mod:`inaproto.wire.tree_messages`); the rendezvous does what is wished.
While no controller is there, what was wished last goes on to be so.

Invariant: wishes older than those taken, by term or revision, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from inaproto.core.rendezvous_types import TreeState, TreeWished
from inaproto.daemon.tree_records import state_record, wish_of
from inaproto.wire.control_messages import Message
from inaproto.wire.controller_messages import AgentWelcome
from inaproto.wire.tree_messages import TREES_MAX, TreeReport, TreeWishes


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
        self._wishes: tuple[TreeWished, ...] = ()
        self._told: TreeReport | None = None
        """In this session, last."""

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        if welcome.trees:
            self._send, self._told = send, None
            self.changed()

    def disconnected(self) -> None:
        self._send = None

    def heard(self, message: TreeWishes) -> None:
        if (message.term, message.revision) < self._taken:
            return
        self._taken = message.term, message.revision
        self._wishes = tuple(map(wish_of, message.trees))
        self._wish(self._wishes)
        self.changed()

    def changed(self) -> None:
        """Where jobs are may have changed."""
        if self._send is None:
            return
        term, revision = self._taken
        states = tuple(state_record(state) for state in self._states())[:TREES_MAX]
        report = TreeReport(term=term, revision=revision, trees=states)
        if report != self._told:
            self._told = report
            self._send(report)

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
