"""Clock vectors, sums of updates, and words compared by value."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.models.fixed_point import dequantised, is_quantisable, quantised
from inaproto.core.models.updates import Update, added, goes_on, rest_after, total
from inaproto.errors import LocalMisuse
from inaproto.wire.messages.clocks import FOREVER, NO_CLOCKS, REMOVED, Clocks, WorkerId
from inaproto.wire.messages.models import Push, Weights

A, B, C = WorkerId(0), WorkerId(1), WorkerId(2)


def update(before: dict[WorkerId, int], after: dict[WorkerId, int], value: int | None = 1) -> Update:
    return Update(1, Clocks(before), Clocks(after), None if value is None else np.full(2, value))


def test_a_vector_is_in_the_order_of_its_workers_and_compares_by_value() -> None:
    vector = Clocks([(B, 2), (A, 5)])
    assert vector.workers == (A, B)
    assert vector == Clocks({A: 5, B: 2})
    assert hash(vector) == hash(Clocks({A: 5, B: 2}))
    assert vector != Clocks({A: 5})
    assert (vector[A], vector.get(C), len(vector), C in vector, list(vector)) == (5, None, 2, False, [A, B])
    assert list(vector.items()) == [(A, 5), (B, 2)]
    assert repr(Clocks({A: 1, B: FOREVER, C: REMOVED})) == "Clocks({0: 1, 1: forever, 2: removed})"
    with pytest.raises(KeyError):
        vector[C]


def test_the_least_clock_is_of_all_or_of_some() -> None:
    vector = Clocks({A: 5, B: 2, C: FOREVER})
    assert vector.minimum() == 2
    assert vector.minimum([A, C]) == 5
    assert vector.minimum([WorkerId(9)]) == NO_CLOCKS.minimum() == FOREVER


def test_a_vector_covers_another_if_it_knows_all_its_workers_and_is_nowhere_behind() -> None:
    vector = Clocks({A: 5, B: 2})
    assert vector.covers(Clocks({A: 5}))
    assert vector.covers(NO_CLOCKS)
    assert not vector.covers(Clocks({A: 6}))
    assert not vector.covers(Clocks({C: 0}))


def test_vectors_are_restricted_replaced_and_joined() -> None:
    vector = Clocks({A: 5, B: 2})
    assert vector.restricted([B, C]) == Clocks({B: 2})
    assert vector.with_(Clocks({B: 1, C: 0})) == Clocks({A: 5, B: 1, C: 0})
    assert vector.joined(Clocks({A: 4, B: 7, C: 0})) == Clocks({A: 5, B: 7, C: 0})
    assert Clocks.alike([B, A], 3) == Clocks({A: 3, B: 3})
    assert Clocks.alike([B]) == Clocks({B: 0}), "a new model is at 0"


def test_an_update_is_inside_a_vector_goes_on_from_it_or_neither() -> None:
    one = update({A: 1, B: 3}, {A: 2, B: 4})
    assert goes_on(Clocks({A: 1, B: 3, C: 9}), one)
    assert not goes_on(Clocks({A: 2, B: 3}), one)
    assert not goes_on(Clocks({A: 1}), one), "nothing is known of the other"
    assert rest_after([one], Clocks({A: 2, B: 4})) == ([], Clocks({A: 2, B: 4}))
    assert rest_after([one], Clocks({A: 1, B: 3})) == ([one], Clocks({A: 2, B: 4}))
    assert rest_after([one], Clocks({A: 2, B: 3})) is None


def test_the_rest_of_a_log_has_no_gap() -> None:
    first, second = update({A: 0}, {A: 1}), update({A: 1}, {A: 3})
    assert rest_after([first, second], Clocks({A: 1})) == ([second], Clocks({A: 3}))
    assert rest_after([second], Clocks({A: 0})) is None
    assert rest_after([first, second], Clocks({A: 2})) is None, "a part of the second"


def test_updates_add_up_from_the_first_clocks_to_the_last() -> None:
    whole = total([update({A: 0}, {A: 1}, 1), update({B: 4}, {B: 5}, None), update({A: 1}, {A: 2}, 5)], 7)
    assert whole.delta is not None
    assert (whole.clock, whole.before, whole.after) == (7, Clocks({A: 0, B: 4}), Clocks({A: 2, B: 5}))
    assert whole.delta.tolist() == [6, 6]
    one = update({A: 0}, {A: 1})
    assert total([one], 1) == one


def test_a_sum_is_new_and_nobody_can_write_it_and_nothing_adds_nothing() -> None:
    left, right = np.arange(3), np.ones(3, np.int64)
    found = added(left, right)
    assert found is not None
    assert found.tolist() == [1, 2, 3]
    assert not found.flags.writeable
    assert left.tolist() == [0, 1, 2]
    assert added(None, right) is right
    assert added(left, None) is left
    assert added(None, None) is None


def test_words_compare_by_the_bytes_of_their_arrays() -> None:
    def push(value: float, dtype: str = "float32") -> Push:
        return Push(1, 2, Clocks({A: 0}), Clocks({A: 1}), np.full(2, value, dtype))

    assert push(1) == push(1)
    assert hash(push(1)) == hash(push(1))
    assert push(1) != push(2)
    assert push(0.0) != push(-0.0)
    assert push(0, "float32") != push(0, "int32")
    assert push(1) != Weights(NO_CLOCKS, NO_CLOCKS, np.ones(2))
    assert Update.of(push(1)).push(1) == push(1)


def test_reals_are_rounded_to_the_nearest_multiple_and_what_does_not_fit_is_refused() -> None:
    numbers = quantised(np.array([0.25, 0.375, -0.125, 1e-9]), 2, np.dtype("int32"))
    assert numbers.tolist() == [1, 2, 0, 0], "ties go to the even one"
    assert numbers.dtype == np.int32
    assert dequantised(numbers, 2).tolist() == [0.25, 0.5, 0.0, 0.0]
    assert not dequantised(numbers, 2).flags.writeable, "as weights of the other kinds"
    why = "^fixed point with 2 fraction bits in int32: a value is not finite or too great$"
    for wrong in (np.nan, np.inf, 1.7e308, 2.0**29, -(2.0**29)):
        values = np.array([1.0, wrong])
        assert not is_quantisable(values, 2, np.dtype("int32"))
        with pytest.raises(LocalMisuse, match=why):
            quantised(values, 2, np.dtype("int32"))
    most = np.array([2.0**29 - 1])
    assert is_quantisable(most, 2, np.dtype("int32"))
    assert not is_quantisable(most, 3, np.dtype("int32"))
    assert quantised(np.array([2.0**29 - 1]), 2, np.dtype("int32")).tolist() == [2**31 - 4]
