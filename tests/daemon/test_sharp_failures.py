"""SHARP's adapter over its double: whatever goes wrong, every rank ends in a named state in time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy as np
import pytest
import trio

from inaproto.core.collective.events import Phase, Weight
from inaproto.errors import FabricError
from inaproto.units import MS, S
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp import lane
from inaproto_adapters.sharp.attachment import SharpAttachment
from inaproto_adapters.sharp.codes import name_of, outcome_of
from inaproto_adapters.sharp.library import SharpLibrary
from inaproto_adapters.sharp.memory import page_aligned
from tests.contract.collective_contract import Seat, Table
from tests.daemon.sharp_ranks import ONE_TRY, RETRYING, Ranks
from tests.seeds import seeds
from tests.sharp_double import HANGS, LATE, NEVER, NOTHING, WRONG, Double

CODES: Final = range(-20, 0)
ACQUIRING: Final = ("init", "init late", "caps_query", "comm_init", "comm_init late")
RELEASING: Final = ("dereg_mr", "comm_destroy", "finalize")
ROUNDS: Final = ("agree", "init", "init", "init", "vote", "comm_init", "comm_init", "comm_init", "vote")
"""In which the ranks of an attachment talk, in order."""
SHORT: Final = replace(ONE_TRY, exchange_ns=150 * MS, call_ns=150 * MS)
LONG: Final = 240 * S
HANG_S: Final = 600


class Troubled:
    """A seat at a table; in one round something happens before its words are said."""

    def __init__(self, seat: Seat, number: int, trouble: Callable[[], Awaitable[None]]) -> None:
        self._seat, self._number, self._trouble = seat, number, trouble
        self.position, self.size = seat.position, seat.size
        self._round = 0

    async def all_gather(self, data: bytes) -> Sequence[bytes]:
        number, self._round = self._round, self._round + 1
        if number == self._number:
            await self._trouble()
        return await self._seat.all_gather(data)


@pytest.mark.parametrize("kind", ["exception", "interrupt", "deadline"])
@pytest.mark.parametrize("number", range(len(ROUNDS)), ids=lambda number: f"{number}-{ROUNDS[number]}")
async def test_no_round_that_fails_is_taken_for_success(sharp_double: Double, number: int, kind: str) -> None:
    """Rounds 1 to 3 and 5 to 7 are callbacks: a gather, a broadcast and a barrier each."""
    table = Table(3)

    async def trouble() -> None:
        if kind == "deadline":
            await trio.sleep_forever()
        table.give_up()
        if kind == "interrupt" and ROUNDS[number] in ("init", "comm_init"):
            raise KeyboardInterrupt  # in a thread of the library: it is nobody's
        raise FabricError("attach", "h1", "talking", "the wire is cut", retryable=True)

    seats: list[Any] = [table.seat(0), Troubled(table.seat(1), number, trouble), table.seat(2)]
    ranks = Ranks(sharp_double, 3, session=SHORT, seats=seats)
    places = await ranks.attach()
    assert isinstance(ranks.attached[1], FabricError)
    if number < len(ROUNDS) - 1:  # the last words may have been heard by others
        assert places == []
    await ranks.release()
    assert sharp_double.left() == NOTHING


@pytest.mark.parametrize("function", ["init", "caps_query", "comm_init"])
async def test_a_rank_whose_call_failed_frees_the_others_long_before_their_deadlines(
    sharp_double: Double, function: str
) -> None:
    """They are inside the same call: the vote is what their callbacks hear next, and are refused."""
    sharp_double.inject(function, -9, rank=1)
    ranks = Ranks(sharp_double, 3, session=replace(ONE_TRY, exchange_ns=LONG, call_ns=LONG, unwind_ns=LONG))
    with trio.fail_after(LONG / S / 4):
        assert await ranks.attach() == []
    assert all(name_of(-9) in error for error in ranks.errors)
    await ranks.release()
    assert sharp_double.left() == NOTHING


async def test_a_caller_who_leaves_is_out_of_a_callback_long_before_its_deadline(
    sharp_double: Double,
) -> None:
    """What it waits for in a callback never comes: the callback is refused, and the call unwinds."""
    table, is_inside = Table(2), trio.Event()

    async def trouble() -> None:
        is_inside.set()
        await trio.sleep_forever()

    seats: list[Any] = [Troubled(table.seat(0), 1, trouble), table.seat(1)]
    session = replace(ONE_TRY, exchange_ns=LONG, call_ns=LONG, unwind_ns=LONG)
    ranks = Ranks(sharp_double, 2, session=session, seats=seats)

    async def other() -> None:
        with suppress(FabricError):
            await ranks.attach_one(1)

    with trio.fail_after(LONG / S / 4):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_once, is_inside, scope)
                await ranks.attach_one(0)
            table.give_up()
    assert scope.cancelled_caught
    assert sharp_double.left() == NOTHING


async def _cancel_once(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


@pytest.mark.parametrize("number", range(len(ROUNDS)), ids=lambda number: f"{number}-{ROUNDS[number]}")
async def test_a_rank_that_is_cancelled_in_a_round_holds_nothing(sharp_double: Double, number: int) -> None:
    table, scope = Table(3), trio.CancelScope()

    async def trouble() -> None:
        scope.cancel()
        table.give_up()
        await trio.sleep_forever()

    seats: list[Any] = [table.seat(0), Troubled(table.seat(1), number, trouble), table.seat(2)]
    ranks = Ranks(sharp_double, 3, session=SHORT, seats=seats)
    others: list[SharpAttachment] = []

    async def other(rank: int) -> None:
        try:
            others.append(await ranks.attach_one(rank))
        except FabricError:
            return

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other, 0)
            nursery.start_soon(other, 2)
            with scope:
                await ranks.attach_one(1)
    assert scope.cancelled_caught
    assert others == []
    assert sharp_double.left() == NOTHING


async def test_a_call_that_hangs_is_the_end_of_the_context_and_of_nobody_else(sharp_double: Double) -> None:
    sharp_double.set(hang_ms=1500)
    sharp_double.inject("init", HANGS, rank=1)
    session = replace(SHORT, unwind_ns=150 * MS)
    ranks = Ranks(sharp_double, 3, session=session)
    assert await ranks.attach() == []
    assert "has not returned" in str(ranks.attached[1])


@pytest.mark.parametrize("rank", [1, -1], ids=["one rank", "all ranks"])
@pytest.mark.parametrize("function", ACQUIRING)
async def test_every_code_while_acquiring(sharp_double: Double, function: str, rank: int) -> None:
    """Once: what may be better later is tried again, and the rest is named at every rank."""
    for code in CODES:
        sharp_double.heal()
        sharp_double.inject(function, code, rank=rank, nth=1)
        ranks = Ranks(sharp_double, 3, session=RETRYING)
        places = await ranks.attach()
        if outcome_of(code).weight in (Weight.BUSY, Weight.ENVIRONMENT):
            assert len(places) == 3, (code, ranks.errors)
            assert [its.counters["attempts"] for its in places] == [2, 2, 2]
            assert [result[0] for result in await ranks.sum()] == [6, 6, 6]
        else:
            assert places == [], code
            assert all(name_of(code) in error for error in ranks.errors), (code, ranks.errors)
        await ranks.release()
        assert sharp_double.left() == NOTHING, code


@pytest.mark.parametrize("rank", [1, -1], ids=["one rank", "all ranks"])
async def test_every_code_of_an_operation(sharp_double: Double, rank: int) -> None:
    for code in CODES:
        sharp_double.heal()
        sharp_double.inject("do_allreduce_nb", code, rank=rank, nth=1)
        ranks = Ranks(sharp_double, 2, operation_ns=100 * MS)
        places = await ranks.attach()
        results = await ranks.sum()
        error = results[1]
        assert isinstance(error, FabricError)
        assert name_of(code) in str(error)
        assert error.retryable is (outcome_of(code).weight is Weight.BUSY)
        if not error.retryable:
            with pytest.raises(FabricError, match=r"\(" + str(code)):  # the next is not even tried
                await places[1].register(memoryview(bytearray(64)))
        is_dead = outcome_of(code).weight is Weight.FATAL
        assert (places[1].view().phase is Phase.DEAD) is is_dead
        assert isinstance(results[0], FabricError)  # its peer never came: its deadline, or the code
        await ranks.release()
        assert sharp_double.count("regions") == 0


async def test_one_that_never_ends_is_ended_though_another_has_failed(
    sharp_double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for longer than its deadline, and nothing spins until the place is given back."""
    sharp_double.inject("req_test", NEVER, rank=1)
    sharp_double.inject("do_allreduce_nb", -2, rank=1, nth=2)
    function, asked = SharpLibrary.function, Counter[str]()

    def counted(library: SharpLibrary, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            asked[name] += 1
            return function(library, name)(*arguments)

        return call

    monkeypatch.setattr(SharpLibrary, "function", counted)
    monkeypatch.setattr(lane, "SPINS", 0)
    monkeypatch.setattr(lane, "REST_S", 0.01)
    ranks = Ranks(sharp_double, 2, operation_ns=100 * MS)
    place = (await ranks.attach())[1]
    memory = [page_aligned(256) for _ in range(4)]
    keys = [await place.register(one) for one in memory]
    errors: list[FabricError] = []

    async def reduce(source: int, into: int) -> None:
        with pytest.raises(FabricError) as caught:
            await place.all_reduce(source, into, 256, Dtype.F32, Op.SUM)
        errors.append(caught.value)

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reduce, keys[0], keys[1])
            await trio.sleep(0.02)
            nursery.start_soon(reduce, keys[2], keys[3])
    assert name_of(-2) in str(errors[0])
    assert "has not ended in 0.1 s" in str(errors[1])
    assert place.view().phase is Phase.DEAD
    began, before = time.monotonic(), asked["req_test"]
    await trio.sleep(0.3)
    assert asked["req_test"] - before <= (time.monotonic() - began) / lane.REST_S + 1
    assert before > 0
    await ranks.release()


