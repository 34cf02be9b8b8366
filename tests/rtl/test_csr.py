# amaranth: UnusedElaboratable=no
"""The register block does what the register map says, and the control side drives it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("amaranth")

from amaranth.sim import Simulator

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.errors import FabricError, LocalMisuse
from inaproto_adapters.fpga import register_map
from inaproto_adapters.fpga.device import FpgaDevice, LastFault, RingView
from inaproto_adapters.fpga.register_map import (
    CONN_ROW,
    RING_ROW,
    STATE_ROW,
    Counter,
    Table,
    pack,
    unpack,
)
from inaproto_adapters.fpga.simulated import InProcessBus
from inaproto_adapters.fpga.table_rows import Placement
from inaproto_hil.rtl.csr import Registers, row_value
from inaproto_hil.rtl.parameters import Parameters

TREE = Path(__file__).resolve().parents[2]
SMALL = Parameters(ports=3, words=4, rings=2, children=3, window=2, slots=64, mtu=256, addresses=8)
STATUS, CTRL, CLAIM, TBL_CMD, TBL_DATA, CNT = 0x01C, 0x018, 0x02C, 0x040, 0x060, 0x100
PUT, GET = 1 << 25, 1 << 24
Bench = Callable[[Any], Coroutine[Any, Any, None]]


def run(registers: Registers, *benches: Bench, beside: tuple[Bench, ...] = ()) -> None:
    """Simulate until all benches end; those beside them go on as long."""
    simulator = Simulator(registers)
    simulator.add_clock(1e-6)
    for bench in benches:
        simulator.add_testbench(bench)
    for bench in beside:
        simulator.add_testbench(bench, background=True)
    simulator.run()


async def access(registers: Registers, ctx: Any, address: int, value: int | None = None) -> int:
    """One access; it must take two cycles, and be ready in just the second one."""
    ctx.set(registers.csr_address, address)
    ctx.set(registers.csr_read, value is None)
    ctx.set(registers.csr_write, value is not None)
    ctx.set(registers.csr_wdata, value or 0)
    assert not ctx.get(registers.csr_ready)
    await ctx.tick()
    assert ctx.get(registers.csr_ready)
    found: int = ctx.get(registers.csr_rdata)
    await ctx.tick()
    ctx.set(registers.csr_read, 0)
    ctx.set(registers.csr_write, 0)
    return found


# -- one source --------------------------------------------------------------------------------------


def test_what_is_made_of_the_register_description_is_up_to_date() -> None:
    pytest.importorskip("systemrdl")
    script = TREE / "hil" / "inaproto_hil" / "rtl" / "registers" / "generate.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- registers ---------------------------------------------------------------------------------------


def test_what_it_is_and_that_nothing_else_is_there() -> None:
    registers = Registers(SMALL, 4)

    async def bench(ctx: Any) -> None:
        known = {
            0x000: 0x494E4131,
            0x004: 1 << 16 | 2,
            0x008: 3 | 4 << 8 | 2 << 16 | 3 << 24,
            0x00C: 64,
            0x010: 256 | 2 << 16 | 8 << 24,
            0x014: 0b111011 << 16 | 0b1111,
        }
        for value in (0, 0xFFFF_FFFF):
            for address in (*range(0, 0x300, 4), 0x4000, 0x8000, 0x8008, 0xFFFC):
                kept = (CTRL, 0x020, *range(CLAIM, TBL_CMD, 4), TBL_CMD, *range(TBL_DATA, TBL_DATA + 32, 4))
                if value and address not in kept:
                    await access(registers, ctx, address, value)
                assert await access(registers, ctx, address) == known.get(address, 0), hex(address)
        assert await access(registers, ctx, 0x00E) == 64  # a register is read as a whole

    run(registers, bench)


def test_accesses_may_follow_each_other_and_nothing_happens_without_one() -> None:
    registers = Registers(SMALL, 1)

    async def bench(ctx: Any) -> None:
        for _ in range(5):
            await ctx.tick()
            assert not ctx.get(registers.csr_ready)
        ctx.set(registers.csr_read, 1)
        ready = []
        for _ in range(6):
            await ctx.tick()
            ready.append(ctx.get(registers.csr_ready))
        assert ready == [1, 0, 1, 0, 1, 0]

    run(registers, bench)


def test_ports_that_are_up() -> None:
    registers = Registers(SMALL, 1)

    async def bench(ctx: Any) -> None:
        assert ctx.get(registers.ports_up) == 0
        await access(registers, ctx, 0x020, 0xFFFF_FFFD)
        assert ctx.get(registers.ports_up) == 0b101
        assert await access(registers, ctx, 0x020) == 0b101

    run(registers, bench)


def test_a_claim_is_kept_word_by_word() -> None:
    registers = Registers(SMALL, 1)
    words = range(CLAIM, TBL_CMD, 4)

    async def bench(ctx: Any) -> None:
        for address in words:
            await access(registers, ctx, address, 0x8765_4300 | address)
        await access(registers, ctx, 0x020, 0b111)
        assert [await access(registers, ctx, address) for address in words] == [
            0x8765_4300 | address for address in words
        ]
        await access(registers, ctx, CLAIM, 0)
        assert await access(registers, ctx, CLAIM) == 0
        assert await access(registers, ctx, CLAIM + 4) == 0x8765_4330

    run(registers, bench)


def test_the_last_fault_and_how_many_there_were() -> None:
    registers = Registers(SMALL, 1)

    async def bench(ctx: Any) -> None:
        assert await access(registers, ctx, 0x024) == 0
        for number in range(1, 258):
            ctx.set(registers.fault, {"valid": 1, "rule": number & 0x1F, "ring": 1, "child": number & 3})
            await ctx.tick()
            ctx.set(registers.fault, {"valid": 0, "rule": 99, "ring": 99, "child": 99})
            if number in (1, 2, 254, 255, 256, 257):
                count = number if number < 256 else number - 255
                expected = number & 0x1F | 1 << 8 | (number & 3) << 16 | count << 24
                assert await access(registers, ctx, 0x024) == expected

    run(registers, bench)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mtu": 1 << 16},
        {"window": 256},
        {"addresses": 256},
        {"rings": 256},
        {"slots": 1 << 32},
        {"ports": 33},
    ],
)
def test_sizes_for_which_a_register_has_no_room(wrong: dict[str, int]) -> None:
    with pytest.raises(LocalMisuse):
        Registers(Parameters(**wrong))


@pytest.mark.parametrize("counters", [0, 65])
def test_a_number_of_counters_that_the_map_has_no_room_for(counters: int) -> None:
    with pytest.raises(LocalMisuse):
        Registers(SMALL, counters)


# -- counters ----------------------------------------------------------------------------------------


async def snapshot(registers: Registers, ctx: Any, control: int) -> list[int]:
    await access(registers, ctx, CTRL, control)
    words = [await access(registers, ctx, CNT + 4 * at) for at in range(2 * registers.counters)]
    return [low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)]


def test_each_event_is_counted_once_whenever_it_is_read_and_zeroed() -> None:
    count = 5
    registers = Registers(SMALL, count)
    rng = random.Random(3)
    happened = [0] * count
    ended = False

    async def events(ctx: Any) -> None:
        while not ended:
            bits, at = rng.getrandbits(count), rng.randrange(count)
            added = rng.getrandbits(32) if rng.random() < 0.5 else None
            ctx.set(registers.count, bits)
            ctx.set(registers.count_add_valid, added is not None)
            ctx.set(registers.count_add_index, at)
            ctx.set(registers.count_add, added or rng.getrandbits(8))
            await ctx.tick()
            for number in range(count):
                happened[number] += bits >> number & 1
            happened[at] += added or 0
        ctx.set(registers.count, 0)
        ctx.set(registers.count_add_valid, 0)

    async def bench(ctx: Any) -> None:
        nonlocal ended
        seen = [0] * count
        for _ in range(12):
            found = await snapshot(registers, ctx, 0b11)
            seen = [a + b for a, b in zip(seen, found, strict=True)]
        ended = True
        for _ in range(3):
            await ctx.tick()
        found = await snapshot(registers, ctx, 0b01)
        assert [a + b for a, b in zip(seen, found, strict=True)] == happened
        assert max(happened) > 1 << 33
        assert await snapshot(registers, ctx, 0b01) == found
        assert await snapshot(registers, ctx, 0b10) == found  # nothing is latched without being asked
        assert await snapshot(registers, ctx, 0b01) == [0] * count

    run(registers, bench, events)


def test_counters_carry_into_their_high_word() -> None:
    registers = Registers(SMALL, 2)

    async def bench(ctx: Any) -> None:
        ctx.set(registers.count_add_index, 1)
        ctx.set(registers.count_add, 0xFFFF_FFFF)
        ctx.set(registers.count_add_valid, 1)
        await ctx.tick()
        ctx.set(registers.count_add_valid, 0)
        ctx.set(registers.count, 0b10)
        await ctx.tick()
        ctx.set(registers.count, 0)
        assert await snapshot(registers, ctx, 1) == [0, 1 << 32]

    run(registers, bench)


# -- tables ------------------------------------------------------------------------------------------


class Tables:
    """An engine that has tables. It takes its time, and refuses indices that its tables do not have."""

    def __init__(self, registers: Registers, seed: int = 0) -> None:
        self.registers = registers
        self.rows: dict[tuple[int, int], int] = {}
        self.commands: list[tuple[int, int, int]] = []
        self.rng = random.Random(seed)
        self.wait: Callable[[], int] = lambda: self.rng.randint(0, 4)
        """Cycles before a command is taken, and before it is answered."""

    async def bench(self, ctx: Any) -> None:
        command, answer = self.registers.command, self.registers.answer
        while True:
            while not ctx.get(command.valid):
                await ctx.tick()
            for _ in range(self.wait()):
                held = ctx.get(command.payload.as_value())
                await ctx.tick()
                assert ctx.get(command.valid)
                assert ctx.get(command.payload.as_value()) == held
            ctx.set(command.ready, 1)
            table, index, put, row = (
                ctx.get(command.payload[name]) for name in ("table", "index", "put", "row")
            )
            await ctx.tick()
            ctx.set(command.ready, 0)
            await ctx.tick().repeat(self.wait() + 1)
            rows = {0: SMALL.connections, 1: SMALL.rings, 2: SMALL.rings}.get(table, 0)
            is_wrong = index >= rows or (put and table == Table.STATE)
            self.commands.append((table, index, put))
            if put and not is_wrong:
                self.rows[table, index] = row
            found = self.rng.getrandbits(256) if put else self.rows.get((table, index), 0)
            ctx.set(answer.payload, {"row": found, "error": is_wrong})
            ctx.set(answer.valid, 1)
            await ctx.tick().until(answer.ready)
            ctx.set(answer.valid, 0)


async def command(registers: Registers, ctx: Any, word: int) -> int:
    """Give a command; STATUS when it is done."""
    await access(registers, ctx, TBL_CMD, word)
    for _ in range(40):
        status = await access(registers, ctx, STATUS)
        if not status & 0b010:
            return status
    raise AssertionError("table_busy for ever")


async def write_row(registers: Registers, ctx: Any, words: list[int]) -> None:
    for at, word in enumerate(words):
        await access(registers, ctx, TBL_DATA + 4 * at, word)


async def read_row(registers: Registers, ctx: Any) -> list[int]:
    return [await access(registers, ctx, TBL_DATA + 4 * at) for at in range(8)]


def test_rows_are_put_and_got() -> None:
    registers = Registers(SMALL, 1)
    tables = Tables(registers)
    rng = random.Random(4)

    async def bench(ctx: Any) -> None:
        put: dict[int, list[int]] = {}
        for index in range(SMALL.connections):
            put[index] = [rng.getrandbits(32) for _ in range(8)]
            await write_row(registers, ctx, put[index])
            assert await command(registers, ctx, index | PUT) == 0
            assert await read_row(registers, ctx) == put[index]
        for index, words in put.items():
            assert await command(registers, ctx, index | GET) == 0
            assert await read_row(registers, ctx) == words
            assert await access(registers, ctx, TBL_CMD) == index
        assert await command(registers, ctx, 1 | Table.RING << 16 | GET) == 0
        assert await read_row(registers, ctx) == [0] * 8

    run(registers, bench, beside=(tables.bench,))
    assert tables.rows[0, 0] & 0xFFFF_FFFF == random.Random(4).getrandbits(32)
    assert tables.commands[0] == (0, 0, 1)


def test_a_command_that_is_refused_or_disturbed_ends_with_an_error() -> None:
    registers = Registers(SMALL, 1)
    tables = Tables(registers)

    async def bench(ctx: Any) -> None:
        await write_row(registers, ctx, [1] * 8)
        assert await command(registers, ctx, Table.STATE << 16 | PUT) == 0b100
        assert await command(registers, ctx, SMALL.connections | PUT) == 0b100
        assert await command(registers, ctx, 3 << 16 | GET) == 0b100
        assert await command(registers, ctx, PUT) == 0  # the error is that of the last command
        commands = list(tables.commands)
        assert await command(registers, ctx, 1 | PUT | GET) == 0b100
        assert await command(registers, ctx, 1) == 0
        assert tables.commands == commands
        tables.wait = lambda: tables.rng.randint(8, 20)
        for disturbing, value in ((TBL_DATA, 2), (TBL_DATA + 28, 2), (TBL_CMD, 5 | GET), (TBL_CMD, 0)):
            await write_row(registers, ctx, [3] * 8)
            await access(registers, ctx, TBL_CMD, 2 | PUT)
            await access(registers, ctx, disturbing, value)
            while (status := await access(registers, ctx, STATUS)) & 0b010:
                pass
            assert status == 0b100
            assert await read_row(registers, ctx) == [3] * 8
            assert await access(registers, ctx, TBL_CMD) == 2
            assert await command(registers, ctx, 2 | PUT) == 0
        for harmless in (STATUS, 0x020, CTRL, 0x2000 + TBL_DATA):
            await access(registers, ctx, TBL_CMD, 2 | PUT)
            await access(registers, ctx, harmless, 0)
            while (status := await access(registers, ctx, STATUS)) & 0b010:
                pass
            assert status == 0

    run(registers, bench, beside=(tables.bench,))
    assert {index for table, index, _ in tables.commands if table == Table.CONN} == {0, 2, SMALL.connections}


def test_a_write_beside_the_end_of_a_command_is_done_or_is_an_error() -> None:
    registers = Registers(SMALL, 1)
    tables = Tables(registers)

    async def bench(ctx: Any) -> None:
        done = []
        for wait in range(12):
            waits = iter((wait // 2, wait - wait // 2))
            tables.wait = partial(next, waits)
            await write_row(registers, ctx, [3] * 8)
            await access(registers, ctx, TBL_CMD, PUT)
            await access(registers, ctx, STATUS)
            await access(registers, ctx, TBL_DATA, 2)
            while (status := await access(registers, ctx, STATUS)) & 0b010:
                pass
            row = await read_row(registers, ctx)
            assert (status, row[0]) in ((0, 2), (0b100, 3))
            done.append(status == 0)
        assert True in done
        assert False in done

    run(registers, bench, beside=(tables.bench,))


def test_busy_is_what_the_engine_says() -> None:
    registers = Registers(SMALL, 1)

    async def bench(ctx: Any) -> None:
        ctx.set(registers.busy, 1)
        assert await access(registers, ctx, STATUS) == 0b001
        ctx.set(registers.busy, 0)
        assert await access(registers, ctx, STATUS) == 0

    run(registers, bench)


def test_values_of_rows_are_where_the_control_side_puts_them() -> None:
    from amaranth.hdl import Module, Signal

    rng = random.Random(6)
    for layout in (CONN_ROW, RING_ROW, STATE_ROW):
        values = {name: rng.getrandbits(sum(part.width for part in parts)) for name, parts in layout.items()}
        word = sum(part << 32 * at for at, part in enumerate(pack(layout, **values)))
        row, made = Signal(256), Signal(256)
        taken = {name: Signal(64, name=name) for name in layout}
        m = Module()
        for name, value in values.items():
            m.d.comb += [
                taken[name].eq(row_value(row, layout, name)),
                row_value(made, layout, name).eq(value),
            ]

        async def bench(ctx: Any) -> None:
            ctx.set(row, word)  # noqa: B023
            assert {name: ctx.get(signal) for name, signal in taken.items()} == values  # noqa: B023
            assert ctx.get(made) == word  # noqa: B023

        simulator = Simulator(m)
        simulator.add_testbench(bench)
        simulator.run()


# -- the control side --------------------------------------------------------------------------------


class InSimulation:
    """Registers of RTL whose time passes by accesses alone."""

    def __init__(self, registers: Registers, *beside: Bench) -> None:
        self._registers = registers
        self._asked: tuple[int, int | None] | None = None
        self._found = 0
        self._simulator = Simulator(registers)
        self._simulator.add_clock(1e-6)
        for bench in (self._bench, *beside):
            self._simulator.add_testbench(bench, background=True)

    async def _bench(self, ctx: Any) -> None:
        while True:
            if self._asked is None:
                await ctx.tick()
            else:
                self._found = await access(self._registers, ctx, *self._asked)
                self._asked = None

    def _do(self, address: int, value: int | None) -> int:
        self._asked = address, value
        while self._is_asked():
            self._simulator.advance()
        return self._found

    def _is_asked(self) -> bool:
        return self._asked is not None

    def read32(self, address: int) -> int:
        return self._do(address, None)

    def write32(self, address: int, value: int) -> None:
        self._do(address, value)


async def test_the_control_side_drives_it() -> None:
    registers = Registers(SMALL, len(Counter))
    tables = Tables(registers)
    fault: list[dict[str, int]] = []

    async def events(ctx: Any) -> None:
        while True:
            ctx.set(registers.count, 1 << Counter.DROP_WRONG_KEY)
            ctx.set(registers.fault, fault.pop() if fault else {"valid": 0})
            await ctx.tick()

    rtl = InSimulation(registers, tables.bench, events)
    device = await FpgaDevice.identify(InProcessBus(rtl))
    assert (device.identity.rings, device.identity.children, device.identity.slots) == (2, 3, 64)
    flows = tuple(
        FlowSpec(
            rank, bytes((10, 0, 0, rank)), bytes((10, 0, 0, 9)), 70 + rank, bytes((2,) * 6), bytes((4,) * 6)
        )
        for rank in range(3)
    )
    spec = RingSpec(6, 5, 1 << 63 | 7, 2, 4, 256, flows)
    assert await device.install(spec) == Placement(0, 0, 16)
    assert tables.commands == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 0, 1)]
    ring = [tables.rows[1, 0] >> 32 * at & 0xFFFF_FFFF for at in range(8)]
    assert unpack(RING_ROW, ring)["key"] == 1 << 63 | 7
    state = pack(STATE_ROW, next_serial=3, in_flight=1, failed=1, fault_rule=15, fault_child=2)
    tables.rows[2, 0] = sum(word << 32 * at for at, word in enumerate(state))
    assert await device.state(6) == RingView(3, 0, 1, ("wrong key", 2))
    fault.append({"valid": 1, "rule": Counter.DROP_LAYOUT, "ring": 0, "child": 1})
    await device.set_ports_up([0, 1])
    assert await device.last_fault() == LastFault("layout", 6, 1, 1)
    counters = await device.counters()
    assert {name for name, count in counters.items() if count} == {"wrong key"}
    await device.remove(6)
    assert not any(row for (table, _), row in tables.rows.items() if table != Table.STATE)


async def test_the_control_side_is_told_of_a_row_that_is_refused() -> None:
    registers = Registers(SMALL, 1)
    device = await FpgaDevice.identify(InProcessBus(InSimulation(registers, Tables(registers).bench)))
    with pytest.raises(FabricError, match="put row 0 of table STATE"):
        await device._put(Table.STATE, 0, [0] * register_map.ROW_WORDS)
