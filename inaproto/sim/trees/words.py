"""What the controller and the switches of a world of trees say, beside requests for slots and answers."""

from __future__ import annotations

from dataclasses import dataclass

from inaproto.wire.messages.trees import TreeState


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first message of a session."""

    slots: int
    trees: bool
    """The controller wants to hear where jobs are."""


@dataclass(frozen=True, slots=True)
class ReportPage:
    """Where some jobs are; the last page makes it whole."""

    term: int
    revision: int
    states: tuple[TreeState, ...]
    more: bool
