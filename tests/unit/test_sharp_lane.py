"""The thread of a SHARP context: what becomes of an operation that the library does not treat as promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from inaproto_adapters.sharp.bell import Bell
from inaproto_adapters.sharp.lane import Lane, Operation
from inaproto_adapters.sharp.layout import CLASSES


class Library:
    """Answers as told, and counts what is freed."""

    def __init__(self, *, code: int = 0, handle: int | None = None, tested: int = 1, freed: int = 0) -> None:
        self.code, self.handle, self.tested, self.freed_code = code, handle, tested, freed
        self.freed = 0

    def function(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self, f"_{name}")
        return found

    def _do_allreduce_nb(self, comm: Any, spec: Any, handle: Any) -> int:
        handle._obj.value = self.handle
        return self.code

    def _req_test(self, handle: Any) -> int:
        return self.tested

    def _req_free(self, handle: Any) -> int:
        self.freed += 1
        return self.freed_code

    def _progress(self, context: Any) -> int:
        return 0


async def ended(library: Library, bell: Bell | None = None) -> int:
    """The code with which an operation ends."""
    lane = Lane(library, "test")  # type: ignore[arg-type]
    codes: list[int] = []
    done = trio.Event()

    def told(operation: Operation, code: int) -> None:
        codes.append(code)
        done.set()

    operation = Operation(None, CLASSES["sharp_coll_reduce_spec"](), (), told, bell)
    with trio.fail_after(600):
        lane.post(operation)
        if bell is None:
            await done.wait()
        else:
            await bell.wait()
            assert operation.code is not None
            codes.append(operation.code)
        lane.close()
        await lane.wait_ended()
    [code] = codes
    return code


async def test_one_that_is_done_ends_with_what_freeing_it_says() -> None:
    library = Library(handle=7)
    assert await ended(library) == 0
    assert library.freed == 1
    assert await ended(Library(handle=7, freed=-1)) == -1


@pytest.mark.parametrize(("tested", "freed", "code"), [(-3, 0, -3), (-3, -1, -3), (2, 0, 0)])
async def test_a_test_that_answers_an_error_is_no_end_of_a_sum(tested: int, freed: int, code: int) -> None:
    library = Library(handle=7, tested=tested, freed=freed)
    assert await ended(library) == code
    assert library.freed == 1


async def test_one_that_is_refused_ends_with_the_code() -> None:
    library = Library(code=-18)
    assert await ended(library) == -18
    assert library.freed == 0


async def test_one_without_a_handle_has_failed_though_the_library_says_that_all_is_fine() -> None:
    library = Library(code=0, handle=None)
    assert await ended(library) == -1
    assert library.freed == 0


async def test_a_bell_is_rung_in_place_of_a_call() -> None:
    bell = Bell()
    try:
        assert await ended(Library(handle=7), bell) == 0
        assert await ended(Library(code=-18), bell) == -18
    finally:
        bell.close()


async def test_who_has_left_is_called() -> None:
    """It may have looked for a code before there was one."""
    bell = Bell()
    lane = Lane(Library(handle=7), "test")  # type: ignore[arg-type]
    done = trio.Event()
    operation = Operation(None, CLASSES["sharp_coll_reduce_spec"](), (), lambda *about: done.set(), bell)
    operation.is_left = True
    with trio.fail_after(600):
        lane.post(operation)
        await done.wait()
        lane.close()
        await lane.wait_ended()
    bell.close()
