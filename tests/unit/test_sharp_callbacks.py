"""No callback of SHARP's library is ever answered with success by mistake."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio

from inaproto.core.collective.events import Outcome, Weight
from inaproto.errors import FabricError
from inaproto_adapters.sharp import callbacks
from inaproto_adapters.sharp.codes import error_of, outcome_of
from inaproto_adapters.sharp.words import About, Said, unpack

FAILURES: Final[list[BaseException]] = [
    ValueError("wrong"),
    FabricError("attach", "h1", "talking", "gone", retryable=True),
    KeyboardInterrupt(),
    SystemExit(0),
    GeneratorExit(),
    StopIteration(),
    MemoryError(),
    trio.RunFinishedError(),
    trio.TooSlowError(),
    BaseExceptionGroup("several", [ValueError("one"), KeyboardInterrupt()]),
]
CALLS: Final[dict[str, Callable[[int, Any], int]]] = {
    "bcast": lambda key, memory: callbacks.BCAST(key, memory, 8, 0),
    "bcast of another": lambda key, memory: callbacks.BCAST(key, memory, 8, 1),
    "barrier": lambda key, memory: callbacks.BARRIER(key),
    "gather": lambda key, memory: callbacks.GATHER(key, 0, memory, memory, 8),
    "gather of another": lambda key, memory: callbacks.GATHER(key, 1, memory, None, 8),
}


class Scripted:
    """Rank 0 of two, whose exchanges end as told."""

    rank, size = 0, 2

    def __init__(self, told: list[bytes] | None, error: BaseException | None = None) -> None:
        self._told, self._error = told, error
        self.failures: list[BaseException] = []
        self.fails_to_keep = False

    def exchange(self, about: About, root: int, data: bytes) -> list[bytes]:
        if self._error is not None:
            raise self._error
        assert self._told is not None
        return self._told

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)
        if self.fails_to_keep:
            raise KeyboardInterrupt


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_whatever_is_raised_in_a_callback_is_a_failure_and_kept(call: str, error: BaseException) -> None:
    context = Scripted(None, error)
    key = callbacks.announce(context)
    memory = ctypes.create_string_buffer(16)
    assert CALLS[call](key, ctypes.addressof(memory)) == -1
    assert context.failures == [error]
    context.fails_to_keep = True
    assert CALLS[call](key, ctypes.addressof(memory)) == -1
    callbacks.withdraw(key)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("told", [[], [b"12345678"], [b"1", b"2"], [b"123456789" * 2, b"123456789" * 2]])
def test_words_that_do_not_fit_are_a_failure(call: str, told: list[bytes]) -> None:
    context = Scripted(told)
    key = callbacks.announce(context)
    memory = ctypes.create_string_buffer(b"unharmed")
    expected = 0 if call == "barrier" and len(told) == 2 else -1
    assert CALLS[call](key, ctypes.addressof(memory)) == expected
    assert memory.value == b"unharmed"
    callbacks.withdraw(key)


@pytest.mark.parametrize("call", CALLS)
def test_who_is_not_known_gets_a_failure(call: str) -> None:
    memory = ctypes.create_string_buffer(16)
    for key in (0, 1 << 40):
        assert CALLS[call](key, ctypes.addressof(memory)) == -1


def test_what_the_ranks_said_is_in_the_memory_of_the_caller() -> None:
    context = Scripted([b"rank0...", b"rank1..."])
    key = callbacks.announce(context)
    own, all_ = ctypes.create_string_buffer(b"rank0..."), ctypes.create_string_buffer(16)
    assert callbacks.GATHER(key, 0, ctypes.addressof(own), ctypes.addressof(all_), 8) == 0
    assert all_.raw == b"rank0...rank1..."
    assert callbacks.BCAST(key, ctypes.addressof(own), 8, 1) == 0
    assert own.value == b"rank1..."
    assert callbacks.BCAST(key, ctypes.addressof(own), -1, 1) == -1
    assert callbacks.BCAST(key, ctypes.addressof(own), 1 << 30, 1) == -1
    callbacks.withdraw(key)


@pytest.mark.parametrize("code", [-18, -1, -32_767, 32_767])
def test_a_vote_has_the_code_of_the_call(code: int) -> None:
    own = Said(About.VOTE, 3, outcome=outcome_of(code))
    assert unpack(own.pack()) == own


@pytest.mark.parametrize("code", [-32_768, 32_768, 70_000, 2**31 - 1, -(2**31)])
def test_a_code_that_no_vote_holds_is_told_in_words(code: int) -> None:
    told = unpack(Said(About.VOTE, 3, outcome=outcome_of(code)).pack()).outcome
    assert told == Outcome(0, Weight.FATAL, f"a code that is not in the interface ({code})")
    assert error_of("attach", "h1", "attaching", told).cause.count("not in the interface") == 1
