"""Two control planes of one board, on machines that have nothing in common but its registers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from inaproto.core.switch.events import (
    AcceleratorConfig,
    AcceleratorLost,
    InstallRing,
    RingReady,
    SaidLater,
)
from inaproto.errors import FabricError
from inaproto.units import Instant, S
from inaproto_adapters.fpga.board import LINGER_S, RETRY_LAST_S, BoardAccelerator
from inaproto_adapters.fpga.bus import RegisterBus
from inaproto_adapters.fpga.claim import BEAT_S, DEAD_S, SETTLE_S, Claim, claimed, name_of, words_of
from inaproto_adapters.fpga.register_map import CLAIM, Table
from inaproto_adapters.fpga.simulated import InProcessBus
from tests.unit.test_fpga_device import Board, spec

NOW = Instant(0)
CAPS, CAPS_CLAIMS = 0x014, 1 << 21
READY_S = SETTLE_S + LINGER_S + 0.1
ANOTHER_S = DEAD_S + RETRY_LAST_S + READY_S + BEAT_S
"""Within that whoever may have the board has it."""


def board_with_claims() -> Board:
    board = Board()
    board.words[CAPS] |= CAPS_CLAIMS
    return board


class Machine:
    """A machine with a control plane, whose way to the board may break, or stand still."""

    def __init__(self, registers: Board, name: str = "machine0") -> None:
        self.registers = registers
        self.is_cut = False
        self.runs = trio.Event()
        self.runs.set()
        self.wrote = 0
        self.said: list[SaidLater] = []
        config = AcceleratorConfig(retired_ns=S)
        self.accelerator = BoardAccelerator(self._open, "etherbone:board", config, name=name)

    async def _open(self) -> RegisterBus:
        await trio.lowlevel.checkpoint()
        return MachineBus(self)

    @property
    def has_it(self) -> bool:
        return bool(self.accelerator.status()["is_there"])

    @property
    def error(self) -> str:
        return str(self.accelerator.status()["error"])


class MachineBus(InProcessBus):
    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.registers)
        self._machine = machine

    async def _read(self, address: int, count: int) -> list[int]:
        await self._machine.runs.wait()
        if self._machine.is_cut:
            raise TimeoutError("no answer")
        return await super()._read(address, count)

    async def _write(self, address: int, words: Sequence[int]) -> None:
        await self._machine.runs.wait()
        if self._machine.is_cut:
            raise TimeoutError("no answer")
        self._machine.wrote += 1
        await super()._write(address, words)


@asynccontextmanager
async def running(*machines: Machine) -> AsyncIterator[list[trio.CancelScope]]:
    """Their control planes; a scope ends one."""
    scopes = [trio.CancelScope() for _ in machines]

    async def run(machine: Machine, scope: trio.CancelScope) -> None:
        with scope:
            await machine.accelerator.run(machine.said.append)

    async with trio.open_nursery() as nursery:
        for machine, scope in zip(machines, scopes, strict=True):
            nursery.start_soon(run, machine, scope)
        yield scopes
        nursery.cancel_scope.cancel()


async def test_of_two_control_planes_one_has_the_board_and_keeps_it(autojump_clock: trio.abc.Clock) -> None:
    board = board_with_claims()
    first, second = Machine(board), Machine(board, "machine1")
    async with running(first):
        await trio.sleep(READY_S)
        first.accelerator.step(InstallRing(spec(7)), NOW)
        async with running(second):
            for _ in range(200):
                await trio.sleep(0.1)
                assert first.has_it
                assert not second.has_it
        assert first.said == [RingReady(7)], "its ring was never lost"
        assert second.wrote == 0
        assert second.said == []
        assert "somebody else drives it: machine0" in second.error


async def test_two_that_begin_at_once_come_to_one(autojump_clock: trio.abc.Clock) -> None:
    board = board_with_claims()
    both = [Machine(board) for _ in range(2)]
    async with running(*both):
        await trio.sleep(ANOTHER_S)
        assert [machine.has_it for machine in both].count(True) == 1
        opened = [machine.accelerator.status()["opened"] for machine in both]
        await trio.sleep(3 * RETRY_LAST_S)
        assert [machine.accelerator.status()["opened"] for machine in both] == opened, "nobody took it again"


class Late(InProcessBus):
    """A bus whose first write takes longer than the rule waits."""

    def __init__(self, board: Board, delay_s: float) -> None:
        InProcessBus.__init__(self, board)
        self.delay_s = delay_s

    async def _write(self, address: int, words: Sequence[int]) -> None:
        delay_s, self.delay_s = self.delay_s, 0
        await trio.sleep(delay_s)
        await super()._write(address, words)


async def test_a_claim_that_comes_late_ends_the_one_before(autojump_clock: trio.abc.Clock) -> None:
    board = board_with_claims()
    begun: list[str] = []

    async def drive(name: str, owner: int, delay_s: float) -> None:
        try:
            async with claimed(Late(board, delay_s), owner=owner, name=name):
                begun.append(name)
                await trio.sleep(60)
                begun.append(f"{name} to the end")
        except FabricError as error:
            begun.append(error.cause)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drive, "quick", 1, 0.0)
        nursery.start_soon(drive, "slow", 2, SETTLE_S + 2 * BEAT_S)
    assert begun == ["quick", "somebody else drives it: slow", "slow", "slow to the end"]


async def test_the_board_of_a_machine_that_died_is_taken_over(autojump_clock: trio.abc.Clock) -> None:
    board = board_with_claims()
    first, second = Machine(board), Machine(board, "machine1")
    async with running(first, second):
        await trio.sleep(ANOTHER_S)
        dead, heir = (first, second) if first.has_it else (second, first)
        dead.accelerator.step(InstallRing(spec(7)), NOW)
        await trio.sleep(0.1)
        dead.is_cut = True
        await trio.sleep(ANOTHER_S)
        assert heir.has_it
        assert isinstance(dead.said[-1], AcceleratorLost)
        dead.is_cut = False
        await trio.sleep(ANOTHER_S)
        assert heir.has_it, "whoever comes back has no right to it"
        assert heir.accelerator.status()["opened"] == 1
        assert "somebody else drives it: machine" in dead.error


async def test_a_board_that_is_given_back_is_free_at_once(autojump_clock: trio.abc.Clock) -> None:
    board = board_with_claims()
    first, second = Machine(board), Machine(board, "machine1")
    async with running(first) as (scope,):
        await trio.sleep(READY_S)
        scope.cancel()
        await trio.sleep(0.1)
        assert board.words[CLAIM] == 0
    async with running(second):
        await trio.sleep(READY_S)
        assert second.has_it


async def test_who_stood_still_finds_another_and_writes_nothing(autojump_clock: trio.abc.Clock) -> None:
    """A process that was stopped, or a machine that was suspended."""
    board = board_with_claims()
    first, second = Machine(board), Machine(board, "machine1")
    async with running(first):
        await trio.sleep(READY_S)
        async with running(second):
            first.runs = trio.Event()
            first.accelerator.step(InstallRing(spec(7)), NOW)
            await trio.sleep(ANOTHER_S)
            assert second.has_it
            wrote, commands = first.wrote, [one for one in board.commands if one[2]]
            first.runs.set()
            await trio.sleep(1)
            assert first.wrote == wrote
            assert [one for one in board.commands if one[2]] == commands
            assert isinstance(first.said[-1], AcceleratorLost)
            assert "somebody else drives it: machine1" in first.said[-1].reason
            assert second.has_it


async def test_a_board_without_claims_is_driven_as_before(autojump_clock: trio.abc.Clock) -> None:
    board = Board()
    machine = Machine(board)
    async with running(machine):
        await trio.sleep(LINGER_S + 0.1)
        assert machine.has_it
        assert board.words[CLAIM] == 0
        assert board.tables[Table.RING]


async def test_what_fails_within_a_claim_is_said_as_it_is(autojump_clock: trio.abc.Clock) -> None:
    board = board_with_claims()
    with pytest.raises(ZeroDivisionError):
        async with claimed(InProcessBus(board), owner=1, name="x"):
            raise ZeroDivisionError
    assert board.words[CLAIM] == 0


async def test_a_claim_that_a_reset_took_is_said(autojump_clock: trio.abc.Clock) -> None:
    board = board_with_claims()

    async def drive() -> None:
        async with claimed(InProcessBus(board), owner=1, name="x"):
            board.words[CLAIM] = 0
            await trio.sleep(60)

    with pytest.raises(FabricError, match="it was reset"):
        await drive()


async def test_a_control_plane_knows_its_own_claim_again(autojump_clock: trio.abc.Clock) -> None:
    """Its way to the board broke for a moment."""
    board = board_with_claims()
    claim = Claim(InProcessBus(board), owner=5, name="x")
    await claim.take()
    began = trio.current_time()
    await Claim(InProcessBus(board), owner=5, name="x").take()
    assert trio.current_time() - began < DEAD_S


def test_names_of_any_length_and_words_that_are_none() -> None:
    assert name_of(words_of("leaf-3")) == "leaf-3"
    assert name_of(words_of("a-name-of-more-than-16-bytes")) == "a-name-of-more-t"
    assert name_of(words_of("ñandú")) == "?and?"
    assert name_of([0xFFFF_FFFF, 0x0A41, 0, 0]) == "????A?"
    assert name_of([0, 0, 0, 0]) == ""
