"""What the nodes of a tree of one model and shard tell each other (MLNet section 3.2; docs/protocol.md 18.5).

A *child* speaks to its *parent*: ``Attach``, ``Push``, ``PullRequest``, ``Flush``, ``Heartbeat``, ``Detach``;
the parent to its child: ``Attached``, ``Detached``, ``Weights``, ``Merged``, ``Mode``, ``Reshaped``,
``HeartbeatAnswer``.
An edge is FIFO and loses nothing while it is connected; nothing that was said on an earlier connection
arrives on a later one. A connection begins as :mod:`inaproto.wire.messages.model_connections` says.

On a parameter server's disk: ``ShardState``, ``ShardChange``.

**Exactly once.** A push carries the sum of the updates ``before[w] + 1`` to ``after[w]`` of each worker ``w``
in it. Who hears it merges it whole, if its own vector has ``before[w]`` for each of them, and otherwise not
at all. So a vector and a sum that agree stay so, whatever path an update takes and however often it is sent.

Arrays in words are 1-d, of the model's elements and dtype, not writeable; whoever makes a word does not
change its array afterwards, whoever hears one does not either: a word to several children shares one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NewType

from inaproto.wire.messages.arrays import Comparable, Numbers
from inaproto.wire.messages.clocks import CLOCK_MAX, NO_CLOCKS, NODES_MAX, ClocksField, WorkerId
from inaproto.wire.messages.fields import Behind, Integer, Many, OneOf, Refused
from inaproto.wire.messages.types import U16, U64, Explanation, Flag, Message, Name, Names, Unnumbered

NodeId = NewType("NodeId", int)
"""A process of MLNet in the tree: a host's, or the parameter server's (the root)."""

_Number = Annotated[int, Integer(0, CLOCK_MAX)]
_Numbers = Annotated[tuple[int, ...], Many(Integer(0, CLOCK_MAX), 4)]
_Workers = Annotated[tuple[WorkerId, ...], Many(Integer(0, 0xFFFF_FFFF), NODES_MAX)]
_Nodes = Annotated[tuple[NodeId, ...], Many(Integer(0, 0xFFFF_FFFF), NODES_MAX)]
DtypeName = Annotated[
    Literal["int32", "int64", "float32", "float64"], OneOf(("int32", "int64", "float32", "float64"))
]


@dataclass(frozen=True, slots=True)
class Epoch:
    """Says which of the trees to choose from is used (:mod:`inaproto.core.models.tree.epochs`), by their
    places in the configuration, which are the same for all nodes."""

    number: int = 0
    """Number of the epoch: each of one model and shard has a higher one."""
    before: int = 0
    """The tree before it."""
    tree: int = 0
    first: int = 0
    """At s = 0 windows of this clock and later ones are added in the order of ``tree``, those before it in
    that of ``before``."""

    def tree_at(self, clock: int) -> int:
        """The tree whose order the window of this clock has."""
        return self.tree if clock >= self.first else self.before

    @property
    def numbers(self) -> tuple[int, ...]:
        """As messages say it."""
        return self.number, self.before, self.tree, self.first


FIRST_EPOCH: Final = Epoch()


@dataclass(frozen=True, slots=True)
class EpochKind:
    """Kind of a field that is an epoch: its four numbers."""

    numbers = Many(Integer(0, CLOCK_MAX), 4)

    def take(self, value: Any) -> Epoch:
        numbers = self.numbers.take(value)
        if len(numbers) != 4:
            raise Refused(f"is an epoch of {len(numbers)} numbers")
        return Epoch(*numbers)

    def give(self, value: Epoch) -> list[Any]:
        if not isinstance(value, Epoch):
            raise Refused(f"is {value!r:.60}, not an epoch")
        return self.numbers.give(value.numbers)


# --- a child to its parent


@dataclass(frozen=True, slots=True)
class Attach(Unnumbered, type="push_pull_attach"):
    """Be my parent, from now on; also said again by a child whose subtree has grown, or that was detached.

    Neither pushes nor asks before it is answered by ``Attached`` of the same session.
    """

    session: _Number
    """Session of this child; each ``Attach`` has a higher one."""
    workers: _Workers
    """Workers whose updates it may push: it asks how far the parent is with them."""
    floor: ClocksField = NO_CLOCKS
    """What the child knows the root to have merged of them: it cannot send that again. A parent that is
    behind it asks above before it answers."""
    epoch: _Number = 0
    """The number of the newest epoch that it, or a child that asks it, knows; likewise."""


@dataclass(frozen=True, slots=True, eq=False)
class Push(Comparable, Unnumbered, type="push_pull_push"):
    """The sum of some updates (MLNet 3.2); merged whole or not at all."""

    session: _Number
    clock: _Number
    """At s = 0 the window: all of it is of this clock (what a leaver says last: of the one it would have
    reached). At s > 0 c_sub, the least clock of the subtree."""
    before: ClocksField
    """Clocks of the workers in it alone."""
    after: ClocksField
    """Clocks of the same workers, each later than before."""
    delta: Annotated[Numbers | None, Behind()]
    """None: nothing but clocks."""


@dataclass(frozen=True, slots=True)
class PullRequest(Unnumbered, type="push_pull_request"):
    """Send me ``Weights`` with c_model >= ``needed``, as soon as there are such."""

    needed: _Number


@dataclass(frozen=True, slots=True)
class Flush(Unnumbered, type="push_pull_flush"):
    """Forward what you withhold, and say so to your parent: a worker that came back waits for its last
    updates to be merged by the root. Nothing is withheld at s = 0."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Unnumbered, type="push_pull_heartbeat"):
    """Every ``heartbeat_ns`` (MLNet 3.2, fault tolerance); and at once when what it says is new."""

    dead: _Nodes = ()
    """Nodes that the sender, or a node below it, takes for dead."""
    lost: _Workers = ()
    """Workers that it has pushed for, and that are not below it any more."""
    load: U16 = 0
    """How full the busiest link below, or that of the sender, was while weights were waited for, in
    thousandths (:mod:`inaproto.core.models.tuning`). It alone is no reason to say one."""


