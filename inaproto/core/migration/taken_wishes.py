"""Trees that a controller wishes for jobs, at the root of a fabric: taken here, and what became of them told.

Both ways all of it is told, always (:mod:`inaproto.wire.messages.trees`). While no controller is there, what
was wished last goes on to be so.

Invariants: wishes older than those taken, by term or revision, change nothing; nor does a part of some before
all parts of its revision are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from inaproto.units import Instant
from inaproto.wire.messages.trees import TreeState, TreeWished


@dataclass(frozen=True, slots=True)
class Connected:
    """A session with a controller that wants to hear of trees begins."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """It is over."""


@dataclass(frozen=True, slots=True)
class WishesCame:
    """A part of all wishes of a revision."""

    term: int
    revision: int
    wishes: tuple[TreeWished, ...]
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class StatesAre:
    """Where jobs are now."""

    states: tuple[TreeState, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """All that is wished, for the rendezvous to follow; answered by ``StatesAre``."""

    wishes: tuple[TreeWished, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the controller where jobs are, in as many messages as it needs."""

    term: int
    """Term of the wishes that were taken, with their revision."""
    revision: int
    states: tuple[TreeState, ...]


WishEvent = Connected | Disconnected | WishesCame | StatesAre
WishAction = Follow | Report


@dataclass(frozen=True, slots=True)
class WishesView:
    term: int
    revision: int
    wishes: tuple[TreeWished, ...]


class TakenWishes:
    """Pure core; see the module. After ``Connected`` it is told ``StatesAre``."""

    def __init__(self) -> None:
        self._taken = (0, 0)
        """Term and revision."""
        self._coming = (0, 0)
        self._parts: dict[int, tuple[TreeWished, ...]] = {}
        """Parts of those that come, by number."""
        self._wishes: tuple[TreeWished, ...] = ()
        self._is_heard = False
        self._told: Report | None = None
        """In this session, last."""

    @property
    def deadline(self) -> Instant | None:
        return None

    def view(self) -> WishesView:
        return WishesView(*self._taken, self._wishes)

    def step(self, event: WishEvent, now: Instant) -> list[WishAction]:
        match event:
            case Connected():
                self._is_heard, self._told = True, None
                self._coming, self._parts = (0, 0), {}  # all of them will be said again
                return []
            case Disconnected():
                self._is_heard = False
                return []
            case WishesCame():
                return self._came(event)
            case StatesAre(states):
                return self._report(Report(*self._taken, states))
            case _:
                assert_never(event)

    def _came(self, event: WishesCame) -> list[WishAction]:
        version = event.term, event.revision
        if version < max(self._taken, self._coming) or event.part >= event.parts:
            return []
        if version != self._coming:
            self._coming, self._parts = version, {}
        self._parts[event.part] = event.wishes
        if any(number not in self._parts for number in range(event.parts)):
            return []
        self._taken = version
        self._wishes = tuple(wish for number in range(event.parts) for wish in self._parts[number])
        self._parts = {}
        return [Follow(self._wishes)]

    def _report(self, report: Report) -> list[WishAction]:
        if not self._is_heard or report == self._told:
            return []
        self._told = report
        return [report]
