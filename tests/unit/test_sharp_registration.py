"""A registration that the library ends after its time: nobody has its key, and it is undone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from inaproto_adapters.sharp.attachment import undo_late
from inaproto_adapters.sharp.calls import ContextCalls
from inaproto_adapters.sharp.config import SharpConfig
from inaproto_adapters.sharp.lane import Lane
from inaproto_adapters.sharp.memory import Regions, page_aligned


class Slow:
    """A library whose ``reg_mr`` returns when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.registered: list[int] = []

    def function(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self, f"_{name}", lambda *_: 0)
        return found

    def _reg_mr(self, context: Any, address: int, nbytes: int, handle: Any) -> int:
        assert self.let.wait(600)
        handle._obj.value = 77
        self.registered.append(77)
        return 0

    def _dereg_mr(self, context: Any, handle: int) -> int:
        self.registered.remove(handle)
        return 0


async def test_memory_that_is_registered_too_late_is_given_back() -> None:
    library = Slow()
    calls = ContextCalls(library, SharpConfig(), 0, 2, 1)  # type: ignore[arg-type]
    lane = Lane(library, "test")  # type: ignore[arg-type]
    _, region, _ = Regions().add(page_aligned(4096))
    done = trio.Event()
    lane.call(partial(calls.register, region), lambda outcome, error: None)
    undo_late(lane, calls, region)
    lane.call(lambda: None, lambda outcome, error: done.set())
    library.let.set()
    with trio.fail_after(600):
        await done.wait()
    assert region.handle == 77
    assert library.registered == []
    lane.close()
    await lane.wait_ended()
