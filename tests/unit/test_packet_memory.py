"""Memory that packets go through: bounded, given again, never handed out twice at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.switch.packet_memory import OutputArena, PayloadPool

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
    buffer.array[...] = 0
    buffer.cuts[1][2][5] = 9
    assert buffer.array[1, 2, 5] == 9
    assert [len(rank) for rank in buffer.cuts] == [3, 3]
    assert all(len(row) == 64 for rank in buffer.cuts for row in rank)
