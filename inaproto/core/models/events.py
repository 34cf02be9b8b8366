"""Configurations, events, actions, durable records and views of push, pull and clock (MLNet section 3).

Of :class:`inaproto.core.models.node.ShardNode` (a host's process, which may have a worker and may have
children) and :class:`inaproto.core.models.shard.ShardRoot` (the parameter server's); one of either per
model and shard. What they tell each other is in :mod:`inaproto.wire.messages.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np

from inaproto.core.models.tree.epochs import Stand
from inaproto.core.models.tree.shape import Shape
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import S
from inaproto.wire.messages.arrays import Comparable, Numbers
from inaproto.wire.messages.clocks import NO_CLOCKS, Clocks, WorkerId
from inaproto.wire.messages.models import FIRST_EPOCH, Epoch, NodeId, Word

DTYPES: Final = ("int32", "int64", "float32", "float64")

# --- configuration


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """A shard of a model: what all nodes of its tree agree on."""

    elements: int
    dtype: str
    """Type of what travels and is added; one of ``DTYPES``. Integers wrap."""
    staleness: int = 0
    """s of the tree: what a node may withhold (docs/protocol.md 18.6). At 0 each clock is one window, added
    in the order of the tree, and weights are those of a clock, bit for bit. A pull may ask for another
    staleness; with less than this one it may wait until others have come to a multiple of s + 1."""
    fraction_bits: int | None = None
    """Fixed point: workers push and pull float64, which travels as integers of ``dtype``, times
    2**fraction_bits. Sums are then the same in whatever order they are made."""
    ahead_max: int = 8
    """Updates of a worker that the root has not merged: its next clock waits. This bounds every log and
    queue."""

    def __post_init__(self) -> None:
        if self.elements < 1 or self.dtype not in DTYPES:
            raise LocalMisuse(
                f"a shard has elements, of one of {DTYPES}, not {self.elements} of {self.dtype}"
            )
        if self.staleness < 0 or self.ahead_max <= self.staleness:
            raise LocalMisuse(
                f"staleness {self.staleness} is not between 0 and ahead_max {self.ahead_max} - 1"
            )
        if self.fraction_bits is not None and (self.fraction_bits < 0 or not self.dtype.startswith("int")):
            raise LocalMisuse("fixed point has fraction bits >= 0 and travels as integers")

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class Patience:
    """docs/protocol.md 18.8. Without ``heartbeat_ns`` none are sent: a peer lives while it is connected."""

    heartbeat_ns: int | None = 1 * S
    dead_ns: int = 3 * S
    """For which a peer may be silent, or not connected; then it is dead."""
    return_ns: int = 3 * S
    """For which an ancestor that was dead must have answered before its former child goes back to it."""
    start_ns: int = 30 * S
    """From a node's start: for so long nobody is dead to it whom it has not met, since hosts start one by
    one."""

    def __post_init__(self) -> None:
        if min(self.dead_ns, self.return_ns, self.start_ns) < 0 or (
            self.heartbeat_ns is not None and self.heartbeat_ns < 1
        ):
            raise LocalMisuse(f"patience: a time that is too small: {self}")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    shard: ShardSpec
    node: NodeId
    ancestors: tuple[NodeId, ...]
    """Its parent first, the root last: whom it goes to, one after the other, if they die."""
    children: tuple[NodeId, ...] = ()
    """In the tree, in the order in which their sums are added, after the node's own worker's."""
    worker: WorkerId | None = None
    """On the same host, if there is one."""
    patience: Patience = field(default_factory=Patience)
    shape: Shape | None = None
    """Shape of the subtree below it, as the tree was built: sums of floats have its bits then, whatever
    fails."""
    children_max: int = 1024
    """Attached at once, those included that came because their parent died."""
    workers: tuple[WorkerId, ...] | None = None
    """All of the model; None: not known, and what neighbours say of others is not checked."""
    nodes: tuple[NodeId, ...] | None = None
    """All of the tree, without the root; None: likewise."""
    others: tuple[Stand, ...] = ()
    """Where it is in the other trees to choose from (:mod:`inaproto.core.models.tree.epochs`)."""

    @property
    def stands(self) -> tuple[Stand, ...]:
        """In all trees; what stands above is the first."""
        return (Stand(self.ancestors, self.children, self.shape), *self.others)

    def __post_init__(self) -> None:
        if not self.ancestors:
            raise LocalMisuse(f"node {self.node} has no ancestors: the last one is the root")
        for stand in self.stands:
            nodes = (self.node, *stand.ancestors, *stand.children)
            if len(set(nodes)) != len(nodes):
                raise LocalMisuse(
                    f"node {self.node}: a node is its own neighbour, or is named twice: {nodes}"
                )
            if stand.ancestors[-1:] != self.ancestors[-1:] or (stand.shape is None) != (self.shape is None):
                raise LocalMisuse(
                    f"node {self.node}: trees of several roots, or some of them without an order"
                )
        if self.children_max < len(self.children):
            raise LocalMisuse(f"node {self.node} has more children than children_max {self.children_max}")


@dataclass(frozen=True, slots=True)
class RootConfig:
    shard: ShardSpec
    node: NodeId
    workers: tuple[WorkerId, ...]
    """All of the model."""
    children: tuple[NodeId, ...]
    """In the tree, in the order in which their sums are added."""
    nodes: tuple[NodeId, ...]
    """All of the tree, without the root."""
    patience: Patience = field(default_factory=Patience)
    teardown_failures: int = 2
    """f: so many nodes dead at once tear the tree down; fewer again build it up."""
    removal_ns: int | None = None
    """After which a worker that is below no node any more is removed; None: only by ``Remove``."""
    shape: Shape | None = None
    """Shape of the whole tree; see ``NodeConfig``."""
    children_max: int = 4096
    others: tuple[Stand, ...] = ()
    """See ``NodeConfig``."""

    @property
    def stands(self) -> tuple[Stand, ...]:
        return (Stand((), self.children, self.shape), *self.others)

    def __post_init__(self) -> None:
        for what, named in (("worker", self.workers), ("child", self.children), ("node", self.nodes)):
            if len(set(named)) != len(named):
                raise LocalMisuse(f"root {self.node}: a {what} is named twice: {named}")
        if not self.workers or not set(self.children) <= set(self.nodes) or self.node in self.nodes:
            raise LocalMisuse(f"root {self.node}: no workers, or children that are not nodes below it")
        if any(not set(stand.children) <= set(self.nodes) for stand in self.others):
            raise LocalMisuse(f"root {self.node}: children in another tree that are not nodes below it")
        is_hasty = self.removal_ns is not None and self.removal_ns < 1
        if self.teardown_failures < 1 or self.children_max < len(self.nodes) or is_hasty:
            raise LocalMisuse(f"root {self.node}: a number that is too small: {self}")


# --- durable state of the root


@dataclass(frozen=True, slots=True, eq=False)
class RootRecord(Comparable):
    """One step of the root's state: ``weights += delta``, and ``clocks`` of some workers are new."""

    clocks: Clocks
    """After it, of the workers that it concerns."""
    delta: Numbers | None
    """None: the weights stay."""
    epoch: Epoch | None = None
    """Epoch that begins; None: the same goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class RootSnapshot(Comparable):
    """All durable state of the root: the effect of all records whose ``Persisted`` was said."""

    weights: Numbers
    clocks: Clocks
    epoch: Epoch = FIRST_EPOCH


# --- events


@dataclass(frozen=True, slots=True)
class Pushed:
    """The local worker adds ``gradients`` to the update that it is making; they are copied. Shape
    (elements,), of the shard's dtype (float64 with fixed point). ``LocalMisuse`` otherwise, and before
    ``Resumed``."""

    gradients: Numbers


@dataclass(frozen=True, slots=True)
class Clocked:
    """The update is finished: c_worker += 1. Answered by ``Done``, which may come later (``ahead_max``):
    until then the worker may do nothing else."""

    request: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """Answered by ``Answer``, once weights are here with c_model >= c_worker - staleness."""

    request: int
    staleness: int


@dataclass(frozen=True, slots=True)
class Left:
    """The worker is finished, for good; what it has pushed counts. ``Done`` once the root has it durably."""

    request: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The worker's process is gone, and may come back. What it has pushed since its last ``Clocked`` is
    dropped, so are its pulls. All that it has finished counts, a clock that is held back too (its ``Done``
    comes later), and goes up at once: the next process may be long in coming. That one goes on after it."""


