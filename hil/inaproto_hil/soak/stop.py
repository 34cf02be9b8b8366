"""How a person stops what runs: once in good order, twice at once.

The first SIGINT or SIGTERM says what is waited for and lets the blocks under way end; the second raises
``KeyboardInterrupt``, as does the first one outside a campaign. Later ones change nothing: what is left to
do then is to end the workers, which is quick.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

EXIT_STOPPED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """``requested``: no more work is to be begun."""

    def __init__(self, waits_for: Callable[[], int]) -> None:
        self.requested = False
        self._waits_for = waits_for

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            _at_once(number, frame)
        self.requested = True
        blocks = self._waits_for()
        said = f"stopping: waiting for {blocks} block{'s' * (blocks != 1)}; Ctrl-C again to stop at once\n"
        # Not through a buffered stream, in the middle of whose own work this may be.
        os.write(2, ("\n" * os.isatty(2) + said).encode())


@contextmanager
def stopping_in_order(waits_for: Callable[[], int]) -> Iterator[Stop]:
    """``waits_for`` gives the number of blocks that are under way."""
    stop = Stop(waits_for)
    with _handled_by(stop._signalled):
        yield stop


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Either signal raises ``KeyboardInterrupt``."""
    with _handled_by(_at_once):
        yield


def end_undisturbed() -> None:
    """Whoever stops it once more while it ends anyway changes nothing."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _at_once(number: int, frame: FrameType | None) -> None:
    end_undisturbed()
    raise KeyboardInterrupt


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before: list[Any] = [signal.signal(each, handler) for each in _SIGNALS]
    try:
        yield
    finally:
        for each, was in zip(_SIGNALS, before, strict=True):
            if signal.getsignal(each) != signal.SIG_IGN:  # else the end is not to be disturbed
                signal.signal(each, was)
