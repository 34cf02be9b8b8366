"""What every ``Collective`` does. One class per adapter inherits it.

The hosts are tasks of one process; they meet by :class:`Table`, an out-of-band exchange in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pytest
import trio

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import FabricError
from inaproto.ports import Attachment, Collective
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.exact_reference import NUMPY

_GIVE_UP_S: Final = 30
HOSTS: Final = 3
T = TypeVar("T")


class Table:
    """Where the hosts of one attempt gather what each of them says."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds: list[tuple[dict[int, bytes], trio.Event]] = []
        self.is_over = False

    def give_up(self) -> None:
        self.is_over = True
        for _, whole in self.rounds:
            whole.set()

    def seat(self, position: int) -> Seat:
        return Seat(self, position)


class Seat:
    """Of one host: an ``OutOfBand``."""

    def __init__(self, table: Table, position: int) -> None:
        self._table = table
        self.position = position
        self.size = table.size
        self._round = 0

    async def all_gather(self, data: bytes) -> Sequence[bytes]:
        rounds, number, self._round = self._table.rounds, self._round, self._round + 1
        if number == len(rounds):
            rounds.append(({}, trio.Event()))
        said, whole = rounds[number]
        said[self.position] = data
        if len(said) == self.size or self._table.is_over:
            whole.set()
        await whole.wait()
        if self._table.is_over:
            raise FabricError("attach", "another host", "attaching", "given up", retryable=True)
        return [said[position] for position in range(self.size)]


async def on_all(work: Callable[[int], Awaitable[T]], hosts: int = HOSTS) -> list[T]:
    """What it gives on each host, all at the same time."""
    results: dict[int, T] = {}

    async def one(position: int) -> None:
        results[position] = await work(position)

    with trio.fail_after(_GIVE_UP_S):
        async with trio.open_nursery() as nursery:
            for position in range(hosts):
                nursery.start_soon(one, position)
    return [results[position] for position in range(hosts)]


class Attached:
    """The attachments of all hosts, each with two buffers."""

    def __init__(self, attachments: Sequence[Attachment], nbytes: int) -> None:
        self.attachments = attachments
        self.sources = [bytearray(nbytes) for _ in attachments]
        self.results = [bytearray(nbytes) for _ in attachments]
        self.keys: list[tuple[int, int]] = []

    async def register(self) -> None:
        self.keys = await on_all(self._register, len(self.attachments))

    async def _register(self, at: int) -> tuple[int, int]:
        attachment = self.attachments[at]
        source = await attachment.register(memoryview(self.sources[at]))
        return source, await attachment.register(memoryview(self.results[at]))

    async def all_reduce(self, parts: Sequence[Any], dtype: Dtype, op: Op) -> list[FabricError | None]:
        """What each host got, beside its result."""

        async def one(at: int) -> FabricError | None:
            data = parts[at].tobytes()
            self.sources[at][: len(data)] = data
            try:
                await self.attachments[at].all_reduce(*self.keys[at], len(data), dtype, op)
            except FabricError as error:
                return error
            return None

        return await on_all(one, len(self.attachments))

    async def release(self) -> None:
        await on_all(lambda at: self.attachments[at].release(), len(self.attachments))


class CollectiveContract(ABC):
    """The tests; an adapter says how its hosts are made."""

    @abstractmethod
    def collectives(self, hosts: int) -> list[Collective]:
        """One for each host, that reach each other."""

    async def attach(self, collectives: Sequence[Collective], attempt: int, nbytes: int = 4096) -> Attached:
        table = Table(len(collectives))

        async def one(at: int) -> Attachment:
            return await collectives[at].attach("train", attempt, table.seat(at))

        attached = Attached(await on_all(one, len(collectives)), nbytes)
        await attached.register()
        return attached

    async def test_all_hosts_get_the_same_sum(self) -> None:
        collectives = self.collectives(HOSTS)
        caps = collectives[0].capabilities
        attached = await self.attach(collectives, 1)
        rng = np.random.default_rng(5)
        for dtype in sorted(caps.dtypes & {Dtype.F32, Dtype.F64, Dtype.I32, Dtype.I64}):
            for op in sorted(caps.ops):
                parts = [rng.integers(-1000, 1000, 64).astype(NUMPY[dtype]) for _ in range(HOSTS)]
                assert await attached.all_reduce(parts, dtype, op) == [None] * HOSTS
                expected = ReductionPlan.flat(HOSTS).reduce(
                    [part.view(np.uint8) for part in parts], dtype, op
                )
                nbytes = len(expected)  # whole numbers: exact in any order
                assert [bytes(each[:nbytes]) for each in attached.results] == [expected.tobytes()] * HOSTS
        await attached.release()

    async def test_inputs_are_as_they_were(self) -> None:
        attached = await self.attach(self.collectives(HOSTS), 1)
        parts = [np.full(64, at, np.float32) for at in range(HOSTS)]
        await attached.all_reduce(parts, Dtype.F32, Op.SUM)
        for part, source in zip(parts, attached.sources, strict=True):
            assert bytes(source[:256]) == part.tobytes()
        await attached.release()

    async def test_sums_in_any_order_are_the_same_bytes_on_all_hosts(self) -> None:
        attached = await self.attach(self.collectives(HOSTS), 1)
        rng = np.random.default_rng(6)
        parts = [rng.standard_normal(256).astype(np.float32) for _ in range(HOSTS)]
        assert await attached.all_reduce(parts, Dtype.F32, Op.SUM) == [None] * HOSTS
        assert len({bytes(each) for each in attached.results}) == 1
        await attached.release()

    async def test_attempts_follow_each_other(self) -> None:
        collectives = self.collectives(HOSTS)
        for attempt in range(1, 5):
            attached = await self.attach(collectives, attempt)
            parts = [np.full(8, attempt, np.float32)] * HOSTS
            assert await attached.all_reduce(parts, Dtype.F32, Op.SUM) == [None] * HOSTS
            await attached.release()

    async def test_what_is_released_does_nothing_any_more(self) -> None:
        attached = await self.attach(self.collectives(HOSTS), 1)
        await attached.release()
        await attached.release()
        found = await attached.all_reduce([np.ones(8, np.float32)] * HOSTS, Dtype.F32, Op.SUM)
        assert all(error is not None and not error.retryable for error in found)

    async def test_a_wait_can_be_given_up_and_released(self) -> None:
        attached = await self.attach(self.collectives(HOSTS), 1)
        first = attached.attachments[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.all_reduce, *attached.keys[0], 64, Dtype.F32, Op.SUM)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        before = bytes(attached.results[0])
        await attached.release()
        assert bytes(attached.results[0]) == before

    async def test_an_attempt_that_others_give_up_fails(self) -> None:
        collectives = self.collectives(HOSTS)
        table = Table(HOSTS)

        async def attach() -> None:
            with pytest.raises(FabricError, match="given up"):
                await collectives[0].attach("train", 1, table.seat(0))

        with trio.fail_after(_GIVE_UP_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(attach)
                await trio.testing.wait_all_tasks_blocked()
                table.give_up()
        attached = await self.attach(collectives, 2)
        await attached.release()

    def test_its_name_and_limits_can_be_told(self) -> None:
        caps = self.collectives(1)[0].capabilities
        assert caps.name
        assert caps.dtypes
        assert caps.ops
        assert caps.operation_bytes_max > 0
