"""Ranks of an ordinary ring of hosts, and what arrives there."""

from __future__ import annotations

from typing import Any

from inaproto.core.host.engines.hosts import HostsAction, PostSlot
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.operations import PostMessage, ResultArrived
from inaproto.core.plan.accumulators import RotatedAccumulators
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.wire.host_header import Kind
from tests.unit.host_arrivals import FULL, message_at
from tests.unit.ideal_ring import ring_config

ACC, RES = Kind.ACCUMULATOR, Kind.RESULT


def rotated(size: int) -> RotatedAccumulators:
    return RotatedAccumulators(ReductionPlan.flat(size))


def engine(rank: int, size: int = 3, **changes: int) -> RingAllReduceEngine:
    return RingAllReduceEngine(ring_config(rank, size, **changes), rotated(size))


def arrival(
    at: RingAllReduceEngine, kind: Kind, serial: int, *, last: bool = False, nbytes: int = FULL, **fields: Any
) -> ResultArrived:
    """In the middle of operation 0, or ``last`` of it."""
    return message_at(at.config, kind, serial, nbytes, last=last, **fields)


def posted(actions: list[HostsAction]) -> list[int]:
    return [action.msg_id for action in actions if isinstance(action, PostMessage | PostSlot)]