@pytest.mark.parametrize("rank", [1, -1], ids=["one rank", "all ranks"])
@pytest.mark.parametrize("function", ["reg_mr", *RELEASING])
async def test_every_code_while_registering_and_giving_back(
    sharp_double: Double, function: str, rank: int
) -> None:
    for code in CODES:
        sharp_double.heal()
        ranks = Ranks(sharp_double, 2)
        places = await ranks.attach()
        if function == "reg_mr":
            sharp_double.inject(function, code, rank=rank)
            with pytest.raises(FabricError, match=r"\(" + str(code)):
                await places[1].register(memoryview(bytearray(64)))
            await ranks.release()
            assert sharp_double.left() == NOTHING
        else:
            await places[1].register(memoryview(bytearray(64)))
            await places[0].register(memoryview(bytearray(64)))
            sharp_double.inject(function, code, rank=rank)
            await ranks.release()
            assert places[1].view().phase is Phase.DEAD
            assert name_of(code) in places[1].view().last.why


@pytest.mark.parametrize("seed", seeds(40))
async def test_drawn_runs_end_attached_or_named_and_sums_are_right(sharp_double: Double, seed: int) -> None:
    """Codes at any call, operations that are late, never end or are wrong, cut exchanges, cancellations."""
    draw = Random(f"{seed}/sharp")
    size = draw.randint(1, 4)
    calls = (*ACQUIRING, *RELEASING, "reg_mr", "do_allreduce_nb")
    faults: set[str] = set()
    for _ in range(draw.randint(0, 3)):
        function, rank = draw.choice(calls), draw.randrange(-1, size)
        sharp_double.inject(function, draw.choice(CODES), rank=rank, nth=draw.randint(1, 3))
        faults.add(function)
    fate = draw.choice([0, 0, NEVER, WRONG, LATE + 5])
    if fate:
        sharp_double.inject("complete", fate, rank=draw.randrange(size), nth=draw.randint(1, 2))
    table = Table(size)
    cut = draw.randrange(24)

    async def trouble() -> None:
        table.give_up()

    victim = draw.randrange(size)
    seats: list[Any] = [table.seat(rank) for rank in range(size)]
    if draw.random() < 0.3:
        seats[victim] = Troubled(seats[victim], cut, trouble)
    session = replace(RETRYING, exchange_ns=1_000 * MS, call_ns=1_000 * MS, drain_ns=100 * MS)
    ranks = Ranks(sharp_double, size, session=session, seats=seats, operation_ns=100 * MS)
    places = await ranks.attach()
    assert len(places) in (0, size) or cut == 9 * max(its.counters["attempts"] for its in places) - 1
    for error in ranks.errors:
        assert "SHARP" in error or "attach" in error
    for _ in range(3 if len(places) == size else 0):
        for result in await ranks.sum():
            if not isinstance(result, FabricError) and fate != WRONG:
                assert np.array_equal(result, np.full(64, ranks.expected(), np.float32))
    await ranks.release()
    if faults.isdisjoint(RELEASING) and all(its.view().phase is Phase.DETACHED for its in places):
        assert sharp_double.left() == NOTHING
