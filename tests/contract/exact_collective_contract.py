"""What every exact collective does, whatever its ranks exchange by. One class per adapter inherits it.

Exact: the result is that of ``ReductionPlan.reduce`` to the last bit, on every rank.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import LocalMisuse, OperationTimeout, RankLost, TensorMismatch
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.exact_reference import NUMPY

FLAT: Final = ReductionPlan.flat(3)
NESTED: Final = ReductionPlan(((2, 0), (1,), 3))
SEGMENT_BYTES: Final = 16 << 10
"""What the collective under test is to cut a tensor into, if it can be told."""
_GIVE_UP_S: Final = 60

T = TypeVar("T")


class ExactCollective(Protocol):
    """One rank's end."""

    async def all_reduce(
        self, array: NDArray[Any], out: NDArray[Any] | None = None, *, op: str = "sum"
    ) -> NDArray[Any]: ...
    def close(self) -> None: ...


Members = Sequence[ExactCollective]


def tensors(plan: ReductionPlan, shape: tuple[int, ...], dtype: Dtype) -> list[NDArray[Any]]:
    """Any bits at all: NaNs, infinities and subnormals are among them."""
    rng = np.random.default_rng(plan.size + len(shape) + dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return [
        rng.integers(0, 256, nbytes, dtype=np.uint8).view(NUMPY[dtype]).reshape(shape)
        for _ in range(plan.size)
    ]


def reduced(plan: ReductionPlan, inputs: Sequence[NDArray[Any]], dtype: Dtype, op: Op) -> bytes:
    return plan.reduce([values.reshape(-1).view(np.uint8) for values in inputs], dtype, op).tobytes()


async def on_all(members: Members, work: Callable[[int, ExactCollective], Awaitable[T]]) -> list[T]:
    """What ``work(rank, member)`` gives on each rank, all at the same time."""
    results: dict[int, T] = {}

    async def one(rank: int) -> None:
        results[rank] = await work(rank, members[rank])

    async with trio.open_nursery() as nursery:
        for rank in range(len(members)):
            nursery.start_soon(one, rank)
    return [results[rank] for rank in range(len(members))]


class ExactCollectiveContract(ABC):
    @abstractmethod
    def members(self, plan: ReductionPlan, timeout: float = 30.0) -> AbstractAsyncContextManager[Members]:
        """All ranks of ``plan``, in this process, closed at the end."""

    @pytest.mark.parametrize("dtype", Dtype)
    async def test_every_rank_gets_the_bytes_of_the_plan(self, dtype: Dtype) -> None:
        with trio.fail_after(_GIVE_UP_S):
            async with self.members(NESTED) as members:
                for op in Op:
                    inputs = tensors(NESTED, (3, 17), dtype)
                    results = await on_all(
                        members,
                        lambda rank, member: member.all_reduce(inputs[rank], op=op.name.lower()),  # noqa: B023
                    )
                    expected = reduced(NESTED, inputs, dtype, op)
                    assert {result.tobytes() for result in results} == {expected}
                    assert {result.shape for result in results} == {(3, 17)}

    async def test_tensors_of_any_length(self) -> None:
        with trio.fail_after(_GIVE_UP_S):
            async with self.members(FLAT) as members:
                for elements in (0, 1, 2, 3, 4, 1000, 4096, 4097, 3 * 4096, 50_001):
                    inputs = tensors(FLAT, (elements,), Dtype.F32)
                    results = await on_all(members, lambda rank, member: member.all_reduce(inputs[rank]))  # noqa: B023
                    expected = reduced(FLAT, inputs, Dtype.F32, Op.SUM)
                    assert {result.tobytes() for result in results} == {expected}

    async def test_one_rank_alone_gets_its_bytes_back(self) -> None:
        plan = ReductionPlan.flat(1)
        inputs = tensors(plan, (5, 3), Dtype.F16)
        async with self.members(plan) as (member,):
            result = await member.all_reduce(inputs[0])
        assert result.tobytes() == inputs[0].tobytes()
        assert not np.shares_memory(result, inputs[0])

    async def test_results_go_to_out_and_inputs_stay(self) -> None:
        inputs = tensors(FLAT, (20_000,), Dtype.I32)
        before = [values.copy() for values in inputs]
        outs = [np.zeros_like(values) for values in inputs]
        expected = reduced(FLAT, inputs, Dtype.I32, Op.MAX)
        async with self.members(FLAT) as members:
            results = await on_all(
                members, lambda rank, member: member.all_reduce(inputs[rank], outs[rank], op="max")
            )
            assert all(result is out for result, out in zip(results, outs, strict=True))
            assert {out.tobytes() for out in outs} == {expected}
            assert all(np.array_equal(values, old) for values, old in zip(inputs, before, strict=True))
            await on_all(
                members, lambda rank, member: member.all_reduce(inputs[rank], inputs[rank], op="max")
            )
            assert {values.tobytes() for values in inputs} == {expected}

    async def test_ranks_that_differ_are_told_so_and_go_on(self) -> None:
        inputs = tensors(FLAT, (64,), Dtype.F32)

        async def differing(rank: int, member: ExactCollective) -> str:
            shape = (8, 8) if rank == 1 else (64,)
            with pytest.raises(TensorMismatch) as error:
                await member.all_reduce(inputs[rank].reshape(shape))
            with pytest.raises(TensorMismatch):
                await member.all_reduce(inputs[rank], op="min" if rank == 2 else "sum")
            with pytest.raises(TensorMismatch):
                await member.all_reduce(np.zeros(3000 * rank, np.float32))
            return str(error.value)

        async with self.members(FLAT) as members:
            messages = await on_all(members, differing)
            assert all(re.search(r"\brank 1\b", message) for message in messages), messages
            results = await on_all(members, lambda rank, member: member.all_reduce(inputs[rank]))
        assert {result.tobytes() for result in results} == {reduced(FLAT, inputs, Dtype.F32, Op.SUM)}

    async def test_misuse_changes_nothing(self) -> None:
        inputs = tensors(FLAT, (64,), Dtype.F32)
        read_only = np.zeros(64, np.float32)
        read_only.flags.writeable = False
        async with self.members(FLAT) as members:
            for array, out, op in (
                (np.zeros(4, np.complex64), None, "sum"),
                (np.zeros((4, 4), np.float32).T[:2], None, "sum"),
                (inputs[0], np.zeros(63, np.float32), "sum"),
                (inputs[0], read_only, "sum"),
                (inputs[0], None, "mean"),
            ):
                with pytest.raises(LocalMisuse):
                    await members[0].all_reduce(array, out, op=op)
            both = np.zeros(65, np.float32)
            with pytest.raises(LocalMisuse):
                await members[0].all_reduce(both[:-1], both[1:])
            results = await on_all(members, lambda rank, member: member.all_reduce(inputs[rank]))
        assert {result.tobytes() for result in results} == {reduced(FLAT, inputs, Dtype.F32, Op.SUM)}

    @pytest.mark.parametrize("missing", [0, 1, 2])
    async def test_a_rank_that_does_not_come_is_named(self, missing: int) -> None:
        async def others(rank: int, member: ExactCollective) -> str:
            if rank == missing:
                return f"rank {missing} "
            with pytest.raises((OperationTimeout, RankLost)) as error:
                await member.all_reduce(np.zeros(9, np.float32))
            return str(error.value)

        async with self.members(FLAT, timeout=0.1) as members:
            messages = await on_all(members, others)
            assert all(f"rank {missing} " in message for message in messages)
            with pytest.raises((OperationTimeout, RankLost)):
                await members[(missing + 1) % 3].all_reduce(np.zeros(9, np.float32))

    @pytest.mark.parametrize("leaving", [0, 1, 2])
    async def test_a_rank_that_left_is_named_at_once(self, leaving: int) -> None:
        async def others(rank: int, member: ExactCollective) -> str:
            if rank == leaving:
                member.close()
                return f"rank {leaving} "
            with pytest.raises(RankLost) as error:
                await member.all_reduce(np.zeros(9, np.float32))
            return str(error.value)

        with trio.fail_after(_GIVE_UP_S):
            async with self.members(FLAT, timeout=10 * _GIVE_UP_S) as members:
                messages = await on_all(members, others)
        assert all(f"rank {leaving} " in message for message in messages)

    async def test_ranks_leave_when_they_are_ready(self) -> None:
        """Who has its result may close: the others still get theirs."""
        inputs = tensors(FLAT, (30_000,), Dtype.F32)

        async def and_close(rank: int, member: ExactCollective) -> bytes:
            result = await member.all_reduce(inputs[rank])
            member.close()
            return result.tobytes()

        expected = {reduced(FLAT, inputs, Dtype.F32, Op.SUM)}
        for _ in range(10):
            async with self.members(FLAT) as members:
                assert set(await on_all(members, and_close)) == expected
