"""What the nodes of a tree of one model and shard tell each other (MLNet section 3.2; docs/protocol.md 18.5).

A *child* speaks to its *parent*: ``Attach``, ``Push``, ``PullRequest``, ``Flush``, ``Heartbeat``, ``Detach``;
the parent to its child: ``Attached``, ``Detached``, ``Weights``, ``Merged``, ``Mode``, ``Reshaped``,
``HeartbeatAnswer``.
An edge is FIFO and loses nothing while it is connected; nothing that was said on an earlier connection
arrives on a later one.

**Exactly once.** A push carries the sum of the updates ``before[w] + 1`` to ``after[w]`` of each worker ``w``
in it. Who hears it merges it whole, if its own vector has ``before[w]`` for each of them, and otherwise not
at all. So a vector and a sum that agree stay so, whatever path an update takes and however often it is sent.

Arrays in words are 1-d, of the model's elements and dtype, not writeable; whoever makes a word does not
change its array afterwards, whoever hears one does not either: a word to several children shares one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, NewType

import numpy as np
from numpy.typing import NDArray

from inaproto.core.models.clocks import NO_CLOCKS, Clocks, WorkerId

NodeId = NewType("NodeId", int)
"""A process of MLNet in the tree: a host's, or the parameter server's (the root)."""

Numbers = NDArray[Any]
"""1-d: of each element of the shard its weight, or what is added to it."""


class Comparable:
    """Equality and hash of a frozen dataclass by its fields, arrays by dtype and bytes."""

    __slots__ = ()

    def _key(self) -> tuple[object, ...]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple((v.dtype.str, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))


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


FIRST_EPOCH: Final = Epoch()

# --- a child to its parent


@dataclass(frozen=True, slots=True)
class Attach:
    """Be my parent, from now on; also said again by a child whose subtree has grown, or that was detached.

    Neither pushes nor asks before it is answered by ``Attached`` of the same session.
    """

    session: int
    """Session of this child; each ``Attach`` has a higher one."""
    workers: tuple[WorkerId, ...]
    """Workers whose updates it may push: it asks how far the parent is with them."""
    floor: Clocks = NO_CLOCKS
    """What the child knows the root to have merged of them: it cannot send that again. A parent that is
    behind it asks above before it answers."""
    epoch: int = 0
    """The number of the newest epoch that it, or a child that asks it, knows; likewise."""


@dataclass(frozen=True, slots=True, eq=False)
class Push(Comparable):
    """The sum of some updates (MLNet 3.2); merged whole or not at all."""

    session: int
    clock: int
    """At s = 0 the window: all of it is of this clock (what a leaver says last: of the one it would have
    reached). At s > 0 c_sub, the least clock of the subtree."""
    before: Clocks
    """Clocks of the workers in it alone."""
    after: Clocks
    """Clocks of the same workers, each later than before."""
    delta: Numbers | None
    """None: nothing but clocks."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Send me ``Weights`` with c_model >= ``needed``, as soon as there are such."""

    needed: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Forward what you withhold, and say so to your parent: a worker that came back waits for its last
    updates to be merged by the root. Nothing is withheld at s = 0."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Every ``heartbeat_ns`` (MLNet 3.2, fault tolerance); and at once when what it says is new."""

    dead: tuple[NodeId, ...] = ()
    """Nodes that the sender, or a node below it, takes for dead."""
    lost: tuple[WorkerId, ...] = ()
    """Workers that it has pushed for, and that are not below it any more."""
    load: int = 0
    """How full the busiest link below, or that of the sender, was while weights were waited for, in
    thousandths (:mod:`inaproto.core.models.tuning`). It alone is no reason to say one."""


@dataclass(frozen=True, slots=True)
class Detach:
    """I go to another parent; all that I said before counts."""

    session: int


# --- a parent to its child


@dataclass(frozen=True, slots=True)
class Attached:
    """You are my child."""

    session: int
    base: Clocks
    """What the parent has merged of the workers of the ``Attach``. The child goes on from there."""
    root: Clocks
    """What the parent knows the root to have merged, durably."""
    direct: bool = False
    """See :class:`Mode`."""


@dataclass(frozen=True, slots=True)
class Detached:
    """What you say in this session counts no more; attach again."""

    session: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Weights(Comparable):
    """The answer to all requests of this child that it is new enough for."""

    weights: Numbers
    included: Clocks
    """Which updates of all workers are in these weights."""
    root: Clocks
    """The root's vector of all workers when they left it; its minimum is c_model."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What the root has merged, durably, so that logs end though nobody pulls."""

    root: Clocks


@dataclass(frozen=True, slots=True)
class Mode:
    """From the root to all: each node is a child of the root (``direct``), or the tree is built up again."""

    direct: bool


@dataclass(frozen=True, slots=True)
class Reshaped:
    """From the root to all, and to each child that asks: which tree is used. Who is below another parent in
    it goes there. Said before anything that the root came to know later."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Answers each ``Heartbeat``."""

    is_attached: bool
    """Whether the one who answers has a parent, or is the root: a child that had left it may come back."""


UpWord = Attach | Push | PullRequest | Flush | Heartbeat | Detach
DownWord = Attached | Detached | Weights | Merged | Mode | Reshaped | HeartbeatAnswer
Word = UpWord | DownWord
