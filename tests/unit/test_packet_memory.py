"""Memory that packets go through: bounded, given again, never handed out twice at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inaproto.core.switch import packet_memory
from inaproto.core.switch.packet_memory import Cut, OutputArena, PayloadPool, aligned

FIRST_BYTES = 1 << 16


def address(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    return int(array.__array_interface__["data"][0])


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 900)), max_size=12))
def test_what_is_taken_in_one_step_never_overlaps(requests: list[tuple[int, int, int]]) -> None:
    arena = OutputArena(1 << 20)
    for _ in range(3):
        arena.reset()
        taken = [arena.take(*request) for request in requests]
        assert [array.shape for array in taken] == requests
        assert all(array.dtype == np.uint8 for array in taken)
        for number, array in enumerate(taken):
            array[...] = number
        assert all((array == number).all() for number, array in enumerate(taken))


def test_a_step_finds_the_memory_of_the_one_before() -> None:
    arena = OutputArena(1 << 20)
    first = arena.take(1, 1, 100)
    second = arena.take(1, 1, 100)
    assert address(second) == address(first) + 100
    arena.reset()
    assert address(arena.take(1, 1, 100)) == address(first)


def test_memory_fills_to_its_last_byte() -> None:
    arena = OutputArena(1 << 20)
    first = arena.take(1, 1, FIRST_BYTES - 1)
    last = arena.take(1, 1, 1)
    assert address(last) == address(first) + FIRST_BYTES - 1
    beyond = arena.take(1, 1, 1)
    assert not address(first) <= address(beyond) < address(first) + FIRST_BYTES


def is_kept(arena: OutputArena, nbytes: int) -> bool:
    """Whether two steps that want as much get the same memory."""
    arena.reset()
    before = address(arena.take(1, 1, nbytes))
    arena.reset()
    other = np.empty(nbytes, np.uint8)
    after = address(arena.take(1, 1, nbytes))
    del other
    return before == after


def test_it_grows_to_what_a_step_wanted_in_all() -> None:
    arena = OutputArena(1 << 22)
    for _ in range(3):
        arena.take(1, 1, FIRST_BYTES)
    arena.reset()
    taken = [arena.take(1, 1, FIRST_BYTES) for _ in range(6)]
    addresses = [address(array) for array in taken]
    assert addresses == [addresses[0] + FIRST_BYTES * number for number in range(6)], "twice as much"


def test_it_grows_to_its_bound_and_not_beyond() -> None:
    bound = 3 * FIRST_BYTES
    arena = OutputArena(bound)
    arena.take(1, 1, 2 * FIRST_BYTES)
    arena.reset()
    taken = [arena.take(1, 1, FIRST_BYTES) for _ in range(3)]
    addresses = [address(array) for array in taken]
    assert addresses == [addresses[0] + FIRST_BYTES * number for number in range(3)]
    beyond = address(arena.take(1, 1, 1))
    assert not addresses[0] <= beyond < addresses[0] + bound
    arena.reset()
    assert address(arena.take(1, 1, 1)) == addresses[0], "who wants more than the bound changes nothing"


def test_a_step_that_wants_exactly_the_bound_gets_it() -> None:
    bound = 2 * FIRST_BYTES
    arena = OutputArena(bound)
    arena.take(1, 1, bound)
    assert is_kept(arena, bound)


def test_memory_that_suffices_is_kept() -> None:
    arena = OutputArena(1 << 20)
    first = address(arena.take(1, 1, FIRST_BYTES))
    for _ in range(3):
        arena.reset()
        assert address(arena.take(1, 1, FIRST_BYTES)) == first


PARTS = ((1, 70), (3, 54), (1, 20))
CUT_BYTES = 2 * (70 + 3 * 54 + 20)


def begins(cut: Cut) -> list[int]:
    return [address(block) - cut.address for block in cut.blocks]


@pytest.mark.parametrize("bytes_max", [0, 1 << 20], ids=["of its own", "of the arena"])
def test_a_cut_has_its_parts_one_behind_the_other(bytes_max: int) -> None:
    arena = OutputArena(bytes_max)
    if not bytes_max:
        arena.take(1, 1, FIRST_BYTES)
    cut = arena.take_cut(2, PARTS)
    assert [block.shape for block in cut.blocks] == [(2, 1, 70), (2, 3, 54), (2, 1, 20)]
    assert begins(cut) == [0, 2 * 70, 2 * (70 + 3 * 54)]
    assert (cut.nbytes, cut.egress, cut.sent) == (CUT_BYTES, None, [])
    assert all(block.dtype == np.uint8 for block in cut.blocks)


def test_what_is_cut_is_found_again_in_the_same_place_alone() -> None:
    arena = OutputArena(1 << 20)
    first, second = arena.take_cut(2, PARTS), arena.take_cut(2, PARTS)
    assert second is not first
    assert second.address == first.address + CUT_BYTES
    behind = address(arena.take(1, 1, 1))
    assert behind == second.address + CUT_BYTES
    for _ in range(3):
        arena.reset()
        assert [arena.take_cut(2, PARTS), arena.take_cut(2, PARTS)] == [first, second]
        assert address(arena.take(1, 1, 1)) == behind
    arena.reset()
    assert arena.take_cut(1, PARTS) is not first
    arena.reset()
    other = arena.take_cut(2, PARTS[1:])
    assert other is not first
    assert other.address == first.address


def test_cuts_are_of_the_memory_that_there_is_now() -> None:
    arena = OutputArena(1 << 20)
    old = arena.take_cut(2, PARTS)
    last = [arena.take_cut(2, PARTS) for _ in range(FIRST_BYTES // CUT_BYTES + 1)][-1]
    assert not old.address <= last.address < old.address + FIRST_BYTES, "there was no room"
    arena.reset()
    cuts = [arena.take_cut(2, PARTS) for _ in range(FIRST_BYTES // CUT_BYTES + 2)]
    assert cuts[0] is not old
    assert [cut.address - cuts[0].address for cut in cuts] == [CUT_BYTES * n for n in range(len(cuts))]
    assert [begins(cut) for cut in cuts] == [begins(old)] * len(cuts)
    arena.reset()
    assert [arena.take_cut(2, PARTS) for _ in cuts] == cuts, "also what was found again counts as wanted"
    arena.reset()
    assert arena.take_cut(2, PARTS) is cuts[0]


def test_cuts_take_the_last_byte_and_are_wanted_again() -> None:
    arena = OutputArena(1 << 20)
    half = ((1, FIRST_BYTES // 2),)
    first = [arena.take_cut(1, half), arena.take_cut(1, half)]
    for _ in range(2):
        arena.reset()
        assert [arena.take_cut(1, half), arena.take_cut(1, half)] == first
    arena.take(1, 1, 1)
    arena.reset()
    assert arena.take_cut(1, half) is not first[0], "a byte more was wanted than there was"


def test_so_many_cuts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_memory, "CUTS_MAX", 2)
    arena = OutputArena(1 << 20)
    first = [arena.take_cut(1, ((1, 10),)) for _ in range(2)]
    arena.reset()
    assert [arena.take_cut(1, ((1, 10),)) for _ in range(2)] == first
    third = arena.take_cut(1, ((1, 10),))
    arena.reset()
    again = [arena.take_cut(1, ((1, 10),)) for _ in range(3)]
    assert first[0] not in again
    assert third.address == again[2].address


def test_memory_begins_where_a_cache_line_does() -> None:
    kept = [aligned(3, 5, nbytes) for nbytes in (1, 63, 64, 65, 1000)]
    assert [array.shape for array in kept] == [(3, 5, nbytes) for nbytes in (1, 63, 64, 65, 1000)]
    assert all(address(array) % 64 == 0 and array.dtype == np.uint8 for array in kept)
    assert all(array.base is not None and array.base.nbytes == array.nbytes + 64 for array in kept)


def test_payload_buffers_come_back_latest_first() -> None:
    pool = PayloadPool(2, 3, 64)
    one, two = pool.take(), pool.take()
    assert one is not two
    pool.give_back(one)
    pool.give_back(two)
    assert pool.take() is two
    assert pool.take() is one
    assert pool.take() not in (one, two)


def test_rows_of_a_buffer_are_cut_once() -> None:
    buffer = PayloadPool(2, 3, 64).take()
    assert buffer.array.shape == (2, 3, 64)
    assert buffer.array.dtype == np.uint8
    assert buffer.address == address(buffer.array)
    buffer.array[...] = 0
    buffer.cuts[1][2][5] = 9
    assert buffer.array[1, 2, 5] == 9
    assert [len(rank) for rank in buffer.cuts] == [3, 3]
    assert all(len(row) == 64 for rank in buffer.cuts for row in rank)


@pytest.mark.parametrize("shape", [(3, 5, 7), (64,)])
def test_aligned_memory_is_zeros_on_a_cache_line(shape: tuple[int, ...]) -> None:
    """Undefined bytes that look like NaN cost a sum that has them behind its end more calls."""
    for _ in range(20):
        memory = aligned(*shape)
        assert (memory.shape, memory.ctypes.data % 64) == (shape, 0)
        assert not memory.any()
        memory[...] = 0xFF  # what it leaves to whoever comes next


def test_a_kernel_is_told_where_its_order_is() -> None:
    arena = OutputArena(1 << 20)
    assert arena.order_at.value == np.frombuffer(arena.order, np.uint8).ctypes.data


class Lender:
    """A port, and how often it was told that what it lent is sent."""

    settled = 0

    def lent_memory(self) -> NDArray[np.uint8]:
        raise NotImplementedError

    def lend(self, nbytes: int) -> int:
        raise NotImplementedError

    def settle(self) -> None:
        self.settled += 1


def test_a_port_that_lent_hears_once_when_the_next_step_begins() -> None:
    arena, port = OutputArena(1 << 20), Lender()
    arena.reset()
    arena.lent.append(port)
    assert port.settled == 0
    arena.reset()
    arena.reset()
    assert port.settled == 1
