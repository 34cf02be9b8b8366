"""Output of ranks that passes through the launcher, which puts a label before each line."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from inaproto.launch.labelled_lines import LabelledLines
from inaproto.launch.processes import Process

LAST_OUTPUT_S: Final = 1.0
"""What a rank has started may hold its output open for longer; what comes then comes later."""
LOOKS: Final = 10
"""Parts of that time."""
READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Output:
    """What a rank writes, and when that has been copied, as far as it is."""

    out: trio.Event = field(default_factory=trio.Event)
    err: trio.Event = field(default_factory=trio.Event)
    is_told: trio.Event = field(default_factory=trio.Event)
    """The rank has ended, and others have heard of it."""

    @property
    def ends(self) -> tuple[trio.Event, trio.Event]:
        return self.out, self.err


class Copier:
    """Copies what ranks write to the launcher's own output, line by line."""

    def __init__(self) -> None:
        self._locks = _locks()

    async def copy(self, process: Process, source: int, target: int, label: str, ended: trio.Event) -> None:
        """Until ``source`` ends, or nobody reads ``target``; ``ended`` is set then."""
        lines = LabelledLines(label)
        os.set_blocking(source, False)
        try:
            while True:
                await trio.lowlevel.wait_readable(source)
                data = os.read(source, READ_BYTES)
                await self._write(target, lines.feed(data) if data else lines.end())
                if not data:
                    return
        except OSError:  # nobody reads our output any more: the rank is to see the same
            process.close_pipe(source)
        finally:
            ended.set()

    @property
    def is_writing(self) -> bool:
        """Whether something is to be written that nobody has read yet."""
        return any(lock.locked() for lock in self._locks.values())

    async def _write(self, target: int, data: bytes) -> None:
        if not data:
            return
        async with self._locks[target]:
            # In a thread: whoever reads it may be slow, and signals are to be heard meanwhile.
            await trio.to_thread.run_sync(_write_all, target, data, abandon_on_cancel=True)


async def until_ended(
    outputs: Sequence[trio.Event], is_writing: Callable[[], bool] = lambda: False, *, looks: int = LOOKS
) -> None:
    """Until what is copied has ended, but no longer than :data:`LAST_OUTPUT_S`, or so many looks of it.

    In parts: on a machine that is busy this process may not run for a second, and has copied nothing then.
    Time in which ``is_writing`` does not count: whoever reads is slow.
    """
    while looks:
        with trio.move_on_after(LAST_OUTPUT_S / LOOKS):
            for event in outputs:
                await event.wait()
            return
        looks -= not is_writing()


def _write_all(target: int, data: bytes) -> None:
    """Waits for who reads it, also where somebody who shares it has made it one that does not block."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            room = select.poll()
            room.register(target, select.POLLOUT)
            room.poll()


def _locks() -> dict[int, trio.Lock]:
    """Of standard output and error: one, if they are one pipe or file, so that whole lines leave."""
    out = trio.Lock()
    with suppress(OSError):  # one of them is closed
        if os.path.sameopenfile(1, 2):
            return {1: out, 2: out}
    return {1: out, 2: trio.Lock()}
