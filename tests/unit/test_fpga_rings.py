"""Rings through several switches, and rings that share slots by turns, in an accelerator's tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.switch.events import RingRefused
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.core.switch.tree.translation import start_psn
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, PortId
from inaproto.wire.messages.switch import PoolSpec, Role
from inaproto_adapters.fpga.device import PlaceView
from inaproto_adapters.fpga.register_map import STATE_ROW, TREE_ROW, Counter, Table, pack, unpack
from inaproto_adapters.fpga.rings import FpgaRings
from inaproto_adapters.fpga.table_rows import Placement
from tests.unit.test_fpga_device import CHILDREN, OF_TREES, Board, device, flow, reason, spec, virtual

# -- rings through several switches ------------------------------------------------------------------

TREE_RANKS = 6


def tree_board() -> Board:
    """An accelerator that sums for rings of up to six ranks of several switches."""
    board = Board()
    board.words[0x014] |= 1 << 18
    board.words[0x028] = TREE_RANKS
    return board


def leaf(ring_id: int = 7, *, ranks: int = 3, **more: Any) -> RingSpec:
    """Rank 1 and rank 0 are added up here, in this order; the connection of rank 2 ends here."""
    above = virtual(5)
    role = Role(inputs=(1, 0), parent=above, delivers=(0, 2), notes=((1, above),))
    return spec(ring_id, ranks=ranks, role=role, **more)


async def test_rows_of_a_ring_that_spans_several_switches() -> None:
    board = tree_board()
    driver = await device(board)
    rows = CHILDREN + TREE_RANKS + 1
    assert driver.identity.rows == rows
    assert await driver.install(leaf()) == Placement(0, 0, 32)
    assert {index for table, index, _ in board.commands if table == Table.CONN} == {
        0,
        1,
        CHILDREN + 2,
        rows - 1,
    }
    assert [table for table, _, _ in board.commands[-2:]] == [Table.TREE, Table.RING]
    of_trees = {name: dict.fromkeys(OF_TREES, 0) | more for name, more in _LEAF_ROWS.items()}
    for index, expected in of_trees.items():
        row = board.conn(index % rows)
        assert {name: row[name] for name in OF_TREES} == expected, index
    assert unpack(TREE_ROW, board.tables[Table.TREE][0]) == {
        "valid": 1,
        "has_parent": 1,
        "inputs": 2,
        "parent_port": 5,
        "start_psn": start_psn(leaf()),
    }
    await driver.remove(7)
    assert not any(any(row) for row in board.tables[Table.CONN].values())


_LEAF_ROWS: dict[int, dict[str, int]] = {
    0: {"rank": 1, "told": 1, "link": CHILDREN + TREE_RANKS, "link_known": 1},
    1: {"rank": 0, "delivered": 1, "successor": 0},
    CHILDREN + 2: {"rank": 2, "elsewhere": 1, "learnt": 1, "successor": 1},
    -1: {"above": 1, "port": 5},
}


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (leaf(ranks=TREE_RANKS + 1), "7 ranks, at most 6"),
        (leaf(selective=True), "a selective ring that spans several switches"),
        (spec(role=Role(steered=(0, 1), steer_to=PortId(1))), "it is steered"),
        (spec(role=Role(inputs=(0, 1), delivers=(0, 1), below=())), "not that of the fabric"),
    ],
)
async def test_a_ring_of_several_switches_that_none_can_have(refused: RingSpec, why: str) -> None:
    driver = await device(tree_board())
    assert why in reason(driver.allocate(refused))


async def test_rings_between_the_same_switches_are_told_apart() -> None:
    driver = await device(tree_board())
    driver.allocate(leaf(7))
    assert "low bits" in reason(driver.allocate(leaf(8)))


async def test_a_selective_ring_is_a_ring_whose_results_leave_in_order() -> None:
    """docs/protocol.md 6.6.4: where a switch cannot do it the other way, results leave in PSN order."""
    driver = await device(Board())
    assert driver.allocate(spec(selective=True)) == Placement(0, 0, 32)


async def test_a_ring_for_which_there_is_no_room_now() -> None:
    driver = await device(Board())
    driver.allocate(spec(1, packets=24))
    answer = driver.allocate(spec(2, packets=16))
    assert answer == RingRefused(2, "needs 64 slots in one piece, 32 are free", until_room=True)
    driver.allocate(spec(3, packets=1))
    driver.allocate(spec(4, packets=1))
    assert driver.allocate(spec(5, packets=1)) == RingRefused(5, "all 3 rings are in use", until_room=True)


async def test_a_ring_or_connection_that_is_here_already() -> None:
    driver = await device(Board())
    driver.allocate(spec(1))
    assert reason(driver.allocate(spec(1))) == "ring 1 is installed already"
    stolen = replace(spec(2), flows=(flow(0, 2), replace(flow(0, 1), rank=1)))
    assert reason(driver.allocate(stolen)) == "the connection of rank 1 belongs to another ring"


async def test_a_fault_that_a_view_has_found_is_not_that_of_a_ring_that_came_later() -> None:
    board = Board()
    rings = FpgaRings(await device(board), retired_ns=0)
    await rings.install(spec(7), Instant(0))
    board.tables[Table.STATE][0] = pack(STATE_ROW, failed=1, fault_rule=int(Counter.DROP_LAYOUT))
    assert (await rings.view()).rings[7]["failed"]
    await rings.remove(7, Instant(0))
    board.tables[Table.STATE].clear()
    await rings.install(spec(7), Instant(1))
    assert await rings.faults() == []


# -- pools -------------------------------------------------------------------------------------------


def pooled(ring_id: int, capacity: int = 2, **more: Any) -> RingSpec:
    return spec(ring_id, pool=PoolSpec("shared", capacity), **more)


async def test_rings_of_a_pool_share_its_places() -> None:
    board = Board()
    driver = await device(board)
    driver.allocate(spec(9, packets=2))
    assert await driver.install(pooled(1, packets=8)) == Placement(1, 8, 64)
    assert await driver.install(pooled(2, packets=4)) == Placement(2, 8, 64), "the same slots"
    assert [board.place(at) for at in range(2)] == [(8, 32), (40, 32)]
    row = board.ring(2)
    assert (row["pooled"], row["place"], row["log2_places"]) == (1, 0, 1)
    assert [table for table, *_ in board.commands].count(Table.PLACE) == 2


async def test_the_first_ring_of_a_pool_says_how_large_its_places_are() -> None:
    driver = await device(Board())
    await driver.install(pooled(1, packets=4))
    assert (
        reason(await driver.install(pooled(2, packets=8))) == "needs 32 slots, a place of pool shared has 16"
    )
    assert reason(await driver.install(pooled(2, capacity=1))) == "pool shared takes 2 rings at once, not 1"


async def test_a_pool_that_has_lost_its_last_ring_forgets_its_turns() -> None:
    board = Board()
    driver = await device(board)
    await driver.install(pooled(1))
    board.tables[Table.PLACE][0][2:4] = [77, 3]
    assert (await driver.pool("shared"))[0] == PlaceView(1, 77)
    await driver.stop(1)
    await driver.install(pooled(2))
    assert (await driver.pool("shared"))[0] == PlaceView(None, -1)
    await driver.remove(1)
    await driver.remove(2)
    with pytest.raises(LocalMisuse, match="no pool"):
        await driver.pool("shared")
    assert driver.allocate(spec(3, packets=32)) == Placement(0, 0, 128), "its slots are free"


async def test_there_is_no_room_for_a_pool() -> None:
    driver = await device(Board())
    await driver.install(pooled(1, packets=4))
    other = spec(2, pool=PoolSpec("other", 2), packets=4)
    answer = driver.allocate(other)
    assert answer == RingRefused(2, "2 places in one piece are not free for pool other", until_room=True)
    large = spec(2, pool=PoolSpec("other", 1), packets=32)
    assert reason(driver.allocate(large)) == "needs 128 slots in one piece, 96 are free"


async def test_an_accelerator_without_pools_says_so() -> None:
    board = Board()
    board.words[0x014] = 0b01011 << 16 | 0b1111
    assert "it is of a pool" in reason((await device(board)).allocate(pooled(1)))
