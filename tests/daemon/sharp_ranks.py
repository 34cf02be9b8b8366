"""Ranks of SHARP in one process, over the double of its library: what tests do with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

import numpy as np
import trio

from inaproto.core.collective.events import SessionConfig
from inaproto.errors import FabricError
from inaproto.ports import OutOfBand
from inaproto.units import MS
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp.attachment import SharpAttachment
from inaproto_adapters.sharp.config import SharpConfig
from inaproto_adapters.sharp.memory import page_aligned
from tests.contract.collective_contract import Table
from tests.sharp_double import Double

T = TypeVar("T")
_draw: Final = Random(7)
"""No two jobs have the same number."""
END_S: Final = 600.0
"""For a test's ranks to end in some way: far more than any deadline of theirs."""
ONE_TRY: Final = SessionConfig(
    tries_max=1, exchange_ns=5_000 * MS, call_ns=5_000 * MS, unwind_ns=5_000 * MS, drain_ns=300 * MS
)
RETRYING: Final = replace(
    ONE_TRY, tries_max=6, backoff_ns=2 * MS, backoff_max_ns=20 * MS, jitters=(0, 300, 700)
)


async def on_all(work: Callable[[int], Awaitable[T]], size: int) -> list[T | FabricError]:
    """What it gives or raises on each rank, all at the same time."""
    results: dict[int, T | FabricError] = {}

    async def one(rank: int) -> None:
        try:
            results[rank] = await work(rank)
        except FabricError as error:
            results[rank] = error

    with trio.fail_after(END_S):
        async with trio.open_nursery() as nursery:
            for rank in range(size):
                nursery.start_soon(one, rank)
    return [results[rank] for rank in range(size)]


class Ranks:
    """The ranks of one job; ``seats`` are how they reach each other, by default a table in memory."""

    def __init__(
        self,
        double: Double,
        size: int,
        *,
        session: SessionConfig = ONE_TRY,
        devices: str = "",
        operation_ns: int = 5_000 * MS,
        seats: Sequence[OutOfBand] | None = None,
    ) -> None:
        self.size = size
        table = Table(size)
        self._seats = [table.seat(rank) for rank in range(size)] if seats is None else list(seats)
        self._double = double
        self._config = SharpConfig(session=session, devices=devices, operation_ns=operation_ns)
        self._bits = _draw.getrandbits
        self.attached: list[SharpAttachment | FabricError] = []

    async def attach_one(self, rank: int) -> SharpAttachment:
        return await SharpAttachment.attached(
            self._double.library, self._config, "job", self._seats[rank], self._bits
        )

    async def attach(self) -> list[SharpAttachment]:
        """Their places; those that have none are in ``attached`` with their errors."""
        self.attached = await on_all(self.attach_one, self.size)
        return [its for its in self.attached if isinstance(its, SharpAttachment)]

    @property
    def errors(self) -> list[str]:
        return [str(its) for its in self.attached if isinstance(its, FabricError)]

    async def sum(self, words: int = 64) -> list[Any]:
        """Of rank+1, as float32: each rank's error, or its result."""

        async def one(rank: int) -> Any:
            its = self.attached[rank]
            assert isinstance(its, SharpAttachment)
            source, into = page_aligned(4 * words), page_aligned(4 * words)
            np.frombuffer(source, np.float32)[:] = rank + 1
            keys = await its.register(source), await its.register(into)
            try:
                await its.all_reduce(*keys, 4 * words, Dtype.F32, Op.SUM)
                return np.frombuffer(into, np.float32).copy()
            finally:
                for key in keys:
                    await its.unregister(key)

        return await on_all(one, self.size)

    async def release(self) -> None:
        async def one(rank: int) -> None:
            its = self.attached[rank]
            if isinstance(its, SharpAttachment):
                await its.release()

        await on_all(one, self.size)

    def expected(self) -> float:
        return self.size * (self.size + 1) / 2
