"""What an all-reduce must give, by other formulas than those of the accelerator (docs/protocol.md 8).

Inputs are cut out of a pool of values that is drawn once for a job, so that a world costs steps and
not random numbers; ring, rank and operation decide where the cut begins, so all of them differ. The
pool holds the values that break sums: infinities, NaN, both zeros, subnormals, the largest ones.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from inaproto.faults.streams import Seed, named_bits
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import Plan
from inaproto.wire.ina_header import Dtype, Op

_POOL: Final = 8192
_NUMPY: Final[dict[Dtype, np.dtype[Any]]] = {
    Dtype.F32: np.dtype("<f4"),
    Dtype.I32: np.dtype("<i4"),
    Dtype.F16: np.dtype("<f2"),
    Dtype.BF16: np.dtype(ml_dtypes.bfloat16),
    Dtype.F64: np.dtype("<f8"),
    Dtype.I64: np.dtype("<i8"),
}
_QUIET_NAN: Final = {
    Dtype.F32: bytes.fromhex("0000c07f"),
    Dtype.F64: bytes.fromhex("000000000000f87f"),
    Dtype.F16: bytes.fromhex("007e"),
    Dtype.BF16: bytes.fromhex("c07f"),
}
_HALF: Final = (Dtype.F16, Dtype.BF16)


class Oracle:
    """Inputs and results of one job, whose ranks are added as ``plan`` says; ``hosts``: one part for each."""

    def __init__(self, seed: Seed, job: str, dtype: Dtype, op: Op, plan: Plan, hosts: Plan = ()) -> None:
        self._dtype = dtype
        self._op = op
        self._plan = plan
        self._hosts = hosts
        bits = named_bits(seed, f"tensors/{job}").random_raw(_POOL)
        if dtype in _QUIET_NAN:
            mantissa = (bits >> np.uint64(40)).astype(np.int64) - (1 << 23)
            scale = 2.0 ** (((bits & np.uint64(31)).astype(np.int64)) - 36)
            values = mantissa.astype(np.float64) * scale
            odd = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-44, -6e-8, 3e38, 65504.0, -65504.0])
            at = np.flatnonzero(bits % np.uint64(97) == 0)
            values[at] = odd[np.arange(len(at)) % len(odd)]
            with np.errstate(all="ignore"):
                self._pool = values.astype(_NUMPY[dtype])
        else:
            self._pool = bits.view(np.int64).astype(_NUMPY[dtype])
        self._twice = np.concatenate((self._pool, self._pool))

    def inputs(self, ring_id: int, rank: int, op_index: int, elements: int) -> NDArray[Any]:
        """What ``rank`` brings, shape (elements,); a view, not to be written to."""
        begin = (ring_id * 2971 + rank * 1009 + op_index * 373) % _POOL
        if begin + elements <= len(self._twice):
            return self._twice[begin : begin + elements]
        return np.tile(self._pool, -(-(begin + elements) // _POOL))[begin : begin + elements]

    def result(self, ring_id: int, op_index: int, elements: int) -> bytes:
        """The bytes that every rank must get."""
        return self._result(self._plan, ring_id, op_index, elements)

    def rotated(self, ring_id: int, op_index: int, elements: int, start: int) -> bytes:
        """Those of messages that begin at host ``start`` of a ring of hosts."""
        plan = (*self._hosts[start:], *self._hosts[:start])
        return self._result(plan, ring_id, op_index, elements)

    def backwards(self, ring_id: int, op_index: int, elements: int) -> bytes:
        """Those of a collective library, which adds hosts from the last to the first."""
        return self._result(tuple(reversed(self._hosts)), ring_id, op_index, elements)

    def _result(self, plan: Plan, ring_id: int, op_index: int, elements: int) -> bytes:
        with np.errstate(all="ignore"):
            total = self._total(plan, ring_id, op_index, elements)
        if self._dtype in _QUIET_NAN:
            is_nan = np.isnan(total.astype(np.float64))
            total.view(np.dtype((np.void, self._dtype.itemsize)))[is_nan] = _QUIET_NAN[self._dtype]
        return total.tobytes()

    def _total(self, plan: Plan, ring_id: int, op_index: int, elements: int) -> NDArray[Any]:
        """At one point: each list of the plan is a sum of its own, rounded once."""
        values = [
            self.inputs(ring_id, part, op_index, elements)
            if isinstance(part, int)
            else self._total(part, ring_id, op_index, elements)
            for part in plan
        ]
        if self._op is Op.SUM:
            return _sum(self._dtype, values)
        return _extreme(self._dtype, self._op, values)


def _sum(dtype: Dtype, values: list[NDArray[Any]]) -> NDArray[Any]:
    total: NDArray[Any] = values[0].astype(np.float32) if dtype in _HALF else values[0].copy()
    for operand in values[1:]:
        total = total + operand.astype(total.dtype)
    return total.astype(_NUMPY[dtype])


def _extreme(dtype: Dtype, op: Op, values: list[NDArray[Any]]) -> NDArray[Any]:
    if dtype not in _QUIET_NAN:
        stack = np.stack(values)
        return np.asarray(stack.max(axis=0) if op is Op.MAX else stack.min(axis=0))
    # -0 below +0: ordered by value, then by sign.
    wide = np.stack([value.astype(np.float64) for value in values])
    sign = np.where(np.signbit(wide), -1.0, 1.0)
    best = wide.max(axis=0) if op is Op.MAX else wide.min(axis=0)
    signs = np.where(wide == best, sign, -2.0 if op is Op.MAX else 2.0)
    side = signs.max(axis=0) if op is Op.MAX else signs.min(axis=0)
    best = np.where(best == 0, np.copysign(0.0, side), best)
    best[np.isnan(wide).any(axis=0)] = np.nan
    least: NDArray[Any] = best.astype(_NUMPY[dtype])
    return least


def oracle_of(config: WorldConfig, job: JobConfig) -> Oracle:
    """Ranks are added on their hosts, then hosts as the switches are."""
    hosts = job.positions
    flat: Plan = tuple(range(len(hosts)))
    plan = flat
    if config.topology is not None and len(hosts) > 1:
        plan = config.topology.plan(hosts, config.along)
    return Oracle(config.seed, job.name, job.dtype, job.op, _with_ranks(plan, job), _with_ranks(flat, job))


def _with_ranks(plan: Plan, job: JobConfig) -> Plan:
    """Hosts by position become their ranks; several of them are added on their host."""
    parts: list[int | Plan] = []
    for part in plan:
        if not isinstance(part, int):
            parts.append(_with_ranks(part, job))
            continue
        ranks = job.ranks_on(job.positions[part])
        parts.append(ranks if len(ranks) > 1 else ranks[0])
    return tuple(parts)
