"""Control messages about the trees that jobs are to have (MINA section IV-A).

controller -> root of a fabric: TreeWishes. root of a fabric -> controller: TreeReport.

Both say the whole of it, always: the controller which job shall be on which tree, the root where every job on
the path ``shared`` is. So any message may be lost, and a later one takes the place of those before it. A job
that is in no wish goes as it would without a controller. Wishes that are too many for a message come in
parts, which count once all are there.

Checks are of form alone. That only a fabric's root reports trees is for the controller to make sure of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from inaproto.wire.messages.fields import Integer, Many, OneOf, Record, Text
from inaproto.wire.messages.types import U32, U64, Explanation, Flag, Message, Name, Names, Secret

TREES_MAX: Final = 1 << 12
"""Jobs in a message."""
TREE_SWITCHES_MAX: Final = 1 << 12
PARTS_MAX: Final = 1 << 10
"""Messages that say all wishes, where one cannot carry them."""
TreePhase = Literal["standing", "parking", "parked", "moving", "refused"]
_PHASES: Final = ("standing", "parking", "parked", "moving", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class AboveRecord:
    """A switch of a tree, and the one above it there."""

    switch: Name
    above: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedTree:
    root: Name
    above: Annotated[tuple[AboveRecord, ...], Many(Record(AboveRecord), TREE_SWITCHES_MAX)]
    """The switch above each of its switches but the root."""
    passing: Annotated[tuple[str, ...], Many(Text(128, bytes_min=1), TREE_SWITCHES_MAX)] = ()
    """Those of them that add nothing up for it, and send sums on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeWish:
    job: Name
    epoch: Annotated[int, Integer(1, 0xFFFF_FFFF)]
    """Epoch of the lease of its tree; without a tree, of that which it had."""
    tree: Annotated[AssignedTree, Record(AssignedTree)] | None = None
    """None: it shall have none, and its hosts sum."""
    anew: Flag = False
    """Whether to follow it even if it adds in another order: the job's rings begin anew for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeWishes(Message, type="tree_wishes"):
    """All wishes for trees."""

    term: U64
    revision: U64
    """Grows within a term."""
    trees: Annotated[tuple[TreeWish, ...], Many(Record(TreeWish), TREES_MAX)]
    part: Annotated[int, Integer(0, PARTS_MAX - 1)] = 0
    """From 0; all parts of a revision together are the wishes."""
    parts: Annotated[int, Integer(1, PARTS_MAX)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRecord:
    """Where a job on the path ``shared`` is."""

    job: Name
    hosts: Names
    epoch: U32
    """Epoch of the wish that its phase is about; 0: there was none."""
    phase: Annotated[TreePhase, OneOf(_PHASES)]
    pool: Secret = ""
    """Pool whose slots its ring has by turns; empty: it has no ring through the switches."""
    reason: Explanation = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport(Message, type="tree_report"):
    """All jobs on the path ``shared``. ``term``, ``revision``: of the wishes taken last; 0: none were.

    What does not fit in one message is told in several, in order, on one connection.
    """

    term: U64
    revision: U64
    trees: Annotated[tuple[TreeRecord, ...], Many(Record(TreeRecord), TREES_MAX)]
    more: Flag = False
    """The next one goes on with this."""
