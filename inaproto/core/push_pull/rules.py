"""What a word must be, or its sender is blamed (mlnet.md 2, 3): shapes, dtypes, and clocks that can be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from inaproto.core.push_pull.clocks import FOREVER, WorkerId
from inaproto.core.push_pull.types import ShardSpec
from inaproto.core.push_pull.words import NodeId, Numbers, Push, Weights
from inaproto.errors import Blame


@dataclass(frozen=True, slots=True)
class Fault:
    rule: str
    evidence: str

    def of(self, peer: NodeId) -> Blame:
        return Blame(str(peer), self.rule, self.evidence)


def push_fault(said: Push, workers: Collection[WorkerId], shard: ShardSpec) -> Fault | None:
    """``workers``: those of the child that says it."""
    if said.before.workers != said.after.workers or not len(said.after):
        return Fault("push of nobody's updates", f"{said.before} to {said.after}")
    if not set(said.after) <= set(workers):
        return Fault("push for workers of others", f"{said.after.workers}, not of {tuple(workers)}")
    if any(not said.before[worker] < clock <= FOREVER for worker, clock in said.after.items()):
        return Fault("push goes back", f"{said.before} to {said.after}")
    if shard.staleness == 0 and any(clock not in (said.clock, FOREVER) for _, clock in said.after.items()):
        return Fault("push of several windows", f"clock {said.clock}, {said.after}")
    return None if said.delta is None else _array_fault("push", said.delta, shard)


def weights_fault(said: Weights, shard: ShardSpec) -> Fault | None:
    if said.included.workers != said.root.workers or not said.included.covers(said.root):
        return Fault("weights without what the root had", f"{said.included}, root {said.root}")
    return _array_fault("weights", said.weights, shard)


def _array_fault(what: str, array: Numbers, shard: ShardSpec) -> Fault | None:
    if array.shape == (shard.elements,) and array.dtype == shard.numpy_dtype:
        return None
    return Fault(f"{what} of another shape", f"{array.shape} of {array.dtype}, not ({shard.elements},)")
