"""How the array of a call that failed becomes its owner's again, to which other ranks may be about to write.

A rank says that it is about to before it looks whether it may, and that it is not when it has written: that
takes as long as a block does. One that is stopped between, as by a debugger, is not waited for without end.
Then the array is kept, so that nothing else comes to lie there, and its owner is told to leave it alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from inaproto.client.stage.layout import Bytes

WRITERS_S: Final = 10.0
"""Who gives up waits so long for a rank that is about to write to it."""
_AGAIN_S: Final = 1e-4

_kept: Final[list[Bytes]] = []
"""Arrays into which a rank that is stopped may write one more block."""


def hand_back(array: Bytes, writers: Callable[[], Sequence[str]]) -> str:
    """Wait until there are no ``writers``. What the owner has to know of the array; mostly nothing."""
    until = time.monotonic() + WRITERS_S
    while names := writers():
        if time.monotonic() >= until:
            _kept.append(array)
            return (
                f"; {', '.join(names)} was stopped while it wrote to this array, and may still do so: never "
                "use the array again, or end that process"
            )
        time.sleep(_AGAIN_S)
    return ""
