"""What a word must be, or its sender is blamed and nothing else happens (docs/protocol.md 18.5).

Whoever hears a word checks it here first, against what it knows: shapes, dtypes, clocks that can be, and what
a neighbour that keeps to the protocol can have reason to say at that point. A word that breaks a rule changes
no state; its connection is to be closed, and both sides begin anew with ``Attach``.

Honest neighbours never break a rule. What that rests on, for clocks: a worker finishes no update that is
``ahead_max`` beyond what the root is known to have of it, and what a node knows of the root its parent knows
too (a child that comes with a ``floor`` beyond it is asked for above before it is answered). So whatever a
child may push or need is within ``ahead_max`` of what its parent knows.

What cannot be told from the truth: other numbers in an array, another worker's update under the name of one
that is below the sender, and a parent that says a little more of the root than is there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, assert_never

from inaproto.core.models.children import Bond, Child
from inaproto.core.models.events import ShardSpec
from inaproto.errors import Blame
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import FOREVER, REMOVED, Clocks, WorkerId
from inaproto.wire.messages.models import (
    Attach,
    Attached,
    Detach,
    Detached,
    DownWord,
    Epoch,
    Flush,
    Heartbeat,
    HeartbeatAnswer,
    Merged,
    Mode,
    NodeId,
    PullRequest,
    Push,
    Reshaped,
    UpWord,
    Weights,
)

_EVIDENCE_MAX: Final = 400
_NAMED_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Fault:
    rule: str
    evidence: str

    def of(self, peer: NodeId) -> Blame:
        """Evidence is for people: of very much, the beginning."""
        return Blame(str(peer), self.rule, self.evidence[:_EVIDENCE_MAX])


# --- what a child says


@dataclass(frozen=True, slots=True)
class Below:
    """What a node, or the root, knows when it hears a child."""

    shard: ShardSpec
    root: Clocks
    """What it knows the root to have; at the root, what is durable."""
    own: WorkerId | None
    workers: frozenset[WorkerId] | None
    """All of the model; None: not known."""
    nodes: frozenset[NodeId] | None
    """All of the tree, without the root; None: not known."""


def fault_from_below(said: UpWord, child: Child | None, known: Below) -> Fault | None:
    """``child``: who says it; None: nobody who has attached."""
    if isinstance(said, Attach):
        return _attach_fault(said, child, known)
    if child is None or child.bond is Bond.NONE:
        return None  # of a session that is over: nothing of it is heard
    match said:
        case Push():
            early = _early_fault(child, "pushes")
            if early is None and said.session != child.session:
                early = Fault("push of another session", f"{said.session}, not {child.session}")
            return early or _push_fault(said, child.workers, known)
        case PullRequest():
            return _early_fault(child, "asks") or _request_fault(said, child.workers, known)
        case Flush():
            return _early_fault(child, "asks")
        case Heartbeat():
            return _heartbeat_fault(said, child.workers, known)
        case Detach():
            if said.session != child.session:
                return Fault("leaves another session", f"{said.session}, not {child.session}")
        case _:
            assert_never(said)
    return None


def _attach_fault(said: Attach, child: Child | None, known: Below) -> Fault | None:
    if said.workers != tuple(sorted(set(said.workers))):
        return Fault("workers are not in order", _short(said.workers))
    if said.session < 1:
        return Fault("session is not new", f"{said.session} is none")
    if child is not None and child.bond is not Bond.NONE and said.session <= child.session:
        return Fault("session is not new", f"{said.session} after {child.session}")
    if known.own in said.workers:
        return Fault("claims another's worker", f"{known.own} is this node's own")
    if known.workers is not None and not known.workers.issuperset(said.workers):
        return Fault("node or worker of another tree", _short(said.workers))
    if not set(said.floor) <= set(said.workers):
        return Fault("floor of other workers", _short(said.floor.workers))
    if said.epoch < 0:
        return Fault("an epoch that cannot be", f"{said.epoch}")
    return _range_fault(said.floor)


def _early_fault(child: Child, does: str) -> Fault | None:
    if child.bond is Bond.ATTACHED:
        return None
    return Fault(f"{does} before it is attached", f"session {child.session} is not answered")


def _push_fault(said: Push, workers: Collection[WorkerId], known: Below) -> Fault | None:
    if said.before.workers != said.after.workers or not len(said.after):
        return Fault("push of nobody's updates", f"{said.before} to {said.after}")
    if not set(said.after) <= set(workers):
        return Fault("push for workers of others", f"{said.after.workers}, not of {tuple(workers)}")
    if any(not 0 <= said.before[worker] < clock <= FOREVER for worker, clock in said.after.items()):
        return Fault("push goes back", f"{said.before} to {said.after}")
    if known.shard.staleness == 0:
        if any(clock not in (said.clock, FOREVER) for _, clock in said.after.items()) or any(
            clock != said.clock - 1 for _, clock in said.before.items()
        ):
            return Fault("push of several windows", f"clock {said.clock}, {said.before} to {said.after}")
    elif not 0 <= said.clock <= FOREVER:
        return Fault("push goes back", f"clock {said.clock}")
    furthest = {worker: (known.root.get(worker) or 0) + known.shard.ahead_max for worker in said.after}
    if any(furthest[worker] < clock < FOREVER for worker, clock in said.after.items()):
        return Fault("too far ahead", f"{said.after}, with {known.root} durable")
    return None if said.delta is None else _array_fault("push", said.delta, known.shard)


def _request_fault(said: PullRequest, workers: Collection[WorkerId], known: Below) -> Fault | None:
    """Fault of a request. How far a worker was that is gone is not known, so the request is not held against
    it."""
    most = max(((known.root.get(worker) or 0) for worker in workers), default=0)
    most = FOREVER if most >= FOREVER else most + known.shard.ahead_max
    if 0 <= said.needed <= most:
        return None
    return Fault("needs what nobody has made", f"clock {said.needed}, {most} is the most")


def _heartbeat_fault(said: Heartbeat, workers: Collection[WorkerId], known: Below) -> Fault | None:
    if said.lost and (not set(said.lost) <= set(workers) or len(set(said.lost)) < len(said.lost)):
        return Fault("lost workers of others", f"{_short(said.lost)}, not of {_short(tuple(workers))}")
    if known.nodes is not None and not known.nodes.issuperset(said.dead):
        return Fault("node or worker of another tree", _short(said.dead))
    if not 0 <= said.load <= 1000:
        return Fault("a load that cannot be", f"{said.load} of 1000")
    if len(set(said.dead)) < len(said.dead):
        return Fault("dead nodes named twice", _short(said.dead))
    return None


# --- what a parent says


@dataclass(frozen=True, slots=True)
class Above:
    """What a node knows when it hears its parent."""

    shard: ShardSpec
    session: int
    is_attached: bool
    is_asking: bool
    asking: tuple[WorkerId, ...]
    """Workers that the last ``Attach`` asked about."""
    floor: Clocks
    """What this node then knew the root to have of them, by itself."""
    workers: frozenset[WorkerId]
    """Workers whose clocks every ``Weights`` message must contain."""
    are_all: bool
    """They are all of the model: weights speak of nobody else."""
    requests: int
    """Requests of this session, less the weights that came: each answers one at least."""
    own: WorkerId | None
    own_clock: int | None
    """None: it has not resumed."""
    trees: int
    """How many trees there are to choose from."""


def fault_from_above(said: DownWord, known: Above) -> Fault | None:
    match said:
        case Attached():
            if said.session > known.session or (said.session == known.session and known.is_attached):
                return Fault("answers what was not asked", f"session {said.session}, at {known.session}")
            return _attached_fault(said, known) if said.session == known.session else None
        case Detached():
            if said.session > known.session:
                return Fault("answers what was not asked", f"session {said.session}, at {known.session}")
        case Weights():
            return _weights_fault(said, known) if known.is_attached else None
        case Merged():
            return _vector_fault(said.root, known)
        case Reshaped():
            return _epoch_fault(said.epoch, known)
        case Mode() | HeartbeatAnswer():
            return None
        case _:
            assert_never(said)
    return None


def _attached_fault(said: Attached, known: Above) -> Fault | None:
    if not known.is_asking:
        return None
    if said.base.workers != known.asking or not set(said.root) <= set(known.asking):
        return Fault(
            "base of other workers", f"{_short(said.base.workers)}, asked was {_short(known.asking)}"
        )
    if not said.base.covers(known.floor):
        return Fault("base behind the root", f"{said.base}, the root has {known.floor}")
    ahead = known.shard.ahead_max
    for worker, clock in said.base.items():
        durable = max(said.root.get(worker) or 0, known.floor.get(worker) or 0)
        if durable + ahead < clock < FOREVER:
            return Fault("too far ahead", f"base {said.base}, with {said.root} durable")
    return _vector_fault(said.base, known) or _vector_fault(said.root, known)


def _weights_fault(said: Weights, known: Above) -> Fault | None:
    if said.included.workers != said.root.workers or not said.included.covers(said.root):
        return Fault("weights without what the root had", f"{said.included}, root {said.root}")
    lacks = not known.workers <= set(said.root) or not len(said.root)
    if lacks or (known.are_all and len(said.root) > len(known.workers)):
        expected = _short(sorted(known.workers))
        return Fault("weights of other workers", f"{_short(said.root.workers)}, not {expected}")
    if known.requests < 1:
        return Fault("answers what was not asked", f"weights of clock {said.root.minimum()}")
    return (
        _vector_fault(said.root, known)
        or _range_fault(said.included)
        or _array_fault("weights", said.weights, known.shard)
    )


def _vector_fault(clocks: Clocks, known: Above) -> Fault | None:
    """Nobody has more of the own worker than it has made, in this life or, not far beyond, in an earlier
    one."""
    own = None if known.own is None else clocks.get(known.own)
    made = known.own_clock
    if own is not None and made is not None and made + known.shard.ahead_max < own < FOREVER:
        return Fault("too far ahead", f"{clocks}; worker {known.own} is at {made}")
    return _range_fault(clocks)


def _epoch_fault(epoch: Epoch, known: Above) -> Fault | None:
    trees = range(known.trees)
    if epoch.number < 1 or epoch.tree not in trees or epoch.before not in trees:
        return Fault("tree that is none to choose from", f"{epoch}, of {known.trees}")
    return None if 0 <= epoch.first < FOREVER else Fault("a clock that cannot be", f"{epoch}")


# --- both


def _range_fault(clocks: Clocks) -> Fault | None:
    if all(0 <= clock <= REMOVED for _, clock in clocks.items()):
        return None
    return Fault("a clock that cannot be", f"{clocks}")


def _array_fault(what: str, array: Numbers, shard: ShardSpec) -> Fault | None:
    if array.shape == (shard.elements,) and array.dtype == shard.numpy_dtype:
        return None
    return Fault(f"{what} of another shape", f"{array.shape} of {array.dtype}, not ({shard.elements},)")


def _short(named: Collection[int]) -> str:
    first = ", ".join(str(one) for one in tuple(named)[:_NAMED_MAX])
    return f"{first}, ... ({len(named)})" if len(named) > _NAMED_MAX else first or "nobody"