@dataclass(frozen=True, slots=True)
class Urged:
    """What the worker has finished is not to be withheld, here and above: somebody waits for the root to have
    it durably. Nothing is withheld at s = 0, where a window waits for all who are in it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """This node's process ends soon, and in order: all that it has goes up at once, at s = 0 in parts of
    windows if need be. What the root then has of the worker is not made again."""


@dataclass(frozen=True, slots=True)
class Connected:
    """There is a connection to the peer, whoever began it; an earlier one, if any, is gone."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Disconnected:
    """From the peer, or a connection could not be made; the shell tries again until told ``Disconnect``."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Heard:
    peer: NodeId
    word: Word


@dataclass(frozen=True, slots=True)
class Stirred:
    """Bytes of a word came from the peer, and more are to come: what it says meanwhile is behind them."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Persisted:
    """The root's record of this token, and those before it, are durable."""

    token: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Tells the root that nobody shall wait for this worker any more."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Reshape:
    """Tells the root to use this tree from now on, of those to choose from. It does so if that is another
    one, the tree stands whole, and the last such change is over (``RootView.may_reshape``)."""

    tree: int
    why: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Tells a node how full its host's link was lately while weights were waited for, in thousandths. Its
    next heartbeat says so."""

    permille: int


@dataclass(frozen=True, slots=True)
class Woke:
    """The deadline may have passed."""


WorkerEvent = Pushed | Clocked | Pulled | Left | Abandoned
NodeEvent = WorkerEvent | Urged | Ending | Connected | Disconnected | Heard | Stirred | Loaded | Woke
RootEvent = Connected | Disconnected | Heard | Stirred | Persisted | Remove | Reshape | Woke

# --- actions


@dataclass(frozen=True, slots=True)
class Tell:
    peer: NodeId
    word: Word


@dataclass(frozen=True, slots=True)
class Connect:
    """Dial this peer, again and again, until ``Disconnect``."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to this peer, after what was told before; dial it no more."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Resumed:
    """The worker may push: it is at this clock, and makes what it had done after it again.

    Said once after the node has started; 0 for a new worker, ``FOREVER`` for one that has left or was
    removed. If an update that it makes again turns up after all, from a node that had taken it, that one
    counts, not the new.
    """

    worker: WorkerId
    clock: int