@dataclass(frozen=True, slots=True)
class Detach(Unnumbered, type="push_pull_detach"):
    """I go to another parent; all that I said before counts."""

    session: _Number


# --- a parent to its child


@dataclass(frozen=True, slots=True)
class Attached(Unnumbered, type="push_pull_attached"):
    """You are my child."""

    session: _Number
    base: ClocksField
    """What the parent has merged of the workers of the ``Attach``. The child goes on from there."""
    root: ClocksField
    """What the parent knows the root to have merged, durably."""
    direct: Flag = False
    """See :class:`Mode`."""


@dataclass(frozen=True, slots=True)
class Detached(Unnumbered, type="push_pull_detached"):
    """What you say in this session counts no more; attach again."""

    session: _Number
    reason: Explanation


@dataclass(frozen=True, slots=True, eq=False)
class Weights(Comparable, Unnumbered, type="push_pull_weights"):
    """The answer to all requests of this child that it is new enough for."""

    included: ClocksField
    """Clocks of the updates of all workers that are in these weights."""
    root: ClocksField
    """The root's vector of all workers when they left it; its minimum is c_model."""
    weights: Annotated[Numbers, Behind(1)]


@dataclass(frozen=True, slots=True)
class Merged(Unnumbered, type="push_pull_merged"):
    """What the root has merged, durably, so that logs end though nobody pulls."""

    root: ClocksField


@dataclass(frozen=True, slots=True)
class Mode(Unnumbered, type="push_pull_mode"):
    """From the root to all: each node is a child of the root (``direct``), or the tree is built up again."""

    direct: Flag


@dataclass(frozen=True, slots=True)
class Reshaped(Unnumbered, type="push_pull_reshaped"):
    """From the root to all, and to each child that asks: which tree is used. Who is below another parent in
    it goes there. Said before anything that the root came to know later."""

    epoch: Annotated[Epoch, EpochKind()]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer(Unnumbered, type="push_pull_alive"):
    """Answers each ``Heartbeat``."""

    is_attached: Flag
    """Whether the one who answers has a parent, or is the root: a child that had left it may come back."""


UpWord = Attach | Push | PullRequest | Flush | Heartbeat | Detach
DownWord = Attached | Detached | Weights | Merged | Mode | Reshaped | HeartbeatAnswer
Word = UpWord | DownWord

# --- a parameter server's disk


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardState(Comparable, Message, type="shard_state"):
    """A snapshot: the weights contain the updates up to ``clocks``, each once."""

    model: Name
    shard: U16
    first: U64
    """Index of its first element in the model."""
    elements: U64
    dtype: DtypeName
    clocks: ClocksField
    epoch: _Numbers = ()
    """Empty: the first, which begins with the training."""
    weights: Annotated[Numbers, Behind(1)]
    workers: Names = ()
    """Workers by their numbers in ``clocks``; none: written before names were."""
    model_elements: U64 = 0
    shards: U16 = 0
    fraction_bits: U16 | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardChange(Comparable, Message, type="shard_change"):
    """What is added to the weights, if anything, and the clocks that change with it."""

    clocks: ClocksField
    epoch: _Numbers = ()
    """Empty: the same goes on."""
    delta: Annotated[Numbers | None, Behind()]
