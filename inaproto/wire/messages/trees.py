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
from typing import Annotated, Any, Final, Literal, NamedTuple

from inaproto.wire.messages.fields import Integer, Many, OneOf, Record, Text
from inaproto.wire.messages.types import U32, U64, Explanation, Flag, Message, Name, Names, Positive32, Secret

TREES_MAX: Final = 1 << 12
"""Jobs in a message."""
TREE_SWITCHES_MAX: Final = 1 << 12
PARTS_MAX: Final = 1 << 10
"""Messages that say all wishes, where one cannot carry them."""
TreePhase = Literal["standing", "parking", "parked", "moving", "refused"]
"""``parking``: its hosts have been asked to end what they do there; ``parked``: no switch has it;
``moving``: switches get it; ``refused``: one has not taken it, or has lost it, and the base ring has all."""
_PHASES: Final = ("standing", "parking", "parked", "moving", "refused")


Link = tuple[str, str]
"""Two switches, the lower first: the one farther from the root."""


class FabricTree(NamedTuple):
    """Switches, rooted; the links between them are the fabric's."""

    root: str
    above: tuple[Link, ...] = ()
    """Each switch of the tree but the root with the one above it, sorted."""
    passing: tuple[str, ...] = ()
    """Those of them that add nothing up for this tree and send on what is added below them, sorted."""


@dataclass(frozen=True, slots=True)
class AboveRecord:
    """A switch of a tree, and the one above it there."""

    switch: Name
    above: Name


@dataclass(frozen=True, slots=True)
class AssignedTree:
    root: Name
    above: Annotated[tuple[AboveRecord, ...], Many(Record(AboveRecord), TREE_SWITCHES_MAX)]
    """The switch above each of its switches but the root."""
    passing: Annotated[tuple[str, ...], Many(Text(128, bytes_min=1), TREE_SWITCHES_MAX)] = ()
    """Those of them that add nothing up for it, and send sums on."""


class TreeKind(Record):
    """Kind of a tree, which travels as an ``AssignedTree``, in any order."""

    def take(self, value: Any) -> FabricTree:
        said: AssignedTree = super().take(value)
        above = tuple(sorted((one.switch, one.above) for one in said.above))
        return FabricTree(said.root, above, tuple(sorted(set(said.passing))))

    def give(self, value: FabricTree) -> Any:
        above = tuple(AboveRecord(*link) for link in value.above)
        return super().give(AssignedTree(value.root, above, value.passing))


@dataclass(frozen=True, slots=True)
class TreeWished:
    """Where the ring through the switches of a job on the path ``shared`` is to stand."""

    job: Name
    epoch: Positive32
    """Epoch of the wish, that of the lease of its tree; without a tree, of that which it had. What is
    reported of the job's tree says which one it follows."""
    tree: Annotated[FabricTree, TreeKind(AssignedTree)] | None = None
    """None: nowhere, its hosts sum."""
    anew: Flag = False
    """Whether it moves even if that tree adds in another order: then the generation of the job's rings ends,
    and the next one begins there. Else it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeWishes(Message, type="tree_wishes"):
    """All wishes for trees."""

    term: U64
    revision: U64
    """Grows within a term."""
    trees: Annotated[tuple[TreeWished, ...], Many(Record(TreeWished), TREES_MAX)]
    part: Annotated[int, Integer(0, PARTS_MAX - 1)] = 0
    """From 0; all parts of a revision together are the wishes."""
    parts: Annotated[int, Integer(1, PARTS_MAX)] = 1


@dataclass(frozen=True, slots=True)
class TreeState:
    """Where the ring through the switches is, of a job on the path ``shared`` that has two hosts or more."""

    job: Name
    hosts: Names
    """Names of its hosts, by position."""
    epoch: U32
    """Epoch of the wish that it follows; 0: none, it is on the fabric's own tree."""
    phase: Annotated[TreePhase, OneOf(_PHASES)]
    pool: Secret = ""
    """Pool whose slots it has by turns there; empty while it has none."""
    reason: Explanation = ""
    """Why it is refused; or whom a ring that parks waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport(Message, type="tree_report"):
    """All jobs on the path ``shared``. ``term``, ``revision``: of the wishes taken last; 0: none were.

    What does not fit in one message is told in several, in order, on one connection.
    """

    term: U64
    revision: U64
    trees: Annotated[tuple[TreeState, ...], Many(Record(TreeState), TREES_MAX)]
    more: Flag = False
    """The next one goes on with this."""
