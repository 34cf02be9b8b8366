"""Rings go into an accelerator's tables and out of them in the right order, and into slots of their own."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from inaproto.core.switch.early_packets import FIRST_NOT_SEEN
from inaproto.core.switch.events import RingRefused
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.errors import FabricError, LocalMisuse, Unsupported
from inaproto.units import PortId
from inaproto.wire.ina_header import Dtype
from inaproto.wire.messages.switch import PoolSpec, Role, VirtualConnection
from inaproto_adapters.fpga import register_map
from inaproto_adapters.fpga.device import TABLE_POLLS, FpgaDevice, LastFault, RingView
from inaproto_adapters.fpga.register_map import (
    CNT_COUNT,
    CONN_ROW,
    PLACE_ROW,
    RING_ROW,
    RULES,
    STATE_ROW,
    Counter,
    Field,
    Table,
    decode,
    pack,
    unpack,
)
from inaproto_adapters.fpga.simulated import InProcessBus
from inaproto_adapters.fpga.table_rows import Placement

TREE = Path(__file__).resolve().parents[2]
RINGS, CHILDREN, SLOTS = 3, 4, 128


class Board:
    """A register file with a table engine, as the register map says."""

    def __init__(self) -> None:
        self.words = {
            0x000: 0x494E4131,
            0x004: 1 << 16 | 3,
            0x008: 6 | 16 << 8 | RINGS << 16 | CHILDREN << 24,
            0x00C: SLOTS,
            0x010: 1024 | 4 << 16 | 32 << 24,
            0x014: 0b11011 << 16 | 0b1111,
            0x01C: 0,
            0x020: 0,
            0x024: 0,
            **dict.fromkeys(range(0x02C, 0x040, 4), 0),
        }
        self.tables: dict[Table, dict[int, list[int]]] = {table: {} for table in Table}
        self.data = [0] * 8
        self.commands: list[tuple[Table, int, bool]] = []
        """(table, index, whether a row was put)."""
        self.busy_polls = 3
        self.refuses: list[tuple[Table, int]] = []
        self.disturbed = 0
        self.live = [0] * CNT_COUNT
        self.latched = [0] * CNT_COUNT
        self._left = 0
        self._word = 0

    def read32(self, address: int) -> int:
        if address == 0x01C and self._left:
            self._left -= 1
            if not self._left:
                self._finish()
                return self.words[0x01C] | 1
            return 0b011
        if 0x060 <= address < 0x080:
            return self.data[(address - 0x060) // 4]
        if 0x100 <= address < 0x300:
            at, high = divmod((address - 0x100) // 4, 2)
            return self.latched[at] >> (32 * high) & 0xFFFF_FFFF
        return self.words[address]

    def write32(self, address: int, value: int) -> None:
        if 0x060 <= address < 0x080:
            self.disturbed += bool(self._left)
            self.data[(address - 0x060) // 4] = value
        elif address == 0x040:
            self.disturbed += bool(self._left)
            self._word, self._left = value, self.busy_polls
            if not self._left:
                self._finish()
        elif address == 0x018:
            assert value == 1
            self.latched = list(self.live)
        else:
            assert address in (0x020, *range(0x02C, 0x040, 4)), f"{address:#x} is read-only"
            self.words[address] = value

    def _finish(self) -> None:
        table, index = Table(self._word >> 16 & 0xF), self._word & 0xFFFF
        put, get = self._word >> 25 & 1, self._word >> 24 & 1
        assert put + get == 1
        self.commands.append((table, index, bool(put)))
        fails = (table, index) in self.refuses
        self.words[0x01C] = fails << 2
        if not fails and put:
            self.tables[table][index] = list(self.data)
        elif not fails:
            self.data = list(self.tables[table].get(index, [0] * 8))

    def conn(self, index: int) -> dict[str, int]:
        return unpack(CONN_ROW, self.tables[Table.CONN].get(index, [0] * 8))

    def place(self, index: int) -> tuple[int, int]:
        row = unpack(PLACE_ROW, self.tables[Table.PLACE].get(index, [0] * 8))
        return row["base"], row["slots"]

    def ring(self, index: int) -> dict[str, int]:
        return unpack(RING_ROW, self.tables[Table.RING].get(index, [0] * 8))


OF_TREES = (
    *("below", "above", "elsewhere", "told", "learnt", "delivered"),
    *("port", "link", "link_known", "rank", "successor"),
)
"""What only connections of rings through several switches have in their rows."""


def flow(rank: int, net: int, *, macs: bool = True) -> FlowSpec:
    return FlowSpec(
        rank,
        bytes((10, 0, net, rank)),
        bytes((10, 0, net, rank + 1)),
        0x100 * net + rank,
        bytes((2, 0, 0, 0, net, rank)) if macs else b"",
        bytes((2, 0, 0, 0, net, rank + 1)) if macs else b"",
    )


def spec(ring_id: int = 1, *, ranks: int = 2, window: int = 2, packets: int = 8, **more: Any) -> RingSpec:
    flows = tuple(flow(rank, ring_id) for rank in range(ranks))
    values: dict[str, Any] = {
        "ring_id": ring_id,
        "epoch": 5,
        "key": 0x0123_4567_89AB_CDEF,
        "window_messages": window,
        "message_packets": packets,
        "mtu": 1024,
        "flows": flows,
    }
    return RingSpec(**(values | more))


async def device(board: Board) -> FpgaDevice:
    return await FpgaDevice.identify(InProcessBus(board))


def reason(answer: Placement | RingRefused) -> str:
    assert isinstance(answer, RingRefused)
    return answer.reason


# -- what it is --------------------------------------------------------------------------------------


async def test_an_accelerator_says_what_it_is() -> None:
    identity = (await device(Board())).identity
    assert identity.version == (1, 3)
    assert (identity.ports, identity.words, identity.rings, identity.children) == (6, 16, RINGS, CHILDREN)
    assert (identity.slots, identity.mtu, identity.window, identity.addresses) == (SLOTS, 1024, 4, 32)
    assert identity.dtypes == {Dtype.F32, Dtype.I32, Dtype.F16, Dtype.BF16}
    assert identity.tree_ranks == 0


@pytest.mark.parametrize(
    ("address", "word", "why"),
    [
        (0x000, 0xFFFF_FFFF, "register ID reads 0xffffffff, expected 0x494e4131"),
        (0x004, 2 << 16, "its register map has version 2, expected 1"),
        (0x014, 0b1010 << 16 | 1, "it lacks ICRC check"),
        (0x014, 0b0001 << 16 | 1, "it lacks ICRC generation, results in PSN order"),
        (0x008, 40 | 16 << 8 | RINGS << 16 | CHILDREN << 24, "it says that it has 40 ports, 1 to 32 are"),
        (0x008, 16 << 8 | RINGS << 16 | CHILDREN << 24, "it says that it has 0 ports, 1 to 32 are"),
        (0x008, 6 | 16 << 8 | CHILDREN << 24, "it says that it has 0 rings, 1 to 255 are"),
        (0x008, 6 | 16 << 8 | RINGS << 16 | 1 << 24, "it says that it has 1 ranks of a ring, 2 to 255 are"),
        (0x00C, 0, "it says that it has 0 slots"),
        (0x010, 4 << 16, "it says that it has 0 bytes of payload"),
        (0x010, 1024, "it says that it has 0 messages of a window"),
    ],
)
async def test_what_is_no_accelerator_of_this_map_is_not_driven(address: int, word: int, why: str) -> None:
    board = Board()
    board.words[address] = word
    with pytest.raises(Unsupported, match=why):
        await device(board)


async def test_an_accelerator_of_trees_has_rows_that_its_tables_can_name() -> None:
    board = Board()
    board.words[0x014] |= 1 << 18
    for children, ranks, fits in ((32, 128, True), (127, 128, True), (128, 128, False), (255, 255, False)):
        board.words[0x008] = 6 | 16 << 8 | 255 << 16 | children << 24
        board.words[0x028] = ranks
        if fits:
            assert (await device(board)).identity.rows <= 256
        else:
            with pytest.raises(Unsupported, match=f"{children + ranks + 1} connections of a ring"):
                await device(board)


# -- where rings go ----------------------------------------------------------------------------------


async def test_a_ring_gets_slots_for_twice_its_window_in_the_first_gap() -> None:
    board = Board()
    driver = await device(board)
    assert driver.allocate(spec(1, packets=8)) == Placement(0, 0, 32)
    assert driver.allocate(spec(2, packets=16)) == Placement(1, 32, 64)
    assert driver.allocate(spec(3, window=1, packets=16)) == Placement(2, 96, 32)
    await driver.remove(1)
    await driver.remove(3)
    assert driver.allocate(spec(4, window=4, packets=4)) == Placement(0, 0, 32)
    await driver.remove(4)
    await driver.remove(2)
    assert driver.allocate(spec(5, window=4, packets=16)) == Placement(0, 0, 128)
    assert driver.rings == {5: Placement(0, 0, 128)}


@pytest.mark.parametrize("seed", range(20))
async def test_slots_of_two_rings_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    driver = await device(Board())
    for ring_id in range(1, 40):
        if driver.rings and rng.random() < 0.4:
            await driver.remove(rng.choice(sorted(driver.rings)))
        driver.allocate(spec(ring_id, window=rng.choice((1, 2, 4)), packets=rng.randint(1, 16)))
        places = sorted(driver.rings.values(), key=lambda place: place.base)
        assert len({place.ring for place in places}) == len(places)
        assert all(place.ring < RINGS for place in places)
        edges = [0, *(edge for place in places for edge in (place.base, place.base + place.slots)), SLOTS]
        assert edges == sorted(edges)


def virtual(port: int) -> VirtualConnection:
    return VirtualConnection("other", PortId(port), bytes(6), bytes(4), bytes(6), bytes(4), 7)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (spec(ranks=5), "5 ranks, at most 4"),
        (spec(window=8, packets=1), "a window of 8 messages, at most 4"),
        (spec(mtu=2048), "MTU 2048, at most 1024"),
        (spec(packets=33), "needs 132 slots, the accelerator has 128"),
        (spec(pool=PoolSpec("shared", 3)), "its pool takes 3 rings at once: a power of two is possible"),
        (
            spec(pool=PoolSpec("shared", 4)),
            "its pool takes 4 rings at once: a power of two is possible, at most 3",
        ),
        (spec(role=Role(inputs=(0, virtual(1)), delivers=(0, 1))), "it spans several switches"),
        (spec(psn_bits=8, packets=4), "PSNs"),
        (spec(msg_id_bits=16), "message ids"),
        (
            spec(
                flows=tuple(replace(flow(rank, 1), src_ip=bytes(16), dst_ip=bytes(16)) for rank in range(2))
            ),
            "its hosts have IPv6 addresses",
        ),
    ],
)
async def test_a_ring_that_no_accelerator_of_this_kind_can_have(refused: RingSpec, why: str) -> None:
    board = Board()
    driver = await device(board)
    answer = await driver.install(refused)
    assert isinstance(answer, RingRefused)
    assert why in answer.reason
    assert answer.ring_id == refused.ring_id
    assert not answer.until_room
    assert not driver.rings
    assert not board.commands


# -- how they go in and out --------------------------------------------------------------------------


async def test_the_ring_row_comes_last_and_is_right() -> None:
    board = Board()
    driver = await device(board)
    driver.allocate(spec(9, packets=4))
    assert await driver.install(spec(7, ranks=3, first_message=(1 << 32) + 6)) == Placement(1, 16, 32)
    assert board.commands == [
        (Table.CONN, CHILDREN, True),
        (Table.CONN, CHILDREN + 1, True),
        (Table.CONN, CHILDREN + 2, True),
        (Table.RING, 1, True),
    ]
    assert board.conn(CHILDREN + 2) == {
        "src_ip": 0x0A000702,
        "dst_ip": 0x0A000703,
        "dst_qp": 0x702,
        "valid": 1,
        "src_mac": 0x020000000702,
        "dst_mac": 0x020000000703,
        "macs_known": 1,
        **dict.fromkeys(OF_TREES, 0),
    }
    assert board.ring(1) == {
        "ring_id": 7,
        "key": 0x0123_4567_89AB_CDEF,
        "epoch": 5,
        "size": 3,
        "window": 2,
        "message_packets": 8,
        "mtu": 1024,
        "pooled": 0,
        "place": 0,
        "log2_places": 0,
        "selective": 0,
        "valid": 1,
        "base": 16,
        "first_message": 6,
    }
    assert board.disturbed == 0


async def test_words_of_rows_are_where_the_register_map_says() -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(7, first_message=6))
    assert board.tables[Table.CONN][1] == [
        0x0A000701,
        0x0A000702,
        0x8000_0701,
        0x0000_0701,
        0x0702_0200,
        0x0200_0000,
        1,
        0,
    ]
    assert board.tables[Table.RING][0] == [
        7,
        0x0123_4567,
        0x89AB_CDEF,
        5,
        8 << 16 | 2 << 8 | 2,
        0x8000_0400,
        0,
        6,
    ]


async def test_addresses_that_nobody_knows() -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(1, flows=tuple(flow(rank, 1, macs=False) for rank in range(2))))
    row = board.conn(0)
    assert (row["src_mac"], row["dst_mac"], row["macs_known"], row["valid"]) == (0, 0, 0, 1)


async def test_a_ring_leaves_in_the_other_order() -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(1))
    board.commands.clear()
    await driver.remove(1)
    assert board.commands == [(Table.RING, 0, True), (Table.CONN, 0, True), (Table.CONN, 1, True)]
    assert not any(any(row) for table in board.tables.values() for row in table.values())
    assert not driver.rings
    with pytest.raises(LocalMisuse, match="ring 1 is not installed"):
        await driver.remove(1)


async def test_a_ring_that_lingers_has_its_connections_meanwhile(autojump_clock: Any) -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: driver.remove(1, linger=10))
        await trio.sleep(9)
        assert not board.ring(0)["valid"]
        assert board.conn(1)["valid"]
        assert 1 in driver.rings
    assert not board.conn(1)["valid"]
    assert not driver.rings


async def test_a_ring_that_was_stopped_keeps_its_place_and_connections() -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(1))
    await driver.stop(1)
    assert not board.ring(0)["valid"]
    assert board.conn(1)["valid"]
    assert driver.rings == {1: Placement(0, 0, 32)}
    assert driver.spec_of(1) == spec(1)


async def test_what_another_process_left_behind_is_taken_out() -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(1, ranks=4))
    await driver.install(spec(2))
    again = await device(board)
    assert not again.rings
    board.commands.clear()
    await again.empty()
    assert not any(any(row) for table in board.tables.values() for row in table.values())
    tables = [table for table, _, _ in board.commands]
    assert tables == [Table.RING] * RINGS + [Table.CONN] * RINGS * CHILDREN


@pytest.mark.parametrize("refused", [(Table.CONN, 1), (Table.RING, 0)])
async def test_an_accelerator_that_refuses_a_row_keeps_nothing(refused: tuple[Table, int]) -> None:
    board = Board()
    driver = await device(board)
    board.refuses.append(refused)
    with pytest.raises(FabricError, match="table_error") as caught:
        await driver.install(spec(1))
    assert not caught.value.retryable
    assert list(driver.rings) == [1]  # it refuses to take the row out, too: what is there is not known
    assert "keeps its place" in caught.value.__notes__[0]
    board.refuses.clear()
    await driver.remove(1)
    assert not driver.rings


async def test_an_accelerator_that_refuses_a_row_once_is_cleared_of_the_others() -> None:
    class Once(Board):
        def _finish(self) -> None:
            super()._finish()
            self.refuses.clear()

    board = Once()
    driver = await device(board)
    board.refuses.append((Table.CONN, 0))
    with pytest.raises(FabricError, match="put row 0 of table CONN"):
        await driver.install(spec(1))
    assert not driver.rings
    assert not board.ring(0)["valid"]


async def test_tables_that_are_never_done(autojump_clock: Any) -> None:
    board = Board()
    driver = await device(board)
    board.busy_polls = 10 * TABLE_POLLS
    with pytest.raises(FabricError, match=f"table_busy after {TABLE_POLLS} polls") as caught:
        await driver.install(spec(1))
    assert caught.value.retryable
    assert board.disturbed == 0


async def test_a_command_that_was_cancelled_does_not_disturb_the_next_one() -> None:
    class Cancelling(Board):
        def read32(self, address: int) -> int:
            found = super().read32(address)
            if address == 0x01C and found & 0b010:
                scope.cancel()
            return found

    board = Cancelling()
    driver = await device(board)
    board.busy_polls = 100
    with trio.CancelScope() as scope:
        await driver.install(spec(1))
    assert scope.cancelled_caught
    assert not board.commands
    assert list(driver.rings) == [1]
    await driver.remove(1)
    assert board.disturbed == 0
    assert not driver.rings


async def test_rows_of_two_tasks_do_not_mix() -> None:
    board = Board()
    driver = await device(board)
    async with trio.open_nursery() as nursery:
        for ring_id in (1, 2, 3):
            nursery.start_soon(driver.install, spec(ring_id, ranks=3, packets=4))
    assert board.disturbed == 0
    for ring_id, place in driver.rings.items():
        assert board.ring(place.ring)["ring_id"] == ring_id
        assert [board.conn(place.ring * CHILDREN + rank)["dst_qp"] for rank in range(3)] == [
            0x100 * ring_id + rank for rank in range(3)
        ]


# -- what becomes of them ----------------------------------------------------------------------------


def state(**values: int) -> list[int]:
    return pack(STATE_ROW, **values)


async def test_the_state_of_a_ring() -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(1))
    board.tables[Table.STATE][0] = state(next_serial=9, next_offset=3, in_flight=2)
    assert await driver.state(1) == RingView(9, 3, 2, None)
    board.tables[Table.STATE][0] = state(failed=1, fault_rule=Counter.DROP_LAYOUT, fault_child=1)
    assert await driver.state(1) == RingView(0, 0, 0, ("packet layout", 1))
    with pytest.raises(LocalMisuse, match="ring 2 is not installed"):
        await driver.state(2)


async def test_a_ring_is_drained_when_nothing_is_in_flight(autojump_clock: Any) -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(1))
    board.tables[Table.STATE][0] = state(in_flight=2)

    drained: list[float] = []

    async def drain() -> None:
        await driver.drain(1, 10)
        drained.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain)
        await trio.sleep(0.05)
        assert not drained
        board.tables[Table.STATE][0] = state()
    assert drained


async def test_a_drain_that_takes_too_long_says_what_is_left(autojump_clock: Any) -> None:
    board = Board()
    driver = await device(board)
    await driver.install(spec(1))
    board.tables[Table.STATE][0] = state(in_flight=3)
    with pytest.raises(FabricError, match=r"3 slots are partly filled after 0\.05 s") as caught:
        await driver.drain(1, 0.05)
    assert caught.value.retryable
    assert 1 in driver.rings


async def test_counters_are_those_of_one_moment_and_have_64_bits() -> None:
    board = Board()
    driver = await device(board)
    board.live = [number << 33 | number for number in range(CNT_COUNT)]
    counters = await driver.counters()
    assert list(counters) == [name for _, name in sorted(register_map.COUNTER_NAMES.items())]
    assert counters["rx"] == 0
    assert counters["wrong ICRC"] == Counter.DROP_WRONG_ICRC << 33 | Counter.DROP_WRONG_ICRC
    assert counters["first_packets"] == 33 << 33 | 33
    board.live = [1] * CNT_COUNT
    assert set((await driver.counters()).values()) == {1}


async def test_the_last_fault() -> None:
    board = Board()
    driver = await device(board)
    assert await driver.last_fault() is None
    await driver.install(spec(1))
    await driver.install(spec(5))
    board.words[0x024] = Counter.DROP_WRONG_KEY | 1 << 8 | 3 << 16 | 255 << 24
    assert await driver.last_fault() == LastFault("wrong key", 5, 3, 255)
    board.words[0x024] = Counter.DROP_WRONG_KEY | 2 << 8 | 1 << 24
    assert await driver.last_fault() == LastFault("wrong key", None, 0, 1)
    board.words[0x024] = Counter.DROP_UNKNOWN_RING | 1 << 24
    assert await driver.last_fault() == LastFault("unknown ring", None, 0, 1)
    board.words[0x024] = 0xEE | 1 << 24
    assert await driver.last_fault() == LastFault("rule 238", 1, 0, 1)


async def test_ports_that_are_up() -> None:
    board = Board()
    driver = await device(board)
    await driver.set_ports_up([0, 2, 5])
    assert board.words[0x020] == 0b100101
    for port in (-1, 6):
        with pytest.raises(LocalMisuse):
            await driver.set_ports_up([port])


# -- the register map --------------------------------------------------------------------------------


def test_drops_have_the_names_of_the_software_core() -> None:
    """Each rule is a text of the core, but for the one that the core has no need of."""
    core = TREE / "inaproto" / "core" / "switch"
    texts = {
        node.value
        for path in core.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(RULES.values()) - texts == {"unsupported type"}
    assert RULES[Counter.DROP_FIRST_NOT_SEEN] == FIRST_NOT_SEEN
    assert len(set(RULES.values())) == len(RULES)


def test_counters_are_numbered_without_a_gap_and_fit() -> None:
    assert [int(counter) for counter in Counter] == list(range(len(Counter)))
    assert len(Counter) <= register_map.CNT_COUNT
    assert set(register_map.COUNTER_NAMES) == set(Counter)


def test_rows_keep_what_was_packed() -> None:
    rng = random.Random(2)
    for row in (CONN_ROW, RING_ROW, STATE_ROW):
        widths = {name: sum(part.width for part in parts) for name, parts in row.items()}
        values = {name: rng.getrandbits(width) for name, width in widths.items()}
        assert unpack(row, pack(row, **values)) == values
        ones = pack(row, **{name: (1 << width) - 1 for name, width in widths.items()})
        assert sum(word.bit_count() for word in ones) == sum(widths.values())  # no two share a bit
        for name, width in widths.items():
            with pytest.raises(LocalMisuse, match="does not fit"):
                pack(row, **{name: 1 << width})
        with pytest.raises(LocalMisuse, match="does not fit"):
            pack(row, **{next(iter(row)): -1})


def test_fields_of_a_word() -> None:
    field = Field(0, 8, 4)
    assert (field.mask, field.of(0xABCD), field.at(0xF)) == (0xF00, 0xB, 0xF00)


@pytest.mark.parametrize(
    ("address", "word", "meaning"),
    [
        (0x01C, 0b101, ("STATUS", {"busy": 1, "table_busy": 0, "table_error": 1})),
        (0x068, 7, ("TBL_DATA2", {"value": 7})),
        (0x10C, 7, ("CNT1", {"high": 7})),
        (0x278, 7, ("CNT47", {"low": 7})),
        (0x300, 7, ("", {})),
        (0x00C, 128, ("PARAMS1", {"slots": 128})),
        (0x02C, 0x1FF03, ("CLAIM", {"owner": 0x1FF, "beat": 3})),
        (0x03C, 7, ("CLAIM_NAME3", {"value": 7})),
    ],
)
def test_words_are_said_for_people(address: int, word: int, meaning: tuple[str, dict[str, int]]) -> None:
    assert decode(address, word) == meaning


def test_the_control_side_needs_no_tool_of_hardware() -> None:
    for path in (TREE / "adapters" / "inaproto_adapters" / "fpga").glob("*.py"):
        assert not re.search(
            r"^\s*(import|from) (amaranth|systemrdl|inaproto_hil)", path.read_text(), re.MULTILINE
        )