@dataclass(frozen=True, slots=True)
class Done:
    request: int
    clock: int
    """Clock of the worker, now; ``FOREVER`` for ``Left``."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Comparable):
    """Answers ``Pulled`` with legal weights: ``included[w] >= clock - staleness`` for every worker."""

    request: int
    weights: Numbers
    """Not writeable. At s > 0 with what the worker has pushed since its clock."""
    clock: int
    """Clock of the worker when it pulled."""
    staleness: int
    model_clock: int
    """c_model: what the root had merged of everybody."""
    included: Clocks


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request will not be done; nothing else has changed."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Persist:
    """Make durable, in this order, then say ``Persisted``. One at a time."""

    record: RootRecord
    token: int


class Mark(Enum):
    """What was remarkable; for logs, counters and the marks of the simulation."""

    ATTACHED = "attached to a parent"
    ADOPTED = "took a child whose parent is dead"
    PARENT_DEAD = "parent taken for dead"
    CHILD_DEAD = "child taken for dead"
    RETURNED = "went back to a parent that had been dead"
    RESENT = "sent pushes again that the new parent has not merged"
    RESET = "sums dropped, since the parent has merged a part of them: made again from the subtree's logs"
    REFUSED_PUSH = "push refused: it does not go on where the vector ends"
    LATE_PART = "part of a window forwarded apart from the rest"
    COALESCED = "pull request answered together with one under way"
    FROM_CACHE = "pull answered from the cache"
    FLUSHED = "withheld updates forwarded for a pull"
    HELD = "clock held back: the worker is too far ahead of the root"
    WORKER_RESUMED = "worker resumed"
    WORKER_REMOVED = "worker removed"
    TORN_DOWN = "tree torn down: every node is a child of the root"
    BUILT_UP = "tree built up again"
    RESHAPED = "goes on with another tree"
    NOT_RESHAPED = "kept its tree, for now"
    AWAY = "stood still itself: silence of others meanwhile does not count"


@dataclass(frozen=True, slots=True)
class Noted:
    mark: Mark
    peer: NodeId | None = None
    why: str = ""


NodeAction = Tell | Connect | Disconnect | Resumed | Done | Answer | Refuse | Noted | Blame
RootAction = Tell | Persist | Noted | Blame

# --- views


@dataclass(frozen=True, slots=True)
class ChildView:
    node: NodeId
    is_attached: bool
    workers: tuple[WorkerId, ...]
    waiting: tuple[int, ...]
    """The model clocks that its requests need."""


@dataclass(frozen=True, slots=True)
class NodeView:
    node: NodeId
    parent: NodeId
    """Whom it is attached to, or tries to be."""
    is_attached: bool
    is_direct: bool
    children: tuple[ChildView, ...]
    worker: WorkerId | None
    worker_clock: int | None
    """Its last finished update, which is in this node's state; None: it has not resumed. ``FOREVER``: it has
    left."""
    merged: Clocks
    """What it has taken of the workers below, itself included."""
    forwarded: Clocks
    """What its parent was sent of them."""
    root: Clocks
    """What it knows the root to have merged."""
    model_clock: int | None
    """c_model of the weights in the cache; None: there are none."""
    included: Clocks
    """In the weights of the cache."""
    logged: int
    """Pushes that the root has not merged."""
    kept: int
    """Updates of the own worker that the root has not merged."""
    waiting: tuple[int, ...]
    """Model clocks that pulls of the own worker wait for."""
    asked: tuple[int, ...]
    """Model clocks that it has asked its parent for."""
    dead: tuple[NodeId, ...] = ()
    epoch: Epoch = FIRST_EPOCH
    counters: Mapping[str, int] = field(default_factory=dict)
    """Counts by the value of each :class:`Mark` that has happened."""


@dataclass(frozen=True, slots=True)
class RootView:
    node: NodeId
    clocks: Clocks = NO_CLOCKS
    """Durable."""
    merged: Clocks = NO_CLOCKS
    """Taken from children, durable or not."""
    model_clock: int = 0
    is_direct: bool = False
    children: tuple[ChildView, ...] = ()
    dead: tuple[NodeId, ...] = ()
    lost: tuple[WorkerId, ...] = ()
    epoch: Epoch = FIRST_EPOCH
    """Durable."""
    may_reshape: bool = False
    """Whether another tree may be chosen now."""
    load: int = 0
    """Load of the busiest link at a node, as they say."""
    counters: Mapping[str, int] = field(default_factory=dict)
